//! Extended attributes by name: the layout, and what is kept for users.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use crate::attribute;
use crate::filesystem::StripeFs;
use crate::node::{Node, is_private};

/// Whose attribute it is.
enum Owner {
    /// The layout, by either of its names.
    Layout,
    /// `user.` and `trusted.`: kept as they are.
    User,
    /// The kernel asks for it all the time, and there never is one.
    Absent,
    /// Not kept.
    Unsupported,
}

fn owner(name: &[u8]) -> Owner {
    match name {
        b"trusted.lov" => Owner::Layout,
        name if name == attribute::NAME.as_bytes() => Owner::Layout,
        name if is_private(name) => Owner::Absent,
        name if name.starts_with(b"user.") || name.starts_with(b"trusted.") => Owner::User,
        name if name.starts_with(b"security.") || name.starts_with(b"lustre.") => Owner::Absent,
        _ => Owner::Unsupported,
    }
}

/// The value; `ENODATA` where there is none.
pub(crate) fn get(filesystem: &StripeFs, node: &Node, name: &[u8]) -> Result<Vec<u8>, Errno> {
    match owner(name) {
        Owner::Layout => filesystem.shown_layout(node),
        Owner::User => node.attribute(OsStr::from_bytes(name)),
        Owner::Absent => Err(Errno::NODATA),
        Owner::Unsupported => Err(Errno::OPNOTSUPP),
    }
}

/// Sets it; `flags` as `setxattr` has them, which mean nothing for a layout.
pub(crate) fn set(
    filesystem: &StripeFs,
    node: &Node,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Result<(), Errno> {
    match owner(name) {
        Owner::Layout => filesystem.set_layout(node, value),
        Owner::User => {
            let flags = XattrFlags::from_bits_truncate(flags as u32);
            node.set_attribute(OsStr::from_bytes(name), value, flags)
        }
        Owner::Absent | Owner::Unsupported => Err(Errno::OPNOTSUPP),
    }
}

/// Removes it. The layout of a file stays, without an error, as in Lustre.
pub(crate) fn remove(node: &Node, name: &[u8]) -> Result<(), Errno> {
    match owner(name) {
        Owner::Layout if node.kind == FileType::Directory => node.remove_layout(),
        Owner::Layout => Ok(()),
        Owner::User => node.remove_attribute(OsStr::from_bytes(name)),
        Owner::Absent | Owner::Unsupported => Err(Errno::NODATA),
    }
}

/// All names, each with a zero behind it.
pub(crate) fn list(filesystem: &StripeFs, node: &Node) -> Result<Vec<u8>, Errno> {
    let mut names = node.attribute_names()?;
    if filesystem.shown_layout(node).is_ok() {
        names.extend(attribute::NAME.as_bytes());
        names.push(0);
    }
    Ok(names)
}
