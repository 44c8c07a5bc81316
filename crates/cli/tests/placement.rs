//! `haul cp` puts its threads where they belong: on another machine than this one, read from files, and with a list of who was
//! put where instead of affinities (`HAUL_TEST_MACHINE`, `HAUL_TEST_PINS`, see `haul_topology::placer`).

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use haul_testkit::alone;
use serde_json::Value;

const FILE_BYTES: usize = 6 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Bed {
    directory: tempfile::TempDir,
}

/// A process that is ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bed {
    /// Two nodes of so many CPUs; everything is on a disk of the first one.
    fn new(nodes: usize, cpus: usize) -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        let write = |path: &str, text: &str| {
            let path = bed.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let last = nodes * cpus - 1;
        write("machine/sys/devices/system/cpu/online", &format!("0-{last}\n"));
        for number in 0..=last {
            let path = format!("machine/sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list");
            write(&path, &format!("{number}\n"));
        }
        for number in 0..nodes {
            let node = format!("machine/sys/devices/system/node/node{number}");
            let (first, last) = (number * cpus, (number + 1) * cpus - 1);
            write(&format!("{node}/cpulist"), &format!("{first}-{last}\n"));
        }
        write("machine/sys/block/nvme0n1/device/numa_node", "0\n");
        write("home/.config/haul/topology.toml", "[paths]\n\"/\" = [\"nvme0n1\"]\n");
        write("data", "");
        fs::write(bed.path("data"), (0..FILE_BYTES).map(|at| (at % 251) as u8).collect::<Vec<_>>()).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn haul(&self, arguments: &[&str]) -> Command {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), self.directory.path());
        command
            .env("XDG_RUNTIME_DIR", self.directory.path())
            .env("HAUL_TEST_MACHINE", self.path("machine"))
            .env("HAUL_TEST_PINS", self.path("pins"))
            .args(arguments);
        command
    }

    /// Takes seconds, so that there is somebody to be placed.
    fn copy(&self, options: &[&str]) -> Command {
        let mut command = self.haul(&["cp", "--bandwidth", "4MiB", "--io-threads", "2", "--streams", "2"]);
        command.args(options);
        command
    }

    fn done(&self, options: &[&str]) -> Output {
        let output = self.copy(options).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let to = self.path(options.last().unwrap());
        assert_eq!(fs::read(to).unwrap(), fs::read(self.path("data")).unwrap());
        output
    }

    /// Who was put where.
    fn pins(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(self.path("pins")).unwrap_or_default();
        let words = |line: &str| line.split_once(' ').map(|(who, cpus)| (who.to_owned(), cpus.to_owned()));
        text.lines().filter_map(words).collect()
    }

    fn serve(&self) -> Process {
        let machine = self.path("machine");
        let mut command = self.haul(&["topology", "serve", "--root", machine.to_str().unwrap()]);
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving on "), "{line}");
        process
    }

    /// The CPUs that the service has given away, as a list.
    fn leased(&self) -> String {
        let stream = UnixStream::connect(self.path("haul-topology.sock")).unwrap();
        let mut stream = BufReader::new(stream);
        stream.get_mut().write_all(b"{\"machine\":{}}\n").unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).expect(&line);
        answer["machine"]["leased"].as_str().unwrap().to_owned()
    }

    fn leased_becomes(&self, expected: &str) {
        let deadline = Instant::now() + LONG;
        while self.leased() != expected {
            assert!(Instant::now() < deadline, "{} is leased, not {expected}", self.leased());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn placement(output: &Output) -> Value {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let mut found = events.filter(|event| event["event"] == "placement");
    let event = found.next().expect(&text);
    assert!(found.next().is_none(), "{text}");
    event
}

/// Of a list like `0-3,8`.
fn numbers(list: &str) -> BTreeSet<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// Runs until it says where its threads are; then that event.
fn until_placed(command: &mut Command) -> (Process, Value) {
    let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(process.0.stdout.take().unwrap());
    loop {
        let mut line = String::new();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended without");
        let event: Value = serde_json::from_str(&line).expect(&line);
        if event["event"] == "placement" {
            // Somebody has to take what it goes on to say.
            std::thread::spawn(move || drop(std::io::copy(&mut out, &mut std::io::sink())));
            return (process, event);
        }
    }
}

#[test]
fn threads_that_read_and_write_are_put_near_the_disk() {
    let bed = Bed::new(2, 16);
    let output = bed.done(&["--json", "data", "to"]);
    let event = placement(&output);
    assert_eq!(event["plan"]["placement"], "placed", "{event}");
    assert_eq!((&event["leased"], &event["trouble"]), (&Value::Bool(false), &Value::Null), "{event}");
    assert_eq!(event["reached"], serde_json::json!(["the map says so of /"]));
    let zone = numbers(event["plan"]["zone"].as_str().unwrap());
    assert!(zone.iter().all(|cpu| *cpu < 16), "{event}");
    let pins = bed.pins();
    let own: Vec<_> = ["haul-read-0", "haul-read-1", "haul-write-0", "haul-write-1"]
        .iter()
        .map(|name| pins.iter().find(|(who, _)| who == name).unwrap_or_else(|| panic!("{name}: {pins:?}")))
        .collect();
    let cpus: BTreeSet<_> = own.iter().map(|(_, cpus)| cpus.parse::<usize>().unwrap()).collect();
    assert!(cpus.len() == 4 && cpus.is_subset(&zone), "each on its own: {own:?}");
    for waits in ["haul-source", "haul-sink", "haul-scan", "haul-log", "haul-out-0", "haul-ctl-in"] {
        // A thread may have ended before.
        for (_, cpus) in pins.iter().filter(|(who, _)| who == waits) {
            assert_eq!(numbers(cpus), zone, "{waits} is anywhere in the zone");
        }
    }
    assert!(event["pinned"].as_u64().unwrap() >= 4, "{event}");
}

#[test]
fn two_copies_share_no_cpu_and_give_them_back_however_they_end() {
    let bed = Bed::new(2, 32);
    let _service = bed.serve();
    let (mut first, one) = until_placed(&mut bed.copy(&["--json", "data", "one"]));
    let (mut second, other) = until_placed(&mut bed.copy(&["--json", "data", "other"]));
    let zone = |event: &Value| {
        assert_eq!((&event["leased"], &event["trouble"]), (&Value::Bool(true), &Value::Null), "{event}");
        event["plan"]["zone"].as_str().unwrap().to_owned()
    };
    let (of_first, of_second) = (zone(&one), zone(&other));
    assert!(numbers(&of_first).is_disjoint(&numbers(&of_second)), "{of_first} {of_second}");
    assert_eq!(numbers(&bed.leased()), &numbers(&of_first) | &numbers(&of_second));
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    bed.leased_becomes(&of_second);
    assert!(second.0.wait().unwrap().success());
    bed.leased_becomes("");
    assert!(bed.path("other").exists() && !bed.path("one").exists());
}

#[test]
fn who_does_not_want_it_is_not_placed() {
    let bed = Bed::new(2, 16);
    let _service = bed.serve();
    let output = bed.done(&["--json", "--topology", "off", "data", "to"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("placement"), "{output:?}");
    assert!(bed.pins().is_empty());
    fs::write(bed.path("home/.config/haul/config.toml"), "topology = \"off\"\n").unwrap();
    let output = bed.done(&["--json", "data", "again"]);
    assert!(!String::from_utf8_lossy(&output.stdout).contains("placement"), "{output:?}");
}

#[test]
fn on_a_small_machine_nothing_is_pinned_and_nobody_is_asked() {
    for (nodes, cpus) in [(1, 2), (1, 64), (2, 2)] {
        let bed = Bed::new(nodes, cpus);
        // Would make it wait.
        let socket = UnixListener::bind(bed.path("haul-topology.sock")).unwrap();
        socket.set_nonblocking(true).unwrap();
        let event = placement(&bed.done(&["--json", "data", "to"]));
        assert_eq!(event["plan"]["placement"], "leave-to-kernel", "{event}");
        assert_eq!((&event["pinned"], &event["trouble"]), (&Value::from(0), &Value::Null), "{event}");
        assert!(bed.pins().is_empty());
        assert!(socket.accept().is_err(), "it was asked");
    }
}

#[test]
fn a_service_that_hangs_is_told_of_once_and_costs_nothing() {
    let bed = Bed::new(2, 16);
    let _socket = UnixListener::bind(bed.path("haul-topology.sock")).unwrap();
    let output = bed.done(&["data", "to"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.matches("the placement service at ").count(), 1, "{said}");
    assert!(bed.pins().iter().any(|(who, _)| who == "haul-read-0"), "planned without it");
}

#[test]
fn a_map_with_a_mistake_is_told_of_and_the_copy_goes_on() {
    let bed = Bed::new(2, 16);
    fs::write(bed.path("home/.config/haul/topology.toml"), "[zones]\n").unwrap();
    let output = bed.done(&["data", "to"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("topology.toml:1: unknown field `zones`"), "{said}");
    assert!(bed.pins().is_empty());
}

#[test]
fn what_was_done_is_shown_and_what_would_be_done_explained() {
    let bed = Bed::new(2, 16);
    let output = bed.done(&["-v", "data", "to"]);
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.starts_with("threads      CPUs ")).expect(&said);
    assert!(line.contains("; io on ") && line.contains(" (near nvme0n1)"), "{line}");
    let line = said.lines().find(|line| line.starts_with("buffers      ")).expect(&said);
    assert!(line.contains("locked"), "{line}");
    let _service = bed.serve();
    let output = bed.haul(&["explain", "--io-threads", "2", "data", "elsewhere"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said.lines().find(|line| line.starts_with("placement ")).expect(&said);
    assert!(line.contains("; io on ") && line.contains("the map says so of /"), "{line}");
    assert!(said.contains("\ntopology ") && said.contains("(default: "), "{said}");
    assert_eq!(bed.leased(), "", "a look is no lease");
    let output = bed.haul(&["explain", "--topology", "off", "data", "elsewhere"]).output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("placement "));
}

/// With a service that tells the two ends apart; without one each would be put where the other one is.
#[test]
fn the_other_end_is_placed_too_and_says_so_if_asked() {
    let bed = Bed::new(2, 16);
    let service = bed.serve();
    let haul = env!("CARGO_BIN_EXE_haul");
    let there = format!("'{haul}' bench shell");
    let to = bed.path("there");
    let to = format!("localhost:{}", to.display());
    let words = ["--ssh", &there, "--haul-path", haul, "--plain", "-v", "data", &to];
    let output = bed.copy(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("at the other end: threads: CPUs "), "{said}");
    let pins = bed.pins();
    for who in ["haul-read-0", "haul-write-0", "haul-in-0", "haul-out-1"] {
        assert!(pins.iter().any(|(name, _)| name == who), "{who}: {pins:?}");
    }
    let cpus = |who: &str| pins.iter().find(|(name, _)| name == who).map(|(_, cpus)| cpus);
    assert_ne!(cpus("haul-read-0"), cpus("haul-write-0"), "{pins:?}");
    drop(service);
    let elsewhere = format!("{to}-once-more");
    let [others @ .., _] = words;
    let output = bed.copy(&[&others[..], &[&elsewhere]].concat()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("left to the kernel: the other end is on this host, too"), "{said}");
}
