//! `haul layout`: which targets hold files, and how evenly. It only reads.

use std::fs::{File, ReadDir};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use haul_model::{Code, Failure};
use haul_mover::Error;
use haul_storage::layout::stripe::Plan;
use haul_storage::layout::{Found, Kind, LayoutFile, Layouts, Options};
use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::layout_report::{Report, Row, What};
use crate::options;
use crate::paths::show;
use crate::report::ended;

/// `haul layout`
pub fn layout(arguments: &options::Layout) -> Result<u8, Error> {
    let layout_file = arguments.layout_file.as_deref().map(LayoutFile::read).transpose();
    let layout_file = layout_file.map_err(|error| {
        Error::new(Code::Usage, error.to_string())
            .hint("its lines are PATH SIZE TARGET..., SIZE is - for no stripes")
    })?;
    let layouts = Layouts::new(Options { layout_file, eager: true, ..Options::default() });
    let report = Report::new(&layouts, BufWriter::new(io::stdout().lock()), arguments.json);
    let mut walk = Walk { layouts: &layouts, report, recursive: arguments.recursive, failed: 0 };
    let walked = arguments.paths.iter().try_for_each(|path| walk.named(Path::new(path)));
    let failed = walk.failed;
    ended(walked.and_then(|()| walk.report.finish(failed)))?;
    Ok(if failed == 0 { 0 } else { 3 })
}

struct Walk<'a, W: Write> {
    layouts: &'a Layouts,
    report: Report<'a, W>,
    recursive: bool,
    failed: u64,
}

/// A directory that is being read.
struct Open {
    path: PathBuf,
    entries: ReadDir,
    default: Option<Plan>,
    /// To ask whether all names were listed, and its device.
    held: Option<(File, u64)>,
}

/// What a path leads to.
enum Thing {
    File { size: u64, found: Found },
    Directory(Option<(Plan, Kind)>),
    Symlink,
}

impl<W: Write> Walk<'_, W> {
    /// A path as the user typed it: a symlink is followed.
    fn named(&mut self, path: &Path) -> io::Result<()> {
        let mut stack = Vec::new();
        match look(self.layouts, path, OFlags::empty()) {
            Err(errno) => return self.fail(path, failure(errno)),
            Ok(None) => return self.fail(path, Code::UnsupportedKind.into()),
            Ok(Some(thing)) => self.tell(path, thing, None, &mut stack)?,
        }
        while let Some(open) = stack.last_mut() {
            let entry = match open.entries.next() {
                None => {
                    if let Some(Open { path, held: Some((directory, device)), .. }) = stack.pop()
                        && self.layouts.hides_names(directory.as_fd(), device)
                    {
                        self.fail(&path, failure(Errno::NOTCONN))?;
                    }
                    continue;
                }
                Some(Err(error)) => {
                    let path = stack.pop().expect("it is the last one").path;
                    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                    self.fail(&path, failure(errno))?;
                    continue;
                }
                Some(Ok(entry)) => entry,
            };
            let path = open.path.join(entry.file_name());
            let default = open.default.clone();
            match look(self.layouts, &path, OFlags::NOFOLLOW) {
                // It was removed meanwhile: not there is no trouble.
                Err(Errno::NOENT) | Ok(None) => {}
                Err(errno) => self.fail(&path, failure(errno))?,
                Ok(Some(thing)) => self.tell(&path, thing, Some(default), &mut stack)?,
            }
        }
        Ok(())
    }

    /// `above`: what new files get in the directory that it was found in; `None` for what the user named.
    fn tell(
        &mut self,
        path: &Path,
        thing: Thing,
        above: Option<Option<Plan>>,
        stack: &mut Vec<Open>,
    ) -> io::Result<()> {
        let bytes = path.as_os_str().as_bytes().to_vec();
        match thing {
            Thing::Symlink => Ok(()),
            Thing::File { size, found } => self.report.row(Row {
                path: bytes,
                kind: Some(found.kind),
                what: What::File { size, layout: found.layout },
            }),
            Thing::Directory(found) => {
                let (default, kind) = found.unzip();
                if above.as_ref() != Some(&default) && (default.is_some() || above.is_none()) {
                    self.report.row(Row { path: bytes, kind, what: What::Directory(default.clone()) })?;
                }
                if !self.recursive {
                    return Ok(());
                }
                match std::fs::read_dir(path) {
                    Ok(entries) => {
                        let opened = File::open(path).and_then(|held| Ok((held.metadata()?.dev(), held)));
                        let held = opened.ok().map(|(device, held)| (held, device));
                        stack.push(Open { path: path.to_owned(), entries, default, held });
                    }
                    Err(error) => {
                        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                        return self.fail(path, failure(errno));
                    }
                }
                Ok(())
            }
        }
    }

    fn fail(&mut self, path: &Path, failure: Failure) -> io::Result<()> {
        self.failed += 1;
        let path = path.as_os_str().as_bytes();
        if self.report.is_json() {
            return self.report.failed(path, failure);
        }
        // In the order of the paths.
        self.report.flush()?;
        crate::report::error(&Error { failure, about: show(path), hint: None });
        Ok(())
    }
}

/// Looks at what stands there without touching anything but files and directories: opening a FIFO waits, and opening a
/// device may do anything. `None` for those.
fn look(layouts: &Layouts, path: &Path, follow: OFlags) -> rustix::io::Result<Option<Thing>> {
    let held = fs::open(path, OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty())?;
    let status = fs::fstat(&held)?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => {
            let file = reopened(&held)?;
            let found = layouts.find(file.as_fd(), status.st_dev);
            Ok(Some(Thing::File { size: u64::try_from(status.st_size).unwrap_or(0), found }))
        }
        FileType::Directory => {
            let directory = reopened(&held)?;
            Ok(Some(Thing::Directory(layouts.plan_of(directory.as_fd(), status.st_dev))))
        }
        FileType::Symlink => Ok(Some(Thing::Symlink)),
        _ => Ok(None),
    }
}

/// The same file, open for reading its attributes.
fn reopened(held: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())
}

fn failure(errno: Errno) -> Failure {
    let code = match errno {
        Errno::NOENT | Errno::NOTDIR => Code::SourceMissing,
        Errno::ACCESS | Errno::PERM => Code::SourcePermission,
        _ => Code::SourceRead,
    };
    Failure::os(code, errno.raw_os_error())
}
