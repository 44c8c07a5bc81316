//! What held a transfer up, from what both ends have measured.
//!
//! The source's master waits for one thing at a time, so its waiting divides the run into parts that add up to no more than
//! all of it. Each part is divided again by what the threads behind it were busy with, and what it waited for the sink by
//! what the sink's master waited for. So every part of the run has one name, and the largest is the bottleneck if it is half
//! of the whole command or more. Where nothing is, but the processors of an end were busy all the time, and with this, it is the stage that they
//! spent most time on. Else nothing stands out. Why it is done this way is in
//! `docs/decisions/0018-where-the-time-went.md`.
//!
//! What the other end says can be wrong in any way: then the answer is wrong, and nothing else.

use haul_model::profile::{Profile, Stage, Waiting};

use crate::end::Profiles;

/// Of the run, from which on a part of it is the bottleneck.
pub const SHARE_MIN: f64 = 0.5;
/// How busy the processors of an end's host must be to be the bottleneck.
const HOST_BUSY_PERMILLE_MIN: u16 = 900;
/// And how much of that must be this process's own.
const OWN_SHARE_MIN: f64 = 0.25;
/// What lies between two ends of which each is a process.
const BETWEEN: [Bottleneck; 2] = [Bottleneck::Network, Bottleneck::SinkBuffers];

/// What a command spends its time on before there is a run of which ends can tell, and after it. A run alone has nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Around {
    /// From the command's start to its end.
    pub whole_nanos: u64,
    /// Until the first connection stood.
    pub connecting_nanos: u64,
    /// For what is kept of the job, while nothing else went on.
    pub state_nanos: u64,
}

/// What can hold a transfer up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bottleneck {
    /// The scan of the source has not found enough yet.
    Scan,
    /// The source's storage, to read.
    SourceRead,
    /// Hashing at the source.
    SourceHash,
    /// Writing to the spill, or reading from it.
    SourceSpill,
    /// Enciphering.
    SourceCipher,
    /// Handing bytes to the system at the source, as far as processors do it.
    SourceSend,
    /// `--bandwidth`.
    BandwidthLimit,
    /// The way between the ends.
    Network,
    /// A connection that was lost.
    Connection,
    /// Buffers of the sink that are on their way to the source: there are too few of them for this distance.
    SinkBuffers,
    /// Taking bytes from the system at the sink, as far as processors do it.
    SinkReceive,
    /// Deciphering.
    SinkCipher,
    /// Checking hashes at the sink.
    SinkHash,
    /// The sink's storage, to write.
    SinkWrite,
    /// The kernel's copy within a file system, which reads and writes at once.
    Copy,
    /// The answers of the sink's file system about names and attributes.
    SinkMetadata,
    /// Making durable at the sink.
    SinkSync,
    /// Reaching the other end.
    Connecting,
    /// Where it is kept what the job is and how far.
    State,
}

impl Bottleneck {
    /// All, in the order of the walk of an object; then what is around a run.
    pub const ALL: [Bottleneck; 19] = [
        Bottleneck::Scan,
        Bottleneck::SourceRead,
        Bottleneck::SourceHash,
        Bottleneck::SourceSpill,
        Bottleneck::SourceCipher,
        Bottleneck::SourceSend,
        Bottleneck::BandwidthLimit,
        Bottleneck::Network,
        Bottleneck::Connection,
        Bottleneck::SinkBuffers,
        Bottleneck::SinkReceive,
        Bottleneck::SinkCipher,
        Bottleneck::SinkHash,
        Bottleneck::SinkWrite,
        Bottleneck::Copy,
        Bottleneck::SinkMetadata,
        Bottleneck::SinkSync,
        Bottleneck::Connecting,
        Bottleneck::State,
    ];

    /// Stable, for scripts.
    pub const fn name(self) -> &'static str {
        match self {
            Bottleneck::Scan => "scan",
            Bottleneck::SourceRead => "source-read",
            Bottleneck::SourceHash => "source-hash",
            Bottleneck::SourceSpill => "source-spill",
            Bottleneck::SourceCipher => "source-cipher",
            Bottleneck::SourceSend => "source-send",
            Bottleneck::BandwidthLimit => "bandwidth-limit",
            Bottleneck::Network => "network",
            Bottleneck::Connection => "connection",
            Bottleneck::SinkBuffers => "sink-buffers",
            Bottleneck::SinkReceive => "sink-receive",
            Bottleneck::SinkCipher => "sink-cipher",
            Bottleneck::SinkHash => "sink-hash",
            Bottleneck::SinkWrite => "sink-write",
            Bottleneck::Copy => "copy",
            Bottleneck::SinkMetadata => "sink-metadata",
            Bottleneck::SinkSync => "sink-sync",
            Bottleneck::Connecting => "connecting",
            Bottleneck::State => "state-directory",
        }
    }

    /// It is something that a processor does, and more of them would do faster.
    fn of_processors(at_source: bool, stage: Stage) -> Bottleneck {
        match (stage, at_source) {
            (Stage::Scan, _) => Bottleneck::Scan,
            (Stage::Read | Stage::ReadOnWay | Stage::Limit, _) => Bottleneck::SourceRead,
            (Stage::Log, _) => Bottleneck::State,
            (Stage::Hash, true) | (Stage::HashOnWay, _) => Bottleneck::SourceHash,
            (Stage::Hash, false) => Bottleneck::SinkHash,
            (Stage::Spill, _) => Bottleneck::SourceSpill,
            (Stage::Cipher, true) => Bottleneck::SourceCipher,
            (Stage::Cipher, false) => Bottleneck::SinkCipher,
            (Stage::Send, _) => Bottleneck::SourceSend,
            (Stage::Receive, _) => Bottleneck::SinkReceive,
            (Stage::Write, _) => Bottleneck::SinkWrite,
            (Stage::Copy, _) => Bottleneck::Copy,
            (Stage::Create | Stage::Names, _) => Bottleneck::SinkMetadata,
            (Stage::Sync, _) => Bottleneck::SinkSync,
        }
    }
}

/// How long a command waited for what.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// Of all of it.
    pub whole_nanos: f64,
    /// Of the run, of which the ends tell.
    run_nanos: f64,
    nanos: [f64; Bottleneck::ALL.len()],
}

/// Why something is the bottleneck.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Why {
    /// This part of the run was spent waiting for it.
    Waited(f64),
    /// The processors of its end were busy all the time, this part of their time of this process with it.
    Processors(f64),
}

impl Waits {
    /// Nothing can be said unless both ends have told.
    pub fn of(profiles: &Profiles, around: &Around) -> Option<Waits> {
        let (source, sink) = (profiles.source.as_ref()?, profiles.sink.as_ref()?);
        let run_nanos = source.wall_nanos.max(sink.wall_nanos) as f64;
        let whole_nanos = run_nanos.max(around.whole_nanos as f64);
        let mut waits = Waits { whole_nanos, run_nanos, ..Waits::default() };
        waits.divide(around.connecting_nanos as f64, &[(Bottleneck::Connecting, 1.0)]);
        waits.divide(around.state_nanos as f64, &[(Bottleneck::State, 1.0)]);
        waits.add_source(source, sink);
        waits.add_sink(source, sink);
        if profiles.one_process {
            // What nothing else explains is how long threads take to hear of each other.
            BETWEEN.iter().for_each(|between| waits.nanos[*between as usize] = 0.0);
        }
        Some(waits)
    }

    /// Of the whole, how much was spent waiting for this; at most 1.
    pub fn share(&self, bottleneck: Bottleneck) -> f64 {
        let share = self.nanos[bottleneck as usize] / self.whole_nanos;
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }

    fn divide(&mut self, nanos: f64, parts: &[(Bottleneck, f64)]) {
        let all: f64 = parts.iter().map(|(_, part)| part).sum();
        for (bottleneck, part) in parts {
            if *part > 0.0 {
                self.nanos[*bottleneck as usize] += nanos * part / all;
            }
        }
    }

    /// What the source waited for at its own end and on the way.
    fn add_source(&mut self, source: &Profile, sink: &Profile) {
        // A scan that has found something, and was not asked for it at once, held nothing up.
        let scanning = waited(source, Waiting::Scan).min(busy(source, Stage::Scan));
        self.divide(scanning, &[(Bottleneck::Scan, 1.0)]);
        self.divide(waited(source, Waiting::Link), &[(Bottleneck::Connection, 1.0)]);
        self.divide(logging(source), &[(Bottleneck::State, 1.0)]);
        let reading = [
            (Bottleneck::SourceRead, busy(source, Stage::Read).max(1.0)),
            (Bottleneck::SourceHash, busy(source, Stage::Hash)),
            (Bottleneck::SourceSpill, busy(source, Stage::Spill)),
        ];
        self.divide(waited(source, Waiting::Read), &reading);
        let sending = waited(source, Waiting::Send);
        let working = processor(source, Stage::Send);
        let blocked = (busy(source, Stage::Send) - working).max(1.0);
        let own = [
            (Bottleneck::SourceRead, busy(source, Stage::ReadOnWay)),
            (Bottleneck::SourceHash, busy(source, Stage::HashOnWay)),
            (Bottleneck::SourceCipher, busy(source, Stage::Cipher)),
            (Bottleneck::BandwidthLimit, busy(source, Stage::Limit)),
            (Bottleneck::SourceSend, working),
        ];
        let all = own.iter().map(|(_, busy)| busy).sum::<f64>() + blocked;
        self.divide(sending * (1.0 - blocked / all), &own);
        // The system takes no more bytes because the way is slow, or because the sink takes none from it.
        self.divide(sending * blocked / all, &receiving(sink));
    }

    /// What it waited for at the sink.
    fn add_sink(&mut self, source: &Profile, sink: &Profile) {
        let writing = [
            (Bottleneck::SinkWrite, busy(sink, Stage::Write).max(1.0)),
            // Within one host it reads the source's files itself.
            (Bottleneck::SourceRead, busy(sink, Stage::Read)),
            (Bottleneck::Copy, busy(sink, Stage::Copy)),
            (Bottleneck::SinkHash, busy(sink, Stage::Hash)),
            (Bottleneck::SinkMetadata, busy(sink, Stage::Create)),
        ];
        // It waited for slots, and at the end for what it had sent to be durable; the sink's own end comes later still where the
        // source stops its watch before.
        // A thread that had something to log may have been done with that long ago, and wait as well.
        let credit = waited(source, Waiting::Credit) + waited(source, Waiting::Log) - logging(source);
        let after = sink.wall_nanos.saturating_sub(source.wall_nanos) as f64;
        let settle = waited(source, Waiting::Settle) + after;
        let settling = settle.min(waited(sink, Waiting::Settle));
        // While storage writes a few, more could come; when all has come, the last few are what is waited for.
        let next = waited(sink, Waiting::Next);
        let last = next.min(settle - settling);
        let (write, sync) = (waited(sink, Waiting::Write) + last, waited(sink, Waiting::Sync));
        let explained = (credit + settle - settling).min(write + sync);
        let part = explained / (write + sync).max(1.0);
        self.divide(write * part, &writing);
        self.divide(sync * part, &[(Bottleneck::SinkSync, 1.0)]);
        // It is writing, or waits for names, as long as anything is being made: `Stage::Create` is no part of this.
        let finishing = [
            (Bottleneck::SinkSync, busy(sink, Stage::Sync).max(1.0)),
            (Bottleneck::SinkMetadata, busy(sink, Stage::Names)),
        ];
        self.divide(settling, &finishing);
        // What that does not explain was on its way, in the hands of the threads that take it from there as well.
        let left = (credit + settle - settling - explained).max(0.0);
        let settle_left = left.min(settle - settling);
        // More buffers than these help only where nothing arrives, and the source has something to send: while payloads arrive,
        // those that wait for a slot wait for the way.
        let idle = [Waiting::Scan, Waiting::Answers, Waiting::Read, Waiting::Link];
        let idle = idle.into_iter().map(|waiting| waited(source, waiting)).sum::<f64>() + logging(source);
        let silent = (waited(sink, Waiting::Payload) + next - last - idle).max(0.0);
        let buffers = (left - settle_left).min(silent);
        self.divide(buffers, &[(Bottleneck::SinkBuffers, 1.0)]);
        let arriving = left - buffers;
        let [_, by_system, by_cipher] = receiving(sink);
        let working = arriving.min(by_system.1 + by_cipher.1);
        self.divide(working, &[by_system, by_cipher]);
        self.divide(arriving - working, &[(Bottleneck::Network, 1.0)]);
        let answers = waited(source, Waiting::Answers);
        // Large files are made before they are answered, by other threads than names.
        let names = answers.min(busy(sink, Stage::Names).max(waited(sink, Waiting::Names)));
        self.divide(names, &[(Bottleneck::SinkMetadata, 1.0)]);
        self.divide(answers - names, &[(Bottleneck::Network, 1.0)]);
    }
}

/// What the threads that receive were busy with, the way first.
fn receiving(sink: &Profile) -> [(Bottleneck, f64); 3] {
    let working = processor(sink, Stage::Receive);
    [
        (Bottleneck::Network, (busy(sink, Stage::Receive) - working).max(1.0)),
        (Bottleneck::SinkReceive, working),
        (Bottleneck::SinkCipher, busy(sink, Stage::Cipher)),
    ]
}

/// Waiting for what writes the log before it listens to the sink.
fn logging(source: &Profile) -> f64 {
    waited(source, Waiting::Log).min(busy(source, Stage::Log))
}

fn waited(profile: &Profile, waiting: Waiting) -> f64 {
    profile.waited_nanos(waiting) as f64
}

fn busy(profile: &Profile, stage: Stage) -> f64 {
    profile.spent(stage).busy_nanos as f64
}

fn processor(profile: &Profile, stage: Stage) -> f64 {
    let spent = profile.spent(stage);
    spent.processor_nanos.min(spent.busy_nanos) as f64
}

/// What held the transfer up, if anything stands out.
pub fn name(profiles: &Profiles, around: &Around) -> Option<(Bottleneck, Why)> {
    if profiles.mostly_stood_still().is_some() {
        return None;
    }
    let waits = Waits::of(profiles, around)?;
    let shares = Bottleneck::ALL.map(|bottleneck| (bottleneck, waits.share(bottleneck)));
    let longest = shares.into_iter().max_by(|(_, a), (_, b)| a.total_cmp(b));
    if let Some((bottleneck, share)) = longest.filter(|(_, share)| *share >= SHARE_MIN) {
        return Some((bottleneck, Why::Waited(share)));
    }
    if waits.run_nanos < waits.whole_nanos * SHARE_MIN {
        // Whatever the processors were busy with, it was not that.
        return None;
    }
    let ends = [(true, profiles.source), (false, profiles.sink)];
    let busy = ends.into_iter().filter_map(|(at_source, profile)| Some((at_source, profile?)));
    let busy = busy.filter(|(_, profile)| has_busy_processors(profile)).flat_map(|(at_source, profile)| {
        Bottleneck::ALL.into_iter().map(move |bottleneck| {
            // What goes by one name may be several stages: making files and naming them, hashing here and on the way.
            let of_it = |stage: &&Stage| Bottleneck::of_processors(at_source, **stage) == bottleneck;
            let nanos: f64 = Stage::ALL.iter().filter(of_it).map(|stage| processor(&profile, *stage)).sum();
            (bottleneck, nanos, profile.processor_nanos)
        })
    });
    let (bottleneck, nanos, all) = busy.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (nanos > 0.0).then(|| (bottleneck, Why::Processors((nanos / all.max(1) as f64).min(1.0))))
}

fn has_busy_processors(profile: &Profile) -> bool {
    let all = profile.wall_nanos as f64 * f64::from(profile.processors);
    let own = profile.processor_nanos as f64;
    let host_is = profile.host_busy_permille >= HOST_BUSY_PERMILLE_MIN && own >= all * OWN_SHARE_MIN;
    // Of a host of which it may use a part, others may leave the rest idle.
    host_is || own >= all * f64::from(HOST_BUSY_PERMILLE_MIN) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_model::profile::Spent;

    const SECOND: u64 = 1_000_000_000;

    /// Seconds that an end waited, and seconds that its threads were busy and computing.
    type Seconds<'a> = (&'a [(Waiting, u64)], &'a [(Stage, u64, u64)]);

    fn profiles(source: Seconds<'_>, sink: Seconds<'_>) -> Profiles {
        let profile = |(waited, spent): Seconds<'_>| {
            let mut profile = Profile { wall_nanos: 10 * SECOND, processors: 2, ..Profile::default() };
            for (waiting, seconds) in waited {
                *profile.waited_nanos_mut(*waiting) = seconds * SECOND;
            }
            for (stage, busy, processor) in spent {
                let (busy_nanos, processor_nanos) = (busy * SECOND, processor * SECOND);
                *profile.spent_mut(*stage) = Spent { busy_nanos, processor_nanos, times: 1, bytes: 1 };
            }
            Some(profile)
        };
        Profiles { source: profile(source), sink: profile(sink), ..Profiles::default() }
    }

    /// With nothing around the run.
    fn of(profiles: &Profiles) -> Option<Waits> {
        Waits::of(profiles, &Around::default())
    }

    fn name(profiles: &Profiles) -> Option<(Bottleneck, Why)> {
        super::name(profiles, &Around::default())
    }

    fn named(profiles: &Profiles) -> Option<Bottleneck> {
        name(profiles).map(|(bottleneck, _)| bottleneck)
    }

    #[test]
    fn shares_are_of_the_whole_command_and_what_is_around_the_run_can_be_most_of_it() {
        let run = profiles((&[(Waiting::Read, 9)], &[(Stage::Read, 9, 0)]), (&[], &[]));
        let named = |[whole, connecting, state]: [u64; 3]| {
            let [whole_nanos, connecting_nanos, state_nanos] =
                [whole, connecting, state].map(|seconds| seconds * SECOND);
            super::name(&run, &Around { whole_nanos, connecting_nanos, state_nanos })
        };
        assert_eq!(named([10, 0, 0]), Some((Bottleneck::SourceRead, Why::Waited(0.9))));
        assert_eq!(named([15, 4, 1]), Some((Bottleneck::SourceRead, Why::Waited(0.6))));
        assert_eq!(named([20, 5, 5]), None);
        assert_eq!(named([40, 25, 5]), Some((Bottleneck::Connecting, Why::Waited(0.625))));
        assert_eq!(named([40, 5, 25]), Some((Bottleneck::State, Why::Waited(0.625))));
    }

    #[test]
    fn busy_processors_are_named_only_where_the_run_is_most_of_the_command() {
        let spent = [(Stage::Hash, 6, 5), (Stage::Cipher, 3, 3)];
        let waited = [(Waiting::Read, 4), (Waiting::Send, 4)];
        let mut busy = profiles((&waited, &spent), (&[], &[(Stage::Cipher, 4, 4)]));
        let source = busy.source.as_mut().unwrap();
        (source.host_busy_permille, source.processor_nanos) = (950, 10 * SECOND);
        let of = |whole| super::name(&busy, &Around { whole_nanos: whole * SECOND, ..Around::default() });
        assert_eq!(of(15), Some((Bottleneck::SourceHash, Why::Processors(0.5))));
        assert_eq!(of(25), None);
    }

    #[test]
    fn what_the_source_waited_for_is_divided_by_what_its_threads_were_busy_with() {
        use Waiting::{Read, Scan, Send};
        let idle: (&[_], &[_]) = (&[(Waiting::Payload, 10)], &[]);
        for (waited, spent, expected) in [
            (Scan, &[(Stage::Scan, 9, 1)][..], Bottleneck::Scan),
            (Read, &[(Stage::Read, 30, 1), (Stage::Hash, 5, 5)], Bottleneck::SourceRead),
            (Read, &[(Stage::Read, 5, 5), (Stage::Hash, 15, 15)], Bottleneck::SourceHash),
            (Read, &[(Stage::Read, 5, 5), (Stage::Spill, 15, 1)], Bottleneck::SourceSpill),
            (Send, &[(Stage::Cipher, 7, 7), (Stage::Send, 3, 2)], Bottleneck::SourceCipher),
            (Send, &[(Stage::Cipher, 1, 1), (Stage::Send, 9, 1)], Bottleneck::Network),
            (Send, &[(Stage::Cipher, 1, 1), (Stage::Send, 9, 8)], Bottleneck::SourceSend),
            (Send, &[(Stage::HashOnWay, 7, 7), (Stage::Send, 3, 2)], Bottleneck::SourceHash),
            (Send, &[(Stage::ReadOnWay, 7, 1), (Stage::Send, 3, 2)], Bottleneck::SourceRead),
            (Send, &[(Stage::Hash, 90, 90), (Stage::Read, 90, 1), (Stage::Send, 9, 1)], Bottleneck::Network),
            (Send, &[(Stage::Limit, 9, 0), (Stage::Send, 1, 1)], Bottleneck::BandwidthLimit),
            (Waiting::Link, &[], Bottleneck::Connection),
        ] {
            assert_eq!(
                named(&profiles((&[(waited, 9)], spent), idle)),
                Some(expected),
                "{waited:?} {spent:?}"
            );
        }
    }

    #[test]
    fn a_source_that_cannot_send_is_held_up_by_the_way_or_by_a_sink_that_takes_nothing() {
        let source: (&[_], &[_]) = (&[(Waiting::Send, 10)], &[(Stage::Send, 10, 0)]);
        for (spent, expected) in [
            (&[(Stage::Receive, 9, 1), (Stage::Cipher, 1, 1)][..], Bottleneck::Network),
            (&[(Stage::Receive, 2, 1), (Stage::Cipher, 8, 8)], Bottleneck::SinkCipher),
            (&[(Stage::Receive, 9, 9)], Bottleneck::SinkReceive),
            (&[], Bottleneck::Network),
        ] {
            assert_eq!(named(&profiles(source, (&[], spent))), Some(expected), "{spent:?}");
        }
    }

    #[test]
    fn what_was_waited_for_the_sink_is_divided_by_what_the_sink_waited_for() {
        use Waiting::{Answers, Arriving, Credit, Names, Next, Payload, Settle, Sync, Write};
        let busy = [(Stage::Write, 9, 1), (Stage::Hash, 2, 2), (Stage::Create, 1, 1), (Stage::Sync, 1, 0)];
        for (source, sink, spent, expected) in [
            (Credit, Write, &busy[..], Bottleneck::SinkWrite),
            (Credit, Write, &[(Stage::Hash, 9, 9), (Stage::Write, 3, 2)], Bottleneck::SinkHash),
            (Credit, Write, &[(Stage::Read, 9, 1), (Stage::Write, 3, 2)], Bottleneck::SourceRead),
            (Credit, Write, &[(Stage::Copy, 9, 1), (Stage::Write, 3, 2)], Bottleneck::Copy),
            (Credit, Write, &[(Stage::Create, 9, 1), (Stage::Write, 3, 2)], Bottleneck::SinkMetadata),
            (Credit, Sync, &busy, Bottleneck::SinkSync),
            (Credit, Payload, &busy, Bottleneck::SinkBuffers),
            (Credit, Next, &busy, Bottleneck::SinkBuffers),
            (Settle, Next, &busy, Bottleneck::SinkWrite),
            (Credit, Arriving, &busy, Bottleneck::Network),
            (Credit, Arriving, &[(Stage::Cipher, 9, 9)], Bottleneck::SinkCipher),
            (Settle, Payload, &[(Stage::Cipher, 9, 9), (Stage::Receive, 1, 1)], Bottleneck::SinkCipher),
            (Answers, Names, &[(Stage::Names, 9, 1)], Bottleneck::SinkMetadata),
            (Answers, Payload, &busy, Bottleneck::Network),
            (Settle, Settle, &[(Stage::Sync, 9, 0), (Stage::Names, 1, 0)], Bottleneck::SinkSync),
            (Settle, Settle, &[(Stage::Sync, 1, 0), (Stage::Names, 9, 0)], Bottleneck::SinkMetadata),
            (Settle, Settle, &[(Stage::Sync, 3, 0), (Stage::Create, 15, 0)], Bottleneck::SinkSync),
            (Answers, Names, &[(Stage::Create, 9, 1)], Bottleneck::SinkMetadata),
            (Settle, Write, &busy, Bottleneck::SinkWrite),
            (Settle, Payload, &busy, Bottleneck::Network),
        ] {
            let found = named(&profiles((&[(source, 8)], &[]), (&[(sink, 9)], spent)));
            assert_eq!(found, Some(expected), "{source:?} {sink:?} {spent:?}");
        }
    }

    #[test]
    fn buffers_are_too_few_only_while_nothing_arrives_though_there_is_something_to_send() {
        use Waiting::{Arriving, Credit, Payload, Read, Send};
        let share = |source: &[_], sink: &[_]| {
            let waits = of(&profiles((source, &[(Stage::Send, 9, 0)]), (sink, &[]))).unwrap();
            [Bottleneck::SinkBuffers, Bottleneck::Network].map(|part| (waits.share(part) * 10.0).round())
        };
        let full = share(&[(Credit, 8), (Send, 2)], &[(Arriving, 9), (Payload, 1)]);
        assert_eq!(full, [1.0, 9.0], "the wire is full");
        for (credit, send) in [(10, 0), (6, 4)] {
            let long = share(&[(Credit, credit), (Send, send)], &[(Arriving, 4), (Payload, 6)]);
            assert_eq!(long, [6.0, 4.0], "whether the system takes what is sent at once or as it leaves");
        }
        let slow = share(&[(Credit, 5), (Read, 5)], &[(Arriving, 5), (Payload, 5)]);
        assert_eq!(slow, [0.0, 5.0], "nothing arrived because nothing had been read");
    }

    #[test]
    fn the_end_of_a_run_is_explained_by_what_the_sink_did_at_the_end() {
        // It was writing all the time, at the pace of the network; then it had to sync.
        let source: (&[_], &[_]) = (&[(Waiting::Send, 4), (Waiting::Settle, 6)], &[(Stage::Send, 4, 0)]);
        let spent = [(Stage::Write, 4, 1), (Stage::Sync, 6, 0), (Stage::Receive, 4, 0)];
        let waits = of(&profiles(source, (&[(Waiting::Write, 4), (Waiting::Settle, 6)], &spent))).unwrap();
        assert_eq!(waits.share(Bottleneck::SinkSync), 0.6);
        assert!((waits.share(Bottleneck::Network) - 0.4).abs() < 1e-6);
        assert_eq!(waits.share(Bottleneck::SinkWrite), 0.0);
    }

    #[test]
    fn a_sink_that_goes_on_when_the_source_has_ended_is_part_of_the_run() {
        let mut apart = profiles(
            (&[(Waiting::Send, 4)], &[(Stage::Send, 4, 0)]),
            (&[(Waiting::Payload, 4), (Waiting::Settle, 6)], &[(Stage::Sync, 6, 0), (Stage::Receive, 4, 0)]),
        );
        apart.source.as_mut().unwrap().wall_nanos = 4 * SECOND;
        let waits = of(&apart).unwrap();
        assert_eq!(waits.share(Bottleneck::SinkSync), 0.6);
        assert!((waits.share(Bottleneck::Network) - 0.4).abs() < 1e-6, "{waits:?}");
    }

    #[test]
    fn within_one_process_nothing_is_on_its_way() {
        let between = [(Waiting::Settle, Bottleneck::Network), (Waiting::Credit, Bottleneck::SinkBuffers)];
        for (waited, expected) in between {
            let apart = profiles((&[(waited, 9)], &[]), (&[(Waiting::Payload, 9)], &[]));
            assert_eq!(named(&apart), Some(expected));
            assert_eq!(named(&Profiles { one_process: true, ..apart }), None);
        }
        let syncs = (&[(Waiting::Settle, 9)][..], &[(Stage::Sync, 9, 0)][..]);
        let one = Profiles { one_process: true, ..profiles((&[(Waiting::Settle, 9)], &[]), syncs) };
        assert_eq!(named(&one), Some(Bottleneck::SinkSync), "everything else is as between processes");
    }

    #[test]
    fn what_is_taken_in_a_moment_holds_nothing_up_for_long() {
        let sink = (&[(Waiting::Payload, 9)][..], &[(Stage::Receive, 1, 1)][..]);
        let waits = of(&profiles((&[(Waiting::Settle, 9)], &[]), sink)).unwrap();
        assert_eq!([Bottleneck::SinkReceive, Bottleneck::Network].map(|part| waits.share(part)), [0.1, 0.8]);
    }

    #[test]
    fn nothing_is_named_that_does_not_stand_out() {
        let even = profiles(
            (&[(Waiting::Scan, 3), (Waiting::Read, 3), (Waiting::Settle, 4)], &[(Stage::Scan, 9, 1)]),
            (&[(Waiting::Payload, 9)], &[]),
        );
        assert_eq!(name(&even), None);
        assert_eq!(name(&Profiles { sink: None, ..even }), None);
        assert_eq!(name(&Profiles::default()), None);
        let just = |scan| {
            profiles((&[(Waiting::Scan, 5), (Waiting::Read, 4)], &[(Stage::Scan, scan, 1)]), (&[], &[]))
        };
        assert_eq!(name(&just(5)), Some((Bottleneck::Scan, Why::Waited(0.5))));
        assert_eq!(name(&just(4)), None, "the scan was not at it all the time");
    }

    #[test]
    fn where_nothing_stands_out_it_is_what_busy_processors_were_busiest_with() {
        let spent = [(Stage::Hash, 6, 5), (Stage::Cipher, 3, 3)];
        let mut even =
            profiles((&[(Waiting::Read, 4), (Waiting::Send, 4)], &spent), (&[], &[(Stage::Cipher, 4, 4)]));
        assert_eq!(name(&even), None, "there was room on the processors");
        let source = even.source.as_mut().unwrap();
        (source.host_busy_permille, source.processor_nanos) = (950, 10 * SECOND);
        assert_eq!(name(&even), Some((Bottleneck::SourceHash, Why::Processors(0.5))));
        // Two stages of one name.
        let mut two = even;
        let sink = two.sink.as_mut().unwrap();
        (sink.host_busy_permille, sink.processor_nanos) = (950, 20 * SECOND);
        for (stage, seconds) in [(Stage::Create, 4), (Stage::Names, 4), (Stage::Cipher, 0), (Stage::Write, 6)]
        {
            let (busy_nanos, processor_nanos) = (seconds * SECOND, seconds * SECOND);
            *sink.spent_mut(stage) = Spent { busy_nanos, processor_nanos, times: 1, bytes: 1 };
        }
        assert_eq!(name(&two), Some((Bottleneck::SinkMetadata, Why::Processors(0.4))));
        even.source.as_mut().unwrap().processor_nanos = SECOND;
        assert_eq!(name(&even), None, "it was somebody else who used them");
        let source = even.source.as_mut().unwrap();
        (source.host_busy_permille, source.processor_nanos) = (500, 10 * SECOND);
        assert_eq!(name(&even), None, "others could have used them");
    }

    #[test]
    fn numbers_that_make_no_sense_name_something_or_nothing() {
        for number in [0, 1, u64::MAX] {
            let mut wild = Profile {
                wall_nanos: number,
                processor_nanos: number,
                processors: u32::MAX,
                host_busy_permille: u16::MAX,
                ..Profile::default()
            };
            for stage in Stage::ALL {
                *wild.spent_mut(*stage) = Spent {
                    busy_nanos: number,
                    processor_nanos: u64::MAX - number,
                    times: number,
                    bytes: number,
                };
            }
            for waiting in Waiting::ALL {
                *wild.waited_nanos_mut(*waiting) = number;
            }
            for other in [Profile::default(), wild] {
                for profiles in [
                    Profiles { source: Some(wild), sink: Some(other), ..Profiles::default() },
                    Profiles {
                        source: Some(other),
                        sink: Some(wild),
                        one_process: true,
                        ..Profiles::default()
                    },
                ] {
                    if let Some((_, Why::Waited(share) | Why::Processors(share))) = name(&profiles) {
                        assert!((0.0..=1.0).contains(&share), "{share}");
                    }
                }
            }
        }
    }
}
