//! Serves plans on a Unix socket.
//!
//! A thread for each connection, as many as [`CONNECTIONS_MAX`]; one looks at the machine every second. What must stay true:
//! no client can make the service use more than a bounded amount of memory, or keep others from being answered, and CPUs that a
//! connection has leased are free as soon as it has ended, however it ended.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::leases::Leases;
use super::message::{Answer, DEVICES_MAX, REQUEST_BYTES_MAX, Request, VERSION};
use super::peer::Peer;
use crate::{Counters, Load, Machine, Map, Plan};

/// Connections at a time; further ones are told so and closed.
pub const CONNECTIONS_MAX: usize = 256;
/// How soon everything notices that the service is to end.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How often the load is looked at, and how often everything else.
const LOAD_EVERY: Duration = Duration::from_secs(1);
const MACHINE_EVERY: Duration = Duration::from_secs(30);
/// How long a request may take from its first byte to its last, and an answer to be read; and where there are many connections, how
/// long one may say nothing that has leased nothing.
const PATIENCE: Duration = Duration::from_secs(10);
const MANY: usize = CONNECTIONS_MAX / 2;

/// A socket that is served.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    /// Of the socket: what is removed at the end must still be it.
    identity: (u64, u64),
    patience: Duration,
}

/// What connections share.
struct State<'a> {
    root: &'a Path,
    map: &'a Map,
    stop: &'a AtomicBool,
    patience: Duration,
    look: Mutex<Look>,
    leases: Mutex<Leases>,
    connections: AtomicUsize,
}

/// The machine as it was seen last.
struct Look {
    machine: Machine,
    counters: Counters,
    load: Load,
}

impl Server {
    /// Takes the socket. An error of kind `AddrInUse` if somebody serves there, or something else stands there; what a service left
    /// that was killed is replaced.
    pub fn bind(path: &Path) -> io::Result<Server> {
        Server::bind_within(path, PATIENCE)
    }

    /// The same, waiting so long for another one that is being started.
    fn bind_within(path: &Path, patience: Duration) -> io::Result<Server> {
        super::make_directory(path)?;
        let directory = match path.parent() {
            Some(directory) if directory != Path::new("") => directory,
            _ => Path::new("."),
        };
        // Two that start at once would each remove the other's.
        let held = File::open(directory)?;
        let deadline = Instant::now() + patience;
        while let Err(errno) = flock(&held, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK {
                return Err(errno.into());
            }
            if Instant::now() > deadline {
                return Err(in_use(path, "another one is being started"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Ok(found) = fs::symlink_metadata(path) {
            if !found.file_type().is_socket() {
                return Err(in_use(path, "is not a socket"));
            }
            match super::connect(path) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
                _ => return Err(in_use(path, "is served by another process")),
            }
        }
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let found = fs::symlink_metadata(path)?;
        Ok(Server {
            listener,
            path: path.to_owned(),
            identity: (found.dev(), found.ino()),
            patience: PATIENCE,
        })
    }

    /// With another limit to how long a request and an answer may take: 10 s without this.
    pub fn patience(mut self, patience: Duration) -> Server {
        self.patience = patience;
        self
    }

    /// Serves until `stop`, then removes the socket. The machine is the one beneath `root`, with the user's map. False if it ended
    /// (and set `stop`) because nobody could find it any more.
    pub fn run(mut self, root: &Path, map: &Map, stop: &AtomicBool) -> bool {
        let mut found = true;
        let mut machine = Machine::read(root);
        let _ = map.apply(&mut machine);
        let look = Look { machine, counters: Counters::read(root), load: Load::default() };
        let (look, leases) = (Mutex::new(look), Mutex::new(Leases::default()));
        let patience = self.patience;
        let state = State { root, map, stop, patience, look, leases, connections: AtomicUsize::new(0) };
        std::thread::scope(|scope| {
            let sampler = std::thread::Builder::new().name("haul-load".into());
            // Without it the load stays unknown.
            let _ = sampler.spawn_scoped(scope, || state.keep_looking());
            let mut number = 0;
            let mut next_look = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                if Instant::now() >= next_look {
                    next_look = Instant::now() + LOAD_EVERY;
                    let is_asked = state.connections.load(Ordering::Relaxed) > 0;
                    if !self.is_found() && !self.bind_again() && !is_asked {
                        found = false;
                        stop.store(true, Ordering::Relaxed);
                        break;
                    }
                }
                let Some(stream) = self.accept() else { continue };
                number += 1;
                if state.connections.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
                    state.connections.fetch_sub(1, Ordering::Relaxed);
                    refuse(stream, "too many connections");
                    continue;
                }
                let state = &state;
                let thread = std::thread::Builder::new().name("haul-client".into());
                let spawned = thread.spawn_scoped(scope, move || {
                    Connection { state, number }.serve(stream);
                });
                if spawned.is_err() {
                    state.connections.fetch_sub(1, Ordering::Relaxed);
                }
            }
        });
        found
    }

    /// Whoever asks at its path gets here, as far as that can be told.
    fn is_found(&self) -> bool {
        match fs::symlink_metadata(&self.path) {
            Ok(found) => (found.dev(), found.ino()) == self.identity,
            Err(error) => error.kind() != ErrorKind::NotFound,
        }
    }

    /// The directory of a login's sockets goes when its user logs out, and comes back.
    fn bind_again(&mut self) -> bool {
        let Ok(new) = Server::bind_within(&self.path, Duration::ZERO) else { return false };
        let patience = self.patience;
        *self = new.patience(patience);
        true
    }

    fn accept(&self) -> Option<UnixStream> {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.as_nanos() as _ };
        let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
        let _ = poll(&mut ready, Some(&wait));
        match self.listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) => {
                // Without descriptors a connection stays in the queue, and is ready at once again.
                if error.kind() != ErrorKind::WouldBlock {
                    std::thread::sleep(LOOK_AGAIN);
                }
                None
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Only what is known to be this one's goes.
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn in_use(path: &Path, reason: &str) -> io::Error {
    io::Error::new(ErrorKind::AddrInUse, format!("{} {reason}", path.display()))
}

fn refuse(mut stream: UnixStream, reason: &str) {
    let _ = stream.set_nonblocking(true);
    let _ = stream.write_all(&line(&Answer::Error { reason: reason.into() }));
}

fn line(answer: &Answer) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).unwrap_or_default();
    line.push(b'\n');
    line
}

/// State stays whole: nothing that is done under these locks can fail half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State<'_> {
    fn keep_looking(&self) {
        let mut next_load = Instant::now() + LOAD_EVERY;
        let mut next_machine = Instant::now() + MACHINE_EVERY;
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK_AGAIN);
            let now = Instant::now();
            if now < next_load {
                continue;
            }
            next_load = now + LOAD_EVERY;
            let counters = Counters::read(self.root);
            let machine = (now >= next_machine).then(|| {
                next_machine = now + MACHINE_EVERY;
                let mut machine = Machine::read(self.root);
                let _ = self.map.apply(&mut machine);
                machine
            });
            let mut look = lock(&self.look);
            look.load = Load::between(&look.counters, &counters);
            look.counters = counters;
            if let Some(machine) = machine {
                look.machine = machine;
            }
        }
    }

    /// The machine as a process may use it.
    fn machine_of(&self, process: Option<u32>) -> (Machine, Load) {
        let (machine, load) = {
            let look = lock(&self.look);
            (look.machine.clone(), look.load.clone())
        };
        match process {
            Some(process) if self.root == Path::new("/") => (machine.of_process(self.root, process), load),
            _ => (machine, load),
        }
    }
}

struct Connection<'a> {
    state: &'a State<'a>,
    number: u64,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        lock(&self.state.leases).end(self.number);
        self.state.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection<'_> {
    fn serve(self, mut stream: UnixStream) {
        // The kernel says who it is; what the socket's mode was while it was made does not matter.
        let process = match Peer::of(&stream) {
            Ok(peer) if peer.is_trusted() => peer.process,
            _ => return refuse(stream, "another user's"),
        };
        let prepared = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(LOOK_AGAIN)))
            .and_then(|()| stream.set_write_timeout(Some(LOOK_AGAIN)));
        if prepared.is_err() {
            return;
        }
        let mut buffer = Vec::new();
        let mut began: Option<Instant> = None;
        let mut said = Instant::now();
        let mut bytes = [0; 4096];
        while !self.state.stop.load(Ordering::Relaxed) {
            match stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    buffer.extend_from_slice(&bytes[..count]);
                    said = Instant::now();
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return,
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let request: Vec<u8> = buffer.drain(..=end).collect();
                began = None;
                if !self.send(&mut stream, &line(&self.answer(&request, process))) {
                    return;
                }
            }
            if buffer.is_empty() {
                let many = self.state.connections.load(Ordering::Relaxed) > MANY;
                if many && said.elapsed() > self.state.patience && !self.has_leases() {
                    return refuse(stream, "too many connections");
                }
                continue;
            }
            if buffer.len() >= REQUEST_BYTES_MAX {
                return refuse(stream, "the request is too long");
            }
            if began.get_or_insert_with(Instant::now).elapsed() > self.state.patience {
                return refuse(stream, "the request does not end");
            }
        }
    }

    fn has_leases(&self) -> bool {
        lock(&self.state.leases).has(self.number)
    }

    /// False if it was not taken in time, however slowly it is read, or the service ends.
    fn send(&self, stream: &mut UnixStream, mut answer: &[u8]) -> bool {
        let deadline = Instant::now() + self.state.patience;
        while !answer.is_empty() {
            if self.state.stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
                return false;
            }
            match stream.write(answer) {
                Ok(count) => answer = &answer[count..],
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn answer(&self, request: &[u8], process: Option<u32>) -> Answer {
        let request = match serde_json::from_slice(request) {
            Ok(request) => request,
            Err(error) => return Answer::Error { reason: format!("not a request: {error}") },
        };
        match request {
            Request::Machine {} => {
                let (machine, load) = self.state.machine_of(process);
                let leased = lock(&self.state.leases).taken();
                Answer::Machine { version: VERSION, machine, load, leased }
            }
            Request::Plan { transfer, .. }
                if transfer.storage.len() + transfer.network.len() > DEVICES_MAX =>
            {
                Answer::Error { reason: format!("more than {DEVICES_MAX} devices") }
            }
            Request::Plan { transfer, lease } => {
                let (machine, load) = self.state.machine_of(process);
                let load = load.without(f64::from(transfer.own_percent) / 100.0);
                // Held until the CPUs are given: two that ask at once get different ones.
                let mut leases = lock(&self.state.leases);
                let plan = Plan::of(&machine, &load, &leases.taken(), &transfer);
                let zone = plan.zone();
                if !lease || zone.is_empty() {
                    return Answer::Plan { plan, lease: None };
                }
                match leases.give(self.number, zone) {
                    Some(number) => Answer::Plan { plan, lease: Some(number) },
                    None => Answer::Error { reason: "this connection has too many leases".into() },
                }
            }
            Request::Release { lease } => match lock(&self.state.leases).release(self.number, lease) {
                Some(cpus) => Answer::Released { cpus },
                None => Answer::Error { reason: format!("this connection has no lease {lease}") },
            },
        }
    }
}
