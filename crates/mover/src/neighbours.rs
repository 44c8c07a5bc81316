//! Speaks with other transfers on this host about the storage targets that they share.
//!
//! Each end of a transfer has a datagram socket with one of [`NEIGHBOURS_MAX`] numbered names of the abstract namespace,
//! and sends what its master [says](haul_protocol::neighbours) to all other numbers. Such names vanish with their process,
//! whatever ends it, and lie in no directory that somebody must be allowed to write: nobody sets anything up, nobody is in
//! charge, nothing is left over. The kernel names the sender of each datagram and its user.
//!
//! Those that were heard are told each time; everybody else only now and then, for what a stopped process does not read
//! takes room of the sender.
//!
//! What must stay true: nothing here blocks, and the master never waits for it. The thread wakes twenty times
//! a second and reads a bounded number of datagrams then, so no flood of them costs more. Whatever fails (no such
//! names, no free number, a sandbox), this transfer goes on as if it were alone.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender as QueueSender, TrySendError, bounded};
use haul_model::TargetId;
use haul_model::limits::NEIGHBOURS_MAX;
use haul_protocol::Planted;
use haul_protocol::neighbours::{Neighbourhood, Party};
use haul_protocol::scheduler::{Said, Told};
use haul_storage::placing::Placing;
use haul_wire::{STATEMENT_BYTES_MAX, STATEMENT_VERSION, Statement};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketAddrUnix, recvmsg, sockopt,
};

use crate::master::{Input, Inputs};

/// How often a master says what it does.
pub(crate) const BEAT_MILLIS: u16 = 250;
/// So many neighbours are told at each beat; with more, each is told less often. 100 processes so send 3,000 datagrams a
/// second, a few percent of a core.
const TOLD_PER_BEAT: usize = 8;
/// Statements are no further apart than this many beats.
const BEATS_MAX: usize = 16;
/// Those that were not heard are told so often: 8 s apart.
const BEATS_FOR_ALL: usize = 32;
/// Room for what others have not read: a full queue (10 to 512 datagrams) of a neighbour that stands still.
const UNREAD_BYTES: usize = 1 << 20;
/// Datagrams are read so often, and so many of them: as many as the kernel keeps, anywhere.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const READ_AT_ONCE: usize = 512;

/// What a master hears of its neighbours.
pub(crate) struct Heard {
    /// Of each target.
    pub(crate) told: Vec<Told>,
    /// How many other transfers are at its targets.
    pub(crate) transfers: usize,
}

/// The thread of one end. It ends when this is dropped.
pub(crate) struct Neighbours {
    said: QueueSender<Vec<Said>>,
}

impl Neighbours {
    /// Starts the thread. `transfer` is the same number at both ends, `placing` tells which target is which.
    pub(crate) fn start(placing: Arc<Placing>, transfer: u64, inputs: Inputs) -> Neighbours {
        let (said, queue) = bounded::<Vec<Said>>(1);
        let run = move || {
            let party = Party { user: rustix::process::getuid().as_raw(), transfer };
            let mut speaker = Speaker::new(party, Socket::bind);
            loop {
                match queue.recv_timeout(speaker.patience()) {
                    Ok(said) => {
                        speaker.meet(&placing);
                        let heard = speaker.beat(&said, now_nanos());
                        // A master that has no time hears of it at the next beat.
                        let _ = inputs.try_send(Input::Neighbours(heard));
                    }
                    Err(RecvTimeoutError::Timeout) => speaker.hear(now_nanos()),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
            speaker.leave();
        };
        // Without the thread nobody is told, and nobody is heard.
        let _ = std::thread::Builder::new().name("haul-neighbours".into()).spawn(run);
        Neighbours { said }
    }

    /// What the master says now; dropped if what it said before was not told yet. False if the thread is gone: then nobody
    /// is heard any more either.
    pub(crate) fn say(&self, said: Vec<Said>) -> bool {
        !matches!(self.said.try_send(said), Err(TrySendError::Disconnected(_)))
    }
}

/// What there is to a socket of a neighbour.
trait Place {
    /// Its number.
    fn number(&self) -> u16;
    /// Sends to a number, if somebody has it and has room.
    fn send(&self, bytes: &[u8], number: u16);
    /// The next datagram: the sender's number and user, and how long it is.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(u16, u32, usize)>>;
}

/// Says, hears and works out what follows.
struct Speaker<P> {
    neighbourhood: Neighbourhood,
    bind: fn() -> io::Result<P>,
    /// Bound when there is something to say for the first time.
    place: Option<P>,
    tried: bool,
    met: usize,
    /// Somebody was heard for the first time, and is to be told at the next beat.
    new: bool,
    /// Beats until those that were heard are told again, and until all are.
    beats_left: usize,
    beats_left_for_all: usize,
    buffer: Vec<u8>,
}

impl<P: Place> Speaker<P> {
    fn new(party: Party, bind: fn() -> io::Result<P>) -> Self {
        let buffer = vec![0; STATEMENT_BYTES_MAX + 1];
        let neighbourhood = Neighbourhood::new(party, Planted::default());
        Speaker {
            neighbourhood,
            bind,
            place: None,
            tried: false,
            met: 0,
            new: false,
            beats_left: 0,
            beats_left_for_all: 0,
            buffer,
        }
    }

    /// Targets that were met since the last time.
    fn meet(&mut self, placing: &Placing) {
        for (target, identity) in placing.identities(self.met) {
            self.met += 1;
            self.neighbourhood.know(TargetId(u32::from(target)), identity);
        }
    }

    fn beat(&mut self, said: &[Said], now_nanos: u64) -> Heard {
        let every = self.neighbourhood.count().div_ceil(TOLD_PER_BEAT).clamp(1, BEATS_MAX);
        let statement = self.neighbourhood.say(said.iter().copied(), BEAT_MILLIS * every as u16);
        if self.place.is_none() && !self.tried && !statement.targets.is_empty() {
            // What has no targets of its own (a plain disk) has no neighbours.
            self.tried = true;
            self.place = (self.bind)().ok();
        }
        if self.place.is_none() {
            return Heard { told: Vec::new(), transfers: 0 };
        }
        self.hear(now_nanos);
        let new = std::mem::take(&mut self.new);
        self.beats_left = self.beats_left.saturating_sub(1);
        self.beats_left_for_all = self.beats_left_for_all.saturating_sub(1);
        if self.beats_left_for_all == 0 {
            (self.beats_left, self.beats_left_for_all) = (every, BEATS_FOR_ALL);
            self.tell(&statement, 0..NEIGHBOURS_MAX as u16);
        } else if self.beats_left == 0 || new {
            self.beats_left = every;
            self.tell(&statement, self.neighbourhood.numbers());
        }
        let (told, transfers) = self.neighbourhood.tell(now_nanos);
        Heard { told, transfers }
    }

    /// How long it may be without a look at what has come: many systems keep no more than ten datagrams.
    fn patience(&self) -> Duration {
        if self.place.is_some() { LOOK_AGAIN } else { LOOK_AGAIN * 20 }
    }

    fn hear(&mut self, now_nanos: u64) {
        let Some(place) = &self.place else { return };
        for _ in 0..READ_AT_ONCE {
            match place.receive(&mut self.buffer) {
                Ok(Some((number, user, length))) => {
                    if let Ok(statement) = Statement::decode(&self.buffer[..length]) {
                        self.new |= self.neighbourhood.hear(number, user, &statement, now_nanos);
                    }
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
    }

    fn tell(&self, statement: &Statement, numbers: impl Iterator<Item = u16>) {
        let Some(place) = &self.place else { return };
        let bytes = statement.encode();
        let others = numbers.filter(|number| *number != place.number());
        others.for_each(|number| place.send(&bytes, number));
    }

    /// This end is at no target any more.
    fn leave(&self) {
        let nothing = self.neighbourhood.say(std::iter::empty(), BEAT_MILLIS);
        self.tell(&nothing, self.neighbourhood.numbers());
    }
}

/// The same in all processes of the host, so that they agree on whose turn it is.
fn now_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

struct Socket {
    socket: UnixDatagram,
    number: u16,
}

fn name(number: u16) -> Vec<u8> {
    format!("haul/neighbours/{STATEMENT_VERSION}/{number}").into_bytes()
}

fn number_of(name: &[u8]) -> Option<u16> {
    let prefix = format!("haul/neighbours/{STATEMENT_VERSION}/");
    let number = std::str::from_utf8(name.strip_prefix(prefix.as_bytes())?).ok()?.parse().ok()?;
    (usize::from(number) < NEIGHBOURS_MAX).then_some(number)
}

impl Socket {
    /// The first number that nobody has.
    fn bind() -> io::Result<Socket> {
        for number in 0..NEIGHBOURS_MAX as u16 {
            match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name(number))?) {
                Ok(socket) => {
                    socket.set_nonblocking(true)?;
                    sockopt::set_socket_passcred(&socket, true)?;
                    // As much of it as the system allows.
                    sockopt::set_socket_send_buffer_size(&socket, UNREAD_BYTES)?;
                    return Ok(Socket { socket, number });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }
}

impl Place for Socket {
    fn number(&self) -> u16 {
        self.number
    }

    fn send(&self, bytes: &[u8], number: u16) {
        if let Ok(address) = SocketAddr::from_abstract_name(name(number)) {
            // Nobody is there, or has read nothing for long.
            let _ = self.socket.send_to_addr(bytes, &address);
        }
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(u16, u32, usize)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(buffer)];
        let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let user = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.uid.as_raw()),
            _ => None,
        });
        let address = received.address.and_then(|address| SocketAddrUnix::try_from(address).ok());
        let number = address.as_ref().and_then(SocketAddrUnix::abstract_name).and_then(number_of);
        let whole = !received.flags.contains(ReturnFlags::TRUNC);
        Ok(number.zip(user).filter(|_| whole).map(|(number, user)| (number, user, received.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000_000_000;

    /// Of this run and test only: others speak on this host, too.
    fn ost(test: u64) -> u64 {
        0x05EE_D0F0_57AB_1E00 ^ u64::from(std::process::id()) << 32 ^ test
    }

    fn speaker(test: u64, transfer: u64, target: u32) -> Speaker<Socket> {
        let user = rustix::process::getuid().as_raw();
        let mut speaker = Speaker::new(Party { user, transfer }, Socket::bind);
        speaker.neighbourhood.know(TargetId(target), ost(test));
        speaker
    }

    fn said(target: u32) -> [Said; 1] {
        [Said { target: TargetId(target), under_way: 2, wants: true, congested: true, hangs: false }]
    }

    #[test]
    fn two_hear_each_other_and_one_that_leaves_is_gone_at_once() {
        let (mut first, mut second) = (speaker(1, 1, 5), speaker(1, 2, 9));
        assert_eq!(first.beat(&said(5), NOW).transfers, 0);
        assert_eq!(second.beat(&said(9), NOW).transfers, 0, "said before it was there");
        let heard = first.beat(&said(5), NOW);
        assert_eq!(heard.transfers, 1);
        let Told { target, parts, under_way, congested, .. } = heard.told[0];
        assert_eq!((target, parts, under_way, congested), (TargetId(5), 2, 2, true));
        assert_eq!(second.beat(&said(9), NOW).transfers, 1, "who is new is told at once");
        second.leave();
        assert_eq!(first.beat(&said(5), NOW).transfers, 0);
    }

    #[test]
    fn garbage_nameless_senders_and_long_datagrams_are_no_neighbours() {
        let mut speaker = speaker(2, 7, 1);
        speaker.beat(&said(1), NOW);
        let number = speaker.place.as_ref().expect("a free number").number;
        let address = SocketAddr::from_abstract_name(name(number)).unwrap();
        let statement = |transfer| {
            let mut other = Neighbourhood::new(Party { user: 0, transfer }, Planted::default());
            other.know(TargetId(1), ost(2));
            other.say(said(1).into_iter(), 250).encode()
        };
        let nameless = UnixDatagram::unbound().unwrap();
        nameless.send_to_addr(&statement(8), &address).unwrap();
        let named = Socket::bind().unwrap();
        let long = [statement(9), vec![0; 2 * STATEMENT_BYTES_MAX]].concat();
        for bytes in [&b"no statement"[..], &[], &long, &statement(9)[..30]] {
            named.send(bytes, number);
        }
        assert_eq!(speaker.beat(&said(1), NOW).transfers, 0);
        named.send(&statement(9), number);
        assert_eq!(speaker.beat(&said(1), NOW).transfers, 1, "and it still listens");
    }

    #[test]
    fn one_that_never_reads_holds_up_nobody() {
        let (mut first, mut stopped) = (speaker(3, 21, 1), speaker(3, 22, 1));
        stopped.beat(&said(1), NOW);
        // Far more than any kernel keeps for it.
        first.beat(&said(1), NOW);
        let statement = first.neighbourhood.say(said(1).into_iter(), 250);
        let number = stopped.place.as_ref().expect("a free number").number;
        (0..3000).for_each(|_| first.tell(&statement, std::iter::once(number)));
        // What it does not read does not keep the first from telling others.
        let mut third = speaker(3, 23, 1);
        third.beat(&said(1), NOW);
        first.beat(&said(1), NOW);
        assert_eq!(third.beat(&said(1), NOW).transfers, 1);
        assert!(stopped.beat(&said(1), NOW).transfers >= 1, "the kernel kept what was first");
    }

    #[test]
    fn what_has_no_shared_target_has_no_socket() {
        let mut speaker = speaker(4, 3, 1);
        speaker.beat(&[], NOW);
        speaker.beat(&[Said { target: TargetId(0), ..said(1)[0] }], NOW);
        assert!(speaker.place.is_none());
    }

    #[test]
    fn numbers_are_read_back_and_nothing_else_is_one() {
        assert_eq!(number_of(&name(17)), Some(17));
        for wrong in
            [&b"haul/neighbours/0/1"[..], b"haul/neighbours/1/256", b"haul/neighbours/1/-1", b"\xff", b""]
        {
            assert_eq!(number_of(wrong), None);
        }
    }
}
