//! Entries of NEW_FILE.

use alloc::boxed::Box;
use alloc::vec::Vec;

use haul_model::limits::{FILE_BYTES_MAX, LINK_TARGET_BYTES_MAX, NAME_BYTES_MAX, SOURCES_MAX};
use haul_model::{Attributes, Entry, EntryId, Identity, Kind};

use crate::bytes::{Malformed, Reader, put_bytes, put_signed, put_time, put_varint};

/// Root directories are rare: the low bit tells them apart, so that real ids stay short.
pub(crate) fn put_id(out: &mut Vec<u8>, id: EntryId) {
    match id.root_index() {
        Some(index) => put_varint(out, u64::from(index) << 1 | 1),
        None => put_varint(out, id.0 << 1),
    }
}

pub(crate) fn id(reader: &mut Reader<'_>) -> Result<EntryId, Malformed> {
    let value = reader.varint()?;
    if value & 1 == 0 {
        return Ok(EntryId(value >> 1));
    }
    let index = value >> 1;
    if index < SOURCES_MAX as u64 {
        Ok(EntryId::root(index as u32))
    } else {
        Err(Malformed("no such source"))
    }
}

/// A name that is one path component; empty exactly below a root.
fn check_name(name: &[u8], parent: EntryId) -> Result<(), Malformed> {
    if parent.root_index().is_some() {
        return if name.is_empty() { Ok(()) } else { Err(Malformed("a source brings a name of its own")) };
    }
    match name {
        b"" | b"." | b".." => Err(Malformed("name is not a path component")),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Malformed("name has a slash or NUL")),
        _ => Ok(()),
    }
}

pub(crate) fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    let kind = match entry.kind {
        Kind::File => 0,
        Kind::Directory => 1,
        Kind::Symlink => 2,
        Kind::Other => 3,
    };
    out.push(kind);
    put_id(out, entry.id);
    put_id(out, entry.parent);
    put_bytes(out, &entry.name);
    let attributes = &entry.attributes;
    put_varint(out, u64::from(attributes.mode));
    put_varint(out, u64::from(attributes.uid));
    put_varint(out, u64::from(attributes.gid));
    put_time(out, attributes.mtime);
    put_time(out, attributes.atime);
    match entry.kind {
        Kind::File => {
            let identity = &entry.identity;
            put_varint(out, identity.size);
            put_signed(out, identity.ctime.seconds);
            put_varint(out, u64::from(identity.ctime.nanos));
            put_varint(out, identity.inode);
            put_varint(out, u64::from(entry.links));
        }
        Kind::Symlink => put_bytes(out, &entry.link_target),
        Kind::Directory | Kind::Other => {}
    }
}

pub(crate) fn entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let kind = match reader.u8()? {
        0 => Kind::File,
        1 => Kind::Directory,
        2 => Kind::Symlink,
        3 => Kind::Other,
        _ => return Err(Malformed("no such kind of entry")),
    };
    let id = id(reader)?;
    if id.root_index().is_some() || id.0 == 0 {
        return Err(Malformed("an entry cannot be a root"));
    }
    let parent = self::id(reader)?;
    let name = reader.boxed(NAME_BYTES_MAX)?;
    check_name(&name, parent)?;
    let attributes = Attributes {
        mode: reader.bounded(0o7777)? as u32,
        uid: reader.u32()?,
        gid: reader.u32()?,
        mtime: reader.time()?,
        atime: reader.time()?,
    };
    let mut entry = Entry {
        id,
        parent,
        name,
        kind,
        attributes,
        identity: Identity::default(),
        links: 1,
        link_target: Box::default(),
    };
    match kind {
        Kind::File => {
            let size = reader.bounded(FILE_BYTES_MAX)?;
            let ctime = reader.time()?;
            entry.identity = Identity { size, mtime: attributes.mtime, ctime, inode: reader.varint()? };
            entry.links = reader.u32()?;
        }
        Kind::Symlink => {
            entry.link_target = reader.boxed(LINK_TARGET_BYTES_MAX)?;
            if entry.link_target.is_empty() || entry.link_target.contains(&0) {
                return Err(Malformed("symlink target is empty or has a NUL"));
            }
        }
        Kind::Directory | Kind::Other => {}
    }
    Ok(entry)
}
