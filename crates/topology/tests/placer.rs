//! Threads that take seats while a transfer runs, on recorded machines and with a pinner that only writes down.

mod support;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use haul_topology::placer::{Pins, Placer, Told, Wishes};
use haul_topology::service::client::Client;
use haul_topology::service::message::{Answer, Request};
use haul_topology::service::server::Server;
use haul_topology::{Cpus, Map, Plan, ThreadKind, Threads};
use rustix::thread::{Pid, gettid};
use support::{cpus, served_by_another_user, tree};
use tempfile::TempDir;

const LONG: Duration = Duration::from_secs(30);

/// Where each thread was put last.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<BTreeMap<i32, Cpus>>>);

impl Pins for Written {
    fn pin(&self, thread: Pid, cpus: &Cpus) -> io::Result<()> {
        self.0.lock().unwrap().insert(thread.as_raw_nonzero().get(), cpus.clone());
        Ok(())
    }
}

impl Written {
    fn of(&self, thread: i32) -> Option<Cpus> {
        self.0.lock().unwrap().get(&thread).cloned()
    }
}

/// The kernel refuses.
struct Refused;

impl Pins for Refused {
    fn pin(&self, _: Pid, _: &Cpus) -> io::Result<()> {
        Err(io::ErrorKind::InvalidInput.into())
    }
}

struct Bed {
    machine: TempDir,
    written: Written,
    told: Receiver<Told>,
    placer: Placer,
}

/// What `/data` is on, and which network a peer is behind, is in the recorded machine's own words.
fn map() -> Map {
    Map::parse("[paths]\n\"/\" = [\"md0\"]\n", Path::new("map")).unwrap()
}

impl Bed {
    fn new(machine: &str, threads: Threads) -> Bed {
        Bed::with(tree(machine), threads, PathBuf::from("/not/there"), None)
    }

    fn with(machine: TempDir, threads: Threads, socket: PathBuf, pins: Option<Box<dyn Pins>>) -> Bed {
        let written = Written::default();
        let pins = pins.unwrap_or_else(|| Box::new(written.clone()));
        let (tell, told) = channel();
        let root = machine.path().to_owned();
        let storage = vec![PathBuf::from("/data")];
        let patience = Duration::from_millis(100);
        let wishes = Wishes { root, map: map(), storage, threads, sockets: vec![socket], patience, pins };
        let tell = Box::new(move |it: &Told| drop(tell.send(it.clone())));
        Bed { machine, written, told, placer: Placer::new(wishes, tell) }
    }

    fn begin(&self, peer: Option<&str>) -> Told {
        self.placer.begin(peer.map(|peer| peer.parse::<IpAddr>().unwrap()));
        self.told.recv_timeout(LONG).expect("told what came of it")
    }

    /// A thread of this kind has taken a seat; where it was put.
    fn sits(&self, kind: ThreadKind) -> (Option<Cpus>, impl FnOnce() + use<>) {
        let (placer, (there, is_there), (end, ends)) = (self.placer.clone(), channel(), channel::<()>());
        let thread = thread::spawn(move || {
            let _seat = placer.seat(kind);
            there.send(gettid().as_raw_nonzero().get()).unwrap();
            let _ = ends.recv();
        });
        let number = is_there.recv_timeout(LONG).unwrap();
        let leave = move || {
            drop(end);
            thread.join().unwrap();
        };
        (self.written.of(number), leave)
    }
}

/// The route to 192.0.2.0/24 is bond0.
fn with_route(machine: TempDir) -> TempDir {
    let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\nbond0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n";
    std::fs::create_dir_all(machine.path().join("proc/net")).unwrap();
    std::fs::write(machine.path().join("proc/net/route"), table).unwrap();
    machine
}

const DTN: &str = "xeon-2s-data-transfer-node";
const PEER: Option<&str> = Some("192.0.2.7");

#[test]
fn who_starts_later_sits_down_at_once_and_who_ends_makes_room() {
    let bed = Bed::with(with_route(tree(DTN)), Threads::of_source(2, 2), "/not/there".into(), None);
    let (before, leave_first) = bed.sits(ThreadKind::Io);
    assert_eq!(before, None, "nothing is known yet");
    let told = bed.begin(PEER);
    let Plan::Placed(placement) = &told.plan else { panic!("{told:?}") };
    assert!(placement.own && !told.leased && told.pinned == 1 && told.trouble.is_none(), "{told:?}");
    assert_eq!(told.reached, ["the map says so of /", "the route to 192.0.2.7 is bond0"]);
    let seat = |kind, index| {
        let seats = placement.seats.iter();
        seats.clone().find(|seat| (seat.kind, seat.index) == (kind, index)).unwrap().cpus.clone()
    };
    assert_eq!(bed.written.0.lock().unwrap().values().next(), Some(&seat(ThreadKind::Io, 0)));
    let (second, leave_second) = bed.sits(ThreadKind::Io);
    assert_eq!(second, Some(seat(ThreadKind::Io, 1)));
    // More threads for contents than were planned: near their disk, where the kernel likes.
    let (third, leave_third) = bed.sits(ThreadKind::Io);
    assert_eq!(third, Some(cpus("0-5,12-17")));
    leave_second();
    let (again, leave_again) = bed.sits(ThreadKind::Io);
    assert_eq!(again, Some(seat(ThreadKind::Io, 1)), "of the one that has gone");
    let (out, leave_out) = bed.sits(ThreadKind::CommOut);
    assert_eq!(out, Some(seat(ThreadKind::CommOut, 0)));
    assert!(out.unwrap().without(&cpus("6-11,18-23")).is_empty(), "near the network");
    let (master, leave_master) = bed.sits(ThreadKind::Master);
    assert_eq!(master, Some(placement.zone.clone()));
    [leave_first, leave_third, leave_again, leave_out, leave_master].into_iter().for_each(|leave| leave());
}

#[test]
fn an_end_whose_threads_mostly_wait_takes_no_seats_of_those_that_move_bytes() {
    let bed = Bed::new(DTN, Threads::of_both(2, 4, true));
    let told = bed.begin(None);
    let Plan::Placed(placement) = &told.plan else { panic!("{told:?}") };
    let idle = bed.placer.with_waiting(&[ThreadKind::Io, ThreadKind::CommIn]);
    let (written, (send, sent)) = (bed.written.clone(), channel());
    let waits = thread::spawn(move || {
        for kind in [ThreadKind::Io, ThreadKind::CommIn] {
            let _seat = idle.seat(kind);
            send.send(written.of(gettid().as_raw_nonzero().get())).unwrap();
        }
    });
    waits.join().unwrap();
    assert_eq!(sent.iter().collect::<Vec<_>>(), vec![Some(placement.zone.clone()); 2]);
    let (io, leave) = bed.sits(ThreadKind::Io);
    let first = placement.seats.iter().find(|seat| seat.kind == ThreadKind::Io).unwrap();
    assert_eq!(io.as_ref(), Some(&first.cpus), "the first one is free");
    leave();
}

#[test]
fn nothing_is_pinned_where_nothing_is_to_be_gained() {
    for machine in ["vm-2cpu", "container", "xeon-x7550-4s", "vm-2nodes"] {
        let bed = Bed::new(machine, Threads::of_source(2, 2));
        let (_, leave) = bed.sits(ThreadKind::Io);
        let told = bed.begin(PEER);
        assert!(matches!(&told.plan, Plan::LeaveToKernel { .. }), "{machine}: {told:?}");
        assert_eq!((told.pinned, told.trouble.clone()), (0, None), "{machine}");
        assert_eq!(bed.sits(ThreadKind::Io).0, None, "{machine}");
        assert!(bed.written.0.lock().unwrap().is_empty(), "{machine}");
        leave();
    }
}

#[test]
fn what_the_kernel_refuses_is_told_and_nothing_else_happens() {
    let bed = Bed::with(tree(DTN), Threads::of_source(2, 2), "/not/there".into(), Some(Box::new(Refused)));
    let (_, leave) = bed.sits(ThreadKind::Io);
    let told = bed.begin(None);
    assert!(matches!(told.plan, Plan::LeaveToKernel { .. }) && told.pinned == 0, "{told:?}");
    assert_eq!(told.trouble.as_deref(), Some("threads cannot be put on CPUs: invalid input parameter"));
    let (_, leave_second) = bed.sits(ThreadKind::Io);
    leave();
    leave_second();
}

/// What the kernel refuses is leased to nobody.
#[test]
fn what_cannot_be_used_is_given_back() {
    with_service(|socket| {
        let bed = Bed::with(tree(DTN), Threads::of_source(2, 2), socket.to_owned(), Some(Box::new(Refused)));
        let (_, leave) = bed.sits(ThreadKind::Io);
        let told = bed.begin(None);
        assert!(!told.leased && told.trouble.is_some(), "{told:?}");
        let deadline = std::time::Instant::now() + LONG;
        while !leased(socket).is_empty() {
            assert!(std::time::Instant::now() < deadline, "it is kept");
            thread::sleep(Duration::from_millis(5));
        }
        leave();
    });
}

/// Both ends look at the same machine at the same moment.
#[test]
fn two_ends_on_one_host_are_not_put_on_the_same_cpus() {
    for peer in ["127.0.0.1", "::1"] {
        for threads in [Threads::of_source(2, 2), Threads::of_sink(2, 2)] {
            let bed = Bed::new(DTN, threads);
            let told = bed.begin(Some(peer));
            let Plan::LeaveToKernel { because } = &told.plan else { panic!("{told:?}") };
            assert!(because.contains("the other end is on this host, too"), "{because}");
        }
    }
    with_service(|socket| {
        let ends = [Threads::of_source(2, 2), Threads::of_sink(2, 2)];
        let beds = ends.map(|threads| Bed::with(tree(DTN), threads, socket.to_owned(), None));
        let zones = beds.each_ref().map(|bed| match bed.begin(Some("127.0.0.1")).plan {
            Plan::Placed(placement) => placement.zone,
            other => panic!("{other:?}"),
        });
        assert!(zones[0].and(&zones[1]).is_empty(), "{zones:?}");
    });
}

#[test]
fn a_map_that_does_not_fit_the_machine_is_told_of() {
    let (tell, told) = channel();
    let machine = tree(DTN);
    let map = Map::parse("[devices]\nmd0 = 7\n", Path::new("map")).unwrap();
    let (root, threads) = (machine.path().to_owned(), Threads::of_source(2, 2));
    let patience = Duration::from_millis(100);
    let sockets = vec![PathBuf::from("/not/there")];
    let pins = Box::new(Written::default());
    let wishes = Wishes { root, map, storage: vec!["/".into()], threads, sockets, patience, pins };
    let placer = Placer::new(wishes, Box::new(move |it| drop(tell.send(it.clone()))));
    placer.begin(None);
    let told = told.recv_timeout(LONG).unwrap();
    assert_eq!(told.trouble.as_deref(), Some("map:2: md0 cannot be on node 7: this machine has nodes 0-1"));
}

/// A service of the recorded machine for as long as the test runs.
fn with_service(test: impl FnOnce(&Path)) {
    let machine = tree(DTN);
    let socket = machine.path().join("sock");
    let server = Server::bind(&socket).unwrap();
    let stop = AtomicBool::new(false);
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| server.run(machine.path(), &Map::default(), &stop));
        let end = End(&stop);
        test(&socket);
        drop(end);
    });
}

fn leased(socket: &Path) -> Cpus {
    match Client::connect(socket, LONG).unwrap().ask(&Request::Machine {}).unwrap() {
        Answer::Machine { leased, .. } => leased,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn two_transfers_get_different_cpus_and_give_them_back() {
    with_service(|socket| {
        let bed =
            || Bed::with(tree(DTN), Threads { master: 1, io: 2, ..Threads::default() }, socket.into(), None);
        let (one, other) = (bed(), bed());
        let zone = |bed: &Bed| {
            let told = bed.begin(None);
            assert!(told.leased && told.trouble.is_none(), "{told:?}");
            told.plan.zone()
        };
        let (first, second) = (zone(&one), zone(&other));
        assert!(!first.is_empty() && first.and(&second).is_empty(), "{first} {second}");
        assert_eq!(leased(socket), first.or(&second));
        drop(one);
        let deadline = Instant::now() + LONG;
        while leased(socket) != second {
            assert!(Instant::now() < deadline, "still leased");
            thread::sleep(Duration::from_millis(5));
        }
        drop(other);
    });
}

#[test]
fn a_service_that_hangs_or_talks_nonsense_is_told_of_and_planned_without() {
    let nonsense: [&[u8]; 6] = [
        b"",
        b"hello\n",
        b"{\"released\":{\"cpus\":\"0\"}}\n",
        b"{\"error\":{\"reason\":\"too many connections\"}}\n",
        b"{\"plan\":{\"plan\":{\"placement\":\"placed\",\"seats\":[],\"own\":true,\"buffers\":0,\"because\":\"\",\"zone\":\"0-500\",\"others\":\"\"},\"lease\":1}}\n",
        // Byte by byte, for ever.
        b" ",
    ];
    for said in nonsense {
        let machine = tree(DTN);
        let socket = machine.path().join("sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&stop);
        let service = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            while !ends.load(Ordering::Relaxed) {
                if stream.write_all(said).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(10));
            }
        });
        let bed = Bed::with(machine, Threads::of_source(2, 2), socket, None);
        let began = Instant::now();
        let told = bed.begin(None);
        assert!(began.elapsed() < Duration::from_secs(5), "{said:?}: {:?}", began.elapsed());
        assert!(matches!(told.plan, Plan::Placed(_)) && !told.leased, "{said:?}: {told:?}");
        assert!(told.trouble.unwrap().contains("the placement service at "), "{said:?}");
        stop.store(true, Ordering::Relaxed);
        service.join().unwrap();
    }
}

#[test]
fn a_service_of_another_user_is_told_of_and_planned_without() {
    let machine = tree(DTN);
    let socket = machine.path().join("sock");
    let Some(_listener) = served_by_another_user(&socket) else { return };
    let bed = Bed::with(machine, Threads::of_source(2, 2), socket, None);
    let told = bed.begin(None);
    assert!(matches!(told.plan, Plan::Placed(_)) && !told.leased, "{told:?}");
    assert!(told.trouble.unwrap().ends_with("neither this user's nor root's"));
}

#[test]
fn a_service_that_takes_no_connections_costs_nothing() {
    let machine = tree(DTN);
    let socket = machine.path().join("sock");
    // Its queue is full.
    let _listener = UnixListener::bind(&socket).unwrap();
    let mut waiting = Vec::new();
    while let Ok(client) = Client::connect(&socket, LONG) {
        waiting.push(client);
        assert!(waiting.len() < 100_000);
    }
    let bed = Bed::with(machine, Threads::of_source(2, 2), socket, None);
    let told = bed.begin(None);
    assert!(matches!(told.plan, Plan::Placed(_)) && !told.leased && told.trouble.is_some(), "{told:?}");
}

#[test]
fn a_transfer_that_ends_before_it_is_placed_leases_nothing() {
    with_service(|socket| {
        let bed = Bed::with(tree(DTN), Threads { io: 2, ..Threads::default() }, socket.into(), None);
        bed.placer.begin(None);
        let Bed { placer, told, machine, .. } = bed;
        drop(placer);
        // Told or not, whoever planned has gone when nothing is sent any more.
        while told.recv_timeout(LONG).is_ok() {}
        let deadline = Instant::now() + LONG;
        while !leased(socket).is_empty() {
            assert!(Instant::now() < deadline, "still leased");
            thread::sleep(Duration::from_millis(5));
        }
        drop(machine);
    });
}
