//! What the loops have in common: datasets, the plan of a round, its report, the table at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use haul_chart::{Bar, Group, Rows};
use haul_crashfs::random::Random;

use crate::dataset::{OBJECT_BYTES, Plan, big_file, set_time};
use crate::machine;
use crate::tree::{self, Comparison, Totals};
use crate::world::World;

/// MiB.
pub const MIB: u64 = 1 << 20;

/// Datasets that rounds choose from; each is made when it is first needed.
pub struct Datasets {
    root: PathBuf,
    seed: u64,
    made: BTreeMap<&'static str, Dataset>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its name.
    pub name: &'static str,
    /// Its root.
    pub path: PathBuf,
    /// What is in it, without the variation of a round.
    pub totals: Totals,
}

impl Datasets {
    /// They will be below `root`.
    pub fn new(root: &Path, seed: u64) -> io::Result<Datasets> {
        fs::create_dir_all(root)?;
        Ok(Datasets { root: root.to_owned(), seed, made: BTreeMap::new() })
    }

    /// By name: `edges`, `small`, `big`, `mixed`, `huge`, and the smaller `crash-*` for slower file systems.
    pub fn get(&mut self, name: &'static str) -> io::Result<Dataset> {
        if let Some(dataset) = self.made.get(name) {
            return Ok(dataset.clone());
        }
        let plan = Plan::new(self.seed);
        let plan = match name {
            "edges" => Plan { edges: true, small_files: 200, ..plan },
            "small" => Plan { small_files: 3000, ..plan },
            "big" => Plan { big_files: 2, big_bytes: 100 * MIB, ..plan },
            "mixed" => Plan { edges: true, small_files: 1000, big_files: 2, big_bytes: 50 * MIB, ..plan },
            "huge" => Plan { big_files: 1, big_bytes: 500 * MIB, ..plan },
            "crash-small" => Plan { small_files: 400, ..plan },
            "crash-edges" => Plan {
                edges: true,
                object_bytes: OBJECT_BYTES / 4,
                link_bytes: 1000,
                small_files: 50,
                ..plan
            },
            "crash-big" => Plan { big_files: 2, big_bytes: 30 * MIB, ..plan },
            "crash-mixed" => Plan { small_files: 200, big_files: 1, big_bytes: 30 * MIB, ..plan },
            _ => return Err(io::Error::other(format!("no dataset {name}"))),
        };
        let path = self.root.join(name);
        fs::create_dir(&path)?;
        plan.make(&path)?;
        let dataset = Dataset { name, totals: tree::totals(&path)?, path };
        self.made.insert(name, dataset.clone());
        Ok(dataset)
    }
}

/// Files of this round alone, added to a dataset; removed when dropped.
pub struct Variation {
    path: PathBuf,
}

impl Variation {
    /// Adds them.
    pub fn add(dataset: &Path, random: &mut Random, bytes_max: u64) -> io::Result<Variation> {
        let path = dataset.join("varied");
        tree::remove(&path)?;
        fs::create_dir(&path)?;
        let variation = Variation { path };
        for number in 0..random.between(1, 30) {
            let bytes = if number == 0 { random.below(bytes_max) } else { random.below(100 << 10) };
            big_file(&variation.path.join(format!("{number}-{:x}", random.next())), random.next(), bytes)?;
        }
        set_time(
            &variation.path,
            1_640_000_000 + random.below(1000) as i64,
            random.below(1_000_000_000) as u32,
        )?;
        set_time(dataset, 1_640_000_000 + random.below(1000) as i64, random.below(1_000_000_000) as u32)?;
        Ok(variation)
    }
}

impl Drop for Variation {
    fn drop(&mut self) {
        let _ = tree::remove(&self.path);
    }
}

/// What one round came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What happened, in order, for the line of the round.
    pub story: Vec<String>,
    /// What must never be. Empty: passed.
    pub violations: Vec<String>,
    /// What was done to it, by kind; only what hit.
    pub attacks: Vec<&'static str>,
    /// The same, whether it hit or found nobody.
    pub tried: Vec<&'static str>,
    /// Runs until it was done.
    pub runs: u32,
    /// Bytes sent more than once, and how many there may be.
    pub sent_again: Option<(u64, u64)>,
}

impl Report {
    /// A violation of one class: the word before the colon is what the table counts.
    pub fn violate(&mut self, class: &str, what: impl AsRef<str>) {
        self.violations.push(format!("{class}: {}", what.as_ref()));
    }

    /// Something worth telling.
    pub fn tell(&mut self, what: impl Into<String>) {
        self.story.push(what.into());
    }

    /// Differences of a comparison as violations of a class.
    pub fn check(&mut self, class: &str, comparison: &io::Result<Comparison>) -> bool {
        match comparison {
            Ok(comparison) if comparison.is_same() => true,
            Ok(comparison) => {
                let class = if comparison.unfinished == comparison.count { "left over" } else { class };
                let listed: Vec<String> =
                    comparison.differences.iter().take(8).map(ToString::to_string).collect();
                self.violate(class, format!("{} differences: {}", comparison.count, listed.join("; ")));
                false
            }
            Err(error) => {
                self.violate(class, format!("cannot be compared: {error}"));
                false
            }
        }
    }
}

/// Classes of violations, always listed in the table, also at 0.
const CLASSES: [&str; 6] = ["difference", "false done", "left over", "sent again", "old end", "not finished"];

/// Counts over all rounds.
pub struct Summary {
    what: &'static str,
    started: Instant,
    rounds: u64,
    failed: u64,
    runs: u64,
    attacks: BTreeMap<&'static str, u64>,
    tried: BTreeMap<&'static str, u64>,
    violations: BTreeMap<String, u64>,
    sent_again: Vec<u64>,
    /// Of what was allowed.
    shares: Vec<f64>,
    /// More lines for the table.
    pub notes: Vec<(String, String)>,
}

impl Summary {
    /// Of a loop called `what`.
    pub fn new(what: &'static str) -> Summary {
        Summary {
            what,
            started: Instant::now(),
            rounds: 0,
            failed: 0,
            runs: 0,
            attacks: BTreeMap::new(),
            tried: BTreeMap::new(),
            violations: CLASSES.iter().map(|class| ((*class).to_owned(), 0)).collect(),
            sent_again: Vec::new(),
            shares: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Counts a round and prints its line.
    pub fn add(&mut self, number: u64, head: &str, report: &Report, replay: &str) {
        self.rounds += 1;
        self.runs += u64::from(report.runs);
        for attack in &report.attacks {
            *self.attacks.entry(attack).or_insert(0) += 1;
        }
        for attack in &report.tried {
            *self.tried.entry(attack).or_insert(0) += 1;
        }
        let mut line = format!("{number:>5} {head} | {}", report.story.join("; "));
        if let Some((again, bound)) = report.sent_again {
            self.sent_again.push(again);
            self.shares.push(again as f64 / bound.max(1) as f64);
            let _ = write!(line, " | sent again {:.1} MiB of at most {:.0}", mib(again), mib(bound));
        }
        println!("{line} | {}", if report.violations.is_empty() { "ok" } else { "FAILED" });
        for violation in &report.violations {
            println!("      ! {violation}");
            let class = violation.split(':').next().unwrap_or_default().to_owned();
            *self.violations.entry(class).or_insert(0) += 1;
        }
        if !report.violations.is_empty() {
            self.failed += 1;
            println!("      ! again alone: {replay}");
        }
    }

    /// Prints the table.
    pub fn finish(mut self) -> Verdict {
        println!();
        let seconds = self.started.elapsed().as_secs_f64();
        let mut rows = vec![
            ("rounds".to_owned(), self.rounds.to_string()),
            ("runs of the command".to_owned(), self.runs.to_string()),
        ];
        let violations = std::mem::take(&mut self.violations);
        rows.extend(self.attacks.iter().map(|(name, count)| (format!("  {name}"), count.to_string())));
        rows.extend(
            violations.iter().map(|(class, count)| (format!("violation: {class}"), count.to_string())),
        );
        if !self.sent_again.is_empty() {
            self.sent_again.sort_unstable();
            let mean = self.sent_again.iter().sum::<u64>() / self.sent_again.len() as u64;
            let (median, max) =
                (self.sent_again[self.sent_again.len() / 2], self.sent_again[self.sent_again.len() - 1]);
            let text = format!("{:.1} / {:.1} / {:.1} MiB", mib(median), mib(mean), mib(max));
            rows.push(("sent again, median / mean / max".to_owned(), text));
        }
        rows.append(&mut self.notes);
        rows.push(("seconds".to_owned(), format!("{seconds:.0}")));
        for (name, value) in &rows {
            println!("{name:<34} {value}");
        }
        println!("\n{}: {} passed, {} failed", self.what, self.rounds - self.failed, self.failed);
        let in_vain = in_vain(&self.tried, &self.attacks);
        for name in &in_vain {
            println!(
                "{}: FAILED: {name} was tried {} times and never hit anybody",
                self.what, self.tried[name]
            );
        }
        Verdict {
            what: self.what,
            passed: self.failed == 0 && self.rounds > 0 && in_vain.is_empty(),
            violations,
            attacks: self.attacks,
            rows,
            shares: self.shares,
        }
    }
}

/// Attacks that were tried often enough and never hit: what they show is nothing.
fn in_vain(tried: &BTreeMap<&'static str, u64>, hit: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    // Of a few each may have come when the run had just ended.
    const OFTEN: u64 = 5;
    let never = |name: &&'static str| hit.get(name).is_none_or(|count| *count == 0);
    tried.iter().filter(|(_, count)| **count >= OFTEN).map(|(name, _)| *name).filter(never).collect()
}

/// What a loop came to.
#[derive(Clone, Debug)]
pub struct Verdict {
    what: &'static str,
    /// There was a round, and none failed.
    pub passed: bool,
    /// By class, also those that never came.
    pub violations: BTreeMap<String, u64>,
    /// By kind, those that hit.
    pub attacks: BTreeMap<&'static str, u64>,
    rows: Vec<(String, String)>,
    shares: Vec<f64>,
}

impl Verdict {
    /// Writes the table and a picture to a directory.
    pub fn write_report(&self, directory: &Path, command: &str, haul: &Path) -> io::Result<()> {
        let what = self.what;
        let mut text = format!("# {what}\n\n`{command}`\n\n![{what}]({what}.svg)\n\n| | |\n|---|---|\n");
        for (name, value) in &self.rows {
            let _ = writeln!(text, "| {} | {value} |", name.trim());
        }
        let _ = write!(text, "\n## Machine\n\n{}", machine::table(haul));
        fs::create_dir_all(directory)?;
        fs::write(directory.join(format!("{what}.md")), text)?;
        let bar = |label: String, count: usize, accent| Bar {
            label,
            value: (count as f64).into(),
            text: count.to_string(),
            accent,
        };
        let attacks = self.attacks.iter();
        let mut groups = vec![Group {
            title: "What was done to it, times".into(),
            bars: attacks.map(|(name, count)| bar((*name).to_owned(), *count as usize, false)).collect(),
        }];
        if !self.shares.is_empty() {
            let edges = [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0];
            let within = |low: f64, high: f64| {
                self.shares.iter().filter(|share| **share > low && **share <= high).count()
            };
            let mut bars = vec![bar("nothing".into(), within(-1.0, 0.0), true)];
            bars.extend(edges.windows(2).map(|edge| {
                let label = format!("{:.0} to {:.0} %", edge[0] * 100.0, edge[1] * 100.0);
                bar(label, within(edge[0], edge[1]), true)
            }));
            bars.push(bar("more".into(), within(1.0, f64::INFINITY), true));
            let title = "Rounds, by bytes sent again as a share of what was in flight and not durable";
            groups.push(Group { title: title.into(), bars });
        }
        let violations = self.violations.iter();
        groups.push(Group {
            title: "What must never be, times".into(),
            bars: violations.map(|(name, count)| bar(name.clone(), *count as usize, true)).collect(),
        });
        let figure = Rows { title: command.to_owned(), groups, ..Rows::default() };
        haul_chart::write(directory, what, &figure.svg()).map(drop)
    }
}

/// Bytes in MiB.
pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// An instant of a run that takes about `usual`: mostly anywhere after its first `quiet` time (in which ssh logs in and
/// nothing is moved), sometimes at the very beginning or end.
pub fn choose_instant(random: &mut Random, quiet: Duration, usual: Duration) -> Duration {
    let quiet = (quiet * 3 / 4).min(usual);
    let share = match random.below(12) {
        0 => return Duration::from_micros(random.below(30_000)),
        1 => return Duration::from_micros(random.below(usual.as_micros() as u64 + 1)),
        2 => 900 + random.below(200),
        _ => random.below(1000),
    };
    quiet + (usual - quiet) * share as u32 / 1000
}

/// Those of `all` that are in `wanted`, or all if nothing is.
pub fn allowed(all: &[&'static str], wanted: &[String]) -> io::Result<Vec<&'static str>> {
    let allowed: Vec<_> = all
        .iter()
        .copied()
        .filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name))
        .collect();
    if allowed.is_empty() {
        return Err(io::Error::other(format!("no dataset {wanted:?}; there are {all:?}")));
    }
    Ok(allowed)
}

/// How a round is played again, alone: what it draws from must be the same.
pub fn replay(what: &str, seed: u64, number: u64, datasets: &[String]) -> String {
    let datasets: String = datasets.iter().map(|name| format!(" --dataset {name}")).collect();
    format!("testbed {what} --seed {seed} --only-round {number}{datasets}")
}

/// How long ssh takes to log in and out again.
pub fn login_time(world: &World) -> io::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..3 {
        let started = Instant::now();
        world.sshd().run("true")?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    Ok(times[1])
}

/// Where loops put their files if they are not told: a memory file system with room, or the system's temporary place.
pub fn default_directory(bytes_needed: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    if has_room(memory, bytes_needed) { memory.to_owned() } else { std::env::temp_dir() }
}

/// Where they find a disk: the system's temporary place, or if that is in memory the directory where they were started.
pub fn default_disk(bytes_needed: u64) -> Option<PathBuf> {
    let places = [std::env::temp_dir(), std::env::current_dir().ok()?];
    places.into_iter().find(|place| !is_in_memory(place) && has_room(place, bytes_needed))
}

fn has_room(place: &Path, bytes_needed: u64) -> bool {
    rustix::fs::statvfs(place).is_ok_and(|stat| stat.f_bavail * stat.f_frsize > bytes_needed)
}

fn is_in_memory(place: &Path) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    rustix::fs::statfs(place).is_ok_and(|found| matches!(found.f_type as u64, TMPFS_MAGIC | RAMFS_MAGIC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_that_never_hit_are_told() {
        let tried = BTreeMap::from([("cut", 9), ("pause", 9), ("kill ssh", 5), ("kill far", 4)]);
        let hit = BTreeMap::from([("pause", 1), ("kill ssh", 0)]);
        assert_eq!(in_vain(&tried, &hit), ["cut", "kill ssh"]);
    }
}
