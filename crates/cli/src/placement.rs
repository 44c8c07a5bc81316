//! Where the threads of a copy run, on this host: what is asked of [`haul_topology::placer`], and how it is told.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use haul_topology::placer::{Tell, Told, Wishes, look};
use haul_topology::{Placer, Plan, ThreadKind, Threads, summary};
use serde_json::{Value, json};

use crate::options::Seating;
use crate::plan::{self, Direction};
use crate::session::lends;
use crate::topology::usual_map;

/// Streams within one process are memory.
pub const WITHIN_PROCESS: &[ThreadKind] = &[ThreadKind::CommIn, ThreadKind::CommOut];
/// And where the sink takes contents from the source's files, the source's threads only say where they are.
pub const LENDS: &[ThreadKind] = &[ThreadKind::CommIn, ThreadKind::CommOut, ThreadKind::Io];

/// For the ends on this host; `tell` hears what came of it. A map with a mistake is no reason to fail a copy.
pub fn placer(choice: Seating, storage: Vec<PathBuf>, threads: Threads, tell: Tell) -> Placer {
    if choice == Seating::Off {
        return Placer::default();
    }
    match usual_map() {
        Ok(map) => Placer::new(Wishes::here(map, storage, threads), tell),
        Err(error) => {
            tell(&left(error.to_string()));
            Placer::default()
        }
    }
}

/// Without a plan.
fn left(trouble: String) -> Told {
    let plan = Plan::LeaveToKernel { because: "topology.toml cannot be used".into() };
    Told { plan, leased: false, reached: Vec::new(), pinned: 0, trouble: Some(trouble) }
}

/// What this host has of a copy: where contents are, and threads.
pub fn here(plan: &plan::Plan) -> (Vec<PathBuf>, Threads) {
    let (io, streams) = (plan.settings.io_threads.value, plan.settings.streams.value);
    let paths = |paths: &[OsString]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
    let sources = if plan.measure.synthetic.is_some() { Vec::new() } else { paths(&plan.sources) };
    let destination = if plan.measure.discard { Vec::new() } else { vec![PathBuf::from(&plan.destination)] };
    match plan.direction {
        Direction::Push(_) => (sources, Threads::of_source(io, streams)),
        Direction::Pull(_) => (destination, Threads::of_sink(io, streams)),
        Direction::Local => ([sources, destination].concat(), Threads::of_both(io, streams, lends(plan))),
    }
}

/// What would come of it now. The other host is only known if it was typed as an address.
pub fn explained(plan: &plan::Plan) -> Told {
    let peer = match &plan.direction {
        Direction::Local => None,
        Direction::Push(host) | Direction::Pull(host) => {
            host.rsplit('@').next().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok())
        }
    };
    let (storage, threads) = here(plan);
    match usual_map() {
        Ok(map) => look(Wishes::here(map, storage, threads), peer),
        Err(error) => left(error.to_string()),
    }
}

/// In one line, for people.
pub fn line(told: &Told) -> String {
    match &told.plan {
        Plan::LeaveToKernel { because } => format!("left to the kernel: {because}"),
        Plan::Placed(placement) => {
            let leased = if told.leased { ", kept from other transfers by the service" } else { "" };
            format!("{}{leased}", summary(placement))
        }
    }
}

/// The event; `end` is which one is on this host.
pub fn event(end: &str, told: &Told) -> Value {
    let Told { plan, leased, reached, pinned, trouble } = told;
    json!({
        "event": "placement",
        "end": end,
        "plan": plan,
        "leased": leased,
        "reached": reached,
        "pinned": pinned,
        "trouble": trouble,
    })
}
