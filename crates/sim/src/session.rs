//! How sessions begin and end: the command is given, an end is killed, both ends are done, the command is given again.

use haul_model::{Code, Kind};
use haul_protocol::link::Link;
use haul_protocol::scheduler::{Adaptive, Policy};
use haul_protocol::{Planted, sink, source};
use haul_wire::Role;

use crate::Bug;
use crate::disk::Thing;
use crate::hung::Hung;
use crate::log::{JobLog, Kept};
use crate::sink_end::SinkEnd;
use crate::source_end::SourceEnd;
use crate::stuck;
use crate::world::{Happening, World, note};

/// Sessions after which a job must have come to its end.
const SESSIONS_MAX: u32 = 60;

#[cfg(feature = "planted-bugs")]
fn planted(bug: Option<Bug>) -> Planted {
    Planted(bug)
}

#[cfg(not(feature = "planted-bugs"))]
fn planted(_bug: Option<Bug>) -> Planted {
    Planted::default()
}

impl World {
    /// What stands at the destination before the job: sometimes an older version, sometimes something in the way.
    pub(crate) fn occupy(&mut self) {
        self.checker.troubled = vec![false; self.tree.nodes.len()];
        for path in 0..self.tree.nodes.len() {
            let parent_is_there = self.tree.nodes[path]
                .parent
                .is_none_or(|parent| self.disk.names[parent].now == Some(Thing::Directory));
            if !parent_is_there || !self.random.chance(self.plan.occupied) {
                continue;
            }
            let thing = match (self.tree.nodes[path].kind, self.random.below(4)) {
                (Kind::Directory, 1..) => Thing::Directory,
                (Kind::File, 0) | (Kind::Symlink, 0) => Thing::Directory,
                (_, 1) => Thing::Link,
                _ => {
                    // A complete file of some earlier state, which is none of those to come.
                    let size = self.random.below(u64::from(self.plan.grain) * 2);
                    self.tree.stamps.push(crate::tree::Stamp { path, size, ..self.tree.stamps[0] });
                    let stamp = self.tree.stamps.len() as u32 - 1;
                    self.tree.stamps[stamp as usize].content = stamp;
                    Thing::File(self.disk.whole_file(stamp, size, stamp))
                }
            };
            note!(self, "destination: {thing:?} stands under path {path}");
            self.disk.place(path, thing);
        }
    }

    /// Both ends begin.
    pub(crate) fn start_session(&mut self) {
        self.starting = false;
        self.session += 1;
        self.report.sessions += 1;
        let double = if self.plan.object_bytes_vary { self.random.coin() } else { false };
        let object_bytes = if double { self.plan.grain * 2 } else { self.plan.grain };
        let bundle_bytes_max = match self.random.below(6) {
            0 => u64::from(object_bytes),
            1 => u64::from(self.plan.grain / 8),
            _ => u64::from(self.plan.grain / 2),
        };
        let slots = self.random.between(1, 8) as u32;
        let sink_slots_near = self.random.between(1, 12) as u32;
        let sink_slots = sink_slots_near + self.random.below(6) as u32;
        let spill_objects = if self.random.coin() { self.random.between(1, 12) } else { 0 };
        let spill_bytes_max = spill_objects * u64::from(object_bytes);
        let (hands, sink_hands) = (self.random.between(1, 6) as u32, self.random.between(1, 6) as u32);
        let streams = self.random.between(1, 4) as usize;
        let (planted, roots) = (planted(self.bug), self.tree.labels.clone());
        note!(
            self,
            "session {}: objects of {object_bytes}, bundles of files up to {bundle_bytes_max}, {slots} slots to {sink_slots} ({sink_slots_near} of them nearby), {streams} streams, a spill of {spill_bytes_max}",
            self.session
        );
        if self.random.chance(20) && self.session > 1 {
            note!(self, "all logs are gone");
            self.store.clear();
            self.kept = Kept::default();
        }
        self.store.fail_after(None);
        let log = match JobLog::open(&self.store, self.plan.log, std::mem::take(&mut self.kept)) {
            Ok(log) => log,
            Err(error) => return self.violate(format!("the log cannot be opened: {error}")),
        };
        // After a failed sync the system may show what is not on the disk, and call it synced the next time.
        if let Some(path) = log.lacks().filter(|_| !self.plan.log_fails) {
            let path = String::from_utf8_lossy(path).into_owned();
            self.violate(format!("the log has lost what it kept of {path}"));
        }
        if self.plan.log_fails && self.session <= self.plan.faulty_sessions {
            self.store.fail_after(Some(self.random.below(60)));
        }
        self.safe = self.is_safe();
        let source = source::Config {
            object_bytes,
            bundle_bytes_max,
            slots,
            slots_least: self.random.between(1, 16) as u32,
            hands,
            hands_max: hands * 3,
            policy: Policy::Adaptive(Adaptive::default()),
            hangs_after_nanos: Some(self.plan.hangs_after),
            spill_bytes_max,
            files_open_max: if self.random.chance(200) {
                self.random.between(1, 4) as usize
            } else {
                usize::MAX
            },
            roots: roots.clone(),
            report_done: true,
            planted,
        };
        self.hung = Hung::default();
        self.hung.bearable_at_source = stuck::bearable(slots, hands);
        self.hung.bearable = stuck::bearable(sink_slots_near, sink_hands);
        let sink = sink::Config {
            slots: sink_slots,
            slots_near: sink_slots_near,
            slots_least: self.random.between(1, 16) as u32,
            hands: sink_hands,
            hands_max: sink_hands * 3,
            policy: Policy::Adaptive(Adaptive::default()),
            hangs_after_nanos: Some(self.plan.hangs_after),
            syncs_each: self.random.coin(),
            lies_apart: false,
            errand_threads_max: self.plan.errand_threads,
            slot_bytes: object_bytes,
            recursive: true,
            roots,
            report_done: true,
            planted,
        };
        let confirm_after = self.random.scale(1, 32);
        self.source = Some(SourceEnd::new(source, Link::new(planted), log, confirm_after));
        if let Some(end) = &mut self.source {
            end.spill.in_place = self.random.coin();
        }
        let syncs_each = sink.syncs_each;
        self.sink = Some(SinkEnd::new(self.session, sink, Link::new(planted), confirm_after));
        self.connection = crate::network::Connection::default();
        self.begin_checks(object_bytes, sink_slots, syncs_each, streams);
        self.after(1_000_000, Happening::Dial { session: self.session });
        self.wait_for_peer(Role::Source);
        self.wait_for_peer(Role::Sink);
    }

    /// Kills one or both processes. False if there is nobody to kill.
    pub(crate) fn kill(&mut self, source: bool, sink: bool, power: bool) -> bool {
        let source = source && self.source.is_some();
        let sink = sink && self.sink.is_some();
        if !source && !sink || self.starting {
            return false;
        }
        self.report.crashes += 1;
        note!(self, "KILL source: {source}, sink: {sink}, power cut: {power}");
        self.sever();
        if sink {
            self.abandon_writes(true);
            self.retire_sink();
            if power {
                let World { disk, tree, random, .. } = self;
                disk.crash(tree, random);
                self.check_all_visible();
            }
        }
        if source {
            self.retire_source(false);
            if power {
                let World { store, random, .. } = self;
                store.crash(|| random.coin());
                self.kept.flushed = self.kept.synced.clone();
            }
        }
        // Who is left waits for its peer, or the command is given again at once.
        if self.source.is_none() && self.sink.is_none() || self.random.coin() {
            self.starting = true;
            self.after(50_000_000, Happening::NewSession);
        }
        true
    }

    /// Operations that storage has not finished take effect or not.
    fn abandon_writes(&mut self, random: bool) {
        let session = self.session;
        let pending =
            self.queue.take(|it| matches!(it, Happening::Write { session: of, .. } if *of == session));
        for happening in pending {
            if let Happening::Write { started, .. } = happening
                && (!random || self.random.coin())
            {
                self.perform(session, started);
            }
        }
        // What hung may have got through all the same.
        for started in std::mem::take(&mut self.hung.for_ever) {
            if self.random.coin() {
                self.perform(session, started);
            }
        }
        if !random {
            while let Some(op) = self.sink.as_mut().and_then(SinkEnd::next_ordered) {
                let Some(end) = &self.sink else { return };
                let started = end.storage.start(op, &self.disk);
                self.perform(session, started);
            }
        }
    }

    fn retire_sink(&mut self) {
        if let Some(end) = self.sink.take() {
            self.report.add_sink(end.machine.coverage());
        }
    }

    /// `in_order`: the process comes to its end and closes its log.
    fn retire_source(&mut self, in_order: bool) {
        let Some(end) = self.source.take() else { return };
        self.report.add_source(end.machine.coverage());
        self.kept = end.log.kept();
        if in_order {
            match end.log.close() {
                Ok(kept) => self.kept = kept,
                Err(error) => self.on_log_error(&error.to_string()),
            }
        }
    }

    /// The command is given again: who is left of the old session is superseded.
    pub(crate) fn succeed(&mut self) {
        let in_order = self.random.coin();
        self.retire_source(in_order);
        if let Some(end) = &self.sink {
            let lingers = self.plan.lingers && end.outcome.is_none();
            self.abandon_writes(true);
            if lingers {
                note!(self, "the sink of session {} lingers", self.session);
                self.lingering = self.sink.take();
                let session = self.session;
                self.start_session();
                if self.random.coin() {
                    self.supersede(session);
                }
                return;
            }
            self.retire_sink();
        }
        self.start_session();
    }

    /// Are both ends done?
    pub(crate) fn look_for_end(&mut self) {
        let ended = |outcome: Option<&Option<haul_protocol::Outcome>>| outcome.is_none_or(Option::is_some);
        if self.starting
            || !ended(self.source.as_ref().map(|end| &end.outcome))
            || !ended(self.sink.as_ref().map(|end| &end.outcome))
        {
            return;
        }
        let source = self.source.as_ref().and_then(|end| end.outcome);
        let sink = self.sink.as_ref().and_then(|end| end.outcome);
        let complete = matches!((source, sink), (Some(source), Some(sink))
            if source.failure.is_none() && sink.failure.is_none());
        note!(self, "session {} is over, complete: {complete}", self.session);
        if self.sink.is_some() {
            self.abandon_writes(!complete);
        }
        if complete && let (Some(source), Some(sink)) = (source, sink) {
            let all_there = self.check_complete(source, sink);
            // What is no file has no log.
            let is_directory = |path: &[u8]| {
                self.tree.nodes.iter().any(|node| node.path == path && node.kind == Kind::Directory)
            };
            let may_have_log = |(path, failure): &&(Vec<u8>, haul_model::Failure)| match failure.code {
                Code::UnsupportedKind => false,
                Code::SinkAttributes => !is_directory(path),
                _ => true,
            };
            let failed = self.source.iter().flat_map(|end| &end.failed).filter(may_have_log).count();
            self.retire_sink();
            self.retire_source(true);
            self.check_log(failed);
            self.job_ended(all_there);
            return;
        }
        if source.is_some_and(|outcome| outcome.failure.is_none()) && self.sink.is_some() {
            self.violate("the source is content, the sink is not".into());
        }
        for (end, outcome) in [("source", source), ("sink", sink)] {
            let Some(failure) = outcome.and_then(|outcome| outcome.failure) else { continue };
            let has_reason = matches!(failure.code, Code::ConnectionLost | Code::Interrupted)
                || failure.code == Code::SinkNoSpace && (self.rates().no_space > 0 || self.is_full());
            if !has_reason || self.safe {
                self.violate(format!("the {end} ends with: {failure}, but nothing of the kind happened"));
            }
        }
        self.retire_sink();
        self.retire_source(true);
        if self.session > SESSIONS_MAX {
            self.violate("the job does not come to its end".into());
        }
        self.starting = true;
        self.after(1_000_000_000, Happening::NewSession);
        if self.random.chance(100) {
            self.change();
        }
    }

    /// No target has room that the sink knows of.
    fn is_full(&self) -> bool {
        let full = self.rates().full;
        full != 0 && self.sink.as_ref().is_none_or(|end| end.storage.has_only_full_ones(full))
    }

    pub(crate) fn collect_coverage(&mut self) {
        self.retire_sink();
        self.retire_source(false);
        if let Some(end) = self.lingering.take() {
            self.report.add_sink(end.machine.coverage());
        }
    }
}
