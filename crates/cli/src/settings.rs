//! Where each setting comes from: defaults < file < environment < flags.

use std::fmt::{self, Display};
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haul_model::Code;
use haul_model::limits::{OBJECT_BYTES_MAX, OBJECT_BYTES_MIN, SLOTS_MAX, STREAMS_MAX};
use haul_mover::{Error, Tuning, log};
use haul_objectlog::{Config, Mechanism, Method};

use haul_storage::engine::{Engine, Io, Wish};
use haul_storage::layout::stripe::StripeSpec;
use haul_topology::memory_available;
use haul_topology::placer::host;

use crate::congestion::{Limits, SKIPS_MAX, Time, has_skips, has_threshold, policy};
use crate::elsewhere::is_anothers;
use crate::options::{
    Congestion, Copy, EngineWord, HashWord, IoWord, Listen, LogMechanism, LogMethod, LogWriter, Neighbours,
    Seating, parse_ports, parse_rate, parse_size,
};
use crate::told::size;

/// Objects of 4 MiB keep the cost of a message, a log bit and a hash per object out of the profile, and a pool of them
/// small enough for a login node.
const OBJECT_BYTES: u64 = 4 << 20;
/// Slots of one end, all together, where there is memory enough.
const MEMORY_BYTES: u64 = 256 << 20;
/// And where there is not: a transfer needs so many.
const SLOTS_MIN: u64 = 2;
/// They take one part of so many of what is available.
const MEMORY_PART: u64 = 4;
/// K of the transaction mechanism.
const TRANSACTION_FILES: u32 = 4;
/// A lost connection is tried again for this long.
const RECONNECT_SECONDS: u64 = 120;
/// An end that waits for longer is forgotten.
pub const RECONNECT_SECONDS_MAX: u64 = 7 * 86_400;
/// For `--hang-after`.
pub const HANG_AFTER_SECONDS: RangeInclusive<u64> = 1..=86_400;

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Chosen by haul, with the reason.
    Default(&'static str),
    /// The settings file.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
    /// The command line.
    Flag(&'static str),
}

impl Origin {
    /// Higher where it is nearer to the command.
    fn rank(&self) -> u8 {
        match self {
            Origin::Default(_) => 0,
            Origin::File(_) => 1,
            Origin::Environment(_) => 2,
            Origin::Flag(_) => 3,
        }
    }
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default(why) => write!(f, "default: {why}"),
            Origin::File(path) => write!(f, "{}", path.display()),
            Origin::Environment(name) => write!(f, "environment: {name}"),
            Origin::Flag(name) => write!(f, "--{name}"),
        }
    }
}

impl Origin {
    /// What somebody has written who is to change it.
    fn of(&self, name: &str) -> String {
        match self {
            Origin::File(path) => format!("{}: {name}", path.display()),
            Origin::Environment(variable) => variable.clone(),
            Origin::Flag(_) | Origin::Default(_) => format!("--{name}"),
        }
    }
}

/// Two settings that cannot both be, as whoever wrote them finds them.
fn contradict(one: &Origin, name: &str, other: &Origin, other_name: &str) -> Error {
    let about = format!("{} and {} contradict each other", one.of(name), other.of(other_name));
    Error::new(Code::Usage, about)
}

/// A value with its origin.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it comes from.
    pub origin: Origin,
}

/// All settings of a copy.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--object-size`
    pub object_bytes: Setting<u64>,
    /// `--memory`
    pub memory: Setting<u64>,
    /// `--bundle-below`
    pub bundle_below: Setting<u64>,
    /// `--streams`
    pub streams: Setting<u16>,
    /// `--io-threads`
    pub io_threads: Setting<u16>,
    /// `--engine`
    pub engine: Setting<EngineWord>,
    /// `--io`
    pub io: Setting<IoWord>,
    /// `--congestion`
    pub congestion: Setting<Congestion>,
    /// `--congestion-threshold`
    pub congestion_threshold: Setting<Option<Time>>,
    /// `--congestion-skips`
    pub congestion_skips: Setting<Option<u32>>,
    /// `--hang-after`, in seconds
    pub hang_after: Setting<Option<u64>>,
    /// `--neighbours`
    pub neighbours: Setting<Neighbours>,
    /// `--topology`
    pub topology: Setting<Seating>,
    /// `--stripe`
    pub stripe: Setting<Option<StripeSpec>>,
    /// `--layout-file`
    pub layout_file: Setting<Option<PathBuf>>,
    /// `--spill`
    pub spill: Setting<Option<PathBuf>>,
    /// `--spill-max`
    pub spill_max: Setting<Option<u64>>,
    /// `--reconnect`
    pub reconnect: Setting<u64>,
    /// `--plain`
    pub plain: Setting<bool>,
    /// `--hash`
    pub hash: Setting<HashWord>,
    /// `--port`, `--port-range`; 0 to 0 lets the system choose
    pub ports: Setting<(u16, u16)>,
    /// `--listen`
    pub listen: Setting<Listen>,
    /// `--ssh`
    pub ssh: Setting<String>,
    /// `--haul-path`
    pub haul_path: Setting<String>,
    /// `--bandwidth`; none: no limit
    pub bandwidth: Setting<Option<NonZeroU64>>,
    /// `--log-mechanism`
    pub log_mechanism: Setting<LogMechanism>,
    /// `--log-transaction-files`
    pub log_transaction_files: Setting<u32>,
    /// `--log-method`
    pub log_method: Setting<LogMethod>,
    /// `--log-writer`
    pub log_writer: Setting<LogWriter>,
    /// `--log-required`
    pub log_required: Setting<bool>,
}

/// The file and the environment, for one key after the other.
struct Layers {
    file: toml::Table,
    path: PathBuf,
}

impl Layers {
    fn pick<T>(
        &self,
        name: &'static str,
        flag: Option<T>,
        parse: impl Fn(&str) -> Result<T, String>,
        default: T,
        why: &'static str,
    ) -> Result<Setting<T>, Error> {
        if let Some(value) = flag {
            return Ok(Setting { value, origin: Origin::Flag(name) });
        }
        let wrong = |place: String, reason: String| Error::new(Code::Usage, format!("{place}: {reason}"));
        let variable = format!("HAUL_{}", name.to_ascii_uppercase().replace('-', "_"));
        if let Some(text) = std::env::var_os(&variable) {
            let text = text.into_string().map_err(|_| wrong(variable.clone(), "it is not UTF-8".into()))?;
            let value = parse(&text).map_err(|reason| wrong(variable.clone(), reason))?;
            return Ok(Setting { value, origin: Origin::Environment(variable) });
        }
        if let Some(value) = self.file.get(name) {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let place = || format!("{}: {name}", self.path.display());
            let value = parse(&text).map_err(|reason| wrong(place(), reason))?;
            return Ok(Setting { value, origin: Origin::File(self.path.clone()) });
        }
        Ok(Setting { value: default, origin: Origin::Default(why) })
    }
}

/// `--port` or `--port-range`, whichever is said nearer to the command.
fn ports(layers: &Layers, arguments: &Copy) -> Result<Setting<(u16, u16)>, Error> {
    let one = |text: &str| number::<u16>(text).map(|port| (port, port));
    let why = "the system chooses a free one";
    let port = layers.pick("port", arguments.port.map(|port| (port, port)), one, (0, 0), why)?;
    let range = layers.pick("port-range", arguments.port_range, parse_ports, (0, 0), why)?;
    if port.origin.rank() == range.origin.rank() && port.origin.rank() > 0 {
        return Err(contradict(&port.origin, "port", &range.origin, "port-range"));
    }
    Ok(if port.origin.rank() > range.origin.rank() { port } else { range })
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number in range"))
}

/// `--plain` and the like, where there is no flag.
fn yes_or_no(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("{text:?} is neither true nor false")),
    }
}

fn one_of<T: clap::ValueEnum>(text: &str) -> Result<T, String> {
    T::from_str(text, true)
}

fn word(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("is empty".into()) } else { Ok(text.to_owned()) }
}

impl Settings {
    /// Of this command line, on this host.
    pub fn resolve(arguments: &Copy) -> Result<Settings, Error> {
        let path = configuration("config.toml").unwrap_or_default();
        let file = if path.as_os_str().is_empty() { toml::Table::new() } else { read_file(&path)? };
        let layers = Layers { file, path };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let object_bytes = layers.pick(
            "object-size",
            arguments.object_size,
            parse_size,
            OBJECT_BYTES,
            "large enough that an object's bookkeeping does not show",
        )?;
        let memory = memory(memory_available(&host()), object_bytes.value);
        let mut settings = Settings {
            object_bytes,
            memory: layers.pick(
                "memory",
                arguments.memory,
                parse_size,
                memory,
                match memory {
                    MEMORY_BYTES.. => "touched only as far as it is used",
                    _ => "a quarter of the memory that is available here; touched only as far as it is used",
                },
            )?,
            bundle_below: layers.pick(
                "bundle-below",
                arguments.bundle_below,
                parse_size,
                OBJECT_BYTES,
                "files that fit into one object share objects",
            )?,
            streams: layers.pick(
                "streams",
                arguments.streams,
                number,
                cores.clamp(1, 4) as u16,
                "one for each core, at most 4",
            )?,
            io_threads: layers.pick(
                "io-threads",
                arguments.io_threads,
                number,
                cores.clamp(2, 8) as u16,
                "one for each core, from 2 to 8; more where files are on several targets",
            )?,
            engine: layers.pick(
                "engine",
                arguments.engine,
                one_of,
                EngineWord::Auto,
                "measured for each device, on the first objects",
            )?,
            io: layers.pick(
                "io",
                arguments.io,
                one_of,
                IoWord::Auto,
                "measured for each device, on the first objects",
            )?,
            congestion: layers.pick(
                "congestion",
                arguments.congestion,
                one_of,
                Congestion::Adaptive,
                "a slow target holds up nothing but its own objects",
            )?,
            congestion_threshold: layers.pick(
                "congestion-threshold",
                arguments.congestion_threshold.map(Some),
                |text| text.parse().map(Some),
                None,
                "3 times the median of all targets",
            )?,
            congestion_skips: layers.pick(
                "congestion-skips",
                arguments.congestion_skips.map(Some),
                |text| number(text).map(Some),
                None,
                "how many times slower than the median a target is",
            )?,
            hang_after: layers.pick(
                "hang-after",
                arguments.hang_after.map(Some),
                |text| number(text).map(Some),
                None,
                "20 times what is usual on the target, at least 30 s",
            )?,
            neighbours: layers.pick(
                "neighbours",
                arguments.neighbours,
                one_of,
                Neighbours::Share,
                "transfers on one host are one user of the storage",
            )?,
            topology: layers.pick(
                "topology",
                arguments.topology,
                one_of,
                Seating::Auto,
                "threads belong near the devices that they work with",
            )?,
            stripe: layers.pick(
                "stripe",
                arguments.stripe.clone().map(Some),
                |text| text.parse().map(Some),
                None,
                "what somebody chose there, else one stripe for each GiB",
            )?,
            layout_file: layers.pick(
                "layout-file",
                arguments.layout_file.clone().map(Some),
                |text| word(text).map(|path| Some(path.into())),
                None,
                "file systems tell",
            )?,
            spill: layers.pick(
                "spill",
                arguments.spill.clone().map(Some),
                |text| word(text).map(|path| Some(path.into())),
                None,
                "what the destination cannot take yet stays where it is",
            )?,
            spill_max: layers.pick(
                "spill-max",
                arguments.spill_max.map(Some),
                |text| parse_size(text).map(Some),
                None,
                "half of what is free there",
            )?,
            reconnect: layers.pick(
                "reconnect",
                arguments.reconnect,
                number,
                RECONNECT_SECONDS,
                "longer than a router's restart",
            )?,
            plain: layers.pick(
                "plain",
                arguments.plain.then_some(true),
                yes_or_no,
                false,
                "data is encrypted between hosts",
            )?,
            hash: layers.pick("hash", arguments.hash, one_of, HashWord::Blake3, "it finds malice, too")?,
            ports: ports(&layers, arguments)?,
            listen: layers.pick(
                "listen",
                arguments.listen,
                one_of,
                Listen::Auto,
                "the far end; this one if it cannot be reached",
            )?,
            ssh: layers.pick("ssh", arguments.ssh.clone(), word, "ssh".into(), "the system's")?,
            haul_path: layers.pick(
                "haul-path",
                arguments.haul_path.clone(),
                word,
                "haul".into(),
                "found in the PATH there",
            )?,
            bandwidth: layers.pick(
                "bandwidth",
                arguments.bandwidth.map(NonZeroU64::new),
                |text| parse_rate(text).map(NonZeroU64::new),
                None,
                "as fast as both ends and the network are",
            )?,
            log_mechanism: layers.pick(
                "log-mechanism",
                arguments.log_mechanism,
                one_of,
                LogMechanism::Universal,
                "one log whose size follows the files in progress",
            )?,
            log_transaction_files: layers.pick(
                "log-transaction-files",
                arguments.log_transaction_files,
                number,
                TRANSACTION_FILES,
                "as FT-LADS measured it",
            )?,
            log_method: layers.pick(
                "log-method",
                arguments.log_method,
                one_of,
                LogMethod::Bit64,
                "one bit an object",
            )?,
            log_writer: layers.pick(
                "log-writer",
                arguments.log_writer,
                one_of,
                LogWriter::Thread,
                "no acknowledgement waits for the log",
            )?,
            log_required: layers.pick(
                "log-required",
                arguments.log_required.then_some(true),
                yes_or_no,
                false,
                "a transfer without a log is better than none",
            )?,
        };
        settings.yield_to_nearer();
        settings.check()?;
        Ok(settings)
    }

    /// What is for another setting alone, and was not said with the command itself, is for other commands.
    fn yield_to_nearer(&mut self) {
        let unused = || Origin::Default("not for this command");
        let is_said_here = |origin: &Origin| origin.rank() >= Origin::Flag("").rank();
        if self.spill.value.is_none() && !is_said_here(&self.spill_max.origin) {
            self.spill_max = Setting { value: None, origin: unused() };
        }
        if !has_threshold(self.congestion.value) && !is_said_here(&self.congestion_threshold.origin) {
            self.congestion_threshold = Setting { value: None, origin: unused() };
        }
        if !has_skips(self.congestion.value) && !is_said_here(&self.congestion_skips.origin) {
            self.congestion_skips = Setting { value: None, origin: unused() };
        }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |about: &str| Err(Error::new(Code::Usage, about));
        let out_of_range =
            |origin: &Origin, name: &str, range: &str| wrong(&format!("{} {range}", origin.of(name)));
        let object = self.object_bytes.value;
        let range = u64::from(OBJECT_BYTES_MIN)..=u64::from(OBJECT_BYTES_MAX);
        if !object.is_power_of_two() || !range.contains(&object) {
            let range = "must be a power of two from 64KiB to 64MiB";
            return out_of_range(&self.object_bytes.origin, "object-size", range);
        }
        if self.memory.value < 2 * object {
            let range =
                format!("must hold at least two objects, which have {} (--object-size)", size(object));
            return out_of_range(&self.memory.origin, "memory", &range);
        }
        if self.spill.value.is_some() && self.congestion.value == Congestion::None {
            let (spill, congestion) = (&self.spill.origin, &self.congestion.origin);
            return Err(contradict(spill, "spill", congestion, "congestion none"));
        }
        if self.spill_max.value.is_some_and(|max| max < object) {
            return out_of_range(&self.spill_max.origin, "spill-max", "must hold at least one object");
        }
        if self.spill_max.value.is_some() && self.spill.value.is_none() {
            return wrong("--spill-max says how much is kept in --spill DIR, which is not given");
        }
        if !(1..=STREAMS_MAX as u16).contains(&self.streams.value) {
            return out_of_range(&self.streams.origin, "streams", "must be from 1 to 64");
        }
        if !(1..=64).contains(&self.io_threads.value) {
            return out_of_range(&self.io_threads.origin, "io-threads", "must be from 1 to 64");
        }
        if !(1..=1_000_000).contains(&self.log_transaction_files.value) {
            let origin = &self.log_transaction_files.origin;
            return out_of_range(origin, "log-transaction-files", "must be from 1 to 1000000");
        }
        if self.log_required.value && self.log_mechanism.value == LogMechanism::None {
            let (required, mechanism) = (&self.log_required.origin, &self.log_mechanism.origin);
            let error = contradict(required, "log-required", mechanism, "log-mechanism none");
            return Err(match required {
                Origin::File(_) => {
                    error.hint("HAUL_LOG_REQUIRED=no, before a command, is nearer than a file")
                }
                _ => error,
            });
        }
        if !HANG_AFTER_SECONDS.contains(&self.hang_after.value.unwrap_or(1)) {
            let origin = &self.hang_after.origin;
            return out_of_range(origin, "hang-after", "must be from 1 to 86400 seconds");
        }
        if self.reconnect.value > RECONNECT_SECONDS_MAX {
            let origin = &self.reconnect.origin;
            return out_of_range(origin, "reconnect", "must be at most 604800 seconds, a week");
        }
        if !(1..=SKIPS_MAX).contains(&self.congestion_skips.value.unwrap_or(1)) {
            let origin = &self.congestion_skips.origin;
            return out_of_range(origin, "congestion-skips", "must be from 1 to 1000000");
        }
        self.check_limits()
    }

    /// Each policy has limits of its own.
    fn check_limits(&self) -> Result<(), Error> {
        let misplaced = |origin: &Origin, name: &str, policies: &str| {
            Err(Error::new(Code::Usage, format!("{} is for --congestion {policies}", origin.of(name))))
        };
        let congestion = self.congestion.value;
        if self.congestion_skips.value.is_some() && !has_skips(congestion) {
            return misplaced(&self.congestion_skips.origin, "congestion-skips", "lads");
        }
        let threshold = &self.congestion_threshold;
        if threshold.value.is_some() && !has_threshold(congestion) {
            return misplaced(&threshold.origin, "congestion-threshold", "lads or adaptive");
        }
        Ok(())
    }

    fn limits(&self) -> Limits {
        Limits { threshold: self.congestion_threshold.value, skips: self.congestion_skips.value }
    }

    /// For the engine.
    pub fn tuning(&self, report_done: bool) -> Tuning {
        let slots = self.memory.value / self.object_bytes.value;
        Tuning {
            object_bytes: self.object_bytes.value as u32,
            slots: slots.min(u64::from(SLOTS_MAX)) as u32,
            slots_far: slots.min(u64::from(SLOTS_MAX)) as u32,
            io_threads: usize::from(self.io_threads.value),
            io_threads_max: match self.io_threads.origin {
                Origin::Default(_) => IO_THREADS_MAX,
                _ => usize::from(self.io_threads.value),
            },
            policy: policy(self.congestion.value, self.limits()),
            hangs_after: self.hang_after.value.map(Duration::from_secs),
            bundle_bytes_max: self.bundle_below.value.min(self.object_bytes.value),
            reconnect: Duration::from_secs(self.reconnect.value),
            unattended: false,
            report_done,
            bandwidth: self.bandwidth.value,
        }
    }

    /// What is left open of how objects are read and written.
    pub fn engines(&self) -> Wish {
        let engine = match self.engine.value {
            EngineWord::Auto => None,
            EngineWord::Posix => Some(Engine::Posix),
            EngineWord::Uring => Some(Engine::Uring),
        };
        let io = match self.io.value {
            IoWord::Auto => None,
            IoWord::Buffered => Some(Io::Buffered),
            IoWord::Direct => Some(Io::Direct),
        };
        Wish { engine, io }
    }

    /// Nobody has said how much memory is to be used at most: more than usual may be, where the path needs it.
    pub fn memory_grows(&self) -> bool {
        matches!(self.memory.origin, Origin::Default(_))
    }

    /// For the object log.
    pub fn log(&self) -> log::Settings {
        let mechanism = match self.log_mechanism.value {
            LogMechanism::None => None,
            LogMechanism::File => Some(Mechanism::File),
            LogMechanism::Transaction => Some(Mechanism::Transaction),
            LogMechanism::Universal => Some(Mechanism::Universal),
        };
        let method = match self.log_method.value {
            LogMethod::Char => Method::Char,
            LogMethod::Int => Method::Int,
            LogMethod::Enc => Method::Enc,
            LogMethod::Binary => Method::Binary,
            LogMethod::Bit8 => Method::Bit8,
            LogMethod::Bit64 => Method::Bit64,
        };
        let transaction_files = self.log_transaction_files.value;
        log::Settings {
            config: mechanism.map(|mechanism| Config {
                mechanism,
                method,
                transaction_files,
                ..Config::default()
            }),
            writer: match self.log_writer.value {
                LogWriter::Comm => log::Writer::Comm,
                LogWriter::Thread => log::Writer::Thread,
            },
            required: self.log_required.value,
            hash: self.hash.value.kind(),
        }
    }
}

/// A file of the user's configuration; none where nobody says where that is. What lies in the working directory may be anybody's.
pub fn configuration(name: &str) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|base| Path::new(base).is_absolute())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".config")));
    base.map(|base| base.join("haul").join(name))
}

const KEYS: &[&str] = &[
    "object-size",
    "memory",
    "bundle-below",
    "streams",
    "io-threads",
    "engine",
    "io",
    "congestion",
    "congestion-threshold",
    "congestion-skips",
    "hang-after",
    "neighbours",
    "topology",
    "stripe",
    "layout-file",
    "spill",
    "spill-max",
    "reconnect",
    "plain",
    "hash",
    "port",
    "port-range",
    "listen",
    "ssh",
    "haul-path",
    "bandwidth",
    "log-mechanism",
    "log-transaction-files",
    "log-method",
    "log-writer",
    "log-required",
];

fn read_file(path: &Path) -> Result<toml::Table, Error> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(toml::Table::new());
        }
        // As of state: whoever runs with the home directory of somebody else has no settings there.
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_anothers(path) => {
            return Ok(toml::Table::new());
        }
        Err(error) => {
            let error = Error::os(Code::Usage, path.display().to_string(), &error);
            return Err(error.hint("let it be read, or set XDG_CONFIG_HOME to another directory"));
        }
    };
    let wrong = |reason: String| Error::new(Code::Usage, format!("{}: {reason}", path.display()));
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
    match table.keys().find(|key| !KEYS.contains(&key.as_str())) {
        Some(key) => {
            Err(wrong(format!("no such setting: {key}")).hint(format!("settings are {}", KEYS.join(", "))))
        }
        None => Ok(table),
    }
}

/// What the slots of an end take at most, if nobody says so.
fn memory(available: Option<u64>, object_bytes: u64) -> u64 {
    let least = object_bytes.saturating_mul(SLOTS_MIN).min(MEMORY_BYTES);
    available.map_or(MEMORY_BYTES, |available| (available / MEMORY_PART).clamp(least, MEMORY_BYTES))
}

/// Slots that the other end has asked for, or those for which this host has the memory.
pub fn slots_here(slots: u32, object_bytes: u32) -> u32 {
    let bytes = memory(memory_available(&host()), object_bytes.into());
    slots.min(u32::try_from(bytes / u64::from(object_bytes.max(1))).unwrap_or(u32::MAX).max(2))
}

/// [`slots_far`] with what is available on this host.
pub fn slots_far_here(slots: u32, object_bytes: u32) -> u32 {
    slots_far(slots, object_bytes, memory_available(&host()))
}

/// Slots of an end that writes, with those that only a long network is a reason for: as many as an eighth of the
/// memory that is available holds, and 4 GiB at most. 100 Gbit/s over 150 ms are 1.9 GB on their way.
fn slots_far(slots: u32, object_bytes: u32, available: Option<u64>) -> u32 {
    let bytes = (available.unwrap_or(0) / MEMORY_SHARE).min(MEMORY_FAR_BYTES_MAX);
    slots.max((bytes / u64::from(object_bytes)).min(u64::from(SLOTS_MAX)) as u32)
}

const MEMORY_SHARE: u64 = 8;
const MEMORY_FAR_BYTES_MAX: u64 = 4 << 30;

/// Threads that read or write contents at most, where there are many targets.
const IO_THREADS_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_enough_memory_slots_are_fewer() {
        let usual = |available| memory(available, 4 << 20);
        assert_eq!(usual(None), 256 << 20);
        assert_eq!(usual(Some(64 << 30)), 256 << 20);
        assert_eq!(usual(Some(400 << 20)), 100 << 20);
        assert_eq!(usual(Some(64 << 20)), 16 << 20);
        assert_eq!(usual(Some(10 << 20)), 8 << 20, "less than that is no transfer");
        assert_eq!(memory(Some(400 << 20), 64 << 20), 128 << 20, "two objects must fit");
        assert_eq!(memory(Some(0), 1 << 30), 256 << 20);
    }

    #[test]
    fn memory_grows_with_what_there_is_and_never_below_what_is_always_used() {
        let (usual, object) = (64, 4 << 20);
        let bytes = |available| u64::from(slots_far(usual, object, available)) * u64::from(object);
        assert_eq!(bytes(None), 256 << 20);
        assert_eq!(bytes(Some(0)), 256 << 20);
        assert_eq!(bytes(Some(1 << 30)), 256 << 20, "an eighth is less");
        assert_eq!(bytes(Some(8 << 30)), 1 << 30);
        assert_eq!(bytes(Some(1 << 40)), 4 << 30, "no more, however much there is");
        assert_eq!(slots_far(4096, 64 << 10, Some(1 << 40)), SLOTS_MAX, "nor more slots than there may be");
    }
}
