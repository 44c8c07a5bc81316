//! What haul is to reach beside its peers, and whether it does.

use super::case::Case;
use super::cost::Kind;
use super::csv::Results;
use super::figures::{Figures, Medians, costs};
use super::tool::{Class, Tool, from_name};

/// By how much a cost may grow over all sizes and still be flat.
pub const FLAT: f64 = 1.1;

/// One demand.
#[derive(Clone, PartialEq, Debug)]
pub struct Bar {
    /// What is compared.
    pub what: String,
    /// What is asked for.
    pub bound: Bound,
    /// What was measured; what is missing, in words, where it was not.
    pub measured: Result<f64, String>,
    /// Of whom the fastest is meant, and who was not asked.
    pub not_asked: Vec<&'static str>,
    /// And who was, and has no result that counts.
    pub failed: Vec<&'static str>,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// No less.
    AtLeast(f64),
    /// No more.
    AtMost(f64),
}

impl Bar {
    /// Whether it is met; none if it was not measured.
    pub fn is_met(&self) -> Option<bool> {
        let measured = *self.measured.as_ref().ok()?;
        Some(match self.bound {
            Bound::AtLeast(bound) => measured >= bound,
            Bound::AtMost(bound) => measured <= bound,
        })
    }
}

/// All of them, in the order in which they were promised.
pub fn bars(results: &Results) -> Vec<Bar> {
    let mut list = List { medians: Medians::new(results), bars: Vec::new() };
    list.big();
    list.many();
    list.trees();
    list.one_machine();
    list.disk();
    list.costs(results);
    list.bars
}

struct List<'a> {
    medians: Medians<'a>,
    bars: Vec<Bar>,
}

type Found = Option<(&'static Tool, Figures)>;

/// Whom haul is compared with.
#[derive(Clone)]
struct Peer {
    title: &'static str,
    found: Found,
    not_asked: Vec<&'static str>,
    failed: Vec<&'static str>,
}

impl List<'_> {
    fn big(&mut self) {
        let case = Case::Big;
        // In clear text, and with no more checks than it comes with.
        let clear = self.fastest(case, "the fastest clear peer", |tool| tool.class == Class::Clear);
        self.speed(case, "haul-none", &clear, 1.0);
        let bound = Bound::AtMost(1.0);
        self.compare(case, "haul-none", &clear, bound, "processor time of", |ours, theirs| {
            ours.cost / theirs.cost
        });
        let raw = self.one(case, "raw", "the raw pair");
        self.speed(case, "haul-none", &raw, 0.9);
        self.speed(case, "haul-xxh3", &clear, 0.95);
        self.speed(case, "haul-plain", &clear, 0.8);
        for name in ["gridftp-verify", "bbcp-verify", "rsyncd-checksum"] {
            let peer = self.one(case, name, name);
            self.speed(case, "haul-plain", &peer, 3.0);
        }
        let scp = self.encrypting(case, "scp");
        self.speed(case, "haul", &scp, 4.0);
        let others = self.fastest(case, "the fastest other encrypting peer", |tool| {
            tool.class == Class::Encrypted && tool.family != "scp"
        });
        self.speed(case, "haul", &others, 2.0);
    }

    fn many(&mut self) {
        let fastest = self.fastest_network(Case::Files);
        self.speed(Case::Files, "haul-plain", &fastest, 1.1);
        self.speed(Case::Files, "haul-xxh3", &fastest, 1.3);
    }

    fn trees(&mut self) {
        for case in [Case::Tree, Case::TreeDisk] {
            let fastest = self.fastest_network(case);
            self.speed(case, "haul-plain", &fastest, 1.4);
            let tar = self.one(case, "tar", "tar to tar on one machine");
            self.compare(case, "haul-plain", &tar, Bound::AtMost(1.2), "time of", |ours, theirs| {
                ours.seconds / theirs.seconds
            });
            let rsync = self.encrypting(case, "rsync over ssh");
            self.speed(case, "haul", &rsync, 2.0);
            let scp = self.encrypting(case, "scp");
            self.speed(case, "haul", &scp, 10.0);
        }
    }

    fn one_machine(&mut self) {
        for (case, ours, bound) in [
            (Case::Tree, "haul-here", 1.3),
            (Case::Big, "haul-here-xxh3", 0.8),
            (Case::Big, "haul-here", 0.5),
        ] {
            let copy = self.one(case, "cp", "cp -r");
            self.speed(case, ours, &copy, bound);
        }
    }

    fn disk(&mut self) {
        let fio = self.one(Case::BigDisk, "fio", "fio that reads and writes together");
        self.speed(Case::BigDisk, "haul-plain", &fio, 0.9);
    }

    fn costs(&mut self, results: &Results) {
        let bytes = costs(&results.costs, Kind::Bytes);
        let files = costs(&results.costs, Kind::Files);
        // Against the cheapest of the smaller ones: in the smallest the start of both ends weighs most, and would hide what grows.
        let growth = |values: Vec<f64>| match values.split_last() {
            Some((last, smaller)) if !smaller.is_empty() => {
                Ok(last / smaller.iter().copied().fold(f64::INFINITY, f64::min))
            }
            _ => Err("two sizes are needed".to_owned()),
        };
        let mut push = |what: &str, values: Vec<f64>| {
            let (what, bound) = (what.into(), Bound::AtMost(FLAT));
            let (not_asked, failed) = Default::default();
            self.bars.push(Bar { what, bound, measured: growth(values), not_asked, failed });
        };
        push(
            "cost: processor time for each GB, the largest file against the cheapest smaller one",
            bytes.iter().map(|cost| cost.per_gigabyte()).collect(),
        );
        push(
            "cost: time for each file, the most files against the cheapest of fewer",
            files.iter().map(|cost| cost.per_file()).collect(),
        );
        push(
            "cost: memory, the largest file against the least of smaller ones",
            bytes.iter().map(|cost| cost.resident).collect(),
        );
        push(
            "cost: memory, the most files against the least of fewer",
            files.iter().map(|cost| cost.resident).collect(),
        );
    }

    fn found(&self, case: Case, name: &str) -> Found {
        // As for the fastest: one that has failed once is no measure.
        let tool = from_name(name).filter(|tool| self.medians.problem(case, tool).is_none())?;
        self.medians.of(case, tool).map(|figures| (tool, figures))
    }

    /// One with its settings.
    fn one(&self, case: Case, name: &str, title: &'static str) -> Peer {
        Peer { title, found: self.found(case, name), not_asked: Vec::new(), failed: Vec::new() }
    }

    /// The fastest of several.
    fn fastest(&self, case: Case, title: &'static str, wanted: impl Fn(&Tool) -> bool) -> Peer {
        let found = self.medians.fastest(case, &wanted);
        let (not_asked, failed) = (self.medians.not_asked(case, &wanted), self.medians.failed(case, &wanted));
        Peer { title, found, not_asked, failed }
    }

    fn fastest_network(&self, case: Case) -> Peer {
        self.fastest(case, "the fastest network peer", |tool| tool.class.is_network_peer())
    }

    /// One that encrypts, with the settings with which it is fastest.
    fn encrypting(&self, case: Case, family: &'static str) -> Peer {
        self.fastest(case, family, |tool| tool.family == family && tool.class == Class::Encrypted)
    }

    /// How many times as fast as a peer.
    fn speed(&mut self, case: Case, ours: &str, peer: &Peer, at_least: f64) {
        self.compare(case, ours, peer, Bound::AtLeast(at_least), "speed of", |ours, theirs| {
            theirs.seconds / ours.seconds
        });
    }

    fn compare(
        &mut self,
        case: Case,
        ours: &str,
        peer: &Peer,
        bound: Bound,
        quantity: &str,
        ratio: fn(&Figures, &Figures) -> f64,
    ) {
        let Peer { title, found, not_asked, failed } = peer.clone();
        let named = match found {
            Some((tool, _)) if tool.name != title => format!(" ({})", tool.name),
            _ => String::new(),
        };
        let what = format!("{}: {quantity} {ours} against {title}{named}", case.name());
        let measured = match (self.found(case, ours).map(|(_, figures)| figures), found) {
            (Some(mine), Some((_, theirs))) => Ok(ratio(&mine, &theirs)),
            (None, _) => Err(self.why(case, ours)),
            (_, None) => Err(match from_name(title) {
                Some(_) => self.why(case, title),
                None => format!("{title} was not measured"),
            }),
        };
        self.bars.push(Bar { what, bound, measured, not_asked, failed });
    }

    fn why(&self, case: Case, name: &str) -> String {
        let problem = from_name(name).and_then(|tool| self.medians.problem(case, tool));
        problem.map_or_else(|| format!("{name} was not measured"), |problem| format!("{name}: {problem}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::case::Dataset;
    use crate::peers::cost::Cost;
    use crate::peers::csv::{Measured, Run};
    use crate::peers::run::Sample;

    fn results(case: Case, all: &[(&str, &[f64], f64)]) -> Results {
        let dataset = Dataset { case, title: String::new(), files: 1, bytes: 2_000_000_000 };
        let (storage, load, command) = (String::new(), String::new(), String::new());
        let runs = all.iter().flat_map(|(name, seconds, processor)| {
            seconds.iter().enumerate().map(|(round, seconds)| Run {
                case,
                tool: from_name(name).unwrap(),
                round: round + 1,
                outcome: Ok(Sample {
                    seconds: *seconds,
                    near_processor_seconds: *processor,
                    far_processor_seconds: 1.0,
                    ..Sample::default()
                }),
            })
        });
        Results {
            cases: vec![Measured { dataset, storage, load, command }],
            runs: runs.collect(),
            ..Results::default()
        }
    }

    fn bar<'a>(bars: &'a [Bar], start: &str) -> &'a Bar {
        bars.iter().find(|bar| bar.what.starts_with(start)).unwrap_or_else(|| panic!("no {start}"))
    }

    #[test]
    fn medians_are_compared_with_the_fastest_peer_of_the_right_kind() {
        let results = results(
            Case::Big,
            &[
                ("haul-plain", &[2.0, 9.0, 2.5], 3.0),
                ("rsyncd", &[2.2], 3.0),
                ("gridftp-tuned", &[2.0], 5.0),
                ("gridftp-verify", &[6.0], 5.0),
                ("cp", &[0.1], 1.0),
                ("haul", &[4.0], 1.0),
                ("scp", &[17.0], 1.0),
                ("scp-tuned", &[15.0], 1.0),
                ("rsync", &[20.0], 1.0),
            ],
        );
        let bars = bars(&results);
        let clear = bar(&bars, "big: speed of haul-plain against the fastest clear peer (gridftp-tuned)");
        assert_eq!((clear.measured.clone(), clear.is_met()), (Ok(0.8), Some(true)));
        let verified = bar(&bars, "big: speed of haul-plain against gridftp-verify");
        assert_eq!((verified.measured.clone(), verified.is_met()), (Ok(2.4), Some(false)));
        // Of the others nothing is known, not even that they are not there.
        assert!(clear.not_asked.contains(&"gridftp") && !clear.not_asked.contains(&"rsyncd"), "{clear:?}");
        let scp = bar(&bars, "big: speed of haul against scp (scp-tuned)");
        assert_eq!((scp.measured.clone(), scp.is_met()), (Ok(3.75), Some(false)));
        assert!(scp.not_asked.is_empty(), "{scp:?}");
        let other = bar(&bars, "big: speed of haul against the fastest other encrypting peer (rsync)");
        assert_eq!((other.measured.clone(), other.is_met()), (Ok(5.0), Some(true)));
        let here = bar(&bars, "big: speed of haul-here against cp -r");
        assert_eq!((here.measured.clone(), here.is_met()), (Err("haul-here was not measured".into()), None));
    }

    #[test]
    fn processor_time_is_compared_for_each_gigabyte_and_a_failed_peer_does_not_count() {
        let mut results = results(
            Case::Big,
            &[("haul-none", &[2.0], 3.0), ("rsyncd", &[2.2], 4.0), ("xrootd", &[1.0], 1.0)],
        );
        let failed = Run {
            case: Case::Big,
            tool: from_name("xrootd").unwrap(),
            round: 2,
            outcome: Err("exit status: 54".into()),
        };
        results.runs.push(failed);
        let bars = bars(&results);
        let cost = bar(&bars, "big: processor time of haul-none against the fastest clear peer (rsyncd)");
        assert_eq!(
            (cost.measured.clone(), cost.bound, cost.is_met()),
            (Ok(0.8), Bound::AtMost(1.0), Some(true))
        );
        assert_eq!(cost.failed, ["xrootd"], "it is told that a faster one was left out");
        let medians = Medians::new(&results);
        assert_eq!(medians.named(Case::Big, "haul-none").unwrap().cost, 2.0);
        assert_eq!(medians.problem(Case::Big, from_name("xrootd").unwrap()), Some("exit status: 54"));
    }

    #[test]
    fn the_reason_why_something_was_not_measured_is_given() {
        let mut results = results(Case::Files, &[("rsyncd", &[2.2], 4.0)]);
        results.runs.push(Run {
            case: Case::Files,
            tool: from_name("haul-xxh3").unwrap(),
            round: 0,
            outcome: Err("this haul has no --hash".into()),
        });
        let bars = bars(&results);
        let xxh3 = bar(&bars, "files: speed of haul-xxh3");
        assert_eq!(xxh3.measured, Err("haul-xxh3: this haul has no --hash".into()));
        let raw = bar(&bars, "big: speed of haul-none against the raw pair");
        assert_eq!(raw.is_met(), None);
    }

    #[test]
    fn a_cost_that_grows_is_not_flat() {
        let cost = |kind, files, bytes, seconds, resident| Cost {
            kind,
            files,
            bytes,
            round: 1,
            seconds,
            processor_seconds: seconds * 2.0,
            resident,
        };
        let costs = vec![
            cost(Kind::Bytes, 1, 64_000_000_000, 63.0, 200),
            cost(Kind::Bytes, 1, 1_000_000_000, 1.0, 100),
            cost(Kind::Files, 10, 10_000, 1.0, 100),
            cost(Kind::Files, 1000, 1_000_000, 120.0, 100),
        ];
        let bars = bars(&Results { costs, ..Results::default() });
        let met = |start| bar(&bars, start).is_met();
        assert_eq!(met("cost: processor time for each GB"), Some(true));
        assert_eq!(met("cost: memory, the largest"), Some(false));
        assert_eq!(met("cost: time for each file"), Some(false));
        // What starting costs hides nothing.
        let costs = vec![
            cost(Kind::Files, 10, 10_000, 10.0, 100),
            cost(Kind::Files, 100, 100_000, 60.0, 100),
            cost(Kind::Files, 1000, 1_000_000, 900.0, 100),
        ];
        let bars = super::bars(&Results { costs, ..Results::default() });
        let each = bar(&bars, "cost: time for each file");
        assert_eq!((each.is_met(), each.measured.clone()), (Some(false), Ok(1.5)));
        assert_eq!(met("cost: memory, the most files"), Some(true));
    }
}
