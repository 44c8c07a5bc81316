//! What is mounted where, from `/proc/self/mountinfo`; and one target for each mount, where nobody knows more.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::BorrowedFd;
use std::path::Path;

use haul_model::Layout;
use rustix::fs::{self, AtFlags, StatxFlags};

use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// A line of mountinfo is at most a page, and there are at most 100,000 mounts (fs.mount-max).
const MOUNTINFO_BYTES_MAX: u64 = 400 << 20;

/// A mounted file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mount {
    /// What is mounted: a device, `host:/export`, or a word of the file system.
    pub source: String,
    /// Where.
    pub point: String,
}

/// The mount that an open file was reached by. Named by its device number where mountinfo does not tell.
pub(crate) fn of(file: BorrowedFd<'_>, device: u64, mountinfo: &Path) -> Mount {
    let id = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        .ok()
        .filter(|found| found.stx_mask & StatxFlags::MNT_ID.bits() != 0)
        .map(|found| found.stx_mnt_id);
    let listed = File::open(mountinfo).ok().and_then(|list| find(list.take(MOUNTINFO_BYTES_MAX), id, device));
    listed.unwrap_or_else(|| {
        let number = format!("{}:{}", fs::major(device), fs::minor(device));
        Mount { source: format!("device {number}"), point: number }
    })
}

/// The mount with this id; without an id the last one of the device.
fn find(list: impl Read, id: Option<u64>, device: u64) -> Option<Mount> {
    let number = format!("{}:{}", fs::major(device), fs::minor(device));
    let mut found = None;
    for line in BufReader::new(list).split(b'\n') {
        let line = line.ok()?;
        let Some((numbers, mount)) = parse(&line) else { continue };
        match id {
            Some(id) if numbers.0 == id => return Some(mount),
            None if numbers.1 == number => found = Some(mount),
            _ => {}
        }
    }
    found
}

/// `36 35 98:0 /root /mount/point options [optional...] - type source super-options`, proc_pid_mountinfo(5).
fn parse(line: &[u8]) -> Option<((u64, &str), Mount)> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field| std::str::from_utf8(field).ok();
    let id = text(fields.next()?)?.parse().ok()?;
    let number = text(fields.nth(1)?)?;
    let point = fields.nth(1)?;
    fields.by_ref().find(|field| *field == b"-")?;
    let source = fields.nth(1)?;
    let text = |field| String::from_utf8_lossy(&unescaped(field)).into_owned();
    Some(((id, number), Mount { source: text(source), point: text(point) }))
}

/// `\040` is a blank, in mountinfo as in fstab.
pub fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) if *byte == b'\\' => {
                bytes.push(
                    digits
                        .iter()
                        .fold(0, |value: u8, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')),
                );
                rest = &after[3..];
            }
            _ => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    bytes
}

/// All files of a mount are on one target.
pub struct PerMount;

impl LayoutSource for PerMount {
    fn kind(&self) -> Kind {
        Kind::Mount
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        let file_system = file.file_system;
        let target = targets.id(Domain::Device(file_system.device), &file_system.mount.source);
        Answer::Found(Layout::single(target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
garbage
36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 propagate_from:2 - fuse.glusterfs host:/a\\134b\\040c rw,errors=continue
37 35 0:50 / /home rw - nfs server:/home rw
38 35 0:50 /sub /bound rw shared:4 - nfs server:/home/sub rw
39 35 0:51 / /short rw -
";

    fn found(id: Option<u64>, device: u64) -> Option<(String, String)> {
        find(LIST.as_bytes(), id, device).map(|mount| (mount.source, mount.point))
    }

    #[test]
    fn mounts_are_found_by_id_else_by_device() {
        let told = |source: &str, point: &str| Some((source.to_owned(), point.to_owned()));
        assert_eq!(found(Some(36), 0), told("host:/a\\b c", "/mnt 2"));
        assert_eq!(found(Some(37), 0), told("server:/home", "/home"));
        assert_eq!(found(None, fs::makedev(0, 50)), told("server:/home/sub", "/bound"));
        assert_eq!(found(Some(39), 0), None);
        assert_eq!(found(Some(99), fs::makedev(0, 50)), None);
    }

    #[test]
    fn a_mount_that_is_not_listed_is_its_device() {
        let here = File::open(".").unwrap();
        let mount = of(std::os::fd::AsFd::as_fd(&here), fs::makedev(9, 7), Path::new("/nowhere"));
        assert_eq!(mount.source, "device 9:7");
        let real = of(std::os::fd::AsFd::as_fd(&here), 0, Path::new("/proc/self/mountinfo"));
        assert!(!real.source.starts_with("device "), "{real:?}");
    }
}
