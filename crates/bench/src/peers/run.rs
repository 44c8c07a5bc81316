//! One run of one tool: time, processor time and memory of both ends, and a look at the result.
//!
//! Processor time of the near end is what the kernel says of children that have ended; of the far end it is by how much the
//! accounts of the servers grew, that have started the far processes and waited for them. Memory is looked at while it runs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::fs::Advice;

use super::case::{Case, Dataset};
use super::servers::{Daemon, Servers};
use super::tool::{Place, Tool};
use crate::evaluation::say;
use crate::machine::touch_free_memory;
use crate::process::{
    Guarded, POLL, descendants, end_descendants, look, reap_orphans, ticks, unblock_signals, wait_until,
};
use crate::tree::{self, Difference, Options};

/// Datasets of fewer bytes fit into memory that was used a moment ago.
const WARM_BYTES_MIN: u64 = 512 << 20;
/// Memory for programs, beside that of results.
const PROGRAM_BYTES: usize = 3 << 29;
/// A run that takes longer is ended.
const RUN_LIMIT: Duration = Duration::from_secs(600);
/// How often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Of a dataset's files so many times as many inodes stay free: directories have some, too.
const INODES_SPARE: u64 = 3;
/// Far ends are gone soon after the near ones.
const LINGERS: Duration = Duration::from_secs(10);

/// What one run took.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Sample {
    /// From typing the command to its end; on a disk, until what was written is there.
    pub seconds: f64,
    /// Processor seconds of what the command started.
    pub near_processor_seconds: f64,
    /// Processor seconds of the servers and of what they started.
    pub far_processor_seconds: f64,
    /// The most resident memory of the near processes together, in bytes.
    pub near_resident: u64,
    /// The same of the servers and of what they started.
    pub far_resident: u64,
}

/// Where all runs of a case happen.
pub struct Stage<'a> {
    /// The program under test.
    pub haul: &'a Path,
    /// What is moved.
    pub dataset: &'a Dataset,
    /// Where it is.
    pub source: &'a Path,
    /// What results are made in: [`Stage::result`].
    pub sink: &'a Path,
    /// What haul keeps of its transfers.
    pub state: &'a Path,
    /// For everything else.
    pub scratch: &'a Path,
    /// The far ends.
    pub servers: &'a Servers,
    /// A run ends when what it wrote is on the disk.
    pub is_on_disk: bool,
}

impl Stage<'_> {
    fn result(&self) -> PathBuf {
        self.sink.join("result")
    }

    /// Calls something with the place of a run.
    pub fn with_place<T>(&self, work: impl FnOnce(&Place) -> T) -> T {
        let result = self.result();
        work(&Place {
            haul: self.haul,
            source: self.source,
            result: &result,
            state: self.state,
            far_haul: &self.scratch.join("far-haul"),
            servers: self.servers,
            case: self.dataset.case,
            findings: &self.scratch.join("findings"),
        })
    }

    /// Makes what all runs need; once.
    pub fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(self.scratch)?;
        fs::create_dir_all(self.sink)?;
        fs::set_permissions(self.sink, fs::Permissions::from_mode(0o755))?;
        // The far end keeps its state beside the near one's.
        let script = self.scratch.join("far-haul");
        let (state, haul) = (self.state, self.haul.display());
        fs::write(
            &script,
            format!("#!/bin/sh\nHAUL_STATE_DIR={}/far exec {haul} \"$@\"\n", state.display()),
        )?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
    }

    /// Removes the result of the run before.
    pub fn clear(&self) -> io::Result<()> {
        if self.is_on_disk {
            self.put_aside()?;
        } else {
            tree::remove(&self.result())?;
        }
        tree::remove(self.state)
    }

    /// Its files stay until the case ends, without their contents. Before ext4 without a journal makes a file, it looks at all that
    /// were removed in the minutes before, so each run would wait for what the ones before it have left.
    fn put_aside(&self) -> io::Result<()> {
        let result = self.result();
        if result.symlink_metadata().is_err() {
            return Ok(());
        }
        if !is_room_for_more(self.sink, self.dataset.files) {
            say("few inodes are left there: results are removed, and later runs may have to wait for that");
            return tree::remove(&result);
        }
        if !result.is_dir() {
            File::create(&result)?;
        } else if tree::empty_files(&result).is_err() {
            // What may not be written to can be removed all the same.
            return tree::remove(&result);
        }
        let mut places = (0u32..).map(|number| self.sink.join(format!("earlier-{number}")));
        let place = places.find(|place| place.symlink_metadata().is_err());
        fs::rename(result, place.expect("there are few"))
    }

    /// Nobody but who writes there may: what root's programs write would else go where somebody's symlink leads.
    fn give_to(&self, user: Option<u32>) -> io::Result<()> {
        if rustix::process::geteuid().is_root() {
            let owner = Some(user.unwrap_or(0));
            let places = [self.sink.to_owned(), self.result()];
            for place in places.iter().filter(|place| place.exists()) {
                chown(place, owner, owner)?;
                fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// One run into an empty destination. What went wrong is in words.
    pub fn run(&self, tool: &Tool) -> io::Result<Sample> {
        self.clear()?;
        fs::create_dir_all(self.state.join("far"))?;
        if tool.needs_directory() {
            fs::create_dir(self.result())?;
        }
        self.give_to(tool.daemon().and_then(Daemon::user))?;
        if self.is_on_disk {
            self.settle()?;
        }
        // Also before runs on a disk: its page cache is memory.
        if self.dataset.bytes >= WARM_BYTES_MIN {
            let result_bytes = self.dataset.bytes + self.dataset.files * 4096;
            touch_free_memory(result_bytes as usize + PROGRAM_BYTES);
        }
        let errors = self.scratch.join("errors");
        let mut command = self.with_place(|place| tool.command(place));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&errors)?);
        // Of the far end: what the tool itself talks to. The other servers have nothing to do.
        let servers: Vec<i32> =
            tool.daemon().and_then(|daemon| self.servers.pid(daemon)).into_iter().collect();
        servers.iter().for_each(|pid| forget_peak(*pid));
        let idle = families(&servers);
        let far_before = used(&servers);
        let near_before = finished_children();
        let started = Instant::now();
        let mut child = Guarded::spawn(unblock_signals(&mut command))?;
        let mut peaks = Peaks::default();
        let mut looked = started;
        while child.status().is_none() && started.elapsed() < RUN_LIMIT {
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                peaks.look(child.pid(), &servers);
            }
            std::thread::sleep(POLL);
        }
        let Some(status) = child.status() else {
            end_descendants(child.pid());
            child.kill();
            wait_idle(&servers, &idle);
            return Err(io::Error::other(format!("it was ended after {} s", RUN_LIMIT.as_secs())));
        };
        if self.is_on_disk {
            rustix::fs::syncfs(File::open(self.sink)?)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        if !wait_idle(&servers, &idle) {
            say(&format!("{} left processes behind: its processor time is not complete", tool.name));
        }
        let said = fs::read_to_string(&errors).unwrap_or_default();
        // One that ends without a word, or by a signal, has not done what it can.
        let is_forgiven = status.code().is_some()
            && !said.trim().is_empty()
            && said.lines().all(|line| tool.forgives(line));
        if !status.success() && !is_forgiven {
            let lines: Vec<&str> =
                said.lines().filter(|line| !line.trim().is_empty()).rev().take(3).collect();
            return Err(io::Error::other(format!("{status}: {}", lines.join(" / "))));
        }
        let seconds = match tool.tells_its_time() {
            true => fio_seconds(&fs::read_to_string(self.scratch.join("findings"))?)
                .ok_or_else(|| io::Error::other("fio did not say how long it took"))?,
            false => seconds,
        };
        Ok(Sample {
            seconds,
            near_processor_seconds: (finished_children().saturating_sub(near_before)).as_secs_f64(),
            far_processor_seconds: (used(&servers).saturating_sub(far_before)).as_secs_f64(),
            near_resident: peaks.near,
            far_resident: peaks.far,
        })
    }

    /// Compares the result with the source, byte for byte.
    pub fn check(&self, tool: &Tool) -> io::Result<()> {
        let result = self.found();
        if !tool.is_compared() {
            return Ok(());
        }
        let keeps = tool.keeps();
        let options = Options {
            times: keeps.attributes,
            modes: keeps.attributes,
            listed_max: usize::MAX,
            ..Options::default()
        };
        let comparison = tree::compare(self.source, &result, &options)?;
        let wrong = comparison.differences.iter().find(|one| {
            keeps.symlinks || !(self.is_symlink(&one.path) || self.is_elsewhere(&result, &one.path, &options))
        });
        match wrong {
            Some(one) => Err(io::Error::other(format!("the result differs: {one}"))),
            None => Ok(()),
        }
    }

    fn is_symlink(&self, path: &[u8]) -> bool {
        let path = self.source.join(OsStr::from_bytes(path));
        path.symlink_metadata().is_ok_and(|found| found.is_symlink())
    }

    /// A directory to which a symlink leads may be where the symlink was, and there alone: GridFTP follows symlinks, and
    /// visits each directory once.
    fn is_elsewhere(&self, result: &Path, path: &[u8], options: &Options) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let mut links = Vec::new();
        directory_links(self.source, Path::new(""), &mut links);
        links.iter().any(|(link, target)| {
            let Ok(rest) = path.strip_prefix(target) else { return false };
            let (source, result) = (self.source.join(target), result.join(link));
            let found = match rest.as_os_str().as_bytes() {
                b"" => tree::compare(&source, &result, options),
                rest => tree::compare_one(&source, &result, rest, options),
            };
            let is_symlink = |one: &Difference| {
                self.is_symlink(target.join(OsStr::from_bytes(&one.path)).as_os_str().as_bytes())
            };
            found.is_ok_and(|found| found.differences.iter().all(is_symlink))
        })
    }

    /// Some put the directory itself into the destination, others its contents.
    fn found(&self) -> PathBuf {
        let inner = self.result().join(self.source.file_name().unwrap_or_default());
        if inner.is_dir() { inner } else { self.result() }
    }

    /// What was written before is on the disk, and big files are read from there.
    fn settle(&self) -> io::Result<()> {
        rustix::fs::syncfs(File::open(self.sink)?)?;
        if self.dataset.case == Case::BigDisk {
            let file = File::open(self.source.join(super::case::BIG_FILE))?;
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// A result that stays keeps its inodes: are there enough for the next ones?
fn is_room_for_more(directory: &Path, files: u64) -> bool {
    // Some file systems make inodes as they are needed, and say that they have none.
    rustix::fs::statvfs(directory).is_ok_and(|room| room.f_files == 0 || room.f_favail / INODES_SPARE > files)
}

/// The longer of the jobs of `fio --output-format=json`.
pub fn fio_seconds(report: &str) -> Option<f64> {
    // Warnings may stand before it.
    let report: serde_json::Value = serde_json::from_str(&report[report.find('{')?..]).ok()?;
    let times = report["jobs"].as_array()?.iter().map(|job| job["job_runtime"].as_f64());
    times
        .collect::<Option<Vec<f64>>>()?
        .into_iter()
        .reduce(f64::max)
        .map(|milliseconds| milliseconds / 1000.0)
}

/// The most memory of each end.
#[derive(Default)]
struct Peaks {
    near: u64,
    far: u64,
}

impl Peaks {
    fn look(&mut self, near: i32, servers: &[i32]) {
        let mut seen = BTreeSet::new();
        let far: u64 = servers.iter().map(|pid| resident_of_family(*pid, &mut seen)).sum();
        self.near = self.near.max(resident_of_family(near, &mut seen));
        self.far = self.far.max(far);
    }
}

/// Of a process and everything below it.
fn resident_of_family(pid: i32, seen: &mut BTreeSet<i32>) -> u64 {
    if !seen.insert(pid) {
        return 0;
    }
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<i32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<i32>>())
        .collect();
    let below: u64 = children.into_iter().map(|child| resident_of_family(child, seen)).sum();
    resident_peak(pid) + below
}

/// The most memory that a process ever had, in bytes.
pub fn resident_peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    kilobytes.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Symlinks to directories of the same tree, and where they lead: both below the root.
fn directory_links(root: &Path, below: &Path, found: &mut Vec<(PathBuf, PathBuf)>) {
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
        let path = below.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => directory_links(root, &path, found),
            Ok(kind) if kind.is_symlink() => {
                let target = entry.path().canonicalize().ok().filter(|target| target.is_dir());
                let root = root.canonicalize().ok();
                if let (Some(target), Some(root)) = (target, root)
                    && let Ok(target) = target.strip_prefix(root)
                {
                    found.push((path, target.to_owned()));
                }
            }
            _ => {}
        }
    }
}

/// Everything below some processes.
fn families(roots: &[i32]) -> BTreeSet<i32> {
    roots.iter().flat_map(|pid| descendants(*pid)).map(|seen| seen.pid).collect()
}

/// The servers' accounts grow when they have waited for their sessions: until there is nobody below them who was not there
/// before. False if somebody stays.
pub fn wait_idle(servers: &[i32], before: &BTreeSet<i32>) -> bool {
    let is_idle = wait_until(LINGERS, || families(servers).is_subset(before));
    reap_orphans();
    is_idle
}

/// A server's peak is that of the run which begins now.
fn forget_peak(pid: i32) {
    // Where this is not allowed, its memory is the most that it ever had.
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Processor time of servers, and of what they have waited for.
pub fn used(servers: &[i32]) -> Duration {
    ticks(servers.iter().filter_map(|pid| look(*pid)).map(|seen| seen.ticks).sum())
}

/// Processor time of all children that have ended and been waited for, and of theirs.
pub fn finished_children() -> Duration {
    // SAFETY: the pointer is to a live local of the right type, which any bytes are valid for.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
        usage
    };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::case::make;
    use crate::peers::tool::from_name;

    fn stage<'a>(
        dataset: &'a Dataset,
        (source, sink, scratch): (&'a Path, &'a Path, &'a Path),
        servers: &'a Servers,
    ) -> Stage<'a> {
        let is_on_disk = dataset.case.is_on_disk();
        Stage { haul: Path::new("haul"), dataset, source, sink, state: scratch, scratch, servers, is_on_disk }
    }

    #[test]
    fn the_longer_job_of_fio_counts() {
        let report = "fio: a warning\n{\"jobs\": [{\"job_runtime\": 1500}, {\"job_runtime\": 2250}]}";
        assert_eq!(fio_seconds(report), Some(2.25));
        assert_eq!(fio_seconds("{\"jobs\": [{}]}"), None);
        assert_eq!(fio_seconds(""), None);
    }

    #[test]
    fn a_run_is_measured_and_a_wrong_byte_is_found() {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("source");
        let dataset = make(Case::Thirty, 0.001, &source).unwrap();
        let servers = Servers::none();
        let (sink, work) = (scratch.path().join("sink"), scratch.path().join("work"));
        let stage = stage(&dataset, (&source, &sink, &work), &servers);
        stage.prepare().unwrap();
        for name in ["cp", "tar"] {
            let tool = from_name(name).unwrap();
            let sample = stage.run(tool).unwrap();
            assert!(sample.seconds > 0.0 && sample.far_processor_seconds == 0.0, "{sample:?}");
            stage.check(tool).unwrap();
        }
        let damaged = stage.result().join("file-0007");
        let mut bytes = fs::read(&damaged).unwrap();
        bytes[77] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        let error = stage.check(from_name("tar").unwrap()).unwrap_err().to_string();
        assert!(error.contains("file-0007") && error.contains("byte 77"), "{error}");
        fs::remove_file(damaged).unwrap();
        assert!(stage.check(from_name("tar").unwrap()).unwrap_err().to_string().contains("file-0007"));
    }

    #[test]
    fn a_directory_may_be_where_a_symlink_to_it_was_if_all_of_it_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
        fs::create_dir_all(source.join("a/real")).unwrap();
        fs::write(source.join("a/real/file"), "text").unwrap();
        std::os::unix::fs::symlink("../a/real", source.join("a/link")).unwrap();
        fs::create_dir_all(sink.join("result/a/link")).unwrap();
        fs::write(sink.join("result/a/link/file"), "text").unwrap();
        let dataset = Dataset { case: Case::Tree, title: String::new(), files: 1, bytes: 4 };
        let servers = Servers::none();
        let work = scratch.path().join("work");
        let stage = stage(&dataset, (&source, &sink, &work), &servers);
        let (gridftp, tar) = (from_name("gridftp").unwrap(), from_name("tar").unwrap());
        stage.check(gridftp).unwrap();
        assert!(stage.check(tar).is_err());
        fs::write(sink.join("result/a/link/file"), "tex!").unwrap();
        assert!(stage.check(gridftp).unwrap_err().to_string().contains("a/real"));
    }

    #[test]
    fn on_a_disk_results_stay_without_their_contents_until_the_case_ends() {
        let scratch = tempfile::tempdir().unwrap();
        let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
        let (work, servers) = (scratch.path().join("work"), Servers::none());
        for (case, left) in [(Case::TreeDisk, 2), (Case::Tree, 0)] {
            let dataset = Dataset { case, title: String::new(), files: 2, bytes: 8 };
            let stage = stage(&dataset, (&source, &sink, &work), &servers);
            for _ in 0..2 {
                fs::create_dir_all(sink.join("result/a")).unwrap();
                fs::write(sink.join("result/a/file"), "text").unwrap();
                std::os::unix::fs::symlink("a/file", sink.join("result/link")).unwrap();
                stage.clear().unwrap();
                assert!(!sink.join("result").exists());
            }
            let found = tree::totals(&sink).unwrap();
            assert_eq!((found.files, found.bytes, found.symlinks), (left, 0, left), "{case:?}");
            tree::remove(&sink).unwrap();
        }
    }

    /// A memory file system has half as many inodes as pages.
    #[test]
    fn results_stay_only_where_there_are_inodes_for_more() {
        let place = Path::new("/dev/shm");
        let found = rustix::fs::statvfs(place).unwrap();
        let free = found.f_favail;
        if found.f_files == 0 {
            assert!(is_room_for_more(place, u64::MAX));
            return;
        }
        assert!(is_room_for_more(place, 1000));
        assert!(!is_room_for_more(place, free / 2), "{free}");
    }

    #[test]
    fn a_sink_is_its_writers_alone() {
        use std::os::unix::fs::MetadataExt;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let scratch = tempfile::tempdir().unwrap();
        let dataset = Dataset { case: Case::Thirty, title: String::new(), files: 1, bytes: 1 };
        let servers = Servers::none();
        let (source, sink) = (scratch.path().join("source"), scratch.path().join("sink"));
        let work = scratch.path().join("work");
        let stage = stage(&dataset, (&source, &sink, &work), &servers);
        stage.prepare().unwrap();
        fs::create_dir(stage.result()).unwrap();
        for (daemon, owner) in [(Some(Daemon::Xrootd), 65534), (Some(Daemon::GridFtp), 0), (None, 0)] {
            stage.give_to(daemon.and_then(Daemon::user)).unwrap();
            for place in [&sink, &stage.result()] {
                let found = place.metadata().unwrap();
                assert_eq!((found.uid(), found.mode() & 0o022), (owner, 0), "{daemon:?}");
            }
        }
    }

    #[test]
    fn what_fails_says_why() {
        let scratch = tempfile::tempdir().unwrap();
        let dataset = Dataset { case: Case::Big, title: String::new(), files: 1, bytes: 1 };
        let servers = Servers::none();
        let (source, sink) = (scratch.path().join("missing"), scratch.path().join("sink"));
        let work = scratch.path().join("work");
        let stage = stage(&dataset, (&source, &sink, &work), &servers);
        stage.prepare().unwrap();
        let error = stage.run(from_name("cp").unwrap()).unwrap_err().to_string();
        assert!(error.contains("missing"), "{error}");
    }
}
