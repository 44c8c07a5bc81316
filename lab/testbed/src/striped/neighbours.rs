//! Several transfers on the same file systems: they hear each other, share a slow target, and outlive one another.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Bed, RUN_LIMIT, STRIPE_BYTES, Striped, lov};
use crate::dataset::big_file;
use crate::process::{Guarded, unblock_signals};
use crate::tree::{self, compare};
use crate::world::parse_events;

/// Files of each transfer, 12 MiB each.
const FILES: usize = 4;
const FILE_BYTES: u64 = 12 << 20;
/// The slow target.
const SLOW: u32 = 1;
const PROBE_BYTES: usize = 256 << 10;
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Four transfers know of each other and all arrive; what another user of the slow target waits is less than if they did not.
pub(super) fn share_a_slow_target(bed: &Bed) -> io::Result<Option<String>> {
    let probe = Probe::new(&bed.source)?;
    let mut medians = Vec::new();
    for how in ["share", "ignore"] {
        let several = Several::new(bed, how, 4)?;
        slow_down(bed);
        let runs = several.start_all(&["--neighbours", how])?;
        // Until they have found out that it is slow, and in the ignoring case it takes no longer.
        std::thread::sleep(Duration::from_millis(2500));
        let latencies = probe.latencies(Duration::from_secs(3))?;
        medians.push(latencies[latencies.len() / 2]);
        println!(
            "striped: neighbours {how}: {} probes of the slow target, median {:.0} ms, longest {:.0} ms",
            latencies.len(),
            latencies[latencies.len() / 2].as_secs_f64() * 1e3,
            latencies[latencies.len() - 1].as_secs_f64() * 1e3,
        );
        bed.source.control("target all ok rate=0");
        let wrong = several.wait_all(runs)?;
        let most = several.all().filter_map(|name| several.heard(&name)).max().unwrap_or(0);
        let expected = if how == "share" { 3 } else { 0 };
        let heard =
            (most != expected).then(|| format!("{how}: {most} other transfers were heard, not {expected}"));
        if let Some(wrong) = wrong.or(heard) {
            return Ok(Some(wrong));
        }
    }
    let [share, ignore] = [medians[0], medians[1]];
    Ok((share * 4 > ignore * 3)
        .then(|| format!("a probe takes {share:?} beside neighbours that share, {ignore:?} else")))
}

/// One of two is killed: the other one notices, and ends as if it had been alone; the same command again continues.
pub(super) fn killed_neighbour(bed: &Bed) -> io::Result<Option<String>> {
    let several = Several::new(bed, "pair", 2)?;
    slow_down(bed);
    let mut first = several.start("pair-0", &[])?;
    let second = several.start("pair-1", &[])?;
    let met = several.until("pair-1", |transfers| transfers.last() == Some(&1));
    first.kill();
    let left = several.until("pair-1", |transfers| transfers.last() == Some(&0));
    bed.source.control("target all ok rate=0");
    let wrong = several.wait_all(vec![("pair-1".into(), second)])?;
    let again = several.start("pair-0", &[])?;
    let wrong = wrong.or(several.wait_all(vec![("pair-0".into(), again)])?);
    let silent = (!met).then(|| "they never heard of each other".to_owned());
    let kept = (!left).then(|| "the one that was killed is still taken into account".to_owned());
    Ok(wrong.or(silent).or(kept))
}

fn slow_down(bed: &Bed) {
    bed.source.control("target all rate=24MB");
    bed.source.control(&format!("target {SLOW} rate=3MB"));
}

/// Transfers with a tree and a state directory each.
struct Several<'a> {
    bed: &'a Bed,
    names: Vec<String>,
}

impl<'a> Several<'a> {
    fn new(bed: &'a Bed, prefix: &str, count: usize) -> io::Result<Several<'a>> {
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
        for (seed, name) in names.iter().enumerate() {
            let tree = bed.source.directory.join(name);
            fs::create_dir(&tree)?;
            for file in 0..FILES {
                big_file(&tree.join(format!("file-{file}")), (seed * FILES + file) as u64, FILE_BYTES)?;
            }
        }
        Ok(Several { bed, names })
    }

    fn all(&self) -> impl Iterator<Item = String> + '_ {
        self.names.iter().cloned()
    }

    fn events(&self, name: &str) -> PathBuf {
        self.bed.directory.join(format!("events-{name}"))
    }

    fn start(&self, name: &str, options: &[&str]) -> io::Result<Guarded> {
        let bed = self.bed;
        let mut command = Command::new(&bed.haul);
        command.env("HAUL_STATE_DIR", bed.directory.join(format!("state-{name}")));
        command.env("XDG_CONFIG_HOME", bed.directory.join("no-config"));
        command.args(["cp", "-r", "--json", "--object-size", "1MiB"]).args(options);
        command.arg(bed.source.directory.join(name)).arg(&bed.sink.directory);
        command.stdin(Stdio::null()).stderr(File::create(bed.directory.join(format!("stderr-{name}")))?);
        command.stdout(File::create(self.events(name))?);
        Guarded::spawn(unblock_signals(&mut command))
    }

    fn start_all(&self, options: &[&str]) -> io::Result<Vec<(String, Guarded)>> {
        self.all().map(|name| Ok((name.clone(), self.start(&name, options)?))).collect()
    }

    /// How many other transfers the source has heard, each time that it changed.
    fn transfers(&self, name: &str) -> Vec<u64> {
        let events = parse_events(&self.events(name));
        let of_source = |event: &&Value| event["event"] == "neighbours" && event["end"] == "source";
        events.iter().filter(of_source).filter_map(|event| event["transfers"].as_u64()).collect()
    }

    fn heard(&self, name: &str) -> Option<u64> {
        self.transfers(name).into_iter().max()
    }

    fn until(&self, name: &str, test: impl Fn(&[u64]) -> bool) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !test(&self.transfers(name)) {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        true
    }

    fn wait_all(&self, runs: Vec<(String, Guarded)>) -> io::Result<Option<String>> {
        let mut wrong = None;
        for (name, mut run) in runs {
            let code = run.wait(RUN_LIMIT).and_then(|status| status.code());
            let (from, to) = (self.bed.source.directory.join(&name), self.bed.sink.directory.join(&name));
            let same = compare(&from, &to, &tree::Options::default()).is_ok_and(|found| found.is_same());
            if code != Some(0) || !same {
                wrong.get_or_insert_with(|| format!("{name}: exit code {code:?}, all there: {same}"));
            }
        }
        Ok(wrong)
    }
}

/// Somebody else who reads from the slow target.
struct Probe {
    file: File,
    offset: u64,
}

impl Probe {
    fn new(striped: &Striped) -> io::Result<Probe> {
        let directory = striped.directory.join("probe");
        fs::create_dir(&directory)?;
        for number in 0.. {
            let path = directory.join(number.to_string());
            big_file(&path, number, FILE_BYTES)?;
            if let Some(stripe) = lov::of(&path)?.targets().iter().position(|target| *target == SLOW) {
                let offset = stripe as u64 * u64::from(STRIPE_BYTES);
                return Ok(Probe { file: File::open(path)?, offset });
            }
        }
        unreachable!("files take all targets in turns")
    }

    /// How long it takes, again and again; shortest first.
    fn latencies(&self, time: Duration) -> io::Result<Vec<Duration>> {
        let mut buffer = vec![0; PROBE_BYTES];
        let (begun, mut latencies) = (Instant::now(), Vec::new());
        while begun.elapsed() < time || latencies.is_empty() {
            let started = Instant::now();
            self.file.read_exact_at(&mut buffer, self.offset)?;
            latencies.push(started.elapsed());
            std::thread::sleep(LOOK_AGAIN);
        }
        latencies.sort_unstable();
        Ok(latencies)
    }
}
