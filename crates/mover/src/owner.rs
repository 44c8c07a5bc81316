//! One owner: at most one process acts for a job at an end, and each session of the job has higher epochs than all
//! before, until it is done: then the far end forgets it.
//!
//! Sessions of one host come in the order in which they were started there, not in that in which ssh lets them in: one whose
//! initiator was killed while ssh logged in is late, and ends nobody ([`Started`]).
//!
//! The owner holds a lock on `owner.lock` in the job's directory and listens on an abstract-free socket
//! ([`OWNER_SOCKET`]) beside it. A new session asks the old owner to yield; one that does not (stopped, hung) is killed: it is a process of
//! the same user, and its identity comes from the kernel. Where the directory is on a file system that several hosts have, the old
//! owner may be on another one, where no socket leads: it looks each second whether the job is wanted. The lock is released by the kernel when the last thread of the
//! old process has ended, so whoever gets it knows that the old end's I/O has stopped.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_storage::scan::OWNER_SOCKET;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, geteuid};

use crate::Error;
use crate::durable::{self, StatePoint};
use crate::process::Process;
use crate::runner::{Runner, is_file_at, open_lock, try_lock};

/// How long the old owner may take to end by itself.
const YIELD_TIME: Duration = Duration::from_secs(3);
/// How long it may take to die.
const DEATH_TIME: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(5);
/// How often an owner looks whether the job is wanted on another host, and whoever wants it says so again.
const WANTED_EVERY: Duration = Duration::from_secs(1);
/// Who asks for the job says so at once.
const ASK_TIME: Duration = Duration::from_secs(1);

/// When a session was started, by a clock of the host where that was, which does not jump (but where a snapshot of a virtual
/// machine is resumed: until its clock has caught up its sessions count as late).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Started {
    /// Names the host, since it was booted; no white space.
    pub boot: String,
    /// Since then.
    pub nanos: u64,
}

impl Started {
    /// Of a session that starts here and now; none where nobody knows.
    pub fn now() -> Option<Started> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Some(Started { boot, nanos: time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 })
    }

    /// Of those of different boots nobody can tell.
    fn is_before(&self, other: &Started) -> bool {
        self.boot == other.boot && self.nanos < other.nanos
    }

    fn read(directory: &Path) -> Option<Started> {
        let text = std::fs::read_to_string(directory.join("started")).ok()?;
        let (boot, nanos) = text.trim().split_once(' ')?;
        Some(Started { boot: boot.to_owned(), nanos: nanos.parse().ok()? })
    }

    /// Without it a later session is taken for the newest, as if nobody knew.
    fn keep(&self, directory: &Path) {
        let fresh = directory.join("started.new");
        let written = std::fs::write(&fresh, format!("{} {}\n", self.boot, self.nanos));
        let _ = written.and_then(|()| std::fs::rename(&fresh, directory.join("started")));
    }
}

/// The right to act for a job at this end, until dropped or the process ends.
pub struct Owner {
    directory: PathBuf,
    listener: Option<UnixListener>,
    epoch: u32,
    is_first: bool,
    _lock: File,
}

impl Owner {
    /// Takes over the job whose state is in `directory` (made if it is not there), unless a session that was started later was
    /// there before.
    pub fn claim(directory: &Path, started: Option<&Started>) -> Result<Owner, Error> {
        let in_order = || in_order(directory, started);
        let path = directory.join("owner.lock");
        let about = |error: std::io::Error| unwritable(&path, &error);
        let lock = loop {
            let lock = make_with(directory, || {
                in_order()?;
                open_lock(&path).map_err(about)
            })?;
            if !try_lock(&lock).map_err(about)? {
                take_over(directory, &lock, in_order)?;
            }
            // Whoever had it may have been done, and have removed it.
            if is_file_at(&lock, &path) {
                break lock;
            }
        };
        in_order()?;
        Runner::write(&lock).map_err(about)?;
        if let Some(started) = started {
            started.keep(directory);
        }
        let is_first = !directory.join("epoch").exists();
        let epoch = next_epoch(directory)?;
        // There from the start: that there is no such name a client of NFS believes for up to a minute.
        let _ = File::options().write(true).create_new(true).mode(0o600).open(directory.join("wanted"));
        let _ = std::fs::remove_file(directory.join(OWNER_SOCKET));
        // Without the socket, as in the moment before this one, a later session cannot ask; it kills who holds the lock.
        let listener = bind(directory).ok();
        Ok(Owner { directory: directory.to_owned(), listener, epoch, is_first, _lock: lock })
    }

    /// Epochs of this session start above this number.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// No session of this job has been here before.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Calls `on_yield` once, on a thread of its own, when a newer session asks for the job.
    pub fn on_yield(&mut self, on_yield: impl FnOnce() + Send + 'static) {
        let (listener, directory) = (self.listener.take(), self.directory.clone());
        let mut known = wanted(&directory);
        let wait = move || {
            loop {
                let asked = listener.as_ref().map_or_else(pause, wait_for_question);
                if asked.is_some() || is_wanted_anew(&mut known, wanted(&directory)) {
                    on_yield();
                    // Kept until the process ends: its end is what the other side waits for.
                    std::mem::forget(asked);
                    return;
                }
            }
        };
        let _ = std::thread::Builder::new().name("haul-owner".into()).spawn(wait);
    }

    /// Where the job's state is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The job is done: nothing that is kept of it here is of use to anybody. It stays this owner's.
    pub fn remove(&self) {
        let _ = remove_directory(&self.directory, ());
    }
}

fn pause() -> Option<UnixStream> {
    std::thread::sleep(WANTED_EVERY);
    None
}

/// Whoever asks for the job within a second.
fn wait_for_question(listener: &UnixListener) -> Option<UnixStream> {
    let time = Timespec { tv_sec: WANTED_EVERY.as_secs() as i64, tv_nsec: 0 };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&time)) {
        Ok(0) => None,
        Ok(_) => match listener.accept() {
            Ok((stream, _)) => Some(stream).filter(|stream| is_same_user(stream) && asks(stream)),
            Err(_) => pause(),
        },
        Err(_) => pause(),
    }
}

/// What was written last by those who want the job and cannot ask; nothing if nobody ever did.
fn wanted(directory: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    match File::open(directory.join("wanted")) {
        Ok(file) => file.take(256).read_to_end(&mut text).map(|_| text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(text),
        Err(error) => Err(error),
    }
}

/// Somebody wants it where something else is written now. A look that fails says nothing: descriptors may have run out for a
/// moment, or a server does not answer.
fn is_wanted_anew(known: &mut std::io::Result<Vec<u8>>, now: std::io::Result<Vec<u8>>) -> bool {
    match (&known, now) {
        (Ok(known), Ok(now)) => !now.is_empty() && *known != now,
        (Err(_), Ok(now)) => {
            *known = Ok(now);
            false
        }
        (_, Err(_)) => false,
    }
}

/// Says that the job is wanted. Over what is there: hosts that have a file system in common see that soonest.
fn want(directory: &Path) {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let text = format!("{} {} {}\n", crate::runner::host(), std::process::id(), time.as_nanos());
    let _ = std::fs::write(directory.join("wanted"), text);
}

/// How far up the state directory's own tree goes: `haul/jobs/ID/log` and the directory that holds `haul`.
const LEVELS: usize = 4;

fn is_who_became_root(user: u32) -> bool {
    std::env::var("SUDO_UID").is_ok_and(|before| before == user.to_string())
}

/// Makes a directory that only its owner may enter, with its parents, durably.
///
/// The names above it are synced up to what was there before, those of the state directory's own tree even if they were:
/// an earlier process may have made them a moment before the power went. A record whose directory vanishes would let the
/// next run decide again what DEST means.
pub fn make_directory(directory: &Path) -> Result<(), Error> {
    check_links(directory)?;
    let missing = directory.ancestors().take_while(|above| !above.exists()).count();
    // What root makes in the home of who has typed `sudo -E`, that one could not enter.
    if let Some(nearest) = directory.ancestors().nth(missing).filter(|_| missing > 0 && geteuid().is_root())
        && std::fs::metadata(nearest).is_ok_and(|found| found.uid() != 0 && is_who_became_root(found.uid()))
    {
        check_owner(nearest)?;
    }
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
    made.map_err(|error| unwritable(directory, &error))?;
    for found in directory.ancestors().take(OWN_LEVELS).filter(|found| !found.as_os_str().is_empty()) {
        if !check_owner(found)? {
            break;
        }
    }
    for parent in directory.ancestors().skip(1).take(LEVELS.max(missing)) {
        match File::open(parent).and_then(|held| durable::sync(StatePoint::StateDirectories, &held)) {
            // A parent that may be entered but not read, or is on a file system that cannot be written, is none of ours.
            Err(error) if is_foreign(&error) => break,
            result => result.map_err(|error| unwritable(parent, &error))?,
        }
    }
    Ok(())
}

/// Makes a directory and what `within` makes in it. Whoever is done with the job may remove it in between: then once more.
pub fn make_with<T>(directory: &Path, within: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    const TRIES: u32 = 20;
    let is_gone = |error: &Error| error.failure.errno == rustix::io::Errno::NOENT.raw_os_error();
    let mut tries = 0;
    loop {
        tries += 1;
        match make_directory(directory).and_then(|()| within()) {
            Err(error) if is_gone(&error) && tries < TRIES => std::thread::sleep(Duration::from_millis(5)),
            made => return made,
        }
    }
}

/// In front of the name of a directory that is being removed.
const GONE: &str = ".gone-";

/// Is it one that is being removed, or was when a process was killed? Nothing in it counts.
pub fn is_gone(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(GONE.as_bytes())
}

/// Removes a job's directory, with what it holds, by whoever has its lock: at once, since somebody else may make it anew meanwhile.
/// The lock is given back in between; an error says that nothing was removed.
pub fn remove_directory<L>(directory: &Path, lock: L) -> std::io::Result<()> {
    let Some(name) = directory.file_name() else { return Ok(()) };
    let mut gone = OsString::from(GONE);
    gone.push(name);
    let gone = directory.with_file_name(gone);
    // Of a process that was killed before it had removed all of it.
    let _ = std::fs::remove_dir_all(&gone);
    std::fs::rename(directory, &gone)?;
    // On NFS a file that is open keeps its directory from being removed.
    drop(lock);
    if std::fs::remove_dir_all(&gone).is_err() {
        // Nobody has those of earlier times open any more.
        let beside =
            std::fs::read_dir(directory.parent().unwrap_or(directory)).into_iter().flatten().flatten();
        let gone = beside.filter(|found| is_gone(&found.file_name()));
        gone.for_each(|gone| drop(std::fs::remove_dir_all(gone.path())));
    }
    Ok(())
}

/// Of these at most: a job's directory in the state directory.
const OWN_LEVELS: usize = 3;

/// Whoever owns a directory can put links in it, in place of what is written there, also in one where all may make names and each
/// removes only their own. False where that is so, and nobody else's: what is above such a directory is none of ours.
fn check_owner(directory: &Path) -> Result<bool, Error> {
    let found = std::fs::metadata(directory).map_err(|error| unwritable(directory, &error))?;
    const STICKY: u32 = 0o1000;
    match found.uid() {
        user if user == 0 || user == geteuid().as_raw() => Ok(found.mode() & STICKY == 0),
        user => {
            let about = format!("{}: it is user {user}'s", directory.display());
            Err(Error::new(Code::StateUnwritable, about)
                .hint("set HAUL_STATE_DIR to a directory of your own"))
        }
    }
}

/// What users of the host look like in a user namespace that does not have them, its root among them.
const UNMAPPED: u32 = 65_534;

fn is_in_a_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Nothing is made where somebody else says that it is to be.
fn check_links(directory: &Path) -> Result<(), Error> {
    let own = geteuid().as_raw();
    let of_another = |path: &&Path| {
        let found = std::fs::symlink_metadata(path);
        let is_trusted = |user: u32| [0, own].contains(&user) || user == UNMAPPED && is_in_a_namespace();
        found.is_ok_and(|found| found.is_symlink() && !is_trusted(found.uid()))
    };
    let Some(link) = directory.ancestors().find(of_another) else { return Ok(()) };
    let about = format!("{}: a symlink of another user leads there", link.display());
    Err(Error::new(Code::StateUnwritable, about).hint("set HAUL_STATE_DIR to a directory of your own"))
}

fn is_foreign(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let foreign = [Errno::ACCESS, Errno::PERM, Errno::INVAL, Errno::ROFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|errno| foreign.contains(&errno))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Error {
    Error::os(Code::StateUnwritable, path.display().to_string(), error).hint(state_hint(error))
}

/// What helps where the state of a transfer cannot be kept.
pub fn state_hint(error: &std::io::Error) -> &'static str {
    use rustix::io::Errno;
    match error.raw_os_error() {
        Some(errno) if [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error).contains(&errno) => {
            "make room there"
        }
        _ => "make it writable; a transfer that only begins may have another HAUL_STATE_DIR",
    }
}

/// Socket paths are short (108 bytes): it is bound through the directory's descriptor.
fn bind(directory: &Path) -> std::io::Result<UnixListener> {
    let held = File::open(directory)?;
    UnixListener::bind(socket_path(&held))
}

fn socket_path(directory: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}/{OWNER_SOCKET}", directory.as_raw_fd()))
}

fn peer(stream: &UnixStream) -> Option<(u32, Pid)> {
    let credentials = rustix::net::sockopt::socket_peercred(stream.as_fd()).ok()?;
    Some((credentials.uid.as_raw(), credentials.pid))
}

fn is_same_user(stream: &UnixStream) -> bool {
    peer(stream).is_some_and(|(uid, _)| uid == geteuid().as_raw() || uid == 0)
}

/// Is there an answer to who connected? They may have found that they are late.
fn asks(mut stream: &UnixStream) -> bool {
    let _ = stream.set_read_timeout(Some(ASK_TIME));
    matches!(stream.read(&mut [0]), Ok(1))
}

/// Nobody who was started later has the job, or had it.
fn in_order(directory: &Path, started: Option<&Started>) -> Result<(), Error> {
    match (started, Started::read(directory)) {
        (Some(started), Some(last)) if started.is_before(&last) => Err(Error::new(Code::Superseded, "")),
        _ => Ok(()),
    }
}

/// Asks the owner to yield, and ends it if it does not.
fn take_over(directory: &Path, lock: &File, in_order: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
    let again_until = Instant::now() + DEATH_TIME;
    let say = |asked: &Option<Process>| {
        if asked.is_none() {
            want(directory);
        }
    };
    let mut asked = ask(directory, &in_order)?;
    while !wait_for(lock, YIELD_TIME, || say(&asked)) {
        in_order()?;
        // Somebody else who waited for it was faster, and has not been asked.
        if asked.as_ref().is_some_and(Process::has_ended) && Instant::now() < again_until {
            asked = ask(directory, &in_order)?;
            continue;
        }
        if let Some(process) = asked.as_ref().or(holder(lock).as_ref()) {
            let _ = process.signal(Signal::KILL);
        }
        return if wait_for(lock, DEATH_TIME, || say(&asked)) { Ok(()) } else { Err(held(directory)) };
    }
    Ok(())
}

/// Whoever has the job does not let go of it.
fn held(directory: &Path) -> Error {
    let hint = match Runner::read(&directory.join("owner.lock")) {
        Some(owner) if !owner.is_here() => {
            format!("{owner} works for this transfer and does not answer; end it there, or wait until it has ended")
        }
        _ => "an older process still writes for this transfer and cannot be ended; it may hang in its file system"
            .into(),
    };
    Error::new(Code::AlreadyRunning, directory.display().to_string()).hint(hint)
}

/// Who holds the lock, as the kernel knows it: for one that was stopped before it had a socket.
fn holder(lock: &File) -> Option<Process> {
    let seen = lock.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(seen.dev()), rustix::fs::minor(seen.dev()));
    let file = format!("{major:02x}:{minor:02x}:{}", seen.ino());
    let holds = || {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", pid, locked, ..] = words[..] else { return None };
            pid.parse().ok().filter(|_| locked == file)
        })
    };
    let pid = Pid::from_raw(holds()?)?;
    let process = Process::of(pid)?;
    let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let own = pid == rustix::process::getpid();
    // Asked again: meanwhile another process might have got the number.
    let still = holds() == Some(pid.as_raw_nonzero().get());
    (still && !own && user == geteuid().as_raw()).then_some(process)
}

/// Asks at the owner's socket. Returns a handle of the process that listens there, if any does.
fn ask(directory: &Path, in_order: impl Fn() -> Result<(), Error>) -> Result<Option<Process>, Error> {
    let Some((stream, uid, pid, process)) = connect(directory) else { return Ok(None) };
    // Who listens has said before when it was started.
    in_order()?;
    let _ = (&stream).write_all(b"yield\n");
    // Our own process holds the lock in a test or a local run: it is not to be killed.
    let own = pid == rustix::process::getpid();
    // Keep the connection: the owner reads who asks from it.
    std::mem::forget(stream);
    Ok((!own && uid == geteuid().as_raw()).then_some(process))
}

fn connect(directory: &Path) -> Option<(UnixStream, u32, Pid, Process)> {
    let held = File::open(directory).ok()?;
    let stream = UnixStream::connect(socket_path(&held)).ok()?;
    let (uid, pid) = peer(&stream)?;
    let process = Process::of(pid)?;
    Some((stream, uid, pid, process))
}

/// Until the lock is free; `say` is said each second.
fn wait_for(lock: &File, time: Duration, say: impl Fn()) -> bool {
    let deadline = Instant::now() + time;
    let mut said: Option<Instant> = None;
    while Instant::now() < deadline {
        if try_lock(lock).unwrap_or(false) {
            return true;
        }
        if said.is_none_or(|said| said.elapsed() >= WANTED_EVERY) {
            said = Some(Instant::now());
            say();
        }
        std::thread::sleep(POLL);
    }
    false
}

/// Raises the epoch. Each session may use a range of them, one for each attempt to connect: a week has no more.
fn next_epoch(directory: &Path) -> Result<u32, Error> {
    const CONNECTIONS_MAX: u32 = 1 << 17;
    let path = directory.join("epoch");
    let mut text = String::new();
    let before = match File::open(&path) {
        Ok(mut file) => {
            file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok()).unwrap_or(0)
        }
        Err(_) => 0u32,
    };
    let epoch = before.wrapping_add(CONNECTIONS_MAX);
    let fresh = directory.join("epoch.new");
    std::fs::write(&fresh, format!("{epoch}\n")).map_err(|error| unwritable(&fresh, &error))?;
    std::fs::rename(&fresh, &path).map_err(|error| unwritable(&path, &error))?;
    Ok(epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::is_locked;
    use std::os::unix::fs::PermissionsExt;

    /// As on another host, where no socket leads: the lock is one of all hosts that have the directory.
    #[test]
    fn an_owner_that_cannot_be_asked_sees_that_the_job_is_wanted() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        let mut first = Owner::claim(&job, Some(&at(1))).unwrap();
        want(&job);
        let (yielded, wait) = std::sync::mpsc::channel();
        first.on_yield(move || yielded.send(()).unwrap());
        assert!(wait.recv_timeout(WANTED_EVERY + WANTED_EVERY / 2).is_err(), "that was before its time");
        std::fs::remove_file(job.join(OWNER_SOCKET)).unwrap();
        let held = std::thread::spawn(move || {
            wait.recv_timeout(YIELD_TIME).unwrap();
            drop(first);
        });
        let began = Instant::now();
        Owner::claim(&job, Some(&at(2))).unwrap();
        assert!(began.elapsed() < YIELD_TIME);
        held.join().unwrap();
        assert_eq!(Runner::read(&job.join("owner.lock")), Runner::own());
    }

    #[test]
    fn an_owner_that_is_done_leaves_nothing_and_keeps_nobody_out() {
        let place = tempfile::tempdir().unwrap();
        let job = place.path().join("job");
        let first = Owner::claim(&job, Some(&at(1))).unwrap();
        // Waits for the lock that goes.
        let waits = std::thread::spawn({
            let job = job.clone();
            move || Owner::claim(&job, Some(&at(2)))
        });
        std::thread::sleep(Duration::from_millis(200));
        assert!(!waits.is_finished());
        std::fs::create_dir(place.path().join(".gone-job")).unwrap();
        std::fs::write(place.path().join(".gone-job/epoch"), "of a process that was killed at it").unwrap();
        first.remove();
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        drop(first);
        let second = waits.join().unwrap().unwrap();
        assert!(
            is_locked(&job.join("owner.lock")) && job.join("epoch").exists(),
            "it has the job that is there now"
        );
        drop(second);
    }

    #[test]
    fn an_owner_that_was_stopped_before_it_could_be_asked_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        drop(Owner::claim(&job, None).unwrap());
        std::fs::remove_file(job.join(OWNER_SOCKET)).unwrap();
        let mut holds = std::process::Command::new("flock");
        let mut child = holds.arg("-F").arg(job.join("owner.lock")).args(["sleep", "60"]).spawn().unwrap();
        while !is_locked(&job.join("owner.lock")) {
            std::thread::sleep(POLL);
        }
        Owner::claim(&job, Some(&at(1))).unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "{ended:?}");
    }

    /// Waits for the lock, listens, and ends when it is asked.
    const YIELDS: &str = "
import fcntl, os, socket, sys, time
os.chdir(sys.argv[1])
lock = open('owner.lock', 'r+')
print('waits', flush=True)
while True:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
    except BlockingIOError:
        time.sleep(0.0002)
if os.path.exists('.haul-owner.sock'):
    os.remove('.haul-owner.sock')
listener = socket.socket(socket.AF_UNIX)
listener.bind('.haul-owner.sock')
listener.listen()
print('owns', flush=True)
listener.accept()[0].recv(1)
";

    #[test]
    fn who_was_faster_is_asked_too() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        drop(Owner::claim(&job, None).unwrap());
        let other = || {
            let mut other = std::process::Command::new("python3");
            other.args(["-c", YIELDS]).arg(&job).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let says = |child: &mut std::process::Child, words: &str| {
            let mut said = vec![0; words.len()];
            child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
            assert_eq!(said, words.as_bytes());
        };
        let mut first = other();
        says(&mut first, "waits\nowns\n");
        let mut faster = other();
        says(&mut faster, "waits\n");
        let began = Instant::now();
        let claimed = Owner::claim(&job, Some(&at(1)));
        // Where this one was faster after all, the other one has the lock now.
        let _ = faster.kill();
        faster.wait().unwrap();
        assert!(claimed.is_ok() && began.elapsed() < DEATH_TIME, "{:?}", began.elapsed());
        assert!(first.wait().unwrap().success());
    }

    #[test]
    fn a_new_session_has_a_higher_epoch_and_asks_the_old_one_to_yield() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        let mut first = Owner::claim(&job, Some(&at(1))).unwrap();
        let epoch = first.epoch();
        let (yielded, wait) = std::sync::mpsc::channel();
        first.on_yield(move || yielded.send(()).unwrap());
        let held = std::thread::spawn(move || {
            wait.recv().unwrap();
            drop(first);
        });
        let second = Owner::claim(&job, Some(&at(2))).unwrap();
        held.join().unwrap();
        assert!(second.epoch() > epoch);
    }

    #[test]
    fn what_somebody_else_owns_holds_no_state() {
        if !geteuid().is_root() {
            return haul_testkit::lacks("root, for a directory of somebody else");
        }
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("haul");
        let job = state.join("jobs/1");
        make_directory(&job).unwrap();
        for theirs in [&job, &state.join("jobs"), &state] {
            std::os::unix::fs::chown(theirs, Some(12345), None).unwrap();
            assert_eq!(
                make_directory(&job).err().map(|error| error.failure.code),
                Some(Code::StateUnwritable)
            );
            std::os::unix::fs::chown(theirs, Some(0), None).unwrap();
        }
        make_directory(&job).unwrap();
        // As /tmp is, but for its owner, who may rename what others have in it.
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&state, mode(0o1777)).unwrap();
        make_directory(&job).unwrap();
        std::os::unix::fs::chown(&state, Some(12345), None).unwrap();
        assert_eq!(make_directory(&job).err().map(|error| error.failure.code), Some(Code::StateUnwritable));
    }

    #[test]
    fn what_is_removed_while_it_is_made_is_made_once_more() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("jobs/1");
        let path = job.join("lock");
        let tries = std::cell::Cell::new(0);
        let made = make_with(&job, || {
            tries.set(tries.get() + 1);
            if tries.get() < 3 {
                remove_directory(&job, ()).unwrap();
            }
            open_lock(&path).map_err(|error| unwritable(&path, &error))
        });
        assert!(is_file_at(&made.unwrap(), &path) && tries.get() == 3);
        let never = make_with(&job, || Err::<(), _>(unwritable(&path, &rustix::io::Errno::NOENT.into())));
        assert_eq!(never.err().map(|error| error.failure.code), Some(Code::StateUnwritable));
        assert!(!job.with_file_name(".gone-1").exists() && is_gone(OsStr::new(".gone-1")));
    }

    #[test]
    fn an_owner_that_cannot_look_whether_the_job_is_wanted_keeps_it() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        let mut owner = Owner::claim(&job, Some(&at(1))).unwrap();
        want(&job);
        let (yielded, wait) = std::sync::mpsc::channel();
        owner.on_yield(move || yielded.send(()).unwrap());
        let path = job.join("wanted");
        std::fs::remove_file(&path).unwrap();
        assert!(wait.recv_timeout(2 * WANTED_EVERY).is_err(), "it is not there any more");
        std::fs::create_dir(&path).unwrap();
        assert!(wait.recv_timeout(2 * WANTED_EVERY).is_err(), "it cannot be read");
        std::fs::remove_dir(&path).unwrap();
        want(&job);
        wait.recv_timeout(20 * WANTED_EVERY).unwrap();
        let unknown = || Err(std::io::ErrorKind::Other.into());
        let mut known = unknown();
        assert!(!is_wanted_anew(&mut known, Ok(b"long ago".into())), "nobody knows since when it says so");
        assert!(!is_wanted_anew(&mut known, unknown()) && is_wanted_anew(&mut known, Ok(b"now".into())));
    }

    fn at(nanos: u64) -> Started {
        Started { boot: "this".into(), nanos }
    }

    #[test]
    fn a_session_that_is_late_ends_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let job = directory.path().join("job");
        let claim = |started: Option<&Started>| {
            let began = Instant::now();
            let claimed = Owner::claim(&job, started);
            assert!(began.elapsed() < YIELD_TIME, "it waits for nobody");
            claimed
        };
        let mut owner = claim(Some(&at(5))).unwrap();
        let (yielded, wait) = std::sync::mpsc::channel();
        owner.on_yield(move || yielded.send(()).unwrap());
        let late = |owner: Result<Owner, Error>| {
            assert_eq!(owner.err().map(|error| error.failure.code), Some(Code::Superseded))
        };
        late(claim(Some(&at(4))));
        // One that looked before there was a file to look at, and found an owner that listens.
        assert_eq!(
            ask(&job, || Err(Error::new(Code::Superseded, ""))).err().map(|error| error.failure.code),
            Some(Code::Superseded)
        );
        assert!(wait.recv_timeout(Duration::from_millis(200)).is_err(), "it was not asked");
        let epoch = owner.epoch();
        drop(owner);
        late(claim(Some(&at(4))));
        // The same one once more, and those of which nobody knows whether they are later.
        for started in [Some(at(5)), None, Some(Started { boot: "another".into(), nanos: 1 })] {
            assert!(claim(started.as_ref()).unwrap().epoch() > epoch, "{started:?}");
        }
        late(claim(Some(&Started { boot: "another".into(), nanos: 0 })));
        // It may be anything.
        for text in ["", "x", "this", "this x", "\0"] {
            std::fs::write(job.join("started"), text).unwrap();
            claim(Some(&at(1))).unwrap();
        }
    }

    #[test]
    fn sessions_of_this_host_have_an_order() {
        let (first, second) = (Started::now().unwrap(), Started::now().unwrap());
        assert!(first.is_before(&second) && !second.is_before(&first) && !first.is_before(&first));
        let directory = tempfile::tempdir().unwrap();
        second.keep(directory.path());
        assert_eq!(Started::read(directory.path()), Some(second));
    }
}
