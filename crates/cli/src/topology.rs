//! `haul topology`: what this host is made of, where the threads of a transfer belong, and the service that tells several
//! processes, and a way to run a command where it says.

use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use haul_model::Code;
use haul_mover::Error;
use haul_topology::placer::host;
use haul_topology::service::client::{Client, trouble};
use haul_topology::service::{default_socket, server::Server, usual_sockets};
use haul_topology::zone::{self, Kind, Site, Zone};
use haul_topology::{
    Advice, Asking, Counters, Cpus, DeviceKind, Load, Machine, Map, MapError, Plan, Style, Threads, Transfer,
    of_path, of_peer, picture, pin, words,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::Origin;

use crate::options::{self, TopologyCommand, TopologyEnds, TopologyRun, TopologyServe};
use crate::paths::{self, Place, json as json_line};
use crate::report::ended;
use crate::settings::configuration;
use crate::signals;
use crate::ssh::{RESOLVES_WITHIN, ResolvedHost};

/// How long the load is looked at.
const LOOK: Duration = Duration::from_millis(300);
/// A service that does not answer sooner is none.
const PATIENCE: Duration = Duration::from_secs(2);
/// As shells say that a command cannot be started.
const CANNOT_START: u8 = 127;
/// For a name that is looked up; nothing is sent there.
const SOME_PORT: u16 = 22;

/// `haul topology`
pub fn topology(arguments: &options::Topology) -> Result<u8, Error> {
    match &arguments.command {
        Some(TopologyCommand::Serve(arguments)) => serve(arguments),
        Some(TopologyCommand::Run(arguments)) => run(arguments),
        None => show(&arguments.show),
    }
}

fn show(arguments: &options::TopologyShow) -> Result<u8, Error> {
    let root = arguments.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let here = arguments.root.is_none();
    let (machine, map) = machine(&root, arguments.ends.map.as_deref(), here)?;
    if !here && machine.usable().is_empty() {
        let about = format!("{}: no machine is described there", root.display());
        return Err(Error::new(Code::Usage, about).hint("it has copies of a machine's /sys and /proc"));
    }
    let load = if here { load(&root) } else { Load::default() };
    let leased = if here { leased() } else { Cpus::new() };
    let wanted = arguments.ends.from.is_some() || arguments.ends.to.is_some();
    let route = Route::find(&root, &machine, &map, &arguments.ends)?;
    let plan = wanted.then(|| Plan::of(&machine, &load, &leased, &route.transfer));
    let zone = arguments.zone.then(|| Site::find(&root));
    let mut out = io::stdout().lock();
    if arguments.json {
        let zone = zone.map(|zone| match zone {
            Ok(site) => json!({"cpuset_in": site.parent.to_string_lossy()}),
            Err(reason) => json!({"cpuset_in": null, "because": reason}),
        });
        let event = json!({
            "event": "topology", "machine": machine, "load": load, "leased": leased,
            "transfer": wanted.then_some(&route.transfer), "route": route.because, "plan": plan, "zone": zone,
        });
        ended(writeln!(out, "{}", json_line(&event)).and_then(|()| out.flush()))?;
        return Ok(0);
    }
    let style = if arguments.ascii || !is_utf8() { Style::Ascii } else { Style::Utf8 };
    let mut text = picture(&machine, &load, style);
    if !leased.is_empty() {
        text += &format!("leased      CPUs {leased}\n");
    }
    if let Some(plan) = &plan {
        text.push('\n');
        route.because.iter().for_each(|line| text += &format!("{}\n", paths::show(line.as_bytes())));
        text += &words(plan);
    }
    if let Some(site) = &zone {
        text += &zone_line(site, plan.as_ref());
    }
    ended(out.write_all(text.as_bytes()).and_then(|()| out.flush()))?;
    Ok(0)
}

/// Whether a cpuset can be made on this host, also where this transfer needs none.
fn zone_line(site: &Result<Site, String>, plan: Option<&Plan>) -> String {
    let placed = match plan {
        Some(Plan::LeaveToKernel { .. }) => "nothing is placed; ",
        Some(Plan::Placed(_)) | None => "",
    };
    match site {
        Ok(site) => {
            let parent = paths::show(site.parent.as_os_str().as_encoded_bytes());
            format!("zone: {placed}a cpuset can be made in {parent}\n")
        }
        Err(reason) => format!("zone: {placed}no cpuset: {}\n", paths::show(reason.as_bytes())),
    }
}

/// What the user knows better of this host: the first map that is there.
pub fn usual_map() -> Result<Map, MapError> {
    let places = configuration("topology.toml").into_iter().chain([PathBuf::from("/etc/haul/topology.toml")]);
    let found = { places }.find(|place| place.exists());
    found.map_or(Ok(Map::default()), |file| Map::read(&file))
}

/// The machine with what the user's map says of it.
fn machine(root: &Path, map: Option<&Path>, here: bool) -> Result<(Machine, Map), Error> {
    let wrong = |error: MapError| {
        Error::new(Code::Usage, error.to_string()).hint("docs/guide/placement.md says what a map looks like")
    };
    let map = match map {
        Some(file) => Map::read(file),
        None if here => usual_map(),
        // The usual ones are about this host, not about a recorded one.
        None => Ok(Map::default()),
    };
    let map = map.map_err(wrong)?;
    let mut machine = Machine::read(root);
    map.apply(&mut machine).map_err(wrong)?;
    machine.limits.chosen = here && zone::is_within(&machine);
    Ok((machine, map))
}

/// How busy it is now.
fn load(root: &Path) -> Load {
    let before = Counters::read(root);
    std::thread::sleep(LOOK);
    Load::between(&before, &Counters::read(root))
}

/// The CPUs that the service of this user has given away; none if there is no service.
fn leased() -> Cpus {
    let sockets = usual_sockets();
    let found = Client::find(&sockets, PATIENCE);
    let leased = found.and_then(|(socket, mut service)| service.leased().map_err(|error| (socket, error)));
    leased.unwrap_or_else(|(socket, error)| {
        tell(trouble(socket, &error));
        Cpus::new()
    })
}

/// What is done without, and why.
fn tell(trouble: Option<String>) {
    if let Some(trouble) = trouble {
        say(&trouble);
    }
}

/// The devices and threads of a transfer at this host.
#[derive(Default)]
struct Route {
    transfer: Transfer,
    /// How each end is reached, in words.
    because: Vec<String>,
}

impl Route {
    fn find(root: &Path, machine: &Machine, map: &Map, arguments: &TopologyEnds) -> Result<Route, Error> {
        let mut route = Route::default();
        // An end that is on this host has threads here; where both are, one process has those of both.
        let (mut source, mut sink) = (false, false);
        for (end, text) in [("from", &arguments.from), ("to", &arguments.to)] {
            let Some(text) = text else { continue };
            let (reached, because) = reach(root, machine, map, end, text)?;
            route.because.push(format!("{end:<8}{because}"));
            match (reached, end) {
                (Reach::Storage(devices), end) => {
                    source |= end == "from";
                    sink |= end == "to";
                    route.transfer.storage.extend(devices);
                }
                // The other end is beyond the network, this one is here.
                (Reach::Network(devices), end) => {
                    source |= end == "to";
                    sink |= end == "from";
                    route.transfer.network.extend(devices);
                }
            }
        }
        let cores = machine.usable().len();
        let io = arguments.io_threads.unwrap_or(cores.clamp(2, 8) as u16);
        let streams = arguments.streams.unwrap_or(cores.clamp(1, 4) as u16);
        route.transfer.threads = match (source, sink) {
            (true, true) => Threads::of_both(io, streams, true),
            (false, true) => Threads::of_sink(io, streams),
            _ => Threads::of_source(io, streams),
        };
        Ok(route)
    }
}

/// What the devices of an end are for.
enum Reach {
    /// Contents are on them, or beyond them on a server.
    Storage(Vec<String>),
    /// Another host is beyond them.
    Network(Vec<String>),
}

/// The devices of a path, towards a host (`host:path`, an address), or the one of that name; and how that is known.
fn reach(
    root: &Path,
    machine: &Machine,
    map: &Map,
    end: &str,
    text: &OsStr,
) -> Result<(Reach, String), Error> {
    let shown = text.to_string_lossy();
    if let Some(device) = machine.device(&shown) {
        let devices = vec![device.name.clone()];
        let reach =
            if device.kind == DeviceKind::Block { Reach::Storage(devices) } else { Reach::Network(devices) };
        return Ok((reach, device.name.clone()));
    }
    let address = match (shown.parse::<IpAddr>(), Place::parse(text)) {
        (Ok(address), _) => address,
        (_, Ok(Place::There { host, .. })) => resolve(&host)?,
        (_, Ok(Place::Here(path))) => {
            if root != Path::new("/") {
                return Ok(recorded(machine, map, Path::new(&path)));
            }
            let there = Path::new(&path).symlink_metadata().is_ok();
            if !there && end == "from" {
                let about =
                    format!("{}: no such file, device or address", paths::show(text.as_encoded_bytes()));
                return Err(Error::new(Code::Usage, about).hint("a host is written as in haul cp: host:path"));
            }
            let reached = of_path(root, machine, map, Path::new(&path));
            let missing = if there { "" } else { "it is not there yet; " };
            return Ok((Reach::Storage(reached.devices), format!("{missing}{}", reached.because)));
        }
        (_, Err(error)) => return Err(error),
    };
    let reached = of_peer(root, address);
    Ok((Reach::Network(reached.devices), reached.because))
}

/// Of a machine that was copied only its map knows what a path is on: here it may be on anything.
fn recorded(machine: &Machine, map: &Map, path: &Path) -> (Reach, String) {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let shown = path.display();
    let said = map.path(&path, Path::to_owned);
    let all = said.map_or(&[][..], |(_, devices)| devices);
    let devices: Vec<String> = all.iter().filter(|name| machine.device(name).is_some()).cloned().collect();
    let because = match said {
        Some((prefix, _)) if !devices.is_empty() || all.is_empty() => {
            format!("the map says so of {}", prefix.display())
        }
        _ => format!("which disk {shown} is on there is not known; name the disk, or say it in a map"),
    };
    (Reach::Storage(devices), because)
}

/// The first address of `[user@]host`, which may be an alias that ssh knows.
fn resolve(host: &str) -> Result<IpAddr, Error> {
    let mut asked = ResolvedHost::ask("ssh", host);
    let name = &*asked.answer(RESOLVES_WITHIN).0;
    let mut found =
        (name, SOME_PORT).to_socket_addrs().map_err(|error| Error::os(Code::HostUnknown, name, &error))?;
    found.next().map(|address| address.ip()).ok_or_else(|| Error::new(Code::HostUnknown, name))
}

fn is_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    set.is_some_and(|value| {
        let value = value.to_ascii_lowercase();
        value.contains("utf-8") || value.contains("utf8")
    })
}

/// `haul topology serve`
fn serve(arguments: &TopologyServe) -> Result<u8, Error> {
    let root = arguments.root.clone().unwrap_or_else(|| PathBuf::from("/"));
    let here = arguments.root.is_none();
    if here {
        zone::sweep(&root);
    }
    let (_, map) = machine(&root, arguments.map.as_deref(), here)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals::that_end() {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stop));
        registered.map_err(|error| Error::os(Code::SystemRefused, "watching for signals", &error))?;
    }
    let socket = arguments.socket.clone().unwrap_or_else(default_socket);
    let server = Server::bind(&socket).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::new(Code::SocketUnusable, error.to_string()),
        _ => Error::os(Code::SocketUnusable, socket.display().to_string(), &error),
    })?;
    let mut out = io::stdout().lock();
    // Who started it may not listen.
    let _ = writeln!(out, "serving on {}", socket.display()).and_then(|()| out.flush());
    drop(out);
    match server.run(&root, &map, &stop) {
        true => Ok(0),
        false => Err(Error::new(
            Code::SocketUnusable,
            format!("{} is gone, or another process's: nobody finds this one any more", socket.display()),
        )),
    }
}

/// `haul topology run`
fn run(arguments: &TopologyRun) -> Result<u8, Error> {
    let root = host();
    // Before the machine is looked at: what is left of one that was killed may keep its CPUs from everybody.
    zone::sweep(&root);
    let (machine, map) = machine(&root, arguments.ends.map.as_deref(), true)?;
    let route = Route::find(&root, &machine, &map, &arguments.ends)?;
    let sockets = arguments.socket.clone().map_or_else(usual_sockets, |socket| vec![socket]);
    let asking = Asking { sockets: &sockets, patience: PATIENCE, lease: true };
    // The lease lasts as long as the connection.
    let Advice { plan, service: _service, trouble } =
        Advice::of(&machine, &route.transfer, &asking, || load(&root));
    tell(trouble);
    let (program, rest) = arguments.command.split_first().expect("clap asks for one");
    let mut command = Command::new(program);
    command.args(rest);
    let _zone = match &plan {
        Plan::LeaveToKernel { because } => {
            say(&format!("left to the kernel: {because}"));
            None
        }
        Plan::Placed(placement) => {
            // A copy in it places its threads within.
            command.env(zone::VARIABLE, placement.zone.to_string());
            settle(&root, &machine, &placement.zone, arguments.zone)
        }
    };
    wait_for(&mut command)
}

/// To whoever listens: a command runs all the same where nobody does.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "haul: {}", paths::show(text.as_bytes()));
}

/// Puts this process on the CPUs of its zone, and into a cpuset of its own if that is wanted and allowed.
fn settle(root: &Path, machine: &Machine, cpus: &Cpus, wants_cpuset: bool) -> Option<Zone> {
    let entered = wants_cpuset.then(|| Site::find(root).and_then(|site| Zone::enter(&site, machine, cpus)));
    let zone =
        entered.and_then(|entered| entered.inspect_err(|reason| say(&format!("no cpuset: {reason}"))).ok());
    let others = match zone.as_ref().map(Zone::kind) {
        None => String::new(),
        Some(Kind::Exclusive) => ", and nothing else is".into(),
        Some(Kind::Inside { because }) => format!("; others may be there, too: {because}"),
    };
    match pin(cpus) {
        Ok(()) => say(&format!("on CPUs {cpus}{others}")),
        Err(error) => say(&format!("not on CPUs {cpus}: {error}")),
    }
    zone
}

/// Runs a command, and passes signals on to it; its exit code.
fn wait_for(command: &mut Command) -> Result<u8, Error> {
    use signal_hook::consts::{
        SIGALRM, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH,
    };
    // Before there is a child, so that none of its ends is missed.
    let heard = [signals::that_end(), signals::for_commands(), vec![SIGCHLD]].concat();
    let signals = SignalsInfo::<WithOrigin>::new(heard);
    let mut signals =
        signals.map_err(|error| Error::os(Code::SystemRefused, "watching for signals", &error))?;
    signals::unblock_for_commands();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            say(&format!("{}: {error}", command.get_program().to_string_lossy()));
            return Ok(CANNOT_START);
        }
    };
    let status = loop {
        let waited = child.try_wait().map_err(|error| Error::os(Code::SystemRefused, "waiting", &error))?;
        if let Some(status) = waited {
            break status;
        }
        for Origin { signal, process, .. } in signals.wait() {
            let passed = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                SIGUSR1 => Signal::USR1,
                SIGUSR2 => Signal::USR2,
                SIGALRM => Signal::ALARM,
                SIGWINCH => Signal::WINCH,
                // A terminal sends these to both, and no process is named then.
                SIGINT if process.is_some() => Signal::INT,
                SIGQUIT if process.is_some() => Signal::QUIT,
                _ => continue,
            };
            // It may just have ended; it is not waited for yet, so the number is still its own.
            let _ = kill_process(Pid::from_child(&child), passed);
        }
    };
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}
