//! haul on GlusterFS.
//!
//! Called by `make gluster`: four bricks on loop devices hold two volumes, one that distributes files and one that also
//! cuts them into shards; then the evaluation of the scheduler makes a volume of its own. [`Cluster`] serves whoever wants a
//! volume (`testbed gluster-volume`; see README.md here).

mod cluster;
mod disk;
mod layouts;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

pub use cluster::{Cluster, Mounted, Volume};
pub use disk::Disk;

use crate::parallel::{self, Settings, System, join};
use crate::process::wait_until;

const BRICKS: usize = 4;
const BRICK_BYTES: u64 = 1 << 30;
/// How long a client waits for a brick that does not answer; 42 s if nobody says otherwise.
const GIVES_UP_AFTER: Duration = Duration::from_secs(8);
/// Clients try again every three seconds.
const RECONNECT_LIMIT: Duration = Duration::from_secs(30);

/// Plays the scenarios. True if all went as they should.
pub fn run(settings: &Settings) -> io::Result<bool> {
    parallel::run_all(settings, "gluster", Gluster::start)
}

/// Two volumes on the same disks. Fields are dropped in this order.
struct Gluster {
    plain_mount: Mounted,
    /// Mounted anew now and then.
    sharded_mount: RefCell<Option<Mounted>>,
    sharded_at: PathBuf,
    plain: Volume,
    sharded: Volume,
    cluster: Cluster,
    _disks: Vec<Disk>,
}

impl Gluster {
    fn start(directory: &Path) -> io::Result<Gluster> {
        fs::create_dir(directory)?;
        let disks = (0..BRICKS).map(|number| Disk::make(directory, &format!("disk-{number}"), BRICK_BYTES));
        let disks = disks.collect::<io::Result<Vec<Disk>>>()?;
        let cluster = Cluster::start(directory)?;
        let bricks =
            |volume: &str| disks.iter().map(|disk| disk.directory().join(volume)).collect::<Vec<_>>();
        let patience = GIVES_UP_AFTER.as_secs().to_string();
        let options = [("network.ping-timeout", &*patience)];
        let plain = cluster.volume("plain", &bricks("plain"), &options)?;
        let shards = [("features.shard", "on"), ("features.shard-block-size", "4MB")];
        let sharded = cluster.volume("sharded", &bricks("sharded"), &[&options[..], &shards].concat())?;
        let mount = |volume: &Volume| {
            let at = directory.join(format!("mount-{}", volume.name()));
            fs::create_dir(&at)?;
            cluster.mount(volume, &at)
        };
        let (plain_mount, sharded_mount) = (mount(&plain)?, mount(&sharded)?);
        Ok(Gluster {
            sharded_at: sharded_mount.directory().to_owned(),
            plain_mount,
            sharded_mount: RefCell::new(Some(sharded_mount)),
            plain,
            sharded,
            cluster,
            _disks: disks,
        })
    }

    /// Every brick of the first volume is connected: each says so when a directory is asked for.
    fn all_answer(&self) -> bool {
        let told = layouts::pathinfo(self.plain_mount.directory());
        told.is_ok_and(|told| told.matches("<POSIX(").count() == BRICKS)
    }
}

impl System for Gluster {
    fn name(&self) -> &'static str {
        "gluster"
    }

    fn places(&self) -> [PathBuf; 2] {
        [self.plain_mount.directory().to_owned(), self.sharded_at.clone()]
    }

    fn layout_is_wrong(&self, haul: &dyn Fn() -> Command, tree: &Path) -> io::Result<Option<String>> {
        let volumes = [(self.plain_mount.directory(), &self.plain), (&*self.sharded_at, &self.sharded)];
        for (mount, volume) in volumes {
            if let Ok(below) = tree.strip_prefix(mount)
                && let Some(pointer) = layouts::pointer_in(volume, below)?
            {
                return Ok(Some(format!("{} is on another brick than its name says", pointer.display())));
            }
        }
        layouts::is_wrong(haul, tree)
    }

    /// A client takes the time of a sharded file for that of its own last write, whatever it was set to, until it forgets
    /// the file.
    fn refresh(&self) -> io::Result<()> {
        drop(self.sharded_mount.borrow_mut().take());
        *self.sharded_mount.borrow_mut() = Some(self.cluster.mount(&self.sharded, &self.sharded_at)?);
        Ok(())
    }

    /// All that has a name on the brick: its data, or the link that says where these are.
    fn needing(&self, server: usize, tree: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
        let below = tree.strip_prefix(self.plain_mount.directory()).map_err(io::Error::other)?;
        let on_brick = self.plain.bricks()[server].join(below);
        let files = parallel::files(tree)?;
        Ok(files.into_iter().filter(|path| fs::symlink_metadata(join(&on_brick, path)).is_ok()).collect())
    }

    fn server(&self, number: usize) -> io::Result<i32> {
        self.cluster.brick(&self.plain.bricks()[number])
    }

    fn restart(&self) -> io::Result<()> {
        self.cluster.restart(&self.plain)?;
        if wait_until(RECONNECT_LIMIT, || {
            std::thread::sleep(Duration::from_millis(100));
            self.all_answer()
        }) {
            return Ok(());
        }
        Err(io::Error::other("a brick that runs again is not connected"))
    }

    fn gives_up_after(&self) -> Option<Duration> {
        Some(GIVES_UP_AFTER)
    }
}

/// Serves one volume on bricks in given directories until standard input is closed.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Where the daemon keeps its files.
    pub directory: PathBuf,
    /// Directories of the bricks.
    pub bricks: Vec<PathBuf>,
    /// Where it is mounted, an existing directory.
    pub mount: PathBuf,
    /// As for `gluster volume set`.
    pub options: Vec<(String, String)>,
}

/// Brings a volume up, prints where everything is as JSON in a line, and takes it down when standard input ends.
pub fn stand(standing: &Standing) -> io::Result<bool> {
    let cluster = Cluster::start(&standing.directory)?;
    for brick in &standing.bricks {
        fs::create_dir_all(brick)?;
    }
    let bricks: Vec<PathBuf> =
        standing.bricks.iter().map(|brick| brick.canonicalize()).collect::<io::Result<_>>()?;
    let options: Vec<(&str, &str)> =
        standing.options.iter().map(|(name, value)| (&**name, &**value)).collect();
    let volume = cluster.volume("haul", &bricks, &options)?;
    let mount = cluster.mount(&volume, &standing.mount.canonicalize()?)?;
    let mut told = Vec::new();
    for brick in volume.bricks() {
        let device = parallel::device_of(brick)?;
        told.push(json!({"directory": brick, "device": device, "pid": cluster.brick(brick)?}));
    }
    println!("{}", json!({"mount": mount.directory(), "client": mount.pid(), "bricks": told}));
    for line in io::stdin().lock().lines() {
        line?;
    }
    Ok(true)
}
