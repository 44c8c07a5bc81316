//! What `haul layout` says of files on a volume, against what `getfattr` says.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Volume;
use crate::network::succeed;
use crate::parallel::layouts::Expected;
use crate::parallel::{files, join};

/// The attribute as text, asked by a program that knows nothing of haul.
pub(super) fn pathinfo(path: &Path) -> io::Result<String> {
    let mut command = Command::new("getfattr");
    command.args(["--only-values", "--absolute-names", "-n", "glusterfs.pathinfo"]).arg(path);
    Ok(String::from_utf8_lossy(&succeed(&mut command)?.stdout).into_owned())
}

/// `host:/brick` of a file: the first brick that is told, up to the path that ends in its name.
fn brick_of(path: &Path) -> io::Result<String> {
    let told = pathinfo(path)?;
    let strange = || io::Error::other(format!("{}: {told}", path.display()));
    let (brick, rest) =
        told.split_once("<POSIX(").and_then(|(_, rest)| rest.split_once("):")).ok_or_else(strange)?;
    let (host, real) = rest.split_once(':').ok_or_else(strange)?;
    // The file is where it is said to be, and no link to another brick.
    let real = Path::new(real.trim_end_matches([')', '>', '\0']));
    let whole = real
        .symlink_metadata()
        .is_ok_and(|found| found.len() > 0 || path.metadata().is_ok_and(|file| file.len() == 0));
    if whole { Ok(format!("{host}:{brick}")) } else { Err(strange()) }
}

/// A file on a brick that only says on which other one the file is that has this name.
pub(super) fn pointer_in(volume: &Volume, below: &Path) -> io::Result<Option<PathBuf>> {
    // For unfinished files with longer names there is no room in their own.
    const NAME_BYTES_MAX: usize = 216;
    const MODE: u32 = 0o1000;
    for brick in volume.bricks() {
        for path in files(&brick.join(below))? {
            let path = join(&brick.join(below), &path);
            let found = path.symlink_metadata()?;
            let long = path.file_name().is_some_and(|name| name.len() > NAME_BYTES_MAX);
            if found.is_file() && found.len() == 0 && found.mode() & 0o7777 == MODE && !long {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}

/// What is wrong with the table and the JSON of a tree.
pub(super) fn is_wrong(haul: &dyn Fn() -> Command, tree: &Path) -> io::Result<Option<String>> {
    let mut expected = Expected::default();
    for path in files(tree)? {
        let path = join(tree, &path);
        let brick = brick_of(&path)?;
        expected.bytes(&brick, path.metadata()?.len());
        expected.file(path, vec![brick]);
    }
    expected.is_wrong(haul, "gluster", tree)
}
