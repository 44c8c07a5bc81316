//! A storage target: XFS on a loop device over a file in memory, as fast as the kernel's I/O throttle lets it be.
//!
//! The throttle is that of the first version of control groups, in the root group: there it holds for every process and
//! for the kernel's own threads. It counts reads and writes apart. What must stay true: a device that is gone has no limit
//! any more, as its number is given to others.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::evaluation::{say, tool};

/// Less than this XFS makes no file system of.
pub const BYTES_MIN: u64 = 320 << 20;

/// One target. Unmounted, detached and removed when it is dropped.
pub struct Device {
    /// Where its file system is.
    pub directory: PathBuf,
    image: PathBuf,
    device: String,
    number: String,
    throttle: PathBuf,
    mounted: bool,
}

/// Devices whose limits have to be lifted if this process is ended.
static LIMITED: Mutex<Vec<(PathBuf, String)>> = Mutex::new(Vec::new());

impl Device {
    /// Below `parent`, with room for so many bytes.
    pub fn new(parent: &Path, name: &str, bytes: u64) -> io::Result<Device> {
        let throttle = throttle_directory()?;
        let (image, directory) = (parent.join(format!("{name}.img")), parent.join(name));
        fs::create_dir(&directory)?;
        fs::File::create(&image)?.set_len(bytes.max(BYTES_MIN))?;
        // Past the page cache of the image's own file system, or every byte would be in memory twice.
        let device = tool(Command::new("losetup").args(["--direct-io=on", "-f", "--show"]).arg(&image))?;
        let device = device.trim().to_owned();
        let number = device_number(Path::new(&device))?;
        let mut made = Device { directory, image, device, number, throttle, mounted: false };
        lock().push((made.throttle.clone(), made.number.clone()));
        // Whoever had its number before may have been killed.
        limit(&made.throttle, &made.number, 0)?;
        tool(Command::new("mkfs.xfs").args(["-q", "-f", "-K"]).arg(&made.device))?;
        tool(Command::new("mount").args(["-o", "noatime,nodiscard"]).arg(&made.device).arg(&made.directory))?;
        made.mounted = true;
        // Now, that it is in use, this says: when nobody uses it any more. So it goes even if this process is killed.
        tool(Command::new("losetup").arg("-d").arg(&made.device))?;
        Ok(made)
    }

    /// Bytes a second, each way; 0 is no limit. Holds at once, also for what waits already.
    pub fn limit(&self, rate: u64) -> io::Result<()> {
        limit(&self.throttle, &self.number, rate)
    }

    /// The same in one direction. The kernel reckons with how long a request has waited when its limit changes, but forgets it
    /// with the second change: a brick's request of 8 MiB then waits anew, for 1.5 s at its healthy rate.
    pub fn change_limit(&self, rate: u64, direction: Direction) -> io::Result<()> {
        limit_one(&self.throttle, &self.number, rate, direction)
    }

    /// Bytes that were read and written since the machine started, as the kernel counts them when they are done.
    pub fn moved(&self) -> io::Result<Bytes> {
        let file = format!("/sys/dev/block/{}/stat", self.number);
        let text = fs::read_to_string(&file)?;
        parse_moved(&text).ok_or_else(|| io::Error::other(format!("{file}: {text}")))
    }

    /// Waits until everything that was written is on the device.
    pub fn flush(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(fs::File::open(&self.directory)?)?)
    }
}

/// Where bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the device.
    Read,
    /// To it.
    Write,
}

/// What a device has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bytes {
    /// Read from it.
    pub read: u64,
    /// Written to it.
    pub written: u64,
}

/// The third and the seventh field are sectors of 512 bytes (Documentation/block/stat.rst of the kernel).
fn parse_moved(text: &str) -> Option<Bytes> {
    let mut fields = text.split_whitespace();
    let read: u64 = fields.nth(2)?.parse().ok()?;
    let written: u64 = fields.nth(3)?.parse().ok()?;
    Some(Bytes { read: read * 512, written: written * 512 })
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = limit(&self.throttle, &self.number, 0);
        lock().retain(|(_, number)| *number != self.number);
        let gone = if self.mounted {
            tool(Command::new("umount").arg(&self.directory))
        } else {
            tool(Command::new("losetup").arg("-d").arg(&self.device))
        };
        if let Err(error) = gone {
            say(&error.to_string());
        }
        let _ = fs::remove_file(&self.image);
        let _ = fs::remove_dir(&self.directory);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<(PathBuf, String)>> {
    LIMITED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lifts every limit; for a process that is about to end.
pub fn lift_all() {
    for (throttle, number) in std::mem::take(&mut *lock()) {
        let _ = limit(&throttle, &number, 0);
    }
}

fn limit(throttle: &Path, number: &str, rate: u64) -> io::Result<()> {
    [Direction::Read, Direction::Write]
        .into_iter()
        .try_for_each(|direction| limit_one(throttle, number, rate, direction))
}

fn limit_one(throttle: &Path, number: &str, rate: u64, direction: Direction) -> io::Result<()> {
    let direction = if direction == Direction::Read { "read" } else { "write" };
    let file = throttle.join(format!("blkio.throttle.{direction}_bps_device"));
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("limiting device {number} by {}: {error}", file.display()))
    };
    fs::write(&file, format!("{number} {rate}")).map_err(named)
}

fn device_number(device: &Path) -> io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    let number = fs::metadata(device)?.rdev();
    Ok(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

/// Where the root group's throttle is.
fn throttle_directory() -> io::Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    find_throttle(&mounts, &groups).map_err(io::Error::other)
}

/// The throttle is of use where its controller is mounted in its first version and this process is in the root group.
fn find_throttle(mounts: &str, groups: &str) -> Result<PathBuf, String> {
    let mounted = mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut source = source.split(' ');
        let is_first_version = source.next() == Some("cgroup");
        let has_it = source.nth(1)?.split(',').any(|option| option == "blkio");
        (is_first_version && has_it).then(|| mount.split(' ').nth(4)).flatten()
    });
    let mounted = mounted.ok_or(
        "the kernel's I/O throttle is not there (control groups, first version, blkio); --throttle emulated does without",
    )?;
    let group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let has_it = fields.next()?.split(',').any(|name| name == "blkio");
        has_it.then(|| fields.next()).flatten()
    });
    match group {
        Some("/") => Ok(PathBuf::from(mounted)),
        other => Err(format!(
            "the kernel's I/O throttle is not there for this process: it holds for those in the root group of blkio, and this one is in {}; --throttle emulated does without",
            other.unwrap_or("-")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
         31 25 0:28 / /sys/fs/cgroup/blkio rw,relatime shared:9 - cgroup cgroup rw,blkio\n\
         32 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn what_a_device_has_moved_is_counted_in_sectors() {
        let text = "  122407  5 33468160 113225  3965  1509  3587189  5974  0  56508 119203  0 0 0 0 57 3\n";
        assert_eq!(parse_moved(text), Some(Bytes { read: 33_468_160 * 512, written: 3_587_189 * 512 }));
        assert_eq!(parse_moved("1 2 3 4 5 6"), None);
    }

    #[test]
    fn the_throttle_is_found_where_it_holds_for_this_process() {
        let found = find_throttle(MOUNTS, "5:blkio:/\n0::/init\n");
        assert_eq!(found, Ok(PathBuf::from("/sys/fs/cgroup/blkio")));
        for (mounts, groups) in [
            ("", "5:blkio:/\n"),
            ("31 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,blkio\n", "0::/\n"),
            (MOUNTS, "5:blkio:/a/child\n"),
            (MOUNTS, "0::/\n"),
        ] {
            assert!(find_throttle(mounts, groups).is_err(), "{mounts}{groups}");
        }
    }
}
