//! What was told to a log, and so what may and must come back from it.

use std::collections::{BTreeMap, BTreeSet};

use haul_model::Token;
use haul_objectlog::{Binding, Config, LogStore, MemoryStore, ObjectLog};

use super::slow_reader;

pub type Path = Vec<u8>;
pub type Objects = BTreeSet<u64>;
pub type State = BTreeMap<Path, (Binding, Objects)>;

/// A state that must come back, but for paths that were begun, finished or dropped since.
#[derive(Clone, Default)]
pub struct Base {
    pub state: State,
    pub touched: BTreeSet<Path>,
}

impl Base {
    pub fn new(state: State) -> Self {
        Base { state, touched: BTreeSet::new() }
    }
}

/// All that was ever recorded.
#[derive(Default)]
pub struct Truth {
    /// By path and token. A file may begin again under its token: each life has its own objects.
    lives: BTreeMap<(Path, Token), (Binding, Vec<Objects>)>,
}

/// A path in a message.
pub fn show(path: &[u8]) -> String {
    format!("{}({} bytes)", path[..path.len().min(20)].escape_ascii(), path.len())
}

impl Truth {
    /// An entry begins, or is found again with these objects.
    pub fn begin(&mut self, path: &[u8], binding: Binding, objects: Objects) {
        let (_, lives) = self.lives.entry((path.to_vec(), binding.token)).or_insert((binding, Vec::new()));
        if lives.last() != Some(&objects) {
            lives.push(objects);
        }
    }

    /// An object of the entry that began last under this token.
    pub fn record(&mut self, path: &[u8], binding: &Binding, object: u64) {
        let key = (path.to_vec(), binding.token);
        if let Some(life) = self.lives.get_mut(&key).and_then(|(_, lives)| lives.last_mut()) {
            life.insert(object);
        }
    }

    /// What was found against what may be and what must be.
    pub fn check(&self, found: &State, base: &Base) -> Result<(), String> {
        self.check_recorded(found)?;
        self.check_kept(found, base)
    }

    /// Nothing is there that was not recorded.
    pub fn check_recorded(&self, found: &State) -> Result<(), String> {
        for (path, (binding, done)) in found {
            let Some((recorded, lives)) = self.lives.get(&(path.clone(), binding.token)) else {
                return Err(format!("{}: an entry that never was", show(path)));
            };
            if recorded != binding {
                return Err(format!("{}: another binding", show(path)));
            }
            if !lives.iter().any(|life| done.is_subset(life)) {
                let wrong = done.iter().find(|object| !lives.iter().any(|life| life.contains(object)));
                return Err(match wrong {
                    Some(wrong) => format!("{}: object {wrong} was never recorded", show(path)),
                    None => format!("{}: objects that were never recorded in one life", show(path)),
                });
            }
        }
        Ok(())
    }

    /// All is there that was kept.
    fn check_kept(&self, found: &State, base: &Base) -> Result<(), String> {
        for (path, (binding, must)) in &base.state {
            // Without objects an entry holds no place: it may go, and one that it replaced may come back.
            if base.touched.contains(path) || must.is_empty() {
                continue;
            }
            let Some((now, done)) = found.get(path) else {
                return Err(format!("{}: the entry is lost", show(path)));
            };
            if binding.token != now.token {
                return Err(format!("{}: an older entry came back", show(path)));
            }
            if let Some(lost) = must.difference(done).next() {
                return Err(format!("{}: object {lost} is lost", show(path)));
            }
            let life = self.lives.get(&(path.clone(), now.token)).and_then(|(_, lives)| lives.last());
            if let Some(wrong) = done.iter().find(|object| life.is_none_or(|life| !life.contains(object))) {
                return Err(format!("{}: object {wrong} was never recorded in this life", show(path)));
            }
        }
        let is_gone = |path: &&Path| !base.state.contains_key(*path) && !base.touched.contains(*path);
        match found.keys().find(is_gone) {
            Some(path) => Err(format!("{}: an entry that was gone came back", show(path))),
            None => Ok(()),
        }
    }
}

/// What a log says when it is opened over these files; `Err` if the slow reader does not say the same.
pub fn state_of<S: LogStore>(log: &ObjectLog<S>, files: &BTreeMap<String, Vec<u8>>) -> Result<State, String> {
    let mut slow = slow_reader::read_all(files);
    let mut found = State::new();
    for (path, logged) in log.iter() {
        let Some(record) = slow.remove(path) else {
            return Err(format!("{}: the slow reader lacks it", show(path)));
        };
        let done: Vec<u64> = (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect();
        if record.token != logged.binding.token.0 || record.done != done {
            return Err(format!("the slow reader reads {record:?}, the log {logged:?}"));
        }
        found.insert(path.to_vec(), (logged.binding, done.into_iter().collect()));
    }
    match slow.keys().next() {
        Some(path) => Err(format!("{}: only the slow reader has it", show(path))),
        None => Ok(found),
    }
}

/// What the next process finds in this store.
pub fn next_state(store: &MemoryStore, config: Config) -> Result<State, String> {
    let files = store.files();
    let (log, _) = ObjectLog::open(MemoryStore::with_files(files.clone()), config)
        .map_err(|error| format!("cannot open: {error:?}"))?;
    state_of(&log, &files)
}
