//! Both sinks, by the one suite.

mod sink_support;

use std::collections::BTreeSet;
use std::sync::Arc;

use haul_model::{Attributes, Kind};
use haul_storage::SinkStorage;
use haul_storage::conformance_sink::{self, Fixture, JOB, OBJECT, Seen};
use haul_storage::memory_sink::{MemoryKind, MemoryNode, MemorySink, MemoryTree};
use haul_storage::sink::{SourceName, SyncMode};
use sink_support::Scratch;

#[derive(Default)]
struct Memory(Arc<MemoryTree>);

impl Fixture for Memory {
    fn open(&self, session_tag: [u8; 4], sources: &[SourceName]) -> Box<dyn SinkStorage> {
        let sink = MemorySink::open(Arc::clone(&self.0), sources, (JOB, session_tag), OBJECT, false);
        Box::new(sink.expect("the settings are good"))
    }

    fn look(&self, path: &[u8]) -> Option<Seen> {
        let MemoryNode { kind, attributes } = self.0.nodes().get(path)?.clone();
        let (kind, bytes) = match kind {
            MemoryKind::Directory => (Kind::Directory, Vec::new()),
            MemoryKind::File(bytes) => (Kind::File, bytes),
            MemoryKind::Symlink(target) => (Kind::Symlink, target.to_vec()),
        };
        Some(Seen { kind, mode: attributes.mode, mtime: attributes.mtime, bytes })
    }

    fn names(&self, path: &[u8]) -> BTreeSet<Vec<u8>> {
        let prefix = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        let nodes = self.0.nodes();
        let below = nodes.keys().filter_map(|path| path.strip_prefix(&*prefix));
        below.filter(|name| !name.contains(&b'/')).map(<[u8]>::to_vec).collect()
    }

    fn plant(&self, path: &[u8], seen: &Seen) {
        let kind = match seen.kind {
            Kind::Directory => MemoryKind::Directory,
            Kind::Symlink => MemoryKind::Symlink(seen.bytes.clone().into()),
            _ => MemoryKind::File(seen.bytes.clone()),
        };
        let attributes = Attributes { mode: seen.mode, mtime: seen.mtime, ..Attributes::default() };
        self.0.nodes().insert(path.to_vec(), MemoryNode { kind, attributes });
    }
}

#[test]
fn the_sink_in_memory_conforms() {
    conformance_sink::check_all(|| Box::<Memory>::default());
}

#[test]
fn the_posix_sink_conforms_where_files_are_striped() {
    conformance_sink::check_all(|| Box::new(Scratch::new(SyncMode::Measured).striped()));
}

#[test]
fn the_posix_sink_conforms_where_a_file_system_is_synced_as_a_whole() {
    conformance_sink::check_all(|| Box::new(Scratch::new(SyncMode::Measured)));
}

#[test]
fn the_posix_sink_conforms_in_memory_where_small_files_are_named_late() {
    conformance_sink::check_all(|| Box::new(Scratch::fast(SyncMode::Measured)));
    conformance_sink::check_all(|| Box::new(Scratch::fast(SyncMode::Measured).striped()));
}

#[test]
fn the_posix_sink_conforms_where_each_file_is_synced() {
    conformance_sink::check_all(|| Box::new(Scratch::new(SyncMode::EachFile)));
}

#[test]
fn the_posix_sink_conforms_where_nothing_is_synced() {
    conformance_sink::check_all(|| Box::new(Scratch::new(SyncMode::Never)));
}
