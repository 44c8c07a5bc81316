//! A connection is lost at whatever byte: both ends find together again, and both know how it went.

mod support;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use haul_model::HashKind;
use haul_mover::connection::{Accept, Acceptor, Connector, local};
use haul_mover::log::SourceLog;
use haul_mover::{Report, SinkEnd, SourceEnd, Tuning};
use haul_storage::memory_sink::{MemoryKind, MemorySink, MemoryTree};
use haul_storage::sink::SourceName;
use haul_storage::synthetic::{Sizes, SyntheticSource, SyntheticSpec};
use haul_transport::fault::{self, Fault, When};
use haul_transport::trace::{self, Counters};
use haul_transport::{Purpose, Stream};

const OBJECT_BYTES: u32 = 64 << 10;
const STREAMS: u16 = 2;
/// Of its frame, at most.
const CONNECT_BYTES: u64 = 100;

/// Which way.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    ToDialer,
    FromDialer,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    purpose: Purpose,
    way: Way,
    byte: u64,
}

/// Has the first stream of its purpose cut.
struct Cutting<A> {
    accept: A,
    path: Path,
    counters: Counters,
    /// What came over each data stream.
    data: Arc<Mutex<Vec<Counters>>>,
}

/// What is between the ends.
#[derive(Clone, Copy, Debug)]
struct Path {
    streams: u16,
    /// The first stream of its purpose is cut.
    cut: Option<Cut>,
    /// So many connections are cut when they have stood for so long.
    lasts: Option<(Duration, u32)>,
    bytes_per_second: Option<u64>,
}

impl Path {
    fn cut(cut: Option<Cut>) -> Path {
        Path { streams: STREAMS, cut, lasts: None, bytes_per_second: None }
    }
}

impl<A: Accept> Accept for Cutting<A> {
    fn next(&mut self, timeout: Duration) -> io::Result<(Purpose, Stream)> {
        let (purpose, stream) = self.accept.next(timeout)?;
        if let (Purpose::Control, Some((lasts, left @ 1..))) = (purpose, &mut self.path.lasts) {
            *left -= 1;
            let (lasts, closer) = (*lasts, stream.closer());
            std::thread::spawn(move || {
                std::thread::sleep(lasts);
                closer.close();
            });
        }
        let stream = match purpose {
            Purpose::Control => stream,
            Purpose::Data(_) => {
                let counters = Counters::default();
                self.data.lock().unwrap().push(counters.clone());
                trace::wrap(stream, &counters)
            }
        };
        let stream = match self.path.cut.take_if(|cut| cut.purpose == purpose) {
            Some(Cut { way: Way::ToDialer, byte, .. }) => {
                fault::sending(stream, When::Byte(byte), Fault::Cut)
            }
            Some(Cut { way: Way::FromDialer, byte, .. }) => {
                fault::receiving(stream, When::Byte(byte), Fault::Cut)
            }
            None if purpose == Purpose::Control => trace::wrap(stream, &self.counters),
            None => stream,
        };
        Ok((purpose, stream))
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Which end dials.
#[derive(Clone, Copy, Debug)]
enum Dials {
    Source,
    Sink,
}

/// How often the ends were connected in all, and what passed on the control streams that were not cut, each way.
struct Passed {
    connected: u64,
    to_dialer: u64,
    from_dialer: u64,
    /// What came from the dialer over each data stream.
    data: Vec<u64>,
}

/// A session whose connection is cut there, and which comes to a good end all the same.
fn session(dials: Dials, cut: Option<Cut>) -> Passed {
    // Bundles, files of one object, and one of several.
    let sizes = Sizes::Cycle(vec![100, 64 << 10, 0, 3000, (128 << 10) + 1]);
    let spec = SyntheticSpec { seed: 1, files: 20, files_per_directory: 7, sizes };
    session_over(dials, Path::cut(cut), &spec)
}

/// The same, over such a path.
fn session_over(dials: Dials, path: Path, spec: &SyntheticSpec) -> Passed {
    let cut = path.cut;
    let storage = SyntheticSource::new(spec.clone()).hashed(HashKind::Blake3);
    let scan = Box::new(storage.scan(Arc::new(AtomicU64::new(1))));
    let (dial, Acceptor { accept, streams }) = local::pair(path.streams);
    let counters = Counters::default();
    let data = Arc::default();
    let cutting = Cutting { accept, path, counters: counters.clone(), data: Arc::clone(&data) };
    let accept = Acceptor { accept: cutting, streams };
    let (of_source, of_sink): (Box<dyn Connector>, Box<dyn Connector>) = match dials {
        Dials::Source => (Box::new(dial), Box::new(accept)),
        Dials::Sink => (Box::new(accept), Box::new(dial)),
    };
    let reported = Arc::new(Mutex::new(Vec::new()));
    let common = |connector| {
        let reported = Arc::clone(&reported);
        let report = move |report| {
            if !matches!(report, Report::Progress { .. }) {
                reported.lock().unwrap().push(report);
            }
        };
        let bundle_bytes_max = 4 << 10;
        let bandwidth = path.bytes_per_second.and_then(std::num::NonZeroU64::new);
        let tuning = Tuning { bundle_bytes_max, bandwidth, ..support::tuning(4, OBJECT_BYTES) };
        support::common(Tuning { reconnect: Duration::from_secs(5), ..tuning }, connector, Box::new(report))
    };
    let tree = Arc::new(MemoryTree::default());
    let names = [SourceName::Named(b"many".to_vec())];
    let sink = MemorySink::open(Arc::clone(&tree), &names, ([1; 6], [2; 4]), OBJECT_BYTES, false).unwrap();
    let sink = SinkEnd { common: common(of_sink), storage: Arc::new(sink), shared: None, recursive: true };
    let source = SourceEnd {
        common: common(of_source),
        storage: Arc::new(storage),
        scan,
        log: SourceLog::none(),
        spill_bytes_max: 0,
        shared: None,
    };
    let sink = sink.start().unwrap();
    let source = source.start().unwrap().wait();
    let sink = sink.wait();
    let reported = reported.lock().unwrap();
    for (end, summary) in [("source", &source), ("sink", &sink)] {
        let (error, stats) = (&summary.error, summary.outcome.stats);
        assert!(error.is_none(), "{dials:?} dials, {cut:?}: {end}: {error:?} after {reported:?}");
        assert_eq!((stats.files_done, stats.files_failed), (spec.files, 0), "{dials:?} {cut:?}: {end}");
    }
    for file in 0..spec.files {
        let path = format!("many/{}", spec.path(file));
        let node = tree.nodes().get(path.as_bytes()).cloned();
        let Some(MemoryKind::File(bytes)) = node.map(|node| node.kind) else { panic!("{path} is not there") };
        assert!(spec.check(file, 0, &bytes) && bytes.len() as u64 == spec.size(file), "{path} differs");
    }
    let connected = |report: &&Report| matches!(report, Report::Connected { .. });
    Passed {
        connected: reported.iter().filter(connected).count() as u64,
        to_dialer: counters.sent_bytes(),
        from_dialer: counters.received_bytes(),
        data: data.lock().unwrap().iter().map(Counters::received_bytes).collect(),
    }
}

/// All of these cuts, many sessions at a time, as they mostly wait. How many came before the end of their session.
fn all(cuts: &[(Dials, Cut)]) -> usize {
    let (next, again) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| {
                while let Some((dials, cut)) = cuts.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let connected = session(*dials, Some(*cut)).connected;
                    again.fetch_add(u64::from(connected > 2), Ordering::Relaxed);
                }
            });
        }
    });
    again.into_inner() as usize
}

#[test]
fn a_control_stream_may_be_cut_at_any_byte() {
    let mut cuts = Vec::new();
    for dials in [Dials::Source, Dials::Sink] {
        let Passed { connected, to_dialer, from_dialer, .. } = session(dials, None);
        assert_eq!(connected, 2, "each end once");
        for (way, bytes) in [(Way::ToDialer, to_dialer), (Way::FromDialer, from_dialer)] {
            assert!(bytes > 500, "{way:?}: {bytes}");
            // Where the first CONNECT is lost nothing has begun. At the end nearly each byte.
            let bytes = (CONNECT_BYTES..bytes - 120).step_by(29).chain((bytes - 120..bytes).step_by(3));
            cuts.extend(bytes.map(|byte| (dials, Cut { purpose: Purpose::Control, way, byte })));
        }
    }
    let again = all(&cuts);
    assert!(again > cuts.len() * 3 / 4, "only {again} of {} were", cuts.len());
}

#[test]
fn a_data_stream_may_be_cut_at_any_byte() {
    let mut cuts = Vec::new();
    for (dials, way) in [(Dials::Source, Way::FromDialer), (Dials::Sink, Way::ToDialer)] {
        let ends =
            (1..4).flat_map(|object: u64| [-1, 0, 1, 40].map(|by| (object << 16).wrapping_add_signed(by)));
        let bytes = (0..4).chain((4..200).step_by(9)).chain(ends);
        cuts.extend(bytes.map(|byte| (dials, Cut { purpose: Purpose::Data(1), way, byte })));
    }
    assert!(all(&cuts) > 0, "none was");
}

/// All streams together bring no object in the time that a connection lasts; one alone brings two.
#[test]
fn on_a_slow_path_that_is_cut_again_and_again_one_stream_brings_what_several_cannot() {
    let spec =
        SyntheticSpec { seed: 2, files: 4, files_per_directory: 7, sizes: Sizes::Cycle(vec![64 << 10]) };
    let (lasts, bytes_per_second) = (Some((Duration::from_secs(1), u32::MAX)), Some(128 << 10));
    let path = Path { streams: 4, cut: None, lasts, bytes_per_second };
    assert!(session_over(Dials::Source, path, &spec).connected > 4, "it has been cut");
}

/// As soon as something has come over it.
#[test]
fn a_connection_that_is_good_again_uses_all_its_streams() {
    let spec =
        SyntheticSpec { seed: 3, files: 40, files_per_directory: 50, sizes: Sizes::Cycle(vec![64 << 10]) };
    let (lasts, bytes_per_second) = (Some((Duration::from_millis(30), 2)), Some(1 << 20));
    let path = Path { streams: 4, cut: None, lasts, bytes_per_second };
    let Passed { connected, data, .. } = session_over(Dials::Source, path, &spec);
    assert_eq!((connected, data.len()), (6, 12), "two were cut");
    assert!(data[8..].iter().all(|bytes| *bytes > 64 << 10), "{data:?}");
}
