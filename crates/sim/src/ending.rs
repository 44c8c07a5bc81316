//! What must hold when a session has come to its end without a failure of its own.

use haul_model::Kind;
use haul_protocol::Outcome;

use crate::checker::{End, Record};
use crate::disk::Thing;
use crate::log::{JobLog, Kept};
use crate::tree::PathId;
use crate::world::{Happening, World};

impl World {
    /// Both ends are content. True if nothing is missing at the sink.
    pub(crate) fn check_complete(&mut self, source: Outcome, sink: Outcome) -> bool {
        if source.stats != sink.stats {
            self.violate(format!("the ends tell different things: {:?} and {:?}", source.stats, sink.stats));
        }
        let failed = self.check_reports();
        for index in 0..self.checker.scanned.len() {
            let (path, stamp) = self.checker.scanned[index];
            if let Err(why) = self.check_entry(path, stamp, &failed) {
                self.violate(format!("at the end of a session, path {path}: {why}"));
            }
        }
        self.check_restarts(&failed);
        self.check_stats(&source);
        self.check_left_over(&failed);
        self.check_quiescence();
        let expected = |path: &PathId| self.is_other(*path) || self.checker.unreadable.contains(path);
        if self.plan.calm && (source.stats.objects_repaired > 0 || !failed.iter().all(expected)) {
            self.violate("nothing went wrong, but something was sent again or failed".into());
        }
        if self.checker.nothing_to_do && self.checker.objects_sent > 0 {
            self.violate("everything was there, but something was sent".into());
        }
        failed.is_empty()
    }

    fn is_other(&self, path: PathId) -> bool {
        self.tree.nodes[path].kind == Kind::Other
    }

    /// Both ends name the same paths, each once. Directories may be named twice: unreadable there, not finished here.
    fn check_reports(&mut self) -> Vec<PathId> {
        let (Some(source), Some(sink)) = (&self.source, &self.sink) else { return vec![] };
        let named = |failed: &[(Vec<u8>, haul_model::Failure)]| {
            let mut paths: Vec<PathId> =
                failed.iter().filter_map(|(path, _)| self.tree.path_named(path)).collect();
            paths.sort_unstable();
            paths
        };
        let (source, sink) = (named(&source.failed), named(&sink.failed));
        let done = self.checker.all_records().filter(|record| record.end == Some(End::Done));
        let mut done: Vec<&[u8]> = done.map(|record| self.tree.nodes[record.path].path.as_slice()).collect();
        let mut told: Vec<&[u8]> = self.sink.iter().flat_map(|end| &end.done).map(Vec::as_slice).collect();
        done.sort_unstable();
        told.sort_unstable();
        if source != sink || done != told {
            let differ = if source != sink { "failed" } else { "done" };
            self.violate(format!("the ends name different files as {differ}: {source:?}, {sink:?}"));
        }
        let twice = source.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(path) = twice.filter(|path| self.tree.nodes[*path].kind != Kind::Directory) {
            self.violate(format!("path {path} is named as failed twice"));
        }
        source
    }

    fn check_entry(&mut self, path: PathId, scanned: u32, failed: &[PathId]) -> Result<(), String> {
        let is_failed = failed.binary_search(&path).is_ok();
        let Some(record) = self.checker.last_record(path) else {
            return if is_failed { Ok(()) } else { Err("it was found and never announced".into()) };
        };
        let (stamp, kind, end) = (record.stamp, record.kind, record.end);
        match (kind, end) {
            (Kind::Directory, _) if is_failed => Ok(()),
            (Kind::Directory, _) => {
                let name = &self.disk.names[path];
                let there =
                    name.durable == Some(Thing::Directory) && self.disk.is_reachable(path, &self.tree);
                if there && name.attributes { Ok(()) } else { Err(format!("the directory is {name:?}")) }
            }
            (_, Some(End::Done | End::Skipped)) if is_failed => Err("it is both there and failed".into()),
            (_, None | Some(End::Restarted)) if is_failed => Ok(()),
            (_, Some(end @ (End::Done | End::Skipped))) => {
                self.is_final(path, stamp, None, end == End::Skipped)?;
                if scanned != 0 {
                    self.checker.finish(stamp);
                }
                Ok(())
            }
            (_, end) => Err(format!("it is missing and not named: {end:?}")),
        }
    }

    /// Of the entries of one path all but the last were dropped because the file changed.
    fn check_restarts(&mut self, failed: &[PathId]) {
        let is_last = |record: &Record| {
            self.checker.last_record(record.path).is_some_and(|last| std::ptr::eq(last, record))
        };
        let lost = self.checker.all_records().find(|record| {
            record.end != Some(End::Restarted)
                && record.path != usize::MAX
                && !is_last(record)
                && failed.binary_search(&record.path).is_err()
        });
        if let Some(path) = lost.map(|record| record.path) {
            self.violate(format!("path {path} has several entries"));
        }
    }

    fn check_stats(&mut self, source: &Outcome) {
        let stats = source.stats;
        let Some(end) = &self.source else { return };
        let (put, taken) = (end.spill.bytes_put, end.spill.bytes_taken);
        let is_directory = |path: &[u8]| {
            let path = self.tree.path_named(path);
            path.is_some_and(|path| self.tree.nodes[path].kind == Kind::Directory)
        };
        let unreadable = self.checker.unreadable.len() as u64;
        let directories_failed = end.failed.iter().filter(|(path, _)| is_directory(path)).count() as u64;
        let entries = self.checker.scanned.iter().map(|(path, _)| *path);
        let records = self.checker.all_records();
        let count = |end: End| records.filter(|record| record.end == Some(end)).count() as u64;
        let skipped = count(End::Skipped);
        let records = self.checker.all_records();
        let done = records.filter(|record| record.end == Some(End::Done)).count() as u64;
        let kinds = entries.map(|path| self.checker.last_record(path).map_or(Kind::Other, |it| it.kind));
        let files = kinds.filter(|kind| *kind != Kind::Directory).count() as u64 + unreadable;
        let expected = [files, done, skipped, end.failed.len() as u64];
        let told = [stats.files_total, stats.files_done, stats.files_skipped, stats.files_failed];
        if expected != told {
            self.violate(format!("total, done, skipped, failed are {expected:?}, told is {told:?}"));
        }
        let [total, done, skipped, failed] = told;
        let unlisted = self.checker.unreadable.iter();
        let unlisted = unlisted.filter(|path| self.tree.nodes[**path].kind == Kind::Directory).count() as u64;
        if done + skipped + failed != total + directories_failed - unlisted {
            self.violate(format!("the counters {told:?} do not add up"));
        }
        if !(self.checker.sent_again..=self.checker.asked).contains(&stats.objects_repaired) {
            let (again, asked) = (self.checker.sent_again, self.checker.asked);
            self.violate(format!("{asked} were asked for again and {again} sent, told is {stats:?}"));
        }
        let sent = (self.checker.bytes_sent, self.checker.objects_sent);
        if put < stats.bytes_spilled || taken > stats.bytes_spilled {
            self.violate(format!("{put} bytes went into the spill and {taken} came back, told is {stats:?}"));
        }
        if sent != (stats.bytes_sent, stats.objects_sent) {
            self.violate(format!("{sent:?} bytes and objects were sent, told is {stats:?}"));
        }
    }

    /// No unfinished file is left, but where the job could not look.
    fn check_left_over(&mut self, failed: &[PathId]) {
        let hidden =
            |path: PathId| self.checker.unreadable.contains(&path) || failed.binary_search(&path).is_ok();
        let left = self.disk.temps.iter().find(|temp| {
            let known = !hidden(temp.path)
                && !self.tree.ancestors(temp.path).any(hidden)
                && !self.checker.hung.contains(&temp.path);
            // What could not be read may have been a file there, or in DEST itself.
            let place = self.tree.nodes[temp.path].parent;
            let beside = |path: &PathId| place.is_none() || self.tree.nodes[*path].parent == place;
            let known = known && !self.checker.unreadable.iter().any(beside);
            (temp.now || temp.durable) && known
        });
        if let Some(temp) = left {
            self.violate(format!("an unfinished file is left: {temp:?}"));
        }
    }

    /// Nothing is held any more, and each slot is where it belongs.
    fn check_quiescence(&mut self) {
        let (Some(source), Some(sink)) = (&self.source, &self.sink) else { return };
        let idle = source.machine.slots_free() as u32 + source.reading + source.sending;
        // Payloads of files that were dropped may still be on their way into a slot.
        let travels = |it: &Happening| matches!(it, Happening::Arrive { .. });
        let travelling = source.sending as usize + self.queue.count(travels) + sink.late;
        let granted = sink.granted.iter().filter(|granted| **granted).count();
        let awaited = granted.wrapping_sub(sink.machine.slots_granted());
        let wrong = [
            (idle != source.slots.len() as u32).then_some("slots of the source are lost"),
            (awaited > travelling
                || sink.machine.slots_idle() + awaited + self.hung.making.len() + self.slots_stuck()
                    != sink.slots.len())
            .then_some("slots of the sink are lost"),
            (source.machine.spilled() > 0).then_some("places in the spill are lost"),
            (source.machine.credits_held() != sink.machine.slots_granted()).then_some("credits are lost"),
            (source.machine.open_entries() + sink.machine.open_entries() > 0).then_some("entries are open"),
            (source.machine.open_directories() + sink.machine.open_directories() > 0)
                .then_some("directories are alive"),
            (!source.handles.is_empty()).then_some("files of the source are open"),
            (!source.directories.is_empty()).then_some("directories of the source are held"),
            (sink.storage.held().0 != 0).then_some("the storage of the sink holds directories"),
            (sink.storage.held().1 != 0 && self.checker.hung.is_empty())
                .then_some("the storage of the sink holds files"),
        ];
        if let Some(what) = wrong.into_iter().flatten().next() {
            let held = sink.storage.held();
            self.violate(format!("at the end of a session {what} (storage holds {held:?})"));
        }
    }

    /// A job that is complete leaves nothing in the log. What failed, or could not be listed, may go on by it.
    pub(crate) fn check_log(&mut self, failed: usize) {
        self.store.fail_after(None);
        match JobLog::open(&self.store, self.plan.log, Kept::default()) {
            Ok(log) if log.len() == 0 || failed > 0 || self.plan.log_fails => {}
            Ok(log) => self.violate(format!("{} entries are left in the log", log.len())),
            Err(error) => self.violate(format!("the log cannot be opened: {error}")),
        }
    }
}
