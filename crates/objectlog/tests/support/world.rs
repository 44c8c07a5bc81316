//! Runs a log through a history of operations, kills and power cuts, beside a model of what may and must come back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use haul_objectlog::memory::Refused;
use haul_objectlog::{Config, Error, Handle, LogStore, MemoryStore, Method, ObjectLog};

use super::cuts::{self, Cut};
use super::truth::{self, Base, Path, State, Truth, show};
use super::{Random, binding, read_check, slow_reader};

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
    /// How many pages of a write that fails are written all the same.
    pages_in_part: Option<usize>,
    /// Some were: the log cannot know how long its files are.
    is_longer: bool,
    /// The logs that were removed, by name, as they were then.
    removed: BTreeMap<String, Vec<u8>>,
    /// Every state that the store went through since it was looked at last, if anybody looks.
    cuts: Option<Vec<Cut>>,
    pub violation: Option<String>,
}

#[derive(Clone)]
pub struct Shared(pub Rc<RefCell<Store>>);

impl Store {
    fn cut(&mut self, states: impl IntoIterator<Item = MemoryStore>) {
        let sync_failed = self.sync_failed;
        if let Some(cuts) = &mut self.cuts {
            cuts.extend(states.into_iter().map(|store| Cut { store, sync_failed }));
        }
    }

    /// The state that an operation left, if it was one.
    fn cut_after(&mut self, result: Result<(), Refused>) -> Result<(), Refused> {
        if self.cuts.is_some() {
            let now = self.inner.clone();
            self.cut([now]);
        }
        result
    }

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
        if store.cuts.is_some() {
            let torn = cuts::torn_writes(&store.inner, name, offset, bytes);
            store.cut(torn);
        }
        let mut result = store.inner.write_at(name, offset, bytes);
        if let (Err(_), Some(pages)) = (result, store.pages_in_part.take()) {
            cuts::write_in_part(&mut store.inner, name, offset, bytes, pages)?;
            store.is_longer = true;
            result = Err(Refused);
        }
        store.cut_after(result)
    }

    fn remove(&mut self, name: &str) -> Result<(), Refused> {
        let mut store = self.0.borrow_mut();
        if store.cuts.is_some() {
            let log = store.inner.files().remove(name);
            store.removed.extend(log.map(|log| (name.to_string(), log)));
        }
        let result = store.inner.remove(name);
        store.cut_after(result)
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
                if store.cuts.is_some() {
                    let partial = cuts::partial_syncs(&store.inner, names);
                    store.cut(partial);
                }
                let result = store.inner.sync(names);
                store.sync_failed |= result.is_err();
                store.cut_after(result)
            }
        }
    }

    fn sync_names(&mut self) -> Result<(), Refused> {
        let mut store = self.0.borrow_mut();
        if store.bug == Bug::NamesIgnored {
            return Ok(());
        }
        let result = store.inner.sync_names();
        store.cut_after(result)
    }
}

/// One operation of a history: what, and two numbers that say on what.
pub type Step = (u8, u16, u16);

pub struct World {
    pub store: Shared,
    log: Option<ObjectLog<Shared>>,
    config: Config,
    configs: Vec<Config>,
    random: Random,
    bug: Bug,
    paths: Vec<Path>,
    objects: &'static [u64],
    versions: u64,
    truth: Truth,
    current: State,
    handles: BTreeMap<Path, Handle>,
    seen: BTreeSet<Path>,
    flushed: Base,
    synced: Base,
    /// Both as they were when the step began.
    kept_before: (Base, Base),
    /// Operations of the store are told to fail.
    trouble: bool,
    pub replays: u64,
    /// Crash states that were looked at beside those that the history goes through.
    pub crashes: u64,
}

/// Of the files of a history.
const OBJECTS: [u64; 8] = [1, 3, 64, 65, 126, 1000, 4032, 9000];
/// Of those of a history that is cut off everywhere, which is slow if they take many pages: bits of the last two take
/// two, and numbers are only written of fewer.
const OBJECTS_CUT: [u64; 8] = [1, 3, 64, 65, 126, 300, 4033, 5000];
const NUMBERS_CUT_MAX: u64 = 700;

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
            pages_in_part: None,
            is_longer: false,
            removed: BTreeMap::new(),
            cuts: None,
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
            config: configs[0],
            configs,
            random: Random(seed),
            bug,
            paths,
            objects: &OBJECTS,
            versions: 0,
            truth: Truth::default(),
            current: State::new(),
            handles: BTreeMap::new(),
            seen: BTreeSet::new(),
            flushed: Base::default(),
            synced: Base::default(),
            kept_before: Default::default(),
            trouble: false,
            replays: 0,
            crashes: 0,
        };
        world.open().unwrap();
        world
    }

    /// A history of which each step is cut off wherever that can be.
    pub fn cut_everywhere(configs: Vec<Config>, seed: u64, bug: Bug) -> Self {
        let mut world = World::new(configs, seed, bug, false);
        world.objects = &OBJECTS_CUT;
        world.store.0.borrow_mut().cuts = Some(Vec::new());
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
        self.config = self.random.one_of(&self.configs);
        let (log, _) = ObjectLog::open(self.store.clone(), self.config)
            .map_err(|error| format!("cannot open: {error:?}"))?;
        self.current = truth::state_of(&log, &self.store.0.borrow().inner.files())?;
        self.log = Some(log);
        self.replays += 1;
        self.handles.clear();
        self.seen.clear();
        Ok(())
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
        self.check_cuts()?;
        self.log = None;
        self.trouble = false;
        // Nobody tells the next process that a sync of this one failed: nothing can be promised across that.
        let power = power || self.store.0.borrow().sync_failed;
        {
            let mut store = self.store.0.borrow_mut();
            (store.sync_failed, store.is_longer, store.pages_in_part) = (false, false, None);
            store.inner.fail_after(None);
            store.held.clear();
            store.asked.clear();
            if power {
                let share = [0, 20, 50, 80, 100][self.random.below(5) as usize];
                store.inner = store.inner.crash(|| self.random.chance(share));
            }
        }
        self.open()?;
        let base = if power { &self.synced } else { &self.flushed };
        self.truth.check(&self.current, base)?;
        for (path, (binding, done)) in &self.current {
            self.truth.begin(path, *binding, done.clone());
        }
        self.flushed = Base::new(self.current.clone());
        if power {
            self.synced = self.flushed.clone();
        }
        Ok(())
    }

    /// Every state that the store went through in a step: as a kill leaves it, and as power cuts do. Whatever was kept
    /// before the step is kept, and some states are gone on with.
    fn check_cuts(&mut self) -> Result<(), String> {
        let cuts = match &mut self.store.0.borrow_mut().cuts {
            Some(cuts) => std::mem::take(cuts),
            None => return Ok(()),
        };
        let (flushed, synced) = &self.kept_before;
        for (index, Cut { store, sync_failed }) in cuts.into_iter().enumerate() {
            let config = self.random.one_of(&self.configs);
            let killed = (&store, if sync_failed { synced } else { flushed });
            let cut_off = cuts::after_power_cut(&store, &mut self.random);
            for (number, (store, base)) in
                std::iter::once(killed).chain(cut_off.iter().map(|store| (store, synced))).enumerate()
            {
                let state = truth::next_state(store, config)?;
                let when = |rule| format!("cut off at {index}, state {number}: {rule}");
                self.truth.check(&state, base).map_err(when)?;
                if self.random.chance(4) {
                    read_check::going_on_keeps_everything(&store.files(), config, &state, &mut self.random);
                }
                self.crashes += 1;
            }
            for cut in &cut_off {
                // The specification does not promise that nothing is lost then.
                if let Some(stale) = cuts::with_stale_pages(&store, cut, &self.store.0.borrow().removed) {
                    let state = truth::next_state(&stale, config)?;
                    let when = |rule| format!("cut off at {index}, with stale pages: {rule}");
                    self.truth.check_recorded(&state).map_err(when)?;
                    self.crashes += 1;
                }
            }
        }
        Ok(())
    }

    fn flush(&mut self, sync: bool) -> Result<bool, String> {
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let result = if sync { log.sync() } else { log.flush() };
        match result {
            Ok(()) => {
                let base = Base::new(self.current.clone());
                if sync {
                    self.synced = base.clone();
                }
                self.flushed = base;
                let usage = log.usage();
                let files = self.store.0.borrow().inner.files();
                let bytes: usize = files.values().map(Vec::len).sum();
                let is_known = self.bug == Bug::None && !self.store.0.borrow().is_longer;
                if is_known && (usage.bytes, usage.files) != (bytes as u64, files.len() as u64) {
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
        for object in objects {
            let new = log.record(handle, object).map_err(|error| format!("{error:?}"))?;
            if new != done.insert(object) {
                return Err(format!("{}: object {object} was known: {new}", show(path)));
            }
            self.truth.record(path, binding, object);
        }
        Ok(())
    }

    /// Another version of the file, or the same once more under the token that it has.
    fn begin(&mut self, path: Path, objects: u64, same: bool) -> Result<(), String> {
        let known = self.current.get(&path).map(|(binding, _)| *binding).filter(|_| same);
        let new = known.unwrap_or_else(|| {
            self.versions += 1;
            binding(self.versions, objects)
        });
        self.forget(&path);
        let Some(log) = &mut self.log else { return Err("not open".into()) };
        let handle = log.begin(&path, new).map_err(|error| format!("{error:?}"))?;
        self.handles.insert(path.clone(), handle);
        self.seen.insert(path.clone());
        self.truth.begin(&path, new, BTreeSet::new());
        self.current.insert(path, (new, BTreeSet::new()));
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
        self.synced = Base::new(self.current.clone());
        self.flushed = self.synced.clone();
        let left = self.store.0.borrow().inner.durable_files().len();
        if self.current.is_empty() && left > 0 && self.bug == Bug::None {
            return Err(format!("{left} logs are left although every file is finished"));
        }
        self.die(true)
    }

    /// With `in_part`, the first write that fails is made up to some page.
    fn fail_after(&mut self, operations: Option<u64>, in_part: bool) {
        self.trouble = operations.is_some();
        let mut store = self.store.0.borrow_mut();
        store.pages_in_part = in_part.then(|| self.random.below(4) as usize).filter(|_| self.trouble);
        store.inner.fail_after(operations);
    }

    /// Performs one operation; `Err` says what rule was broken.
    pub fn step(&mut self, (kind, one, two): Step) -> Result<(), String> {
        let path = self.paths[usize::from(one) % self.paths.len()].clone();
        self.kept_before = (self.flushed.clone(), self.synced.clone());
        let objects = self.current.get(&path).map_or(1, |(binding, _)| binding.objects);
        match kind % 100 {
            0..12 => {
                let mut objects = self.objects[usize::from(two) % self.objects.len()];
                let are_bits = matches!(self.config.method, Method::Bit8 | Method::Bit64);
                if self.objects == OBJECTS_CUT && !are_bits {
                    objects = objects.min(NUMBERS_CUT_MAX);
                }
                self.begin(path, objects, one >> 8 & 3 == 3)?;
            }
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
                self.fail_after(Some(u64::from(two) % 8), one >> 8 & 1 == 1);
                self.flush(two % 2 == 0)?;
                self.fail_after(None, false);
                if one % 3 > 0 {
                    self.flush(one % 3 == 1)?;
                }
            }
            88..95 => {
                self.fail_after(Some(u64::from(two) % 16), one >> 8 & 1 == 1);
                self.flush(one % 2 == 0)?;
                self.die(one % 3 > 0)?;
            }
            95..99 => self.die(one % 2 == 0)?,
            _ => self.close()?,
        }
        self.check_cuts()?;
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
