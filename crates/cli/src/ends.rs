//! The ends of a session on this host, ready to start, whoever starts them: `session` those of a command, `serve` the far one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use haul_model::{Code, HashKind};
use haul_mover::end::Common;
use haul_mover::log::SourceLog;
use haul_mover::{Error, SinkEnd, SourceEnd, Tuning, log};
use haul_storage::SourceStorage;
use haul_storage::engine::{self, Engines, Note, Told, Wish};
use haul_storage::layout::stripe::StripeSpec;
use haul_storage::layout::{self, LayoutFile, Layouts};
use haul_storage::placing::Placing;
use haul_storage::scan::{Begun, Scan, Scanned};
use haul_storage::sink::{Contents, Decision, PosixSink, SinkRoot, SinkSettings, SourceName};
use haul_storage::source::{HashingEarly, Lender, PosixSource, Root, SourceOptions};
use haul_storage::spill::{SpillFile, Spilling};
use haul_storage::synthetic::SyntheticSource;

use crate::bench::Measure;
use crate::job::random;
use crate::plan::root_error;

/// Everything that an end needs to know of the job; the far end has it from the greeting.
pub struct Ends<'a> {
    /// Paths at the source.
    pub sources: &'a [std::ffi::OsString],
    /// Their names.
    pub names: &'a [SourceName],
    /// DEST.
    pub destination: &'a std::ffi::OsStr,
    /// `-r`
    pub recursive: bool,
    /// `-p`
    pub preserve: bool,
    /// Data streams are clear.
    pub plain: bool,
    /// How contents are hashed.
    pub hash: HashKind,
    /// The job's random bytes.
    pub instance: [u8; 16],
    /// Where this end's log and spool are.
    pub directory: PathBuf,
    /// They are not where they belong.
    pub log_trouble: Option<String>,
    /// How new files are striped, if somebody says so.
    pub stripe: Option<StripeSpec>,
    /// Other transfers on this host are ignored.
    pub alone: bool,
    /// Says where files are.
    pub layout_file: Option<&'a Path>,
    /// Where the source keeps what the sink cannot take yet, and how much of it.
    pub spill: Option<Spill>,
    /// What is not as in a transfer of files.
    pub measure: &'a Measure,
    /// The sink is in this process and takes contents from the source's files itself.
    pub lends: bool,
    /// How objects are read and written.
    pub engines: EndEngines,
    /// Unfinished files that the scan whose finds are sent has left out.
    pub left_out: OnceLock<Arc<AtomicU64>>,
    /// How long it took to open the log.
    pub log_opened: OnceLock<Duration>,
}

/// Of each end.
pub struct EndEngines {
    source: Arc<Engines>,
    sink: Arc<Engines>,
}

impl EndEngines {
    /// Which leave open what the user leaves open.
    pub fn new(wish: Wish) -> EndEngines {
        let of = |direction| Arc::new(Engines::new(direction, wish));
        EndEngines { source: of(engine::Direction::Read), sink: of(engine::Direction::Write) }
    }

    /// What was found out here, and what does not go as it should.
    pub fn told(&self) -> (Vec<Told>, Vec<Note>) {
        let (mut told, mut notes) = self.source.told();
        let (of_sink, more) = self.sink.told();
        told.extend(of_sink);
        notes.extend(more.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        (told, notes)
    }
}

/// What was found longer ago than this when the other end is there is looked for anew: somebody may have typed a password
/// meanwhile.
const FRESH: Duration = Duration::from_secs(10);

/// A source that finds entries already.
pub struct Reading {
    since: Instant,
    storage: Arc<PosixSource>,
    scan: Box<dyn Scan>,
    placing: Arc<Placing>,
    /// Unfinished files that it has passed over.
    left_out: Arc<AtomicU64>,
    /// Until the other end is there.
    hashing: Option<HashingEarly>,
}

impl Reading {
    /// Lends its contents to a sink in this process.
    pub fn lender(&self) -> Lender {
        Lender::new(&self.storage)
    }

    fn is_fresh(&self) -> bool {
        self.since.elapsed() < FRESH
    }

    /// The other end is there: what is hashed now is hashed on request. Of so many bytes the hashes are known, and will be used.
    pub fn end_hashing(&mut self) -> u64 {
        let bytes = self.hashing.take().map_or(0, HashingEarly::end);
        if self.is_fresh() { bytes } else { 0 }
    }
}

/// `--spill` and `--spill-max`
pub struct Spill {
    /// At the source.
    pub directory: PathBuf,
    /// Half of what is free there, if nobody says.
    pub bytes_max: Option<u64>,
}

/// The storage, with the spill before it if there is one, and how much that may take.
type Stored = (Arc<dyn SourceStorage>, u64);

impl Ends<'_> {
    /// Files below the SOURCEs that have names of unfinished ones; 0 where another end reads.
    pub fn left_out(&self) -> u64 {
        self.left_out.get().map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// For how long nothing went on but what opens the log, and closes it.
    pub fn log_kept(&self, log: Option<&log::LogSummary>) -> Duration {
        let closing = log.map_or(Duration::ZERO, |log| log.closing);
        self.log_opened.get().copied().unwrap_or_default() + closing
    }

    /// By what hash contents are compared at the end that writes.
    pub fn verified(&self) -> Option<HashKind> {
        Some(self.hash).filter(|hash| *hash != HashKind::None && !self.lends)
    }

    /// What reads the SOURCEs.
    fn reader(&self) -> Arc<PosixSource> {
        use std::os::unix::ffi::OsStrExt;
        let roots = self.sources.iter().map(|path| Root::without_label(path.as_bytes()));
        let options = SourceOptions {
            recursive: self.recursive,
            hash: self.hash,
            // Nothing but the hash needs to see bytes that leave as they are.
            in_place: self.plain,
            lend: self.lends,
            ..SourceOptions::default()
        };
        let engines = Arc::clone(&self.engines.source);
        Arc::new(PosixSource::with_engines(roots.collect(), options, engines))
    }

    /// Begins to read, before there is another end: to find entries, and to hash contents if it takes time to reach that end.
    /// Nothing where files are invented.
    pub fn begin(&self, tuning: &Tuning, hashing: bool) -> Result<Option<Reading>, Error> {
        match self.measure.synthetic {
            Some(_) => Ok(None),
            None => self.reading(tuning, hashing).map(Some),
        }
    }

    fn reading(&self, tuning: &Tuning, hashing: bool) -> Result<Reading, Error> {
        let storage = self.reader();
        let Tuning { bundle_bytes_max, object_bytes, .. } = *tuning;
        let placing = self.placing()?;
        let scan = storage.scan(Arc::new(AtomicU64::new(1)));
        let scan = scan.placed(Arc::clone(&placing), bundle_bytes_max, object_bytes).named(self.names);
        let left_out = Arc::new(AtomicU64::new(0));
        let scan = scan.counting_unfinished(Arc::clone(&left_out));
        let hashing = hashing.then(|| storage.hash_early(object_bytes, FRESH)).flatten();
        let finder = hashing.as_ref().map(HashingEarly::finder);
        let finder = move |found: &[Scanned]| finder.iter().for_each(|finder| finder(found));
        let scan = Begun::start(scan, finder)
            .map_err(|error| Error::os(Code::SystemRefused, "starting a thread", &error))?;
        // It can be done without.
        hashing.iter().for_each(HashingEarly::start);
        Ok(Reading { since: Instant::now(), storage, scan: Box::new(scan), placing, left_out, hashing })
    }

    /// The end that reads, ready to start; from where it has begun, if it has.
    pub fn source(
        &self,
        common: Common,
        log: log::Settings,
        begun: Option<Reading>,
    ) -> Result<SourceEnd, Error> {
        let began = Instant::now();
        let mut log = SourceLog::open(&self.directory.join("log"), log)?;
        let _ = self.log_opened.set(began.elapsed());
        if let Some(cause) = &self.log_trouble {
            log.count_as_lost(cause.clone());
        }
        let ids = Arc::new(AtomicU64::new(1));
        if let Some(spec) = self.measure.synthetic()? {
            let storage = SyntheticSource::new(spec).hashed(self.hash);
            let scan = Box::new(storage.scan(ids));
            let (storage, spill_bytes_max) = self.with_spill(storage, common.tuning.object_bytes)?;
            return Ok(SourceEnd { common, storage, scan, log, spill_bytes_max, shared: None });
        }
        // Also one that is not used any more: it may wait to be told, with all that it has open.
        begun.iter().for_each(|begun| begun.storage.name_roots(&common.roots));
        let begun = begun.filter(Reading::is_fresh);
        let begun = begun.map_or_else(|| self.reading(&common.tuning, false), Ok)?;
        let Reading { storage, scan, placing, left_out, .. } = begun;
        let _ = self.left_out.set(left_out);
        storage.name_roots(&common.roots);
        let shared = (!self.alone).then_some(placing);
        let (storage, spill_bytes_max) = self.with_spill(storage, common.tuning.object_bytes)?;
        Ok(SourceEnd { common, storage, scan, log, spill_bytes_max, shared })
    }

    fn with_spill(&self, storage: impl SourceStorage + 'static, object_bytes: u32) -> Result<Stored, Error> {
        let Some(Spill { directory, bytes_max }) = &self.spill else { return Ok((Arc::new(storage), 0)) };
        let file = SpillFile::create(directory, *bytes_max, self.plain)
            .map_err(|error| spill_error(directory, &error))?;
        let file = file.hashed(self.hash);
        let room = file.room();
        if room < u64::from(object_bytes) {
            let error = Error::new(Code::SpillFailed, spill_shown(directory));
            return Err(error.hint("there is no room for one object"));
        }
        Ok((Arc::new(Spilling::new(storage, file)), room))
    }

    fn placing(&self) -> Result<Arc<Placing>, Error> {
        let layout_file = self.layout_file.map(read_layout_file).transpose()?;
        let options = layout::Options { layout_file, ..layout::Options::default() };
        Ok(Arc::new(Placing::new(Arc::new(Layouts::new(options)))))
    }

    /// The end that writes, ready to start, where DEST means this. With a `lender` it takes contents from there.
    pub fn sink(&self, common: Common, decision: Decision, lender: Option<Lender>) -> Result<SinkEnd, Error> {
        let path = PathBuf::from(self.destination);
        let root = SinkRoot::open(&path, decision, self.names).map_err(|failure| root_error(&failure))?;
        let spool_directory = self.directory.join("spool");
        haul_mover::owner::make_directory(&spool_directory)?;
        let mut session_tag = [0; 4];
        random(&mut session_tag)?;
        let mut job_tag = [0; 6];
        job_tag.copy_from_slice(&self.instance[..6]);
        let object_bytes = common.tuning.object_bytes;
        let placing = self.placing()?;
        let settings = SinkSettings {
            preserve_owner: self.preserve && rustix::process::geteuid().is_root(),
            placing: Some(Arc::clone(&placing)),
            stripe: self.stripe.clone(),
            lender,
            hash: self.hash,
            contents: if self.measure.discard { Contents::Discarded } else { Contents::Written },
            ..SinkSettings::new(job_tag, session_tag, object_bytes, spool_directory)
        };
        let storage = PosixSink::open(root, settings).map_err(|failure| {
            let about = failure.path.as_deref().unwrap_or(&path).display().to_string();
            Error { failure: failure.failure, about, hint: None }
        })?;
        let storage = storage.with_engines(Arc::clone(&self.engines.sink));
        let shared = (!self.alone).then_some(placing);
        // What is made up is a tree.
        let recursive = self.recursive || self.measure.synthetic.is_some();
        Ok(SinkEnd { common, storage: Arc::new(storage), shared, recursive })
    }
}

/// `--layout-file`
pub fn read_layout_file(path: &Path) -> Result<LayoutFile, Error> {
    LayoutFile::read(path).map_err(|error| Error::new(Code::Usage, error.to_string()))
}

/// Why it is no place to put objects aside.
pub fn spill_error(directory: &Path, error: &std::io::Error) -> Error {
    Error::os(Code::SpillFailed, spill_shown(directory), error)
}

fn spill_shown(directory: &Path) -> String {
    format!("{} (--spill)", directory.display())
}
