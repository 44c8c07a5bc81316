//! What is moved, and between which file systems.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::dataset::{random_file, source_tree};
use crate::evaluation::tool;
use crate::tree;

const MIB: u64 = 1 << 20;
/// Files of the Linux source tree of Debian 12, which the generated tree imitates where that is missing.
const TREE_FILES: u64 = 78_579;
/// The name of the one file of the big cases.
pub const BIG_FILE: &str = "big";

/// One comparison.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Case {
    /// One file of 4 GiB, in memory.
    Big,
    /// 30 files of 128 MiB, in memory.
    Thirty,
    /// 2,000 files of 1 MiB, in memory.
    Files,
    /// A source tree, in memory.
    Tree,
    /// One file of 4 GiB, on a disk.
    BigDisk,
    /// A source tree, on a disk.
    TreeDisk,
}

impl Case {
    /// All of them.
    pub const ALL: [Case; 6] =
        [Case::Big, Case::Thirty, Case::Files, Case::Tree, Case::BigDisk, Case::TreeDisk];

    /// As it is named on the command line and in files.
    pub const fn name(self) -> &'static str {
        match self {
            Case::Big => "big",
            Case::Thirty => "thirty",
            Case::Files => "files",
            Case::Tree => "tree",
            Case::BigDisk => "big-disk",
            Case::TreeDisk => "tree-disk",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }

    /// Both ends are on a disk, and a run ends when what it wrote is there.
    pub const fn is_on_disk(self) -> bool {
        matches!(self, Case::BigDisk | Case::TreeDisk)
    }

    /// One file.
    pub const fn is_one_file(self) -> bool {
        matches!(self, Case::Big | Case::BigDisk)
    }

    /// Files of many pages: their memory file system has huge ones.
    pub const fn has_big_files(self) -> bool {
        matches!(self, Case::Big | Case::Thirty | Case::BigDisk)
    }
}

/// What a case moves.
#[derive(Clone, PartialEq, Debug)]
pub struct Dataset {
    /// Of which case.
    pub case: Case,
    /// In words.
    pub title: String,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Makes it in `source`, which is not there yet; `scale` is a share of the full size.
pub fn make(case: Case, scale: f64, source: &Path) -> io::Result<Dataset> {
    let scaled = |number: u64| ((number as f64 * scale).round() as u64).max(1);
    let size = |bytes: u64| match bytes / MIB {
        mib if mib >= 1024 && mib % 1024 == 0 => format!("{} GiB", mib / 1024),
        mib => format!("{mib} MiB"),
    };
    let many = |count: u64, bytes: u64| -> io::Result<String> {
        fs::create_dir(source)?;
        for number in 0..count {
            random_file(&source.join(format!("file-{number:04}")), number, bytes)?;
        }
        Ok(format!("{count} files of {}", size(bytes)))
    };
    let title = match case {
        Case::Big | Case::BigDisk => {
            fs::create_dir(source)?;
            let bytes = scaled(4096) * MIB;
            random_file(&source.join(BIG_FILE), 1, bytes)?;
            format!("one file of {}", size(bytes))
        }
        Case::Thirty => many(30, scaled(128) * MIB)?,
        Case::Files => many(scaled(2000), MIB)?,
        Case::Tree | Case::TreeDisk => match linux_source() {
            Some(archive) if scale == 1.0 => {
                fs::create_dir(source)?;
                tool(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(source))?;
                format!("the tree of {}", archive.file_name().unwrap_or_default().to_string_lossy())
            }
            _ => {
                source_tree(source, 1, scaled(TREE_FILES))?;
                format!("a generated source tree of {} files", scaled(TREE_FILES))
            }
        },
    };
    // One that lies whole seconds before every copy: rsync leaves the time of a directory alone that differs by less.
    set_directory_times(source)?;
    let totals = tree::totals(source)?;
    Ok(Dataset { case, title, files: totals.files, bytes: totals.bytes })
}

fn set_directory_times(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            set_directory_times(&entry.path())?;
        }
    }
    File::open(directory)?.set_modified(UNIX_EPOCH + Duration::from_secs(1_600_000_000))
}

/// The sources of Debian's newest kernel, if they are installed.
fn linux_source() -> Option<PathBuf> {
    let found = fs::read_dir("/usr/src").ok()?.flatten().map(|entry| entry.path());
    found
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with("linux-source-") && name.ends_with(".tar.xz")
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_as_large_as_its_scale_says() {
        let scratch = tempfile::tempdir().unwrap();
        let made = |case: Case, scale| make(case, scale, &scratch.path().join(case.name())).unwrap();
        let big = made(Case::Big, 0.0005);
        assert_eq!((big.files, big.bytes, big.title.as_str()), (1, 2 * MIB, "one file of 2 MiB"));
        let thirty = made(Case::Thirty, 0.001);
        assert_eq!((thirty.files, thirty.bytes), (30, 30 * MIB));
        let files = made(Case::Files, 0.001);
        assert_eq!((files.files, files.title.as_str()), (2, "2 files of 1 MiB"));
        let tree = made(Case::TreeDisk, 0.002);
        assert_eq!(tree.files, 157);
        assert!(tree.title.starts_with("a generated"));
    }

    #[test]
    fn names_lead_back_to_their_cases() {
        assert!(Case::ALL.iter().all(|case| Case::from_name(case.name()) == Some(*case)));
        assert_eq!(Case::from_name("cost"), None);
    }
}
