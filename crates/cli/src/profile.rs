//! Where the time of a transfer went, for people and as JSON.

use std::fmt::Write;

use haul_model::profile::{Buffers, Profile, Spent, Stage, Waiting};
use haul_mover::Bottleneck;
use haul_mover::bottleneck::{self, Around, Waits, Why};
use haul_mover::end::Profiles;
use serde_json::{Map, Value, json};

use crate::told::size;

/// Of a command that was shorter than this nobody asks what took so long.
const SECONDS_MIN: f64 = 1.0;
/// Parts of it below this are not in the table.
const SHARE_SHOWN_MIN: f64 = 0.005;
/// Where nothing stands out, parts from this on are told, and so many at most.
const SHARE_TOLD_MIN: f64 = 0.1;
const TOLD_MAX: usize = 3;

/// What a bottleneck is called, and what the user can do about it.
fn words(bottleneck: Bottleneck) -> (&'static str, &'static str) {
    const IO: &str = "its storage does no more, or is asked for too little at a time: try --io-threads";
    const PROCESSORS: &str = "more --streams use more processors";
    const CIPHER: &str =
        "more --streams use more processors; --plain leaves it out, on a network that you trust";
    const HASH: &str = "--hash xxh3 is several times as fast, against damage, not malice";
    match bottleneck {
        Bottleneck::Scan => {
            ("listing the source", "several commands can copy parts of the tree at the same time")
        }
        Bottleneck::SourceRead => ("reading at the source", IO),
        Bottleneck::SourceHash => ("hashing at the source", HASH),
        Bottleneck::SourceSpill => {
            ("the spill at the source", "its storage is too slow: another --spill, or none")
        }
        Bottleneck::SourceCipher => ("enciphering at the source", CIPHER),
        Bottleneck::SourceSend => ("handing bytes to the other end at the source", PROCESSORS),
        Bottleneck::BandwidthLimit => ("the limit that was set", "it is what --bandwidth says"),
        Bottleneck::Network => {
            ("the way to the destination", "try more --streams; iperf3 shows what the path can do")
        }
        Bottleneck::Connection => ("a lost connection", "see what was told about it above"),
        Bottleneck::SinkBuffers => {
            ("buffers at the destination", "the path is long for so few: try more --memory")
        }
        Bottleneck::SinkReceive => ("taking bytes from the other end at the destination", PROCESSORS),
        Bottleneck::SinkCipher => ("deciphering at the destination", CIPHER),
        Bottleneck::SinkHash => ("checking hashes at the destination", HASH),
        Bottleneck::SinkWrite => ("writing at the destination", IO),
        Bottleneck::Copy => (
            "copying within the file system",
            "the kernel reads and writes at once, so it may be either that is slow: iostat -x shows which",
        ),
        Bottleneck::SinkMetadata => (
            "making and naming files at the destination",
            "its metadata server is slow, or busy: fewer, larger files go faster",
        ),
        Bottleneck::SinkSync => (
            "making data durable at the destination",
            "its storage is slow to confirm it; haul waits, so that nothing that it calls done can be lost",
        ),
        Bottleneck::Connecting => (
            "connecting (ssh login)",
            "it is over before anything is sent: ssh can keep a connection for later ones (ControlMaster)",
        ),
        Bottleneck::State => (
            "the state directory",
            "it is slow to confirm what is kept of the job; for transfers that begin later HAUL_STATE_DIR can be on other storage",
        ),
    }
}

/// What leaves less to do for busy processors: neither threads nor storage do.
fn fewer(bottleneck: Bottleneck) -> &'static str {
    match bottleneck {
        Bottleneck::SourceHash | Bottleneck::SinkHash => words(bottleneck).1,
        Bottleneck::SourceCipher | Bottleneck::SinkCipher => {
            "--plain leaves it out, on a network that you trust"
        }
        _ => "more threads or faster storage would not help there; more processors, or less beside it, would",
    }
}

/// One line with what held the transfer up, and one with a hint; what it waited for most where nothing stands out, and nothing if it was
/// short.
pub fn verdict(profiles: &Profiles, around: &Around) -> Option<String> {
    let waits = Waits::of(profiles, around)?;
    let seconds = waits.whole_nanos / 1e9;
    if seconds < SECONDS_MIN {
        return None;
    }
    if let Some(stood_still) = profiles.mostly_stood_still() {
        let stood_still = stood_still.as_secs_f64();
        return Some(format!(
            "stood still for {stood_still:.1} s of {seconds:.1} s\n      this process was stopped, or the host had no time for it"
        ));
    }
    let named = match bottleneck::name(profiles, around) {
        Some(named) => held_up(named, seconds),
        None => several(&waits, seconds)?,
    };
    Some(match profiles.stood_still_for_long() {
        Some(time) => {
            format!("{named}\n      (this process stood still for {:.1} s of it)", time.as_secs_f64())
        }
        None => named,
    })
}

fn held_up((bottleneck, why): (Bottleneck, Why), seconds: f64) -> String {
    let (what, hint) = words(bottleneck);
    match why {
        Why::Waited(share) => {
            format!("mostly waited for {what} ({:.0} % of {seconds:.1} s)\n      {hint}", share * 100.0)
        }
        Why::Processors(share) => format!(
            "processors were busy all the time, most with {what} ({:.0} % of haul's there)\n      {}",
            share * 100.0,
            fewer(bottleneck)
        ),
    }
}

fn several(waits: &Waits, seconds: f64) -> Option<String> {
    let longest =
        longest_first(waits).into_iter().filter(|(_, share)| *share >= SHARE_TOLD_MIN).take(TOLD_MAX);
    let told: Vec<String> = longest
        .map(|(bottleneck, share)| format!("{} ({:.0} %)", words(bottleneck).0, share * 100.0))
        .collect();
    (!told.is_empty()).then(|| format!("waited for {}, of {seconds:.1} s", told.join(", ")))
}

/// All that was measured, in lines.
pub fn table(profiles: &Profiles, around: &Around) -> String {
    let mut text = String::new();
    match Waits::of(profiles, around) {
        Some(waits) => {
            let seconds = waits.whole_nanos / 1e9;
            let _ = writeln!(text, "waited for ({seconds:.1} s in all)");
            for (bottleneck, share) in longest_first(&waits) {
                let (what, _) = words(bottleneck);
                let _ = writeln!(text, "  {what:<50} {:>6.1} s {:>4.0} %", share * seconds, share * 100.0);
            }
        }
        None => text.push_str("only one end has told where its time went\n"),
    }
    for (name, profile) in [("source", profiles.source), ("destination", profiles.sink)] {
        let Some(profile) = profile else { continue };
        let _ = writeln!(
            text,
            "{name:<12} {:>12} {:>12} {:>10} {:>10}   {} processors, {:.0} % busy",
            "busy",
            "computing",
            "times",
            "bytes",
            profile.processors,
            f64::from(profile.host_busy_permille) / 10.0,
        );
        for (stage, spent) in stages(&profile) {
            let Spent { busy_nanos, processor_nanos, times, bytes } = spent;
            let (busy, computing) = (busy_nanos as f64 / 1e9, processor_nanos as f64 / 1e9);
            let bytes = if bytes > 0 { size(bytes) } else { String::new() };
            let line =
                format!("  {:<11} {busy:>9.2} s {computing:>10.2} s {times:>10} {bytes:>10}", stage.name());
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
    slots(profiles).into_iter().for_each(|line| text.push_str(&line));
    text.truncate(text.trim_end().len());
    text
}

fn longest_first(waits: &Waits) -> Vec<(Bottleneck, f64)> {
    let shares = Bottleneck::ALL.map(|bottleneck| (bottleneck, waits.share(bottleneck)));
    let mut shown: Vec<_> = shares.into_iter().filter(|(_, share)| *share >= SHARE_SHOWN_MIN).collect();
    shown.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shown
}

/// How many slots each end used, and how long the network was.
fn slots(profiles: &Profiles) -> Option<String> {
    let ends = [("source", profiles.source), ("destination", profiles.sink)];
    let told = ends.into_iter().filter_map(|(name, profile)| {
        let Buffers { slots_used, slots, slot_bytes } = profile?.buffers;
        let told = || format!("{slots_used} of {slots} of {} at the {name}", size(u64::from(slot_bytes)));
        (slots > 0).then(told)
    });
    let told = told.collect::<Vec<_>>().join(", ");
    let trips = [profiles.source, profiles.sink].into_iter().flatten();
    let trip = trips.filter_map(|profile| profile.round_trip_nanos).next();
    let trip = trip.map(|nanos| format!("; round trip {:.2} ms", nanos as f64 / 1e6)).unwrap_or_default();
    (!told.is_empty()).then(|| format!("slots        at most {told}{trip}"))
}

/// Those that something was spent on.
fn stages(profile: &Profile) -> impl Iterator<Item = (Stage, Spent)> + '_ {
    let spent = Stage::ALL.iter().map(|stage| (*stage, profile.spent(*stage)));
    spent.filter(|(_, spent)| *spent != Spent::default())
}

/// The event, with what was hashed before; none if not even this end knows anything.
pub fn event(profiles: &Profiles, around: &Around, hashed_early: u64) -> Option<Value> {
    let end = |profile: Option<Profile>| profile.map_or(Value::Null, |profile| of_end(&profile));
    if profiles.source.is_none() && profiles.sink.is_none() {
        return None;
    }
    let waited = Waits::of(profiles, around).map(|waits| {
        let seconds = |share| round(share * waits.whole_nanos / 1e9);
        let waited = longest_first(&waits).into_iter();
        let waited = waited.map(|(bottleneck, share)| {
            json!({"for": bottleneck.name(), "seconds": seconds(share), "share": round(share)})
        });
        waited.collect::<Vec<_>>()
    });
    Some(json!({
        "event": "profile",
        "waited": waited,
        "source": end(profiles.source),
        "sink": end(profiles.sink),
        "hashed_early_bytes": hashed_early,
    }))
}

fn of_end(profile: &Profile) -> Value {
    let stages = stages(profile).map(|(stage, spent)| {
        let Spent { busy_nanos, processor_nanos, times, bytes } = spent;
        let told = json!({
            "busy_seconds": seconds(busy_nanos),
            "processor_seconds": seconds(processor_nanos),
            "times": times,
            "bytes": bytes,
        });
        (stage.name().to_owned(), told)
    });
    let waited = Waiting::ALL.iter().filter(|waiting| profile.waited_nanos(**waiting) > 0);
    let waited =
        waited.map(|waiting| (waiting.name().to_owned(), seconds(profile.waited_nanos(*waiting)).into()));
    json!({
        "seconds": seconds(profile.wall_nanos),
        "processor_seconds": seconds(profile.processor_nanos),
        "processors": profile.processors,
        "host_busy": f64::from(profile.host_busy_permille) / 1000.0,
        "slots_used": profile.buffers.slots_used,
        "slots": profile.buffers.slots,
        "slot_bytes": profile.buffers.slot_bytes,
        "round_trip_seconds": profile.round_trip_nanos.map(|nanos| nanos as f64 / 1e9),
        "stages": stages.collect::<Map<_, _>>(),
        "master_waited": waited.collect::<Map<_, _>>(),
    })
}

/// What the summary says: the name, the share, and why it was named.
pub fn summary(profiles: &Profiles, around: &Around) -> [Value; 3] {
    match bottleneck::name(profiles, around) {
        Some((bottleneck, Why::Waited(share))) => {
            [bottleneck.name().into(), round(share).into(), "waited".into()]
        }
        Some((bottleneck, Why::Processors(share))) => {
            [bottleneck.name().into(), round(share).into(), "processors".into()]
        }
        None => [Value::Null, Value::Null, Value::Null],
    }
}

fn seconds(nanos: u64) -> f64 {
    round(nanos as f64 / 1e9)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing is around it.
    const RUN: Around = Around { whole_nanos: 0, connecting_nanos: 0, state_nanos: 0 };

    fn profiles() -> Profiles {
        let mut source = Profile { wall_nanos: 12_000_000_000, processors: 2, ..Profile::default() };
        source.buffers = Buffers { slots_used: 5, slots: 64, slot_bytes: 4 << 20 };
        let mut sink = source;
        sink.buffers.slots = 1024;
        sink.round_trip_nanos = Some(95_130_000);
        *source.waited_nanos_mut(Waiting::Credit) = 9_700_000_000;
        *source.waited_nanos_mut(Waiting::Read) = 1_200_000_000;
        source.spent_mut(Stage::Read).busy_nanos = 1_500_000_000;
        *sink.waited_nanos_mut(Waiting::Sync) = 9_900_000_000;
        *sink.spent_mut(Stage::Sync) =
            Spent { busy_nanos: 10_000_000_000, processor_nanos: 1_000_000, times: 9, bytes: 0 };
        Profiles { source: Some(source), sink: Some(sink), ..Profiles::default() }
    }

    #[test]
    fn the_user_is_told_what_it_waited_for_and_what_helps() {
        let told = verdict(&profiles(), &RUN).unwrap();
        assert!(
            told.starts_with(
                "mostly waited for making data durable at the destination (81 % of 12.0 s)\n      "
            ),
            "{told}"
        );
        assert_eq!(told.lines().count(), 2);
        assert_eq!(verdict(&Profiles { sink: None, ..profiles() }, &RUN), None, "nobody knows");
        let mut short = profiles();
        for profile in [&mut short.source, &mut short.sink].into_iter().flatten() {
            profile.wall_nanos = 900_000_000;
        }
        assert_eq!(verdict(&short, &RUN), None, "nobody asks");
    }

    #[test]
    fn busy_processors_are_not_helped_with_more_threads() {
        let busy = |stage| {
            let mut sink = Profile { wall_nanos: 12_000_000_000, processors: 2, ..Profile::default() };
            (sink.host_busy_permille, sink.processor_nanos) = (950, 20_000_000_000);
            let (busy_nanos, processor_nanos) = (9_000_000_000, 9_000_000_000);
            *sink.spent_mut(stage) = Spent { busy_nanos, processor_nanos, times: 9, bytes: 9 };
            let source = Profile { wall_nanos: sink.wall_nanos, processors: 2, ..Profile::default() };
            verdict(&Profiles { source: Some(source), sink: Some(sink), ..Profiles::default() }, &RUN)
                .unwrap()
        };
        for (stage, helps) in
            [(Stage::Write, "more processors"), (Stage::Cipher, "--plain"), (Stage::Hash, "--hash xxh3")]
        {
            let told = busy(stage);
            assert!(told.starts_with("processors were busy all the time") && told.contains(helps), "{told}");
            assert!(!told.contains("--io-threads") && !told.contains("--streams"), "{told}");
        }
    }

    #[test]
    fn where_nothing_stands_out_the_longest_are_told() {
        let around = Around { whole_nanos: 24_000_000_000, connecting_nanos: 6_000_000_000, state_nanos: 0 };
        let told = verdict(&profiles(), &around).unwrap();
        let parts = "making data durable at the destination (40 %), connecting (ssh login) (25 %), of 24.0 s";
        assert_eq!(told, format!("waited for {parts}"), "and not the five per cent of reading");
    }

    #[test]
    fn time_around_the_run_has_rows_and_shares_are_of_all() {
        let around = Around { whole_nanos: 60_000_000_000, connecting_nanos: 40_000_000_000, state_nanos: 0 };
        let told = verdict(&profiles(), &around).unwrap();
        assert!(
            told.starts_with("mostly waited for connecting (ssh login) (67 % of 60.0 s)\n      "),
            "{told}"
        );
        let table = table(&profiles(), &around);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["waited", "for", "(60.0", "s", "in", "all)"]);
        assert_eq!(rows[1], ["connecting", "(ssh", "login)", "40.0", "s", "67", "%"], "{table}");
        assert_eq!(rows[2].last_chunk(), Some(&["9.7", "s", "16", "%"]), "{table}");
        let told = event(&profiles(), &around, 0).unwrap();
        assert_eq!(told["waited"][0], json!({"for": "connecting", "seconds": 40.0, "share": 0.667}));
        assert_eq!(summary(&profiles(), &around)[0], "connecting");
    }

    #[test]
    fn the_table_has_what_was_waited_for_and_both_ends() {
        let table = table(&profiles(), &RUN);
        let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(table.lines().all(|line| line.len() <= 120), "{table}");
        assert_eq!(rows[1].last_chunk(), Some(&["9.7", "s", "81", "%"]), "{table}");
        assert_eq!(rows[2].last_chunk(), Some(&["1.2", "s", "10", "%"]), "{table}");
        assert!(rows.contains(&vec!["sync", "10.00", "s", "0.00", "s", "9"]), "{table}");
        let slots = "slots        at most 5 of 64 of 4.0 MiB at the source, 5 of 1024 of 4.0 MiB at the destination; round trip 95.13 ms";
        assert_eq!(table.lines().last(), Some(slots));
        let one = super::table(&Profiles { source: None, ..profiles() }, &RUN);
        assert!(one.starts_with("only one end has told"));
        let slots = "slots        at most 5 of 1024 of 4.0 MiB at the destination; round trip 95.13 ms";
        assert_eq!(one.lines().last(), Some(slots));
        assert!(
            !super::table(&Profiles { source: Some(Profile::default()), ..Profiles::default() }, &RUN)
                .contains("slots")
        );
    }

    #[test]
    fn events_have_the_names_of_stages() {
        let event = event(&profiles(), &RUN, 7).unwrap();
        assert_eq!(event["hashed_early_bytes"], 7);
        assert_eq!(event["waited"][0], json!({"for": "sink-sync", "seconds": 9.7, "share": 0.808}));
        assert_eq!(event["sink"]["stages"]["sync"]["times"], 9);
        assert_eq!(event["source"]["master_waited"]["credit"], 9.7);
        let of_source = ["slots_used", "slots", "slot_bytes"].map(|name| event["source"][name].as_u64());
        assert_eq!(of_source, [Some(5), Some(64), Some(4 << 20)]);
        assert_eq!(event["source"]["round_trip_seconds"], Value::Null);
        assert_eq!(event["sink"]["round_trip_seconds"], 0.09513);
        assert!(super::event(&Profiles::default(), &RUN, 0).is_none());
        assert_eq!(summary(&profiles(), &RUN), [json!("sink-sync"), json!(0.808), json!("waited")]);
    }
}
