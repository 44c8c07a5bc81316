//! Opening what may have to be waited for: files on which somebody holds a lease (Samba's oplocks, delegations of NFS).
//!
//! The holder is asked to give the lease up, and has as long for that as `/proc/sys/fs/lease-break-time` says, 45 s if nobody has
//! changed it. An open waits for that in the kernel; one with `O_NONBLOCK`, which all opens here have so that no fifo
//! can hold them up, is refused with `EAGAIN` instead. So then it is made sure that it is a regular file, and that is opened
//! without `O_NONBLOCK`: by its descriptor, so that nothing else can have its name meanwhile. Few file systems refuse to read
//! or write with it, too: [`patiently`].
//!
//! `openat2` says `EAGAIN` also where a directory was renamed as it walked: that passes.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{self, FileType, Mode, OFlags};
use rustix::io::{Errno, Result, retry_on_intr};

/// How long a holder has by default.
const BREAK_TIME: Duration = Duration::from_secs(45);
/// A rename that raced with a walk is over by then.
const TRIES_AT_ONCE: u32 = 8;
const PAUSE_LEAST: Duration = Duration::from_millis(5);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// Whether somebody waits for what is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leases {
    /// Until they are given up.
    Awaited,
    /// It is not that important: `EAGAIN`.
    Respected,
}

/// What `open` opens with these flags; waits for a lease that is in its way. `hold` gets the same with `O_PATH`.
pub(crate) fn open(
    flags: OFlags,
    open: impl Fn() -> Result<OwnedFd>,
    hold: impl Fn() -> Result<OwnedFd>,
) -> Result<OwnedFd> {
    match retry_on_intr(&open) {
        Err(Errno::AGAIN) if flags.contains(OFlags::NONBLOCK) => {}
        Err(Errno::AGAIN) => return again(open, std::thread::sleep),
        other => return other,
    }
    let held = retry_on_intr(hold)?;
    if FileType::from_raw_mode(fs::fstat(&held)?.st_mode) != FileType::RegularFile {
        // As an open says it of a fifo that nobody reads, and of a socket.
        return Err(Errno::NXIO);
    }
    match open_held(&held, flags) {
        // Without /proc.
        Err(Errno::NOENT | Errno::NOTDIR) => again(open, std::thread::sleep),
        other => other,
    }
}

/// Reads or writes a regular file that was opened with `O_NONBLOCK`. Mostly that means nothing to one; where something has to
/// be waited for all the same (a group lock of Lustre, a file on tape), `EAGAIN` says so, and all calls wait from then on.
pub(crate) fn patiently<T>(file: impl AsFd, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    match retry_on_intr(&mut call) {
        Err(Errno::AGAIN) => {
            let flags = fs::fcntl_getfl(&file)?;
            fs::fcntl_setfl(&file, flags.difference(OFlags::NONBLOCK))?;
            retry_on_intr(call)
        }
        other => other,
    }
}

/// Waits in the kernel.
fn open_held(held: &OwnedFd, flags: OFlags) -> Result<OwnedFd> {
    let not_for_it = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CREATE | OFlags::EXCL;
    let path = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    retry_on_intr(|| fs::open(&*path, flags.difference(not_for_it) | OFlags::CLOEXEC, Mode::empty()))
}

/// Calls `open` until it says something else than `EAGAIN`, or for as long as a lease may stand: a few times at once, then
/// with pauses that grow.
pub(crate) fn again<T>(open: impl Fn() -> Result<T>, mut pause: impl FnMut(Duration)) -> Result<T> {
    let (mut tries, mut waited, mut next) = (0, Duration::ZERO, PAUSE_LEAST);
    loop {
        match open() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < TRIES_AT_ONCE => tries += 1,
            Err(Errno::AGAIN) if waited < BREAK_TIME => {
                pause(next);
                waited += next;
                next = (next * 2).min(PAUSE_MOST);
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::fs::File;
    use std::os::fd::RawFd;
    use std::path::Path;

    /// From fcntl(2); the crate libc does not name it.
    const F_SETSIG: i32 = 10;

    /// A write lease on a file, as Samba holds them.
    struct Lease(File);

    impl Lease {
        fn on(path: &Path) -> Lease {
            let lease = Lease(File::options().read(true).write(true).open(path).unwrap());
            // The signal that asks for it would end the process if it were the usual one.
            assert_eq!(lease.control(F_SETSIG, libc::SIGURG), 0);
            assert_eq!(lease.control(libc::F_SETLEASE, libc::F_WRLCK), 0);
            lease
        }

        fn control(&self, command: i32, argument: i32) -> i32 {
            let descriptor: RawFd = self.0.as_raw_fd();
            // SAFETY: these commands of fcntl take a number, and the descriptor is open.
            unsafe { libc::fcntl(descriptor, command, argument) }
        }

        fn is_asked_for(&self) -> bool {
            self.control(libc::F_GETLEASE, 0) != libc::F_WRLCK
        }
    }

    fn open_at(path: &Path, flags: OFlags) -> Result<OwnedFd> {
        open(
            flags,
            || fs::open(path, flags, Mode::empty()),
            || fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()),
        )
    }

    #[test]
    fn a_lease_is_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let lease = Lease::on(&path);
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW;
        assert_eq!(fs::open(&path, flags, Mode::empty()).unwrap_err(), Errno::AGAIN);
        let opened = std::thread::scope(|scope| {
            let opened = scope.spawn(|| open_at(&path, flags));
            while !lease.is_asked_for() {
                std::thread::yield_now();
            }
            drop(lease);
            opened.join().unwrap()
        });
        let mut bytes = [0; 2];
        assert_eq!(rustix::io::read(opened.unwrap(), &mut bytes), Ok(1));
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let scratch = tempfile::tempdir().unwrap();
        let refused = || Err(Errno::AGAIN);
        let hold = || fs::open(scratch.path(), OFlags::PATH, Mode::empty());
        assert_eq!(open(OFlags::NONBLOCK, refused, hold).unwrap_err(), Errno::NXIO);
    }

    #[test]
    fn it_is_tried_again_with_pauses_that_grow_and_not_for_ever() {
        let (tries, mut waited) = (Cell::new(0), Duration::ZERO);
        let refused = || {
            tries.set(tries.get() + 1);
            Err::<(), _>(Errno::AGAIN)
        };
        assert_eq!(again(refused, |pause| waited += pause), Err(Errno::AGAIN));
        assert!((BREAK_TIME..BREAK_TIME * 2).contains(&waited), "{waited:?}");
        assert!(tries.get() < 70, "{} tries", tries.get());

        tries.set(0);
        let raced = || {
            tries.set(tries.get() + 1);
            if tries.get() < 4 { Err(Errno::AGAIN) } else { Ok(()) }
        };
        assert_eq!(again(raced, |_| panic!("a rename that raced is not slept for")), Ok(()));
    }
}
