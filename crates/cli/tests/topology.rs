//! `haul topology` as a user meets it, and its service with several processes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use haul_testkit::alone;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

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

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn ended(&mut self) -> (Option<i32>, Option<i32>) {
        let status = self.0.wait().unwrap();
        (status.code(), status.signal())
    }
}

impl Bed {
    fn new() -> Bed {
        Bed { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = alone(env!("CARGO_BIN_EXE_haul"), self.directory.path());
        command.env("XDG_RUNTIME_DIR", self.directory.path()).arg("topology").args(arguments);
        command
    }

    fn topology(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A machine of two nodes with four CPUs each, a disk on the first and a network interface on the second.
    fn machine(&self) -> String {
        let write = |path: &str, text: &str| {
            let path = self.path("machine").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cpu = "sys/devices/system/cpu";
        write(&format!("{cpu}/online"), "0-15\n");
        for number in 0..16 {
            write(&format!("{cpu}/cpu{number}/topology/thread_siblings_list"), &format!("{number}\n"));
        }
        let node = "sys/devices/system/node";
        write(&format!("{node}/online"), "0-1\n");
        for (number, cpus, distance) in [(0, "0-7", "10 21"), (1, "8-15", "21 10")] {
            write(&format!("{node}/node{number}/cpulist"), cpus);
            write(&format!("{node}/node{number}/distance"), distance);
        }
        write("sys/block/nvme0n1/device/numa_node", "0\n");
        write("sys/class/net/eth0/device/numa_node", "1\n");
        write("sys/class/net/eth1/device/numa_node", "-1\n");
        self.path("machine").to_str().unwrap().to_owned()
    }

    fn serve(&self, arguments: &[&str]) -> Process {
        let mut all = vec!["serve"];
        all.extend(arguments);
        let child = self.command(&all).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut process = Process(child);
        let mut line = String::new();
        BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("serving on "), "{line}");
        process
    }

    fn ask(&self, socket: &Path, request: &str) -> (BufReader<UnixStream>, Value) {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut stream = BufReader::new(stream);
        stream.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        (stream, serde_json::from_str(&line).expect(&line))
    }
}

/// Another user than this one listens there. None where this one is not root.
fn served_by_another_user(socket: &Path) -> Option<UnixListener> {
    if !rustix::process::geteuid().is_root() {
        haul_testkit::lacks("root, to be another user");
        return None;
    }
    fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    let listen = || {
        let user = rustix::process::Uid::from_raw(54_321);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        UnixListener::bind(socket).unwrap()
    };
    // The kernel keeps users by thread; the one of this test stays who it is.
    Some(std::thread::scope(|scope| scope.spawn(listen).join().unwrap()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn told(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

const PLAN: &str = r#"{"plan":{"transfer":{"storage":["nvme0n1"],"network":["eth0"],"threads":{"io":2,"comm_out":1}},"lease":true}}"#;

#[test]
fn this_machine_is_shown() {
    let bed = Bed::new();
    let said = told(&bed.topology(&["--from", ".", "--to", "127.0.0.1"]), 0);
    assert!(said.starts_with("1 node") || said.contains(" nodes, "), "{said}");
    assert!(said.contains("\nfrom    ") && said.contains("\nto      127.0.0.1 is this host\n"), "{said}");
    assert!(said.contains("\nplan: "), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 100), "{said}");
}

#[test]
fn a_recorded_machine_is_shown_with_a_plan() {
    let bed = Bed::new();
    let root = bed.machine();
    // The numbers of this host's disks are those of other ones there.
    let number = fs::metadata(bed.path(".")).unwrap().dev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let disk = Path::new(&root).join("sys/dev/block").join(format!("{major}:{minor}"));
    fs::create_dir_all(disk.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("../../class/block/nvme0n1", disk).unwrap();
    let said = told(&bed.topology(&["--root", &root, "--from", ".", "--to", "eth0"]), 0);
    assert!(said.contains("is on there is not known; name the disk, or say it in a map"), "{said}");
    fs::write(bed.path("map.toml"), "[paths]\n\"/\" = [\"nvme0n1\"]\n").unwrap();
    let mapped = ["--root", &root, "--map", "map.toml", "--from", ".", "--to", "eth0"];
    let said = told(&bed.topology(&mapped), 0);
    assert!(said.contains("the map says so of /\n"), "{said}");
    fs::write(bed.path("map.toml"), "[paths]\n\"/\" = [\"nvme9n1\"]\n").unwrap();
    let said = told(&bed.topology(&mapped), 0);
    assert!(said.contains("name the disk, or say it in a map"), "of another host: {said}");
    let plan = ["--root", &root, "--from", "nvme0n1", "--to", "eth0", "--io-threads", "1", "--streams", "1"];
    let said = told(&bed.topology(&plan), 0);
    assert!(said.is_ascii(), "the locale says so: {said}");
    let seats: Vec<&str> = said.lines().filter(|line| line.contains("  CPU ")).collect();
    assert_eq!(seats.len(), 2, "{said}");
    assert!(said.contains("\n  control    0-1  zone "), "{said}");
    assert!(
        seats.iter().any(|line| line.contains("io ") && line.ends_with("node 0    nvme0n1 is on node 0")),
        "{said}"
    );
    assert!(
        seats.iter().any(|line| line.contains("comm out") && line.contains("node 1    eth0 is on node 1")),
        "{said}"
    );
    let utf8 = bed.command(&plan).env("LANG", "C.UTF-8").output().unwrap();
    assert!(told(&utf8, 0).contains("┌─ node 0"));
    let event: Value =
        serde_json::from_str(&told(&bed.topology(&[&plan[..], &["--json", "--zone"]].concat()), 0)).unwrap();
    assert_eq!(event["event"], "topology");
    assert_eq!(event["plan"]["placement"], "placed");
    assert_eq!(event["plan"]["seats"].as_array().unwrap().len(), 7);
    assert_eq!(event["machine"]["nodes"][1]["distances"]["0"], 21);
    assert_eq!(event["zone"]["because"], "there are no control groups with cpusets");
    let said = told(&bed.topology(&["--root", &root, "--from", "nvme0n1", "--to", "eth0"]), 0);
    assert!(said.contains("plan: leave it to the kernel; 17 threads that want 15 of 16 CPUs: "), "{said}");
}

#[test]
fn whether_a_cpuset_can_be_made_is_told_whatever_the_plan_is() {
    let bed = Bed::new();
    let root = bed.machine();
    let left = ["--root", &root, "--from", "nvme0n1", "--to", "eth0", "--zone"];
    let placed = [&left[..], &["--io-threads", "1", "--streams", "1"]].concat();
    let last = |arguments: &[&str]| told(&bed.topology(arguments), 0).lines().last().unwrap().to_owned();
    let reason = "no cpuset: there are no control groups with cpusets";
    assert_eq!(last(&left), format!("zone: nothing is placed; {reason}"));
    assert_eq!(last(&placed), format!("zone: {reason}"));
    let write = |path: &str, text: &str| {
        let path = bed.path("machine").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("proc/self/cgroup", "4:cpuset:/jobs\n");
    write("proc/self/mountinfo", "30 23 0:27 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
    write("sys/fs/cgroup/cpuset/jobs/cpuset.cpus", "0-15\n");
    write("sys/fs/cgroup/cpuset/jobs/cgroup.procs", "7\n");
    let site = format!("a cpuset can be made in {root}/sys/fs/cgroup/cpuset/jobs");
    assert_eq!(last(&left), format!("zone: nothing is placed; {site}"));
    assert_eq!(last(&placed), format!("zone: {site}"));
    assert_eq!(last(&["--root", &root, "--zone"]), format!("zone: {site}"));
    let event: Value = serde_json::from_str(&last(&[&left[..], &["--json"]].concat())).unwrap();
    assert_eq!(event["plan"]["placement"], "leave-to-kernel");
    assert_eq!(event["zone"]["cpuset_in"], format!("{root}/sys/fs/cgroup/cpuset/jobs"));
}

#[test]
fn a_map_is_read_and_its_mistakes_are_named_with_their_line() {
    let bed = Bed::new();
    let root = bed.machine();
    fs::write(bed.path("good.toml"), "[devices]\neth1 = 1\n").unwrap();
    fs::write(bed.path("bad.toml"), "[devices]\neth1 = 1\n\n[zones]\n").unwrap();
    fs::write(bed.path("far.toml"), "[devices]\neth1 = 4\n").unwrap();
    let said = told(&bed.topology(&["--root", &root, "--map", "good.toml"]), 0);
    assert!(said.contains("eth1 (map)"), "{said}");
    for (map, expected) in [
        ("bad.toml", "bad.toml:4: unknown field `zones`"),
        ("far.toml", "far.toml:2: eth1 cannot be on node 4: this machine has nodes 0-1"),
        ("none.toml", "none.toml: No such file"),
    ] {
        let output = bed.topology(&["--root", &root, "--map", map]);
        told(&output, 2);
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
    // Without --map and --root the user's own is read.
    fs::create_dir_all(bed.path("home/.config/haul")).unwrap();
    fs::write(bed.path("home/.config/haul/topology.toml"), "nodes = 3\n").unwrap();
    let output = bed.topology(&[]);
    told(&output, 2);
    assert!(
        text(&output.stderr).contains("topology.toml:1: unknown field `nodes`"),
        "{}",
        text(&output.stderr)
    );
    told(&bed.topology(&["--root", &root]), 0);
}

#[test]
fn processes_that_ask_the_service_get_different_cpus() {
    let bed = Bed::new();
    let root = bed.machine();
    let socket = bed.path("sock");
    let mut service = bed.serve(&["--socket", "sock", "--root", &root]);
    let (first, one) = bed.ask(&socket, PLAN);
    let (_second, two) = bed.ask(&socket, PLAN);
    let zone = |answer: &Value| answer["plan"]["plan"]["zone"].as_str().unwrap().to_owned();
    assert_eq!((zone(&one).as_str(), zone(&two).as_str()), ("0-1,8", "2-3,9"), "{one} {two}");
    // Who is gone needs none any more.
    drop(first);
    let mut tries = 0;
    while zone(&bed.ask(&socket, &PLAN.replace("true", "false")).1) != "0-1,8" {
        tries += 1;
        assert!(tries < 500, "still leased");
        std::thread::sleep(Duration::from_millis(10));
    }
    service.signal(Signal::TERM);
    assert_eq!(service.ended(), (Some(0), None));
    assert!(!socket.exists());
}

#[test]
fn one_service_is_enough_and_one_that_was_killed_is_replaced() {
    let bed = Bed::new();
    let root = bed.machine();
    // The usual place.
    let socket = bed.path("haul-topology.sock");
    let mut service = bed.serve(&["--root", &root]);
    assert!(socket.exists());
    let output = bed.topology(&["serve", "--root", &root]);
    told(&output, 1);
    let said = text(&output.stderr);
    assert!(
        said.contains("is served by another process") && said.contains("the socket cannot be served"),
        "{said}"
    );
    assert!(bed.ask(&socket, r#"{"machine":{}}"#).1["machine"]["machine"]["nodes"].is_array());
    service.signal(Signal::KILL);
    assert_eq!(service.ended(), (None, Some(9)));
    assert!(socket.exists(), "left over");
    let mut service = bed.serve(&["--root", &root]);
    // What it has given away is shown by who asks for a plan of this machine.
    let (_held, answer) = bed.ask(&socket, PLAN);
    assert!(answer["plan"]["lease"].is_u64(), "{answer}");
    let said = told(&bed.topology(&[]), 0);
    assert!(said.contains("\nleased      CPUs 0-1,8\n"), "{said}");
    service.signal(Signal::TERM);
    assert_eq!(service.ended(), (Some(0), None));
    let mut errors = String::new();
    service.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(errors, "");
    assert!(!socket.exists());
}

#[test]
fn a_service_that_another_kind_of_login_started_is_found() {
    let bed = Bed::new();
    let root = bed.machine();
    let elsewhere = bed.path("login");
    fs::create_dir(&elsewhere).unwrap();
    // As at a boot, or from cron: there is no directory for its sockets. That it would take is there now.
    let socket = {
        let mut command = bed.command(&["serve", "--root", &root]);
        command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", bed.directory.path());
        let mut service = Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let mut line = String::new();
        BufReader::new(service.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let socket = PathBuf::from(line.trim().strip_prefix("serving on ").expect(&line));
        if !socket.starts_with(bed.directory.path()) {
            return haul_testkit::lacks("a user without /run/user/UID");
        }
        let (_held, answer) = bed.ask(&socket, PLAN);
        assert!(answer["plan"]["lease"].is_u64(), "{answer}");
        let mut command = bed.command(&[]);
        command.env("XDG_RUNTIME_DIR", &elsewhere).env("TMPDIR", bed.directory.path());
        // What a service left that was killed is where this one would be asked first.
        drop(UnixListener::bind(elsewhere.join("haul-topology.sock")).unwrap());
        let said = told(&command.output().unwrap(), 0);
        assert!(said.contains("\nleased      CPUs 0-1,8\n"), "{said}");
        if rustix::process::geteuid().is_root() {
            // Nor does somebody else's keep it from being found.
            fs::remove_file(elsewhere.join("haul-topology.sock")).unwrap();
            let _listener = served_by_another_user(&elsewhere.join("haul-topology.sock"));
            let output = command.output().unwrap();
            let said = told(&output, 0);
            assert!(said.contains("\nleased      CPUs 0-1,8\n"), "{said}");
        }
        socket
    };
    let _ = fs::remove_file(socket);
}

#[test]
fn a_socket_that_cannot_be_made_is_an_error() {
    let bed = Bed::new();
    fs::write(bed.path("file"), "data").unwrap();
    for path in ["not/there/sock", "file"] {
        let output = bed.topology(&["serve", "--socket", path]);
        told(&output, 1);
        assert!(text(&output.stderr).contains(path), "{}", text(&output.stderr));
    }
    assert_eq!(fs::read(bed.path("file")).unwrap(), b"data");
}

/// Tests that a script runs in its background ignore interrupts, and so would what they start.
fn heard(command: &mut Command) -> &mut Command {
    use std::os::unix::process::CommandExt;
    let hear = || {
        for signal in [libc::SIGINT, libc::SIGUSR1, libc::SIGUSR2] {
            // SAFETY: a default action is no function of this process.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: nothing here allocates.
    unsafe { command.pre_exec(hear) }
}

#[test]
fn a_command_is_run_with_its_own_exit_code_and_signals_reach_it() {
    let bed = Bed::new();
    let run =
        |words: &[&str]| bed.topology(&[&["run", "--from", ".", "--to", "127.0.0.1", "--"], words].concat());
    let output = run(&["sh", "-c", "echo out; exit 7"]);
    assert_eq!(told(&output, 7), "out\n");
    let said = text(&output.stderr);
    assert!(said.starts_with("haul: left to the kernel: ") || said.contains("haul: on CPUs "), "{said}");
    told(&run(&["sh", "-c", "kill -KILL $$"]), 128 + 9);
    told(&run(&["/not/there"]), 127);
    let mut command = bed.command(&["run", "--", "sh", "-c", "echo ready; exec sleep 60"]);
    let mut process = Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    process.signal(Signal::TERM);
    assert_eq!(process.ended(), (Some(128 + 15), None));
    // Also those that are for the command, and that would end who runs it.
    let told = |signal: Signal, name: &str| {
        let script = format!("trap 'echo heard; exit 9' {name}; echo ready; while :; do sleep 0.01; done");
        let mut command = bed.command(&["run", "--", "sh", "-c", &script]);
        let command = heard(&mut command);
        let mut process = Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        process.signal(signal);
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("heard"), "{name}");
        assert_eq!(process.ended(), (Some(9), None), "{name}");
    };
    // Whoever ignores one has its commands ignore it.
    let ignored = "kill -USR1 $PPID; sleep 0.2; kill -USR1 $$; exit 5";
    let mut command = alone("sh", bed.directory.path());
    let run = [env!("CARGO_BIN_EXE_haul"), "topology", "run", "--", "sh", "-c", ignored];
    let output = command.args(["-c", "trap '' USR1; exec \"$@\"", "sh"]).args(run).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    told(Signal::INT, "INT");
    told(Signal::USR1, "USR1");
    told(Signal::USR2, "USR2");
}

/// `timeout`, `kill %1`: the command has it from whoever sends it, and from `run`.
#[test]
fn an_interrupt_of_the_whole_group_is_one() {
    let bed = Bed::new();
    fs::write(bed.path("file"), vec![7; 8 << 20]).unwrap();
    let haul = env!("CARGO_BIN_EXE_haul");
    // A busy machine may have the second one come late.
    let is_one = (0..5).any(|number| {
        let (copy, state) = (format!("copy-{number}"), bed.path(&format!("state-{number}")));
        let mut command = bed.command(&["run", "--", haul, "cp", "-q", "--bandwidth", "1MiB", "file", &copy]);
        let command = heard(&mut command);
        let mut process =
            Process(command.env("HAUL_STATE_DIR", &state).stderr(Stdio::null()).spawn().unwrap());
        let told = |name: &str| {
            let jobs = fs::read_dir(state.join("jobs")).into_iter().flatten().flatten();
            let text = jobs.map(|job| fs::read_to_string(job.path().join(name))).find_map(Result::ok)?;
            serde_json::from_str::<Value>(&text).ok()
        };
        // How far it is, it tells once it hears signals.
        let deadline = Instant::now() + Duration::from_secs(30);
        while told("progress.json").is_none_or(|told| told["counts"][3] != 8 << 20) {
            assert!(Instant::now() < deadline, "{:?}", told("job.json"));
            std::thread::sleep(Duration::from_millis(5));
        }
        let run = process.0.id();
        let children = fs::read_to_string(format!("/proc/{run}/task/{run}/children")).unwrap();
        kill_process(Pid::from_raw(children.trim().parse().unwrap()).unwrap(), Signal::INT).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        process.signal(Signal::INT);
        assert_eq!(process.ended(), (Some(130), None));
        told("job.json").unwrap()["state"] == "interrupted"
    });
    assert!(is_one);
}

/// As a supervisor has it that waits for its signals with `signalfd`.
#[test]
fn a_command_whose_signals_were_blocked_hears_of_them_all_the_same() {
    use std::os::unix::process::CommandExt;
    let bed = Bed::new();
    let blocked = |words: &[&str]| {
        let mut command = bed.command(&[&["run", "--"], words].concat());
        let block = || {
            let mut signals = std::mem::MaybeUninit::uninit();
            // SAFETY: the set is filled before it is used; nothing here allocates.
            unsafe {
                libc::sigfillset(signals.as_mut_ptr());
                libc::sigprocmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
            }
            Ok(())
        };
        // SAFETY: it only changes the signal mask.
        unsafe { command.pre_exec(block) };
        Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    };
    let ended = |mut process: Process| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while process.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "it hears of nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        process.ended()
    };
    assert_eq!(ended(blocked(&["true"])), (Some(0), None));
    let mut process = blocked(&["sh", "-c", "echo ready; exec sleep 60"]);
    let mut line = String::new();
    BufReader::new(process.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    process.signal(Signal::TERM);
    assert_eq!(ended(process), (Some(128 + 15), None));
}

#[test]
fn a_command_is_on_the_cpus_that_the_service_leased_it() {
    let bed = Bed::new();
    let root = bed.machine();
    let _service = bed.serve(&["--root", &root]);
    fs::write(bed.path("map.toml"), "[paths]\n\"/\" = [\"nvme0n1\"]\n").unwrap();
    let words = ["run", "--from", ".", "--map", "map.toml", "--io-threads", "1", "--streams", "1", "--"];
    let shown = "cat /proc/self/status; echo zone $HAUL_ZONE";
    let mut command = bed.command(&[&words[..], &["sh", "-c", shown]].concat());
    // What it leases must be there for this process, too.
    let output = command.env("HAUL_TEST_MACHINE", &root).output().unwrap();
    let status = told(&output, 0);
    let said = text(&output.stderr);
    assert!(status.ends_with("\nzone 0-4\n"), "{status}");
    let here = rustix::thread::sched_getaffinity(None).unwrap();
    if (0..5).any(|cpu| here.is_set(cpu)) {
        assert_eq!(
            said, "haul: on CPUs 0-4\n",
            "two threads and five that mostly wait, on the node of the disk"
        );
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let last = list.trim().rsplit(['-', ',']).next().unwrap();
        assert!(last.parse::<u32>().unwrap() < 5, "{list}");
    } else {
        // This machine does not let it: then it runs where it was.
        assert!(said.starts_with("haul: not on CPUs 0-4: "), "{said}");
    }
    let socket = bed.path("haul-topology.sock");
    let mut tries = 0;
    while bed.ask(&socket, r#"{"machine":{}}"#).1["machine"]["leased"] != "" {
        tries += 1;
        assert!(tries < 500, "still leased after its end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Answers one request with these bytes, and holds the connection until the other end has gone; what it was asked.
fn answering(socket: &Path, said: Vec<u8>) -> JoinHandle<String> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut stream = BufReader::new(stream);
        let mut asked = String::new();
        stream.read_line(&mut asked).unwrap();
        stream.get_mut().write_all(&said).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
        asked
    })
}

const NO_SEATS: &str = r#"{"plan":{"plan":{"placement":"placed","seats":[],"own":true,"buffers":99,"because":"","zone":"1","others":""},"lease":1}}"#;

#[test]
fn a_command_is_not_where_a_service_says_that_is_wrong_or_late() {
    let bed = Bed::new();
    let root = bed.machine();
    let run = ["run", "--from", "nvme0n1", "--io-threads", "1", "--streams", "1", "--", "echo", "done"];
    for (said, expected) in [
        (NO_SEATS.to_owned() + "\n", "its plan is not for this process"),
        ("hello\n".into(), "expected value at line 1 column 1"),
        ("{\"error\":{\"reason\":\"no\\u001b[2J\"}}\n".into(), "no\\u{1b}[2J"),
        // For ever.
        ("".into(), "timed out"),
    ] {
        let socket = bed.path("haul-topology.sock");
        let service = answering(&socket, said.into_bytes());
        let output = bed.command(&run).env("HAUL_TEST_MACHINE", &root).output().unwrap();
        assert_eq!(told(&output, 0), "done\n");
        let errors = text(&output.stderr);
        let mut lines = errors.lines();
        let first = format!("haul: the placement service at {}: {expected}", socket.display());
        assert_eq!(lines.next(), Some(first.as_str()));
        // Its own plan.
        let second = lines.next().unwrap();
        assert!(
            second.starts_with("haul: on CPUs 0-4") || second.starts_with("haul: not on CPUs 0-4"),
            "{errors}"
        );
        assert_eq!(lines.next(), None, "{errors}");
        assert!(service.join().unwrap().contains("\"lease\":true"));
        fs::remove_file(socket).unwrap();
    }
}

#[test]
fn where_there_is_nothing_to_gain_a_command_is_where_it_was_whatever_a_service_says() {
    let bed = Bed::new();
    let root = bed.machine();
    let nodes = bed.path("machine/sys/devices/system/node");
    fs::remove_dir_all(nodes.join("node1")).unwrap();
    fs::write(nodes.join("online"), "0\n").unwrap();
    let socket = bed.path("haul-topology.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    listener.set_nonblocking(true).unwrap();
    let run = ["run", "--from", "nvme0n1", "--io-threads", "1", "--streams", "1", "--", "echo", "done"];
    let output = bed.command(&run).env("HAUL_TEST_MACHINE", &root).output().unwrap();
    assert_eq!(told(&output, 0), "done\n");
    let said = text(&output.stderr);
    assert!(said.starts_with("haul: left to the kernel: ") && said.lines().count() == 1, "{said}");
    assert!(listener.accept().is_err(), "it was asked");
}

#[test]
fn a_service_of_another_user_is_told_of_and_not_believed() {
    let bed = Bed::new();
    let Some(_listener) = served_by_another_user(&bed.path("haul-topology.sock")) else { return };
    let expected = ": it is user 54321's, neither this user's nor root's\n";
    let shown = bed.topology(&[]);
    told(&shown, 0);
    assert!(text(&shown.stderr).ends_with(expected), "{}", text(&shown.stderr));
    // Wherever it is.
    let elsewhere = fs::hard_link(bed.path("haul-topology.sock"), bed.path("elsewhere"));
    elsewhere.unwrap();
    let run = ["run", "--from", "nvme0n1", "--io-threads", "1", "--streams", "1", "--socket", "elsewhere"];
    let mut run = bed.command(&[&run[..], &["--", "echo", "done"]].concat());
    let run = run.env("HAUL_TEST_MACHINE", bed.machine()).output().unwrap();
    assert_eq!(told(&run, 0), "done\n");
    let said = text(&run.stderr);
    assert!(
        said.starts_with("haul: the placement service at elsewhere: ") && said.contains(expected),
        "{said}"
    );
}
