//! Runs a log through a history of operations, kills and power cuts, beside a model of what may and must come back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use haul_model::Token;
use haul_objectlog::memory::Refused;
use haul_objectlog::{Binding, Config, Error, Handle, LogStore, MemoryStore, ObjectLog};

use super::{Random, binding, slow_reader};

/// A wrong store, or a wrong log: each of them must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    None,
    /// Contents are never synced.
    SyncIgnored,
    /// Names are never synced.
    NamesIgnored,
    /// A sync does what the sync before it was asked to do.
    SyncLate,
    /// Index pages reach the store after the sync that is to make them durable, so data comes before its record.
    IndexLate,
    /// Checksums are not bound to an entry: what stands in the room of an entry is believed, whoever wrote it.
    Unbound,
}

/// The store of a history: in memory, perhaps with a bug, and it looks at the order of what is written.
pub struct Store {
    pub inner: MemoryStore,
    bug: Bug,
    held: Vec<(String, u64, Vec<u8>)>,
    asked: Vec<String>,
    /// Check that data is only written under durable records.
    pub audit: bool,
    /// A sync has failed, so that what readers see is not what can become durable.
    sync_failed: bool,
    pub violation: Option<String>,
}

#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Store>>);

impl Store {
    fn check_order(&mut self, name: &str, offset: u64, bytes: &[u8]) {
        let durable = self.inner.durable_files();
        let records = durable.get(name).map(|log| slow_reader::read_log(name, log)).unwrap_or_default();
        for (index, piece) in bytes.chunks(512).enumerate() {
            let start = offset + index as u64 * 512;
            let is_index = piece.len() == 512 && &piece[4..8] == b"HOLX";
            let is_covered = records
                .iter()
                .flat_map(|record| &record.extents)
                .any(|(from, length)| *from <= start && start < from + length);
            if !is_index && !is_covered {
                self.violation = Some(format!("{name}: data at {start} is under no durable record"));
            }
        }
    }
}

impl LogStore for Shared {
    type Error = Refused;

    fn list(&mut self) -> Result<Vec<String>, Refused> {
        self.0.borrow_mut().inner.list()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Refused> {
        self.0.borrow_mut().inner.length(name)
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Refused> {
        // Short reads are allowed, so they are made.
        let length = buffer.len().min(700);
        self.0.borrow_mut().inner.read_at(name, offset, &mut buffer[..length])
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        let mut store = self.0.borrow_mut();
        if store.audit {
            store.check_order(name, offset, bytes);
        }
        if store.bug == Bug::IndexLate && bytes.len() >= 512 && &bytes[4..8] == b"HOLX" {
            store.held.push((name.to_string(), offset, bytes.to_vec()));
            return Ok(());
        }
        store.inner.write_at(name, offset, bytes)
    }

    fn remove(&mut self, name: &str) -> Result<(), Refused> {
        self.0.borrow_mut().inner.remove(name)
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Refused> {
        let mut store = self.0.borrow_mut();
        match store.bug {
            Bug::SyncIgnored => Ok(()),
            Bug::SyncLate => {
                let now = names.iter().map(|name| name.to_string()).collect();
                let before = std::mem::replace(&mut store.asked, now);
                let before: Vec<&str> = before.iter().map(String::as_str).collect();
                store.inner.sync(&before)
            }
            Bug::IndexLate => {
                store.inner.sync(names)?;
                for (name, offset, bytes) in std::mem::take(&mut store.held) {
                    store.inner.write_at(&name, offset, &bytes)?;
                }
                Ok(())
            }
            _ => {
                let result = store.inner.sync(names);
                store.sync_failed |= result.is_err();
                result
            }
        }
    }

    fn sync_names(&mut self) -> Result<(), Refused> {
        let mut store = self.0.borrow_mut();
        if store.bug == Bug::NamesIgnored { Ok(()) } else { store.inner.sync_names() }
    }
}

type Path = Vec<u8>;
type State = BTreeMap<Path, (Binding, BTreeSet<u64>)>;

/// A state that must come back, but for paths that were begun, finished or dropped since.
#[derive(Clone, Default)]
struct Base {
    state: State,
    touched: BTreeSet<Path>,
}

/// One operation of a history: what, and two numbers that say on what.
pub type Step = (u8, u16, u16);

/// A path in a message.
fn show(path: &[u8]) -> String {
    format!("{}({} bytes)", path[..path.len().min(20)].escape_ascii(), path.len())
}

pub struct World {
    pub store: Shared,
    log: Option<ObjectLog<Shared>>,
    configs: Vec<Config>,
    random: Random,
    bug: Bug,
    paths: Vec<Path>,
    versions: u64,
    /// All that was ever recorded, by path and token.
    recorded: BTreeMap<(Path, Token), (Binding, BTreeSet<u64>)>,
    current: State,
    handles: BTreeMap<Path, Handle>,
    seen: BTreeSet<Path>,
    flushed: Base,
    synced: Base,
    /// Operations of the store are told to fail.
    trouble: bool,
    pub replays: u64,
}

const OBJECTS: [u64; 8] = [1, 3, 64, 65, 126, 1000, 4032, 9000];

impl World {
    /// The first configuration is used first, the others after restarts.
    pub fn new(configs: Vec<Config>, seed: u64, bug: Bug, audit: bool) -> Self {
        let inner = MemoryStore::new();
        let store = Store {
            inner,
            bug,
            held: Vec::new(),
            asked: Vec::new(),
            audit: audit || bug == Bug::IndexLate,
            sync_failed: false,
            violation: None,
        };
        let mut paths: Vec<Path> = (0..5).map(|index| format!("data/file {index}").into_bytes()).collect();
        paths.push(b"\xff\x00\n/..".to_vec());
        if !audit && bug != Bug::IndexLate {
            paths.push(vec![b'p'; 5000]);
            paths.push(vec![b'q'; 300]);
        }
        let mut world = World {
            store: Shared(Rc::new(RefCell::new(store))),
            log: None,
            configs,
            random: Random(seed),
            bug,
            paths,
            versions: 0,
            recorded: BTreeMap::new(),
            current: State::new(),
            handles: BTreeMap::new(),
            seen: BTreeSet::new(),
            flushed: Base::default(),
            synced: Base::default(),
            trouble: false,
            replays: 0,
        };
        world.open().unwrap();
        world
    }

    fn open(&mut self) -> Result<(), String> {
        if self.bug == Bug::Unbound {
            let files = self.store.0.borrow().inner.files();
            self.store.0.borrow_mut().inner =
                MemoryStore::with_files(files.into_iter().map(|(name, log)| {
                    let bound = slow_reader::seal_whatever_is_there(&name, log);
                    (name, bound)
                }));
        }
        let config = self.configs[self.random.below(self.configs.len() as u64) as usize];
        let (log, _) =
            ObjectLog::open(self.store.clone(), config).map_err(|error| format!("cannot open: {error:?}"))?;
        let slow = slow_reader::read_all(&self.store.0.borrow().inner.files());
        if slow.len() != log.len() {
            return Err(format!("the slow reader finds {} entries, the log {}", slow.len(), log.len()));
        }
        for (path, logged) in log.iter() {
            let Some(record) = slow.get(path) else { return Err("the slow reader lacks an entry".into()) };
            let done: Vec<u64> = (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect();
            if record.token != logged.binding.token.0 || record.done != done {
                return Err(format!("the slow reader reads {record:?}, the log {logged:?}"));
            }
        }
        self.log = Some(log);
        self.replays += 1;
        self.handles.clear();
        self.seen.clear();
        Ok(())
    }

    /// After a restart: what came back, against what may and must.
    fn check(&mut self, base: &Base) -> Result<State, String> {
        let Some(log) = &self.log else { return Err("not open".into()) };
        let mut found = State::new();
        for (path, logged) in log.iter() {
            let done: BTreeSet<u64> =
                (0..logged.done.len()).filter(|&object| logged.done.get(object)).collect();
            let Some((binding, recorded)) = self.recorded.get(&(path.to_vec(), logged.binding.token)) else {
                return Err(format!("{}: an entry that never was", show(path)));
            };
            if *binding != logged.binding {
                return Err(format!("{}: another binding", show(path)));
            }
            if let Some(wrong) = done.difference(recorded).next() {
                return Err(format!("{}: object {wrong} was never recorded", show(path)));
            }
            found.insert(path.to_vec(), (logged.binding, done));
        }
        for path in &self.paths {
            if base.touched.contains(path) {
                continue;
            }
            match (base.state.get(path), found.get(path)) {
                // Without objects an entry holds no place: it may go, and one that it replaced may come back.
                (Some((_, must)), _) if must.is_empty() => {}
                (Some(_), None) => return Err(format!("{}: the entry is lost", show(path))),
                (Some((binding, must)), Some((now, done))) => {
                    if binding.token != now.token {
                        return Err(format!("{}: an older entry came back", show(path)));
                    }
                    if let Some(lost) = must.difference(done).next() {
                        return Err(format!("{}: object {lost} is lost", show(path)));
                    }
                }
                (None, Some(_)) => return Err(format!("{}: an entry that was gone came back", show(path))),
                _ => {}
            }
        }
        Ok(found)
    }

    fn touch(&mut self, path: &[u8]) {
        self.flushed.touched.insert(path.to_vec());
        self.synced.touched.insert(path.to_vec());
    }

    fn forget(&mut self, path: &[u8]) {
        self.touch(path);
        self.current.remove(path);
        self.handles.remove(path);
    }

    /// Ends the process, in the middle of whatever it did; with a power cut, un-synced things are lost.
    fn die(&mut self, power: bool) -> Result<(), String> {
        self.log = None;
        self.trouble = false;
        // Nobody tells the next process that a sync of this one failed: nothing can be promised across that.
        let power = power || self.store.0.borrow().sync_failed;
        {
            let mut store = self.store.0.borrow_mut();
            store.sync_failed = false;
            store.inner.fail_after(None);
            store.held.clear();
            store.asked.clear();
            if power {
                let share = [0, 20, 50, 80, 100][self.random.below(5) as usize];
                store.inner = store.inner.crash(|| self.random.chance(share));
            }
        }
        self.open()?;
        let base = if power { self.synced.clone() } else { self.flushed.clone() };
        let found = self.check(&base)?;
        self.current = found.clone();
        self.flushed = Base { state: found.clone(), touched: BTreeSet::new() };
        if power {
            self.synced = self.flushed.clone();
        }
        Ok(())
    }

    fn flush(&mut self, sync: bool) -> Result<bool, String> {
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let result = if sync { log.sync() } else { log.flush() };
        match result {
            Ok(()) => {
                let base = Base { state: self.current.clone(), touched: BTreeSet::new() };
                if sync {
                    self.synced = base.clone();
                }
                self.flushed = base;
                let usage = log.usage();
                let files = self.store.0.borrow().inner.files();
                let bytes: usize = files.values().map(Vec::len).sum();
                if self.bug == Bug::None && (usage.bytes, usage.files) != (bytes as u64, files.len() as u64) {
                    return Err(format!("{usage:?}, but there are {} logs of {bytes} bytes", files.len()));
                }
                Ok(true)
            }
            Err(Error::Store { .. }) if self.trouble => Ok(false),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    fn record(&mut self, path: &[u8], objects: impl Iterator<Item = u64>) -> Result<(), String> {
        let Some(&handle) = self.handles.get(path) else { return Ok(()) };
        let (Some(log), Some((binding, done))) = (&mut self.log, self.current.get_mut(path)) else {
            return Err("not open".into());
        };
        let Some((_, recorded)) = self.recorded.get_mut(&(path.to_vec(), binding.token)) else {
            return Err("no such version".into());
        };
        for object in objects {
            let new = log.record(handle, object).map_err(|error| format!("{error:?}"))?;
            if new != done.insert(object) {
                return Err(format!("{}: object {object} was known: {new}", show(path)));
            }
            recorded.insert(object);
        }
        Ok(())
    }

    fn begin(&mut self, path: Path, objects: u64) -> Result<(), String> {
        self.versions += 1;
        let new = binding(self.versions, objects);
        self.forget(&path);
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let handle = log.begin(&path, new).map_err(|error| format!("{error:?}"))?;
        self.handles.insert(path.clone(), handle);
        self.seen.insert(path.clone());
        self.current.insert(path.clone(), (new, BTreeSet::new()));
        self.recorded.insert((path, new.token), (new, BTreeSet::new()));
        Ok(())
    }

    fn resume(&mut self, path: Path) -> Result<(), String> {
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let known = log.lookup(&path).map(|logged| logged.binding);
        if known != self.current.get(&path).map(|(binding, _)| *binding) {
            return Err(format!("{}: looked up {known:?}", show(&path)));
        }
        if let Some(handle) = log.resume(&path) {
            self.handles.insert(path.clone(), handle);
            self.seen.insert(path);
        }
        Ok(())
    }

    fn end(
        &mut self,
        path: Path,
        end: impl Fn(&mut ObjectLog<Shared>, Handle) -> Result<(), Error<Refused>>,
    ) -> Result<(), String> {
        if let (Some(handle), Some(log)) = (self.handles.get(&path), &mut self.log) {
            end(log, *handle).map_err(|error| format!("{error:?}"))?;
            if end(log, *handle) != Err(Error::StaleHandle) {
                return Err("a handle outlived its entry".into());
            }
            self.forget(&path);
        }
        Ok(())
    }

    fn remove_stale(&mut self) -> Result<(), String> {
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let count = log.remove_stale();
        let stale: Vec<Path> =
            self.current.keys().filter(|path| !self.seen.contains(*path)).cloned().collect();
        stale.iter().for_each(|path| self.forget(path));
        if count == stale.len() as u64 { Ok(()) } else { Err(format!("{count} entries were stale")) }
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(log) = self.log.take() else { return Err("not open".into()) };
        log.close().map_err(|error| format!("{error:?}"))?;
        self.synced = Base { state: self.current.clone(), touched: BTreeSet::new() };
        self.flushed = self.synced.clone();
        let left = self.store.0.borrow().inner.durable_files().len();
        if self.current.is_empty() && left > 0 && self.bug == Bug::None {
            return Err(format!("{left} logs are left although every file is finished"));
        }
        self.die(true)
    }

    fn fail_after(&mut self, operations: Option<u64>) {
        self.trouble = operations.is_some();
        self.store.0.borrow_mut().inner.fail_after(operations);
    }

    /// Performs one operation; `Err` says what rule was broken.
    pub fn step(&mut self, (kind, one, two): Step) -> Result<(), String> {
        let path = self.paths[usize::from(one) % self.paths.len()].clone();
        let objects = self.current.get(&path).map_or(1, |(binding, _)| binding.objects);
        match kind % 100 {
            0..12 => self.begin(path, OBJECTS[usize::from(two) % OBJECTS.len()])?,
            12..16 => self.resume(path)?,
            16..22 => self.paths.clone().into_iter().try_for_each(|path| self.resume(path))?,
            22..50 => {
                let strides = [1, objects / 7 + 1, u64::from(two) % 13 + 1];
                let (start, stride) = (u64::from(two), strides[usize::from(one >> 8) % 3]);
                let count = u64::from(one >> 4) % 40;
                self.record(&path, (0..count).map(|index| (start + index * stride) % objects))?;
            }
            50..53 => self.record(&path, (0..objects).rev())?,
            53..63 => self.end(path, |log, handle| log.finish(handle))?,
            63..65 => self.end(path, |log, handle| log.drop_entry(handle))?,
            65..76 => self.flush(false).map(|_| ())?,
            76..82 => self.flush(true).map(|_| ())?,
            82..84 => self.remove_stale()?,
            84..88 => {
                // The store fails for a while, then works again.
                self.fail_after(Some(u64::from(two) % 8));
                self.flush(two % 2 == 0)?;
                self.fail_after(None);
                if one % 3 > 0 {
                    self.flush(one % 3 == 1)?;
                }
            }
            88..95 => {
                self.fail_after(Some(u64::from(two) % 16));
                self.flush(one % 2 == 0)?;
                self.die(one % 3 > 0)?;
            }
            95..99 => self.die(one % 2 == 0)?,
            _ => self.close()?,
        }
        self.store.0.borrow_mut().violation.take().map_or(Ok(()), Err)
    }

    /// All steps, then a power cut.
    pub fn run(&mut self, steps: impl IntoIterator<Item = Step>) -> Result<(), String> {
        for (index, step) in steps.into_iter().enumerate() {
            self.step(step).map_err(|rule| format!("step {index} {step:?}: {rule}"))?;
        }
        self.die(true)
    }
}
