//! What this host gives: file systems that are local and keep their promises (tested, not believed; never FUSE or NFS), and
//! descriptors.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use haul_model::limits::{ENTRIES_OPEN_MAX, FILES_OPEN_MAX};
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// `f_type` of the file systems whose `syncfs` waits for data, attributes and names, and whose pages
/// stay in this kernel's cache once they were read.
const KNOWN: [u64; 4] = [
    0xEF53,      // ext4
    0x5846_5342, // XFS
    0x9123_683E, // btrfs
    0x0102_1994, // tmpfs
];

/// Those among them that are on a disk and put data there as it is: btrfs compresses and checks what passes through the page
/// cache, and what does not it leaves as it is.
const ON_DISK: [u64; 2] = [KNOWN[0], KNOWN[1]];

/// Those among them where a file that gets its only name late costs less than one that is renamed: XFS and btrfs write down, too,
/// which files have no name.
const LATE_NAMES: [u64; 2] = [KNOWN[0], KNOWN[3]];

const OVERLAY: u64 = 0x794C_7630;

/// More that no other host has: of memory, of containers, on disks.
const OF_ONE_HOST: [u64; 9] = [
    OVERLAY,
    0x8584_58F6, // ramfs
    0x2FC1_2FC1, // ZFS
    0xCA45_1A4E, // bcachefs
    0xF2F5_2010, // F2FS
    0x3153_464A, // JFS
    0x4D44,      // FAT
    0x2011_BAB0, // exFAT
    0x7366_746E, // NTFS
];

/// Those where a file has its number no longer than the kernel remembers it.
const NUMBERS_PASS: [u64; 5] = [
    FUSE,
    0x4D44,      // FAT
    0x2011_BAB0, // exFAT
    0xFF53_4D42, // SMB, which may have them from its server, or not
    0xFE53_4D42,
];

const FUSE: u64 = 0x6573_5546;

/// Does a file have the same number there for as long as it is there?
pub(crate) fn numbers_stay(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    let descriptor = descriptor.as_fd();
    let kind = kind(descriptor)?;
    Ok(!NUMBERS_PASS.contains(&kind) || kind == FUSE && crate::layout::is_gluster(descriptor))
}

/// Can what the descriptor holds, with this device and number now, be what had those before?
pub(crate) fn may_be(descriptor: impl AsFd, now: (u64, u64), before: (u64, u64)) -> bool {
    now == before || now.0 == before.0 && !numbers_stay(descriptor).unwrap_or(true)
}

/// Is the path on a file system that no other host has? Of most that are not named here (NFS, Lustre, whatever FUSE mounts) others
/// may have the same. None if there is no such path.
pub fn is_of_one_host(path: &Path) -> Option<bool> {
    #[allow(clippy::unnecessary_cast)]
    let kind = fs::statfs(path).ok()?.f_type as u64 & 0xFFFF_FFFF;
    Some(KNOWN.contains(&kind) || OF_ONE_HOST.contains(&kind))
}

/// What the path's file system is known by among all of this host and, of most, for as long as it exists; `Some(None)` where
/// there is nothing (those of containers have the number of what they lie on). NFS and most of FUSE have none either: there it is
/// made of what is mounted, `host:/export`. None if there is no such path.
pub fn number_of_file_system(path: &Path) -> Option<Option<(u64, u64)>> {
    let found = fs::statfs(path).ok()?;
    #[allow(clippy::unnecessary_cast)]
    let kind = found.f_type as u64 & 0xFFFF_FFFF;
    let number = match fs::statvfs(path).ok()?.f_fsid {
        0 => number_of_source(path),
        number => Some(number),
    };
    Some(number.filter(|_| kind != OVERLAY).map(|number| (kind, number)))
}

/// Of what is mounted there, if that has a name that is not only one of this host.
fn number_of_source(path: &Path) -> Option<u64> {
    let held = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let device = fs::fstat(&held).ok()?.st_dev;
    let mount = crate::layout::mount_of(held.as_fd(), device, Path::new("/proc/self/mountinfo"));
    let hash = blake3::hash(mount.source.as_bytes());
    let number = u64::from_le_bytes(hash.as_bytes()[..8].try_into().ok()?);
    mount.source.contains(":/").then_some(number)
}

/// Is what the descriptor holds on one of them?
pub(crate) fn is_known(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(KNOWN.contains(&kind(descriptor)?))
}

/// May a sink in the same process read its files itself? Those of containers, too, whose layers lie on file systems of this host.
pub(crate) fn may_be_lent(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    let kind = kind(descriptor)?;
    Ok(KNOWN.contains(&kind) || kind == OVERLAY)
}

/// Does its `syncfs` report errors there?
pub(crate) fn tells_of_errors(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(does_tell_of_errors(kind(descriptor)?, kernel()))
}

fn does_tell_of_errors(kind: u64, kernel: (u32, u32)) -> bool {
    const OF_PAGES: (u32, u32) = (5, 8);
    kind == KNOWN[3] || KNOWN.contains(&kind) && kernel >= OF_PAGES
}

/// Does it say there when the last transaction could not be written?
pub(crate) fn tells_of_the_journal(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(tells_of_the_journal_since(kind(descriptor)?) <= kernel())
}

/// Is it an XFS?
pub(crate) fn is_xfs(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(kind(descriptor)? == KNOWN[1])
}

/// ext4 that has stopped for an error had nothing to say for a while, and from 6.12 on does not look read-only either.
fn tells_of_the_journal_since(kind: u64) -> (u32, u32) {
    if kind == KNOWN[0] { (6, 13) } else { (5, 17) }
}

/// Of the running kernel.
fn kernel() -> (u32, u32) {
    static KERNEL: OnceLock<(u32, u32)> = OnceLock::new();
    *KERNEL.get_or_init(|| version(&rustix::system::uname().release().to_string_lossy()))
}

/// The first two numbers of a release; what is not said is 0.
fn version(release: &str) -> (u32, u32) {
    let mut numbers =
        release.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Is it on a disk, so that it can be worth the while to go past the page cache?
pub(crate) fn is_disk(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(ON_DISK.contains(&kind(descriptor)?))
}

/// Does a file that gets its only name late cost less there than one that is renamed?
pub(crate) fn prefers_late_names(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(LATE_NAMES.contains(&kind(descriptor)?))
}

/// Is it in memory?
pub(crate) fn is_memory(descriptor: impl AsFd) -> rustix::io::Result<bool> {
    Ok(kind(descriptor)? == KNOWN[3])
}

fn kind(descriptor: impl AsFd) -> rustix::io::Result<u64> {
    #[allow(clippy::unnecessary_cast)]
    let kind = fs::fstatfs(descriptor)?.f_type as u64 & 0xFFFF_FFFF;
    Ok(kind)
}

/// Room for the descriptors of as many entries as may be open, in a process that has one thread yet.
///
/// The kernel's table of a process's descriptors grows by doubling, and where there are several threads each time all of
/// them wait at their next descriptor, some 15 ms, until none looks into the old table any more: at a small file each that
/// is most of the first tenth of a second.
pub fn make_room_for_descriptors() {
    let room = raise_descriptor_limit().min(ENTRIES_OPEN_MAX);
    let Ok(any) = fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) else { return };
    // Where there is no room, it is made when it is needed.
    let last = i32::try_from(room.saturating_sub(1)).unwrap_or(i32::MAX);
    drop(rustix::io::fcntl_dupfd_cloexec(any, last));
}

/// Where the process may have so many addresses and no more (`ulimit -v`), threads share two heaps: each could take 128 MiB for one of
/// its own, and one that finds none left for its stack cannot start.
pub fn share_heaps_where_addresses_are_few() {
    #[cfg(target_env = "gnu")]
    if getrlimit(Resource::As).current.is_some() {
        // SAFETY: it sets a number.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
    }
}

/// The limit of descriptors as this process found it.
static LIMIT_FOUND: OnceLock<Rlimit> = OnceLock::new();

/// What is started has the limit of descriptors that this process was started with: other programs may not be made for more.
pub fn keep_descriptor_limit(command: &mut Command) -> &mut Command {
    let give_back = || match LIMIT_FOUND.get() {
        Some(found) => Ok(setrlimit(Resource::Nofile, *found)?),
        None => Ok(()),
    };
    // SAFETY: between fork and exec, it reads what was set long before and makes one system call.
    unsafe { command.pre_exec(give_back) }
}

/// How many descriptors the process may have now.
pub fn raise_descriptor_limit() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    LIMIT_FOUND.get_or_init(|| limit);
    if limit.current.is_some_and(|current| limit.maximum.is_none_or(|maximum| current < maximum)) {
        limit.current = limit.maximum;
        // Fewer are enough; they are then used more sparingly.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.map_or(1 << 20, |current| current.min(1 << 20) as usize)
}

/// How many descriptors an end holds on to at most, beside those that its threads work with at the moment.
///
/// A process may have both ends. Each gets half of what is left when a quarter, of many not so much, is set aside for streams, logs
/// and whatever else is open. Of that, directories have an eighth and files with objects a quarter (a sink has two for each: contents
/// and hashes), and members the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    /// Of directories that can be opened again.
    pub directories: usize,
    /// Of members that are written, and not synced or named yet.
    pub members: usize,
    /// Files with objects, whatever they take.
    pub files: usize,
}

impl Budget {
    /// Where the process may have so many.
    pub fn of(limit: usize) -> Budget {
        let each = (limit - (limit / 4).min(SET_ASIDE_MAX)) / 2;
        let (directories, files) =
            ((each / 8).clamp(1, DIRECTORIES_MAX), (each / 8).clamp(1, FILES_OPEN_MAX));
        Budget { directories, members: each.saturating_sub(directories + 2 * files), files }
    }

    /// Of this process, whose limit is raised as far as it may be.
    pub fn of_this_process() -> Budget {
        Budget::of(raise_descriptor_limit())
    }
}

/// Files with objects that a source may have on the way: as many as it has descriptors for, and a sink in the same process.
pub fn files_open_max() -> usize {
    Budget::of_this_process().files
}

/// Threads and streams have no more than so many.
const SET_ASIDE_MAX: usize = 1024;
/// More of them bring nothing.
const DIRECTORIES_MAX: usize = 1024;

/// Where threads at their work have all descriptors for a moment.
const PAUSE_LEAST: Duration = Duration::from_millis(1);
const PAUSE_MOST: Duration = Duration::from_millis(512);

/// Runs `open`. Where descriptors have run out, once more after `shed`, which gives back what can be opened again; and then with
/// pauses, about a second in all, in which other threads give back theirs.
pub(crate) fn when_descriptors_run_out<T>(
    shed: impl Fn(),
    open: impl Fn() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut pause = Duration::ZERO;
    loop {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) if pause <= PAUSE_MOST => shed(),
            other => return other,
        }
        std::thread::sleep(pause);
        pause = (pause * 2).max(PAUSE_LEAST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn two_ends_and_what_is_set_aside_fit_into_any_limit() {
        for limit in [64, 128, 256, 512, 1024, 4096, 1 << 20] {
            let Budget { directories, members, files } = Budget::of(limit);
            assert!(directories > 0 && members > 0 && files > 0, "{limit}");
            let (source, sink) = (directories + files, directories + members + 2 * files);
            assert!(source + sink <= limit - (limit / 4).min(1024), "{limit}: {source} and {sink}");
        }
        // As Debian's login gives them: without a temporary name are as many members as two groups have, and more.
        assert_eq!(Budget::of(20_000).members, 7952);
    }

    /// Of what is not named here nobody has looked whether its `syncfs` tells, and of network file systems it does not.
    #[test]
    fn a_sync_of_the_whole_is_trusted_on_few_file_systems_and_not_of_old_kernels() {
        let [ext4, xfs, btrfs, tmpfs] = [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994];
        for (kernel, trusted) in [((6, 18), true), ((5, 8), true), ((5, 7), false), ((4, 18), false)] {
            for kind in [ext4, xfs, btrfs] {
                assert_eq!(does_tell_of_errors(kind, kernel), trusted, "{kind:x} {kernel:?}");
            }
            assert!(does_tell_of_errors(tmpfs, kernel), "nothing is more durable there");
        }
        let [nfs, lustre, fuse, ceph] = [0x6969, 0x0BD0_0BD0, 0x6573_5546, 0x00C3_6400];
        let [gpfs, smb, f2fs, zfs] = [0x4750_4653, 0xFF53_4D42, 0xF2F5_2010, 0x2FC1_2FC1];
        let overlay = OVERLAY;
        for kind in [nfs, lustre, fuse, ceph, gpfs, smb, f2fs, zfs, overlay, 0] {
            assert!(!does_tell_of_errors(kind, (9, 0)), "{kind:x}");
        }
        let since = [ext4, xfs, btrfs].map(tells_of_the_journal_since);
        assert_eq!(since, [(6, 13), (5, 17), (5, 17)]);
    }

    #[test]
    fn kernels_are_told_by_their_first_two_numbers() {
        assert_eq!(version("6.18.44-fc-v669"), (6, 18));
        assert_eq!(version("4.18.0-553.el8_10.x86_64"), (4, 18));
        assert_eq!(version("5.7-rc1"), (5, 7));
        assert_eq!(version("6"), (6, 0));
        assert_eq!(version("made at home"), (0, 0));
        assert!(kernel() > (2, 6) && (5, 10) > (5, 8));
    }

    #[test]
    fn descriptors_that_ran_out_are_waited_for_and_not_for_ever() {
        let (tries, shed) = (Cell::new(0), Cell::new(0));
        let open = |fails: u32| {
            tries.set(0);
            when_descriptors_run_out(
                || shed.set(shed.get() + 1),
                || {
                    tries.set(tries.get() + 1);
                    if tries.get() <= fails { Err(Errno::MFILE) } else { Ok(tries.get()) }
                },
            )
        };
        assert_eq!((open(0), shed.get()), (Ok(1), 0));
        assert_eq!((open(3), shed.get()), (Ok(4), 3));
        assert_eq!(open(u32::MAX), Err(Errno::MFILE));
        assert!((5..20).contains(&tries.get()), "{} tries", tries.get());
    }

    #[test]
    fn there_is_room_for_descriptors_and_none_of_them_stays() {
        make_room_for_descriptors();
        let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let room = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap().trim();
        assert!(room.parse::<usize>().unwrap() >= limit.min(ENTRIES_OPEN_MAX), "{room}");
        let last = format!("/proc/self/fd/{}", limit.min(ENTRIES_OPEN_MAX) - 1);
        assert!(!std::path::Path::new(&last).exists(), "{last}");
    }
}
