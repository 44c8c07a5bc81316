//! Locks, and who holds them: a process of this host, or of another one that has the same state directory.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::process::{Process, began};

/// Opens a file that is there to be locked, and makes it if need be.
pub fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path)
}

/// Takes a lock if nobody has it: whether it did. An error says that this file system knows no such locks, or more.
pub fn try_lock(file: impl AsFd) -> io::Result<bool> {
    try_flock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Is it the one that has this name now?
pub fn is_file_at(file: &File, path: &Path) -> bool {
    let place = |found: fs::Metadata| (found.dev(), found.ino());
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(found)) => place(held) == place(found),
        _ => false,
    }
}

/// Does somebody have the lock? Where there is none, or no locks at all, nobody has.
pub fn is_locked(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    try_flock(file, FlockOperation::NonBlockingLockShared).is_ok_and(|free| !free)
}

fn try_flock(file: impl AsFd, operation: FlockOperation) -> io::Result<bool> {
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The process that holds a lock, as it says in the locked file. A number alone could be that of any process by now, here or
/// on another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Runner {
    pid: i32,
    host: String,
    /// Names the host since it was booted.
    boot: String,
    /// In which the number means something.
    namespace: u64,
    /// When the process began, as the kernel counts it.
    began: u64,
}

impl Runner {
    /// This process; none where nobody says who that is.
    pub fn own() -> Option<Runner> {
        let pid = i32::try_from(std::process::id()).ok()?;
        Some(Runner {
            pid,
            host: host(),
            boot: boot()?,
            namespace: namespace()?,
            began: began(Pid::from_raw(pid)?)?,
        })
    }

    /// As [`write`](Self::write) has left it.
    pub fn read(path: &Path) -> Option<Runner> {
        Runner::parse(&fs::read_to_string(path).ok()?)
    }

    fn parse(text: &str) -> Option<Runner> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [pid, host, boot, namespace, began] = words[..] else { return None };
        Some(Runner {
            pid: pid.parse().ok().filter(|pid| *pid > 0)?,
            host: plain(host),
            boot: boot.to_owned(),
            namespace: namespace.parse().ok()?,
            began: began.parse().ok()?,
        })
    }

    /// Into a file that it has locked. Without it nobody knows who that is.
    pub fn write(mut file: &File) -> io::Result<()> {
        let own = Runner::own().map(|own| {
            let Runner { pid, host, boot, namespace, began } = own;
            format!("{pid} {host} {boot} {namespace} {began}\n")
        });
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(own.unwrap_or_default().as_bytes())
    }

    /// Is its number one of this host's, and of this container's? A host that was given another name since is the same one if it
    /// has that very process; another one of the same boot is a copy of it.
    pub fn is_here(&self) -> bool {
        let of_boot = |own: &Runner| (&own.boot, own.namespace) == (&self.boot, self.namespace);
        let own = Runner::own().filter(of_boot);
        own.is_some_and(|own| own.host == self.host || self.found().is_some())
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The process itself, if it is here and has not ended.
    pub fn process(&self) -> Option<Process> {
        self.is_here().then(|| self.found()).flatten()
    }

    /// A process that has its number and began when it did.
    fn found(&self) -> Option<Process> {
        let process = Pid::from_raw(self.pid).and_then(Process::of);
        // Looked at while it is held: the number cannot change hands meanwhile.
        process.filter(|process| process.began() == Some(self.began))
    }
}

impl fmt::Display for Runner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)?;
        let Some(own) = Runner::own().filter(|own| *own != *self) else { return Ok(()) };
        match (own.host == self.host, self.is_here()) {
            (_, true) => Ok(()),
            (false, _) => write!(f, " on {}", self.host),
            (true, _) => write!(f, " of another container or boot of {}", self.host),
        }
    }
}

/// Names this host since it was booted.
pub fn boot() -> Option<String> {
    Some(fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned())
}

/// This host's name.
pub fn host() -> String {
    plain(&rustix::system::uname().nodename().to_string_lossy())
}

/// One word that can be shown.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    if name.is_empty() { "?".into() } else { name.chars().map(plain).collect() }
}

fn namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_again_and_no_other_one_is_taken_for_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        fs::write(
            &path,
            "something longer than any line of this kind, which is not to stay behind it in part\n".repeat(9),
        )
        .unwrap();
        Runner::write(&File::options().write(true).open(&path).unwrap()).unwrap();
        let own = Runner::own().unwrap();
        assert_eq!(Runner::read(&path), Some(own.clone()));
        assert!(own.process().is_some());
        assert_eq!(own.to_string(), format!("process {}", std::process::id()));
        let later = Runner { began: own.began + 1, ..own.clone() };
        assert!(later.process().is_none() && later.is_here(), "its number is another one's by now");
        let renamed = Runner { host: "node7".into(), ..own.clone() };
        assert!(renamed.is_here() && renamed.process().is_some(), "the host had another name then");
        assert_eq!(renamed.to_string(), format!("process {}", own.pid));
        let elsewhere = Runner { host: "node7".into(), ..later.clone() };
        assert!(elsewhere.process().is_none() && !elsewhere.is_here());
        assert_eq!(elsewhere.to_string(), format!("process {} on node7", own.pid));
        for other in [Runner { boot: "x".into(), ..own.clone() }, Runner { namespace: 1, ..own.clone() }] {
            assert!(other.process().is_none() && !other.is_here());
            assert!(other.to_string().contains("another container or boot"), "{other}");
        }
        for text in ["", "12\n", "x h b 1 2", "-5 h b 1 2", "0 h b 1 2", "5 h b 1", "5 h b 1 2 3"] {
            assert_eq!(Runner::parse(text), None, "{text}");
        }
        assert_eq!(Runner::parse("5 a\u{1b}[31mb x 1 2").unwrap().host, "a?[31mb");
    }

    #[test]
    fn only_a_lock_that_somebody_has_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (one, other) = (File::create(&path).unwrap(), File::create(&path).unwrap());
        assert!(try_lock(&one).unwrap() && !try_lock(&other).unwrap() && is_locked(&path));
        drop(one);
        assert!(!is_locked(&path) && try_lock(&other).unwrap());
        // A descriptor that cannot be locked, as on a file system without locks.
        let path = rustix::fs::open(&path, rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap();
        assert!(try_lock(&path).is_err());
    }
}
