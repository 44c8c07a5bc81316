//! A file system: its metadata server, its targets, and what is set while it runs.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::buffers::Buffers;
use crate::device::{Counters, Device};
use crate::names::Names;
use crate::policy::Policy;
use crate::timer::Timer;
use crate::trace::Trace;

/// Directories of a target among which its objects are spread, as an object storage server does it.
const DIRECTORIES: u64 = 32;

/// Of what a file system is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// A directory for each target.
    pub targets: Vec<PathBuf>,
    /// A directory for the metadata server.
    pub mds: PathBuf,
    /// Stripes of a new file; 0xffff is all targets.
    pub stripe_count: u16,
    /// Bytes of a stripe, a multiple of 64 KiB.
    pub stripe_bytes: u32,
    /// Targets by the name of their pool.
    pub pools: BTreeMap<String, Vec<u32>>,
    /// The kernel caches contents until a file is closed; rates are then those of the cache.
    pub cached: bool,
    /// Targets are read and written without the page cache of this host: how fast they are is then what their devices are.
    pub direct: bool,
    /// Threads that work on the files of one target.
    pub threads: usize,
    /// Where each request gets a line.
    pub trace: Option<PathBuf>,
}

impl Options {
    /// One stripe of 1 MiB, and nothing special.
    pub fn new(targets: Vec<PathBuf>, mds: PathBuf) -> Options {
        Options {
            targets,
            mds,
            stripe_count: 1,
            stripe_bytes: 1 << 20,
            pools: BTreeMap::new(),
            cached: false,
            direct: false,
            threads: 2,
            trace: None,
        }
    }
}

/// Where a target keeps its objects: `O/0/d0` to `O/0/d31`.
pub(crate) struct Target {
    pub device: Arc<Device>,
    base: OwnedFd,
    directories: Vec<OwnedFd>,
}

impl Target {
    /// The directory and name of an object.
    pub fn locate(&self, id: u64) -> (&OwnedFd, String) {
        (&self.directories[(id % DIRECTORIES) as usize], id.to_string())
    }

    /// How much room it has.
    pub fn space(&self) -> Result<fs::StatVfs, Errno> {
        fs::fstatvfs(&self.base)
    }
}

/// What differs between versions of Lustre, or is wanted otherwise.
#[derive(Default)]
pub(crate) struct Behaviour {
    /// `renameat2` with flags is refused with `EINVAL`.
    pub refuse_rename_flags: AtomicBool,
    /// Setting the layout of a file that has one fails with `EEXIST`, as the ioctl does; else it does nothing and
    /// succeeds, as `setxattr` does in Lustre (`ll_setstripe_ea`).
    pub refuse_set_again: AtomicBool,
    /// A layout with a pool that does not exist fails with `EINVAL`; else the pool restricts nothing, as in Lustre
    /// (`lod_find_pool`).
    pub refuse_unknown_pool: AtomicBool,
    /// Whoever does not want to wait to read or write is told to come again (`LDLM_FL_BLOCK_NOWAIT`).
    pub group_lock: AtomicBool,
    /// Setting a mode fails with `EPERM`; whatever is made has the same.
    pub refuse_modes: AtomicBool,
    /// Files show half of their size.
    pub halve_sizes: AtomicBool,
    /// What is looked up from now on has another inode number than before.
    pub other_numbers: AtomicBool,
    /// What is looked up under another spelling than that which is kept has another inode number.
    pub numbers_by_path: AtomicBool,
}

pub(crate) struct Shared {
    pub names: Names,
    pub targets: Vec<Target>,
    pub mds: Arc<Device>,
    pub policy: Policy,
    pub buffers: Buffers,
    pub behaviour: Behaviour,
    pub cached: bool,
    pub direct: bool,
    trace: Option<Arc<Trace>>,
    timer: Arc<Timer>,
    epoch: Instant,
}

/// One file system; clones are the same one. What it holds stays in its directories.
#[derive(Clone)]
pub struct StripeFs {
    shared: Arc<Shared>,
}

impl StripeFs {
    /// Opens or makes it.
    pub fn open(options: &Options) -> io::Result<StripeFs> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidInput, text);
        let pools = options.pools.clone();
        let policy = Policy::new(options.targets.len(), pools, options.stripe_count, options.stripe_bytes);
        let policy = policy.map_err(invalid)?;
        raise_descriptor_limit();
        let names = Names::open(&options.mds, options.targets.len())?;
        let trace = options.trace.as_deref().map(Trace::create).transpose()?.map(Arc::new);
        let timer = Timer::start()?;
        let epoch = Instant::now();
        let start = |target| Device::start(target, options.threads, &timer, trace.as_ref(), epoch);
        let mds = start(None)?;
        let mut targets = Vec::with_capacity(options.targets.len());
        for (number, path) in (0..).zip(&options.targets) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let open = |path: PathBuf| {
                std::fs::create_dir_all(&path)?;
                io::Result::Ok(fs::openat(CWD, &path, flags, Mode::empty())?)
            };
            let directories = (0..DIRECTORIES).map(|number| open(path.join(format!("O/0/d{number}"))));
            let directories = directories.collect::<io::Result<_>>()?;
            targets.push(Target { device: start(Some(number))?, base: open(path.clone())?, directories });
        }
        let shared = Shared {
            names,
            targets,
            mds,
            policy,
            buffers: Buffers::default(),
            behaviour: Behaviour::default(),
            cached: options.cached,
            direct: options.direct,
            trace,
            timer,
            epoch,
        };
        Ok(StripeFs { shared: Arc::new(shared) })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// What has happened at the targets, in their order, and at the metadata server.
    pub fn counters(&self) -> (Vec<Counters>, Counters) {
        let targets = self.shared.targets.iter().map(|target| target.device.counters());
        (targets.collect(), self.shared.mds.counters())
    }

    /// How long it has been there, by the clock of the trace.
    pub fn age(&self) -> Duration {
        self.shared.epoch.elapsed()
    }

    /// What was traced is in its file.
    pub fn flush_trace(&self) {
        if let Some(trace) = &self.shared.trace {
            trace.flush();
        }
    }

    /// Nothing is slow or hangs any more, and what is under way is finished: waits for it, but no longer than `limit`.
    /// The last thing to do.
    pub fn finish(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        self.shared.stop();
        let is_busy = |counters: Counters| counters.queue + counters.in_flight > 0;
        loop {
            let (targets, mds) = self.counters();
            if !targets.into_iter().chain([mds]).any(is_busy) || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.flush_trace();
    }
}

impl Shared {
    fn stop(&self) {
        self.targets.iter().for_each(|target| target.device.stop());
        self.mds.stop();
        self.timer.stop();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop();
        if let Some(trace) = &self.trace {
            trace.flush();
        }
    }
}

/// Each name that the kernel knows takes a descriptor.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Best effort: with fewer, fewer names can be known at once.
    let _ = setrlimit(Resource::Nofile, limit);
}
