//! The neighbour: somebody else who uses the same targets, and how long each of his requests takes.
//!
//! He has one file on a slow target and one on a healthy one, and asks for a small piece of each, one at a time, all the
//! while. At the source he reads; at the sink he writes, as the kernel's throttle counts reads and writes apart.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::filesystem::FileSystem;
use super::laboratory::Laboratory;
use super::mover::Mover;
use super::stripes::{Stripes, no_stripes};
use super::transfer::{self, Started};
use super::weather::{self, Forecast};
use super::{End, Settings, TARGETS};
use crate::evaluation::{Lottery, say};
use crate::process::{Guarded, end_descendants, unblock_signals};
use crate::statistics::median;

/// What he asks for at a time.
pub const PIECE_BYTES: usize = 64 << 10;
/// Of each of his files.
const FILE_BYTES: u64 = 8 << 20;
/// Of the file that cp copies, again and again.
const COPIED_BYTES: u64 = 64 << 20;
/// What runs beside him begins so long before he is watched: it has to find out what is slow.
const LEAD_IN: Duration = Duration::from_secs(2);

/// What runs beside him.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Beside {
    /// Nothing.
    Idle,
    /// `cp` of a file that is all on the slow target.
    OneCopy,
    /// A transfer.
    Transfer(Mover),
}

impl Beside {
    /// For files and people.
    pub fn name(self) -> &'static str {
        match self {
            Beside::Idle => "idle",
            Beside::OneCopy => "one-cp",
            Beside::Transfer(mover) => mover.name(),
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<Beside> {
        [Beside::Idle, Beside::OneCopy]
            .into_iter()
            .chain(Mover::ALL.map(Beside::Transfer))
            .find(|beside| beside.name() == name)
    }
}

/// What he found.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Latency {
    /// Source or sink.
    pub end: End,
    /// What ran beside him.
    pub beside: Beside,
    /// On the slow target, or a healthy one.
    pub slow: bool,
    /// Which round.
    pub round: usize,
    /// How many requests.
    pub count: usize,
    /// In milliseconds.
    pub median: f64,
    /// Of a hundred the longest but one.
    pub p99: f64,
    /// The longest.
    pub longest: f64,
}

/// All kinds in each round, in an order drawn by lot; `keep` is told what is known after each round.
pub fn run(
    settings: &Settings,
    laboratory: &Laboratory,
    mut keep: impl FnMut(&[Latency]) -> io::Result<()>,
) -> io::Result<()> {
    let mut kinds = Vec::new();
    for end in settings.ends.iter().copied().filter(|end| *end != End::Both) {
        let movers = settings.movers.iter().copied().filter(|mover| mover.is_installed());
        let beside = [Beside::Idle, Beside::OneCopy].into_iter().chain(movers.map(Beside::Transfer));
        kinds.extend(beside.map(|beside| (end, beside)));
    }
    let mut lottery = Lottery::new(settings.seed ^ 0x6e65_6967_6862_6f72);
    let mut all = Vec::new();
    for round in 0..settings.runs {
        lottery.shuffle(&mut kinds);
        for &(end, beside) in &kinds {
            let found = measure(settings, laboratory, end, beside, round)?;
            let show = |latency: &Latency| format!("{:.1} and {:.1}", latency.median, latency.p99);
            say(&format!(
                "neighbour at the {end} beside {}, median and p99: slow target {} ms, healthy {} ms",
                beside.name(),
                show(&found[0]),
                show(&found[1])
            ));
            all.extend(found);
        }
        keep(&all)?;
    }
    Ok(())
}

fn measure(
    settings: &Settings,
    laboratory: &Laboratory,
    end: End,
    beside: Beside,
    round: usize,
) -> io::Result<[Latency; 2]> {
    laboratory.clear()?;
    let [source, sink] = laboratory.stripes().ok_or_else(no_stripes)?;
    let file_system = if end == End::Source { source } else { sink };
    let forecast = Forecast { slow: 1, step: None, seed: settings.seed.wrapping_add(round as u64) };
    let slow = forecast.slow_in(0, TARGETS)[0];
    let healthy = (slow + TARGETS / 2) % TARGETS;
    let names = ["neighbour-slow", "neighbour-healthy", "copied"];
    for (name, target, bytes) in
        [(names[0], slow, FILE_BYTES), (names[1], healthy, FILE_BYTES), (names[2], slow, COPIED_BYTES)]
    {
        write_whole(&file_system.make_on(name, target)?, bytes)?;
    }
    weather::begin(forecast, TARGETS, settings.rates(), &|target, rate| file_system.limit(target, rate))?;
    let beside_him = start(settings, laboratory, file_system, end, beside)?;
    std::thread::sleep(LEAD_IN);
    let stop = AtomicBool::new(false);
    let watched = std::thread::scope(|scope| {
        let stop = &stop;
        let neighbours = [names[0], names[1]].map(|name| {
            let path = file_system.directory().join(name);
            scope.spawn(move || ask(&path, end == End::Sink, stop))
        });
        std::thread::sleep(Duration::from_secs_f64(settings.probe_seconds));
        stop.store(true, Ordering::Release);
        neighbours.map(|neighbour| {
            neighbour.join().unwrap_or_else(|_| Err(io::Error::other("the neighbour has panicked")))
        })
    });
    file_system.unlimited()?;
    if let Some(Started { mut process, .. }) = beside_him {
        if let Some(status) = process.status() {
            let about =
                format!("{} has ended while the neighbour beside it was watched: {status}", beside.name());
            return Err(io::Error::other(about));
        }
        end_descendants(process.pid());
        process.kill();
    }
    // What is left of it is removed with its directory.
    for name in names {
        std::fs::remove_file(file_system.directory().join(name))?;
    }
    let _ = std::fs::remove_file(file_system.directory().join("copied-again"));
    laboratory.clear()?;
    let [of_slow, of_healthy] = watched;
    let latency = |slow, times: Vec<f64>| {
        summarise(&times).map(|(median, p99, longest)| Latency {
            end,
            beside,
            slow,
            round,
            count: times.len(),
            median,
            p99,
            longest,
        })
    };
    let none = || io::Error::other(format!("beside {} the neighbour got no answer", beside.name()));
    Ok([latency(true, of_slow?).ok_or_else(none)?, latency(false, of_healthy?).ok_or_else(none)?])
}

fn start(
    settings: &Settings,
    laboratory: &Laboratory,
    file_system: &Stripes,
    end: End,
    beside: Beside,
) -> io::Result<Option<Started>> {
    match beside {
        Beside::Idle => Ok(None),
        Beside::Transfer(mover) => transfer::start(settings, laboratory, end, mover).map(Some),
        Beside::OneCopy => {
            let here = |name| file_system.directory().join(name);
            // What it reads and writes beside the slow target has no bound.
            let (from, to) = match end {
                End::Sink => (laboratory.plain_tree(settings)?.join("f0"), here("copied")),
                _ => (here("copied"), "/dev/null".into()),
            };
            let mut command = Command::new("sh");
            command.args(["-c", "while cp \"$0\" \"$1\"; do :; done"]).arg(from).arg(to);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Ok(Some(Guarded::spawn(unblock_signals(&mut command))?.into()))
        }
    }
}

fn write_whole(path: &Path, bytes: u64) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let piece = vec![3; 1 << 20];
    (0..bytes).step_by(piece.len()).try_for_each(|offset| file.write_all_at(&piece, offset))
}

/// How long each request took, in milliseconds.
fn ask(path: &Path, is_write: bool, stop: &AtomicBool) -> io::Result<Vec<f64>> {
    let file = OpenOptions::new().read(!is_write).write(is_write).open(path)?;
    let mut piece = vec![4; PIECE_BYTES];
    let mut times = Vec::new();
    for offset in (0..FILE_BYTES).step_by(PIECE_BYTES).cycle() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let asked = Instant::now();
        match is_write {
            true => file.write_all_at(&piece, offset)?,
            false => file.read_exact_at(&mut piece, offset)?,
        }
        times.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// Median, 99th of a hundred, longest.
fn summarise(times: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * 0.99).ceil() as usize;
    Some((median(&sorted)?, *sorted.get(rank.max(1) - 1)?, *sorted.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hundred_latencies_have_one_above_the_99th() {
        let times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(summarise(&times), Some((50.5, 99.0, 100.0)));
        assert_eq!(summarise(&[7.0]), Some((7.0, 7.0, 7.0)));
        assert_eq!(summarise(&[]), None);
    }

    #[test]
    fn names_come_back() {
        for beside in [Beside::Idle, Beside::OneCopy, Beside::Transfer(Mover::Lads)] {
            assert_eq!(Beside::from_name(beside.name()), Some(beside));
        }
        assert_eq!(Beside::from_name("nobody"), None);
    }
}
