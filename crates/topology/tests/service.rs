//! The service on a real socket: several clients, wrong ones, and what it leaves behind.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_topology::service::client::{Client, trouble};
use haul_topology::service::message::{Answer, DEVICES_MAX, REQUEST_BYTES_MAX, Request};
use haul_topology::service::server::{CONNECTIONS_MAX, Server};
use haul_topology::{Advice, Asking, Load, Machine, Map, Plan, Threads, Transfer};
use support::{ANOTHER_USER, served_by_another_user, tree};

const PATIENCE: Duration = Duration::from_secs(20);

/// A service of a recorded machine, in a thread of this process.
struct Bed {
    directory: tempfile::TempDir,
    stop: AtomicBool,
}

impl Bed {
    fn run(machine: &str, test: impl FnOnce(&Bed)) {
        Bed::run_with(machine, PATIENCE, test);
    }

    fn run_with(machine: &str, patience: Duration, test: impl FnOnce(&Bed)) {
        let bed = Bed { directory: tree(machine), stop: AtomicBool::new(false) };
        let server = Server::bind(&bed.socket()).unwrap().patience(patience);
        thread::scope(|scope| {
            scope.spawn(|| server.run(bed.directory.path(), &Map::default(), &bed.stop));
            // A test that fails must not leave the service running.
            let end = End(&bed.stop);
            test(&bed);
            drop(end);
        });
        assert!(!bed.socket().exists(), "the socket goes with the service");
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("sock")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket(), PATIENCE).unwrap()
    }

    fn stream(&self) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }
}

struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn transfer() -> Transfer {
    let threads = Threads { master: 1, io: 2, comm_out: 2, log: 1, scan: 1, ..Threads::default() };
    Transfer { storage: vec!["dm-0".into()], network: vec!["enp65s0".into()], threads, ..Transfer::default() }
}

fn leased(client: &mut Client) -> (Plan, u64) {
    let (plan, lease) = client.lease(&transfer()).unwrap();
    (plan, lease.expect("there are CPUs enough"))
}

fn machine_leased(client: &mut Client) -> usize {
    match client.ask(&Request::Machine {}).unwrap() {
        Answer::Machine { leased, .. } => leased.len(),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn what_one_client_has_no_other_gets_until_it_is_given_back() {
    Bed::run("epyc-7451-2s", |bed| {
        let (mut one, mut two) = (bed.client(), bed.client());
        let (first, lease) = leased(&mut one);
        let (second, _) = leased(&mut two);
        assert!(first.zone().and(&second.zone()).is_empty());
        assert_eq!(machine_leased(&mut one), first.zone().len() + second.zone().len());
        let (peek, none) = match two.ask(&Request::Plan { transfer: transfer(), lease: false }).unwrap() {
            Answer::Plan { plan, lease } => (plan, lease),
            answer => panic!("{answer:?}"),
        };
        assert!(none.is_none() && peek.zone().and(&first.zone()).is_empty(), "a look is no lease");
        assert!(two.release(lease).unwrap_err().to_string().contains("has no lease"));
        assert_eq!(one.release(lease).unwrap(), first.zone());
        assert!(one.release(lease).is_err(), "once");
        assert_eq!(leased(&mut one).0.zone(), first.zone(), "they are free again");
    });
}

#[test]
fn a_map_that_is_newer_than_the_service_counts() {
    Bed::run("vm-2nodes", |bed| {
        let mut machine = Machine::read(bed.directory.path());
        let text = "[devices]\nvda = 1\n";
        Map::parse(text, Path::new("map")).unwrap().apply(&mut machine).unwrap();
        let threads = Threads { master: 1, io: 2, ..Threads::default() };
        let transfer = Transfer { storage: vec!["vda".into()], threads, ..Transfer::default() };
        let sockets = [bed.path("nobody"), bed.socket()];
        let asking = Asking { sockets: &sockets, patience: PATIENCE, lease: true };
        let advice = Advice::of(&machine, &transfer, &asking, || panic!("the service answers"));
        let Plan::Placed(placement) = &advice.plan else { panic!("{:?}", advice.plan) };
        assert!(advice.service.is_some() && advice.trouble.is_none());
        assert!(placement.seats.iter().all(|seat| seat.node == 1), "{placement:?}");
        // Whoever is on CPUs that a plan chose asks for no others.
        machine.limits.chosen = true;
        let asking = Asking { lease: false, ..asking };
        let advice = Advice::of(&machine, &transfer, &asking, Load::default);
        assert!(matches!(advice.plan, Plan::Placed(_)) && advice.service.is_none());
    });
}

/// A push hashes what is in memory while it connects: it is not taken for others of itself.
#[test]
fn what_the_client_did_itself_is_no_load_of_others() {
    Bed::run("epyc-7451-2s", |bed| {
        let cpus = Machine::read(bed.directory.path()).cpus.len();
        let mut client = bed.client();
        let mut look = |own_percent| client.look(&Transfer { own_percent, ..transfer() }).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        for jiffies in 1.. {
            let lines = (0..cpus).map(|cpu| format!("cpu{cpu} {} 0 0 0 0 0 0 0 0 0\n", 1_000_000 * jiffies));
            fs::write(bed.path("proc/stat"), lines.collect::<String>()).unwrap();
            let alone = look(0);
            let own = look(100 * cpus as u32);
            assert!(matches!(own, Plan::Placed(_)), "{own:?}");
            if let Plan::LeaveToKernel { because } = alone {
                assert!(because.contains("busy"), "{because}");
                return;
            }
            assert!(Instant::now() < deadline, "nobody is seen to be busy");
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

#[test]
fn cpus_are_free_when_their_client_is_gone() {
    Bed::run("epyc-7451-2s", |bed| {
        let mut watcher = bed.client();
        let mut client = bed.client();
        let (plan, _) = leased(&mut client);
        assert_eq!(machine_leased(&mut watcher), plan.zone().len());
        drop(client);
        let mut tries = 0;
        while machine_leased(&mut watcher) > 0 {
            tries += 1;
            assert!(tries < 1000, "still leased");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn a_machine_that_is_full_is_left_to_the_kernel() {
    Bed::run("xeon-2s-data-transfer-node", |bed| {
        let mut clients: Vec<Client> = (0..4).map(|_| bed.client()).collect();
        let wish = Transfer {
            storage: vec!["md0".into()],
            network: vec!["bond0".into()],
            threads: Threads { io: 2, comm_out: 2, ..Threads::default() },
            ..Transfer::default()
        };
        let plans: Vec<_> = clients.iter_mut().map(|client| client.lease(&wish).unwrap()).collect();
        assert!(plans[..3].iter().all(|(_, lease)| lease.is_some()), "{plans:?}");
        assert!(plans[3].1.is_none(), "no more CPUs for it: {:?}", plans[3]);
        assert!(
            matches!(&plans[3].0, Plan::LeaveToKernel { because } if because.contains("other transfers'"))
        );
    });
}

#[test]
fn many_clients_at_once_never_share_a_cpu() {
    Bed::run("kunpeng-920-2s", |bed| {
        let zones: Vec<_> = thread::scope(|scope| {
            let one = || {
                let mut client = bed.client();
                let wish = Transfer {
                    storage: vec!["nvme0n1".into()],
                    network: vec!["enp189s0f0".into()],
                    threads: Threads { io: 2, comm_out: 1, ..Threads::default() },
                    ..Transfer::default()
                };
                let (plan, lease) = client.lease(&wish).unwrap();
                (client, plan.zone(), lease)
            };
            let threads: Vec<_> = (0..24).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all = support::cpus("");
        for (_, zone, lease) in &zones {
            assert!(lease.is_some() && zone.len() == 3);
            assert!(all.and(zone).is_empty());
            all = all.or(zone);
        }
    });
}

#[test]
fn what_is_no_request_is_answered_with_an_error_and_the_connection_goes_on() {
    Bed::run("vm-2cpu", |bed| {
        let mut stream = bed.stream();
        let names: Vec<String> = (0..=DEVICES_MAX).map(|number| format!("sd{number}")).collect();
        let many = Transfer { storage: names, ..Transfer::default() };
        let many = serde_json::to_string(&Request::Plan { transfer: many, lease: true }).unwrap();
        for wrong in [
            "",
            "x",
            "{}",
            "\"machine\"",
            "{\"machine\":{\"more\":1}}",
            "{\"plan\":{}}",
            "{\"plan\":{\"transfer\":{\"threads\":{\"io\":70000}}}}",
            "{\"plan\":{\"transfer\":{\"thread\":{}}}}",
            "{\"release\":{\"lease\":-1}}",
            "{\"release\":{\"lease\":1}}",
            "\u{fffd}\0",
            &"[".repeat(10_000),
            &many,
        ] {
            stream.get_mut().write_all(format!("{wrong}\n").as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_line(&mut answer).unwrap();
            assert!(answer.starts_with("{\"error\":{\"reason\":"), "{wrong:.60}: {answer}");
        }
        stream.get_mut().write_all(b"{\"machine\":{}}\n{\"plan\":{\"transfer\":{}}}\n").unwrap();
        let mut answers = stream.lines();
        assert!(answers.next().unwrap().unwrap().starts_with("{\"machine\":{\"version\":1,"));
        assert!(
            answers.next().unwrap().unwrap().contains("\"placement\":\"leave-to-kernel\""),
            "two at once"
        );
    });
}

#[test]
fn a_request_without_end_is_cut_off() {
    Bed::run("vm-2cpu", |bed| {
        let mut stream = bed.stream();
        // It may be closed while this is still written.
        let _ = stream.get_mut().write_all(&vec![b' '; REQUEST_BYTES_MAX + 8192]);
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
        assert!(answer.len() < 200);
        assert_eq!(machine_leased(&mut bed.client()), 0, "others are served");
    });
}

#[test]
fn a_request_that_takes_for_ever_is_cut_off_and_silence_is_not() {
    Bed::run_with("vm-2cpu", Duration::from_millis(100), |bed| {
        let mut silent = bed.client();
        let mut slow = bed.stream();
        slow.get_mut().write_all(b"{\"machine\"").unwrap();
        let mut answer = String::new();
        slow.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("the request does not end"), "{answer}");
        assert_eq!(machine_leased(&mut silent), 0);
    });
}

#[test]
fn an_answer_that_nobody_takes_holds_up_nobody_else() {
    Bed::run_with("epyc-7451-2s", Duration::from_millis(100), |bed| {
        let mut watcher = bed.client();
        let mut deaf = asks_too_much(bed);
        let mut tries = 0;
        while machine_leased(&mut watcher) > 0 {
            tries += 1;
            assert!(tries < 1000, "it keeps its lease");
            thread::sleep(Duration::from_millis(10));
        }
        let mut answers = Vec::new();
        let _ = deaf.read_to_end(&mut answers);
        assert!(answers.iter().filter(|byte| **byte == b'\n').count() < 2000, "it was cut off");
    });
}

/// However little is taken at a time.
#[test]
fn an_answer_that_is_taken_slowly_is_cut_off() {
    Bed::run_with("epyc-7451-2s", Duration::from_millis(400), |bed| {
        let mut watcher = bed.client();
        let mut slow = asks_too_much(bed);
        let began = Instant::now();
        while machine_leased(&mut watcher) > 0 {
            assert!(began.elapsed() < PATIENCE / 2, "it keeps its lease");
            slow.get_mut().read_exact(&mut [0; 300]).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn a_service_ends_whoever_has_not_taken_an_answer() {
    let mut slow = None;
    let mut asked = Instant::now();
    Bed::run("epyc-7451-2s", |bed| {
        slow = Some(asks_too_much(bed));
        asked = Instant::now();
    });
    assert!(asked.elapsed() < PATIENCE / 4, "it took {:?}", asked.elapsed());
}

/// Has a lease, and has asked for far more answers than fit into a socket.
fn asks_too_much(bed: &Bed) -> BufReader<UnixStream> {
    let mut stream = bed.stream();
    let lease = serde_json::to_string(&Request::Plan { transfer: transfer(), lease: true }).unwrap();
    let requests = format!("{lease}\n{}", "{\"machine\":{}}\n".repeat(2000));
    stream.get_mut().write_all(requests.as_bytes()).unwrap();
    let mut first = String::new();
    stream.read_line(&mut first).unwrap();
    assert!(first.contains("\"lease\":1"), "{first}");
    stream
}

#[test]
fn where_there_are_many_connections_silent_ones_without_a_lease_give_way() {
    Bed::run_with("epyc-7451-2s", Duration::from_millis(200), |bed| {
        let mut holder = bed.client();
        leased(&mut holder);
        let silent: Vec<_> = (1..CONNECTIONS_MAX).map(|_| bed.stream()).collect();
        let mut tries = 0;
        while bed.client().ask(&Request::Machine {}).is_err() {
            tries += 1;
            assert!(tries < 1000, "no room comes back");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(machine_leased(&mut holder) > 0, "what was leased stays");
        drop(silent);
    });
}

#[test]
fn a_socket_that_has_vanished_comes_back_and_leases_stay() {
    Bed::run("epyc-7451-2s", |bed| {
        let mut holder = bed.client();
        leased(&mut holder);
        fs::remove_file(bed.socket()).unwrap();
        let mut tries = 0;
        while Client::connect(&bed.socket(), PATIENCE).is_err() {
            tries += 1;
            assert!(tries < 1000, "nobody finds it any more");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(machine_leased(&mut bed.client()) > 0, "it is the same service");
        assert!(Server::bind(&bed.socket()).is_err());
    });
}

#[test]
fn a_service_that_nobody_can_find_ends() {
    let directory = tree("vm-2cpu");
    let (place, stop) = (directory.path().join("run"), AtomicBool::new(false));
    fs::create_dir(&place).unwrap();
    let server = Server::bind(&place.join("sock")).unwrap();
    thread::scope(|scope| {
        let service = scope.spawn(|| server.run(directory.path(), &Map::default(), &stop));
        let _end = End(&stop);
        fs::remove_dir_all(&place).unwrap();
        let began = Instant::now();
        while !service.is_finished() {
            assert!(began.elapsed() < PATIENCE, "it serves nobody");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!service.join().unwrap());
    });
}

#[test]
fn there_are_not_more_connections_than_allowed_and_room_comes_back() {
    Bed::run("vm-2cpu", |bed| {
        let mut all: Vec<Client> = (0..CONNECTIONS_MAX).map(|_| bed.client()).collect();
        all.iter_mut().for_each(|client| assert_eq!(machine_leased(client), 0));
        let mut answer = String::new();
        bed.stream().read_line(&mut answer).unwrap();
        assert!(answer.contains("too many connections"), "{answer}");
        drop(all.split_off(1));
        let mut tries = 0;
        while bed.client().ask(&Request::Machine {}).is_err() {
            tries += 1;
            assert!(tries < 1000, "no room comes back");
            thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn only_this_user_can_connect() {
    Bed::run("vm-2cpu", |bed| {
        let mode = fs::metadata(bed.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn a_service_of_another_user_is_not_believed_and_not_asked() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let Some(listener) = served_by_another_user(&socket) else { return };
    let error = Client::connect(&socket, PATIENCE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let said = trouble(&socket, &error).expect("it is told");
    let expected = format!("it is user {ANOTHER_USER}'s, neither this user's nor root's");
    assert_eq!(said, format!("the placement service at {}: {expected}", socket.display()));
    let (mut stream, _) = listener.accept().unwrap();
    let mut asked = String::new();
    stream.read_to_string(&mut asked).unwrap();
    assert_eq!(asked, "");
}

#[test]
fn where_nobody_serves_nothing_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let nothing = |socket: &Path| trouble(socket, &Client::connect(socket, PATIENCE).unwrap_err());
    assert_eq!(nothing(&socket), None);
    drop(UnixListener::bind(&socket).unwrap());
    assert_eq!(nothing(&socket), None, "left as by a process that was killed");
    assert_eq!(nothing(&directory.path().join("x".repeat(120))), None, "too long for a socket");
    fs::write(directory.path().join("file"), "").unwrap();
    assert!(nothing(&directory.path().join("file/sock")).is_some());
}

#[test]
fn a_socket_that_is_served_is_not_taken_and_one_that_was_left_is() {
    Bed::run("vm-2cpu", |bed| {
        let error = Server::bind(&bed.socket()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert!(error.to_string().contains("is served by another process"), "{error}");
        assert_eq!(machine_leased(&mut bed.client()), 0, "it still serves");
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "left as by a process that was killed");
    let server = Server::bind(&path).unwrap();
    UnixStream::connect(&path).unwrap();
    drop(server);
    assert!(!path.exists());
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    fs::write(&path, "data").unwrap();
    assert_eq!(Server::bind(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read(&path).unwrap(), b"data");
    assert!(Server::bind(Path::new("/not/there/sock")).is_err());
}

#[test]
fn a_socket_that_somebody_else_put_there_meanwhile_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sock");
    let server = Server::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let other = UnixListener::bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
    drop(other);
}
