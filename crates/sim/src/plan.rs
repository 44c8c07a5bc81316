//! What a history will be like: drawn once from its seed, before anything happens.

use haul_model::Target;
use haul_objectlog::{Config as LogConfig, Mechanism, Method};

use crate::lay::TARGETS;
use crate::random::Random;

/// The dataset's outline.
pub struct Shape {
    /// Beside the top.
    pub directories: u64,
    /// Of the files, in bytes.
    pub sizes: Vec<u64>,
    /// How many.
    pub symlinks: u64,
    /// Fifos and the like.
    pub others: u64,
    /// Paths under which a file may appear later.
    pub absent: u64,
    /// A second SOURCE that is a single file of this size.
    pub file_root: Option<u64>,
}

/// How often things go wrong, in permille of the operations that may.
#[derive(Clone, Copy, Default)]
pub struct Rates {
    /// Reading an object or a member fails.
    pub read_error: u32,
    /// A directory cannot be listed.
    pub scan_error: u32,
    /// A payload is altered on the way.
    pub alter: u32,
    /// Writing fails.
    pub write_error: u32,
    /// The disk is full: writing or preparing fails with a code that ends the session.
    pub no_space: u32,
    /// Syncing a file fails and loses what it should have covered.
    pub sync_error: u32,
    /// Giving the final name fails.
    pub publish_error: u32,
    /// Making a name durable fails.
    pub names_error: u32,
    /// Setting attributes fails.
    pub seal_error: u32,
    /// Preparing an entry fails.
    pub prepare_error: u32,
    /// Setting the attributes of a directory fails.
    pub finish_error: u32,
    /// The spill cannot be written: it is full, or its device fails.
    pub spill_write_error: u32,
    /// It cannot be read, or gives back other bytes.
    pub spill_read_error: u32,
    /// An errand of the sink takes so long that it may be given up, or for ever.
    pub hang: u32,
    /// A target that has no room (0: none).
    pub full: Target,
    /// A target on which nothing is sealed, synced, named or removed any more (0: none).
    pub hung: Target,
    /// One file is locked by somebody: what is read from it or written to it hangs, and nothing else does.
    pub locks: bool,
}

/// The longest that each kind of thing takes, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Delays {
    /// A frame on its way.
    pub frame: u64,
    /// A payload on its way.
    pub payload: u64,
    /// Reading.
    pub read: u64,
    /// Writing.
    pub write: u64,
    /// Making durable.
    pub sync: u64,
    /// Names and directories.
    pub names: u64,
    /// From the end of an operation to its completion.
    pub reply: u64,
    /// Until the log is flushed, and as long again until it is durable.
    pub log: u64,
}

/// Something that happens to the history from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blow {
    /// Processes are killed.
    Kill {
        /// The source.
        source: bool,
        /// The sink.
        sink: bool,
        /// And their hosts lose power.
        power: bool,
    },
    /// The connection is cut.
    Cut,
    /// A file of the dataset changes.
    Change,
    /// Somebody asks an end to stop.
    Stop {
        /// The source, else the sink.
        source: bool,
    },
}

/// Everything about a history that is known before it begins.
pub struct Plan {
    /// The dataset.
    pub shape: Shape,
    /// Bytes of the smallest object size; contents are modelled in cells of this size.
    pub grain: u32,
    /// Sessions use one object size or its double, at random.
    pub object_bytes_vary: bool,
    /// What goes wrong while `faulty_sessions` last.
    pub rates: Rates,
    /// Sessions after these meet no faults any more.
    pub faulty_sessions: u32,
    /// How long things take.
    pub delays: Delays,
    /// What happens, and after which event.
    pub blows: Vec<(u64, Blow)>,
    /// Nothing goes wrong at all, so nothing may be sent twice.
    pub calm: bool,
    /// How the source keeps its log.
    pub log: LogConfig,
    /// Paths, in permille, under which something else stands at the destination.
    pub occupied: u32,
    /// The disk under the log fails after a while, in each session that meets faults.
    pub log_fails: bool,
    /// A sink that lost its source in a kill goes on beside its successor.
    pub lingers: bool,
    /// After how long the sink takes a target for hung.
    pub hangs_after: u64,
    /// The most threads that the sink has for each kind of errand.
    pub errand_threads: u32,
}

impl Plan {
    /// Whether a file is locked; of histories in which nothing else hangs, some.
    pub fn draw_lock(&mut self, random: &mut Random) {
        self.rates.locks = !self.calm && self.rates.hang == 0 && self.rates.hung == 0 && random.chance(200);
    }

    /// The plan of a history.
    pub fn draw(random: &mut Random) -> Plan {
        let mut grain = 1u32 << random.between(16, 25);
        let large = random.below(1500) == 0;
        let many_objects = large && random.chance(400);
        if many_objects {
            grain = 1 << 16;
        }
        let shape = match (large, many_objects) {
            (true, true) => many_objects_shape(grain, random),
            (true, false) => large_shape(grain, random),
            (false, _) => small_shape(grain, random),
        };
        let mut blows = Vec::new();
        let span = if large { 2000 } else { 260 };
        if random.coin() {
            for _ in 0..random.between(1, 3) {
                blows.push((random.between(1, span), kill(random)));
            }
        }
        if random.coin() {
            for _ in 0..random.between(1, 4) {
                blows.push((random.between(1, span), Blow::Cut));
            }
        }
        // Files that change again and again while they are read.
        let restless = random.chance(120);
        if restless || random.chance(300) {
            let changes = if restless { random.between(4, 12) } else { random.between(1, 4) };
            for _ in 0..changes {
                blows.push((random.between(1, span), Blow::Change));
            }
        }
        if random.chance(60) {
            blows.push((random.between(1, span), Blow::Stop { source: random.coin() }));
        }
        blows.sort_by_key(|(at, _)| *at);
        let faults = random.chance(650);
        let mut rates = if faults { rates(random) } else { Rates::default() };
        let mut delays = delays(random);
        if many_objects {
            // Syncs so slow that files pile up behind them, up to the limit of open files.
            let fast = 20_000;
            delays =
                Delays { frame: fast, payload: fast, read: fast, write: fast, sync: 400_000_000, ..delays };
        }
        if restless && faults {
            // A file that changes and cannot be written, however often it is tried: both ends want to be rid of it at once.
            rates.write_error = rates.write_error.max(700);
            delays.read = delays.read.max(50_000_000);
        }
        let occupied = if random.chance(80) { 100 } else { 0 };
        Plan {
            shape,
            grain,
            object_bytes_vary: random.chance(100),
            calm: blows.is_empty() && !faults && occupied == 0,
            rates,
            faulty_sessions: random.between(1, 5) as u32,
            delays,
            blows,
            log: log(random),
            occupied,
            log_fails: random.chance(40),
            lingers: random.chance(300),
            hangs_after: random.between(3, 12) * 1_000_000_000,
            errand_threads: random.scale(1, 40) as u32,
        }
    }
}

fn small_shape(grain: u32, random: &mut Random) -> Shape {
    let grain = u64::from(grain);
    let mut sizes = Vec::new();
    // Always one file of several objects, whatever the object size (one grain or two).
    sizes.push(grain * random.between(2, 7) + random.below(grain) + 1);
    // Always a bundle of several.
    for _ in 0..random.between(3, 9) {
        sizes.push(match random.below(8) {
            0 => 0,
            1 => 1,
            _ => random.below(grain / 8),
        });
    }
    for _ in 0..random.below(4) {
        let edge = grain * random.between(1, 3);
        sizes.push(match random.below(4) {
            0 => edge - 1,
            1 => edge,
            2 => edge + 1,
            _ => random.below(grain * 6),
        });
    }
    Shape {
        directories: random.below(4),
        sizes,
        symlinks: random.below(3),
        others: u64::from(random.chance(100)),
        absent: random.below(2),
        file_root: random.chance(200).then(|| random.below(grain * 3)),
    }
}

/// Many files of one object.
fn many_objects_shape(grain: u32, random: &mut Random) -> Shape {
    let grain = u64::from(grain);
    let mut sizes = vec![grain * 5, 1, 1, 1];
    for _ in 0..random.between(400, 700) {
        sizes.push(random.between(grain / 2 + 1, grain));
    }
    Shape { directories: 3, sizes, symlinks: 2, others: 0, absent: 0, file_root: None }
}

/// Many small files, so that batches, bundles and groups meet their limits.
fn large_shape(grain: u32, random: &mut Random) -> Shape {
    let mut sizes = vec![u64::from(grain) * 5];
    let count = if random.chance(40) { random.between(8400, 9400) } else { random.between(1100, 2600) };
    for _ in 0..count {
        sizes.push(random.below(u64::from(grain) / 4096));
    }
    Shape { directories: 3, sizes, symlinks: 20, others: 0, absent: 0, file_root: None }
}

fn kill(random: &mut Random) -> Blow {
    let (source, sink) = match random.below(5) {
        0 | 1 => (true, false),
        2 | 3 => (false, true),
        _ => (true, true),
    };
    Blow::Kill { source, sink, power: random.coin() }
}

fn rates(random: &mut Random) -> Rates {
    let mut rates = Rates::default();
    let all: [fn(&mut Rates) -> &mut u32; 13] = [
        |rates| &mut rates.read_error,
        |rates| &mut rates.scan_error,
        |rates| &mut rates.alter,
        |rates| &mut rates.write_error,
        |rates| &mut rates.no_space,
        |rates| &mut rates.sync_error,
        |rates| &mut rates.publish_error,
        |rates| &mut rates.names_error,
        |rates| &mut rates.seal_error,
        |rates| &mut rates.prepare_error,
        |rates| &mut rates.finish_error,
        |rates| &mut rates.spill_write_error,
        |rates| &mut rates.spill_read_error,
    ];
    for _ in 0..random.between(1, 3) {
        let rate = random.pick(&all);
        // Mostly now and then; sometimes so often that nothing gets through.
        *rate(&mut rates) = if random.chance(150) { 600 } else { random.scale(5, 200) as u32 };
    }
    if random.chance(150) {
        // A bad medium fails in both ways at once.
        rates.sync_error = rates.sync_error.max(150);
        rates.alter = rates.alter.max(50);
    }
    if random.chance(250) {
        rates.hang = random.scale(10, 400) as u32;
    }
    rates.no_space = rates.no_space.min(30);
    if random.chance(250) {
        let target = random.between(1, TARGETS - 1) as Target;
        match random.coin() {
            true => rates.full = target,
            false => rates.hung = target,
        }
    }
    rates
}

fn delays(random: &mut Random) -> Delays {
    let mut delay = |high| random.scale(1_000, high);
    Delays {
        frame: delay(50_000_000),
        payload: delay(100_000_000),
        read: delay(50_000_000),
        write: delay(50_000_000),
        sync: delay(200_000_000),
        names: delay(20_000_000),
        reply: delay(10_000_000),
        log: delay(50_000_000),
    }
}

fn log(random: &mut Random) -> LogConfig {
    let mut config = LogConfig::default();
    if random.coin() {
        config.mechanism = *random.pick(&Mechanism::ALL);
        config.method = *random.pick(&Method::ALL);
        config.transaction_files = random.between(1, 4) as u32;
    }
    config
}
