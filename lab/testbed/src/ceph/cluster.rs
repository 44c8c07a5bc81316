//! Ceph on this machine: a monitor, a metadata server, OSDs that keep objects in memory, a CephFS, a mount.
//!
//! All of it runs in a network of its own, with its files below one directory, without authentication and with one copy
//! of each object. Call from the main thread: everything dies with the thread that started it.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::network::{Network, succeed};
use crate::process::{Guarded, wait_until};
use crate::remember_mount;

const ADDRESS: &str = "10.98.0.2";
/// The pool of the contents.
const POOL: &str = "contents";
const START_LIMIT: Duration = Duration::from_secs(60);
/// Fixed, as nothing else of its kind is in its network.
const FSID: &str = "3f0d5c2e-6f0a-4c0f-9b1e-6f1f3f2a7c11";

/// A running cluster. All of it ends when this is dropped.
pub struct Cluster {
    directory: PathBuf,
    at: PathBuf,
    /// Mounted anew now and then.
    client: RefCell<Option<Guarded>>,
    /// Where one was killed, the next one of its number stands.
    osds: RefCell<Vec<Guarded>>,
    _others: Vec<Guarded>,
    network: Network,
}

impl Cluster {
    /// Starts it with all its files in `directory`, and mounts its file system at `directory/mount`.
    pub fn start(directory: &Path, osds: usize, osd_bytes: u64) -> io::Result<Cluster> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        let at = directory.join("mount");
        for part in ["log", "run", "mon", "mds", "mount"] {
            fs::create_dir_all(directory.join(part))?;
        }
        fs::write(directory.join("ceph.conf"), configuration_of(&directory, osd_bytes))?;
        let network = Network::new(ADDRESS)?;
        let keys = directory.join("keyring");
        let all = ["mon", "osd", "mds", "mgr"].map(|part| ["--cap", part, "allow *"]).concat();
        let mut tool = Command::new("ceph-authtool");
        succeed(tool.arg("--create-keyring").arg(&keys).args([
            "--gen-key",
            "-n",
            "mon.",
            "--cap",
            "mon",
            "allow *",
        ]))?;
        let mut tool = Command::new("ceph-authtool");
        succeed(tool.arg(&keys).args(["--gen-key", "-n", "client.admin"]).args(all))?;
        let map = directory.join("monmap");
        let mut tool = Command::new("monmaptool");
        tool.args(["--create", "--clobber", "--fsid", FSID, "--addv", "a"]);
        succeed(tool.arg(format!("[v2:{ADDRESS}:3300/0,v1:{ADDRESS}:6789/0]")).arg(&map))?;
        let mut cluster = Cluster {
            directory,
            at,
            client: RefCell::new(None),
            osds: RefCell::new(Vec::new()),
            _others: Vec::new(),
            network,
        };
        let mut made = cluster.command("ceph-mon");
        succeed(made.args(["-i", "a", "--mkfs", "--monmap"]).arg(&map).arg("--keyring").arg(&keys))?;
        let monitor = cluster.server("ceph-mon", "a")?;
        cluster._others.push(monitor);
        for number in 0..osds {
            cluster.make_osd(number)?;
        }
        let metadata = cluster.server("ceph-mds", "m")?;
        cluster._others.push(metadata);
        cluster.ask(&["osd", "pool", "create", "names", "4"])?;
        cluster.ask(&["osd", "pool", "create", POOL, "16"])?;
        cluster.ask(&["fs", "new", "cephfs", "names", POOL])?;
        cluster.wait_for("a metadata server", |cluster| {
            cluster.ask(&["mds", "stat"]).is_ok_and(|told| told.contains("up:active"))
        })?;
        cluster.mount()?;
        Ok(cluster)
    }

    fn make_osd(&self, number: usize) -> io::Result<()> {
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
        self.ask(&["osd", "new", &id])?;
        fs::create_dir(self.directory.join(format!("osd{number}")))?;
        let mut made = self.command("ceph-osd");
        succeed(made.args(["-i", &number.to_string(), "--mkfs", "--osd-uuid", &id]))?;
        let osd = self.server("ceph-osd", &number.to_string())?;
        self.osds.borrow_mut().push(osd);
        Ok(())
    }

    /// Mounts it anew, so that its client knows nothing and has nothing in its memory.
    pub fn mount(&self) -> io::Result<()> {
        self.unmount();
        let outside = fs::metadata(&self.at)?.dev();
        remember_mount(self.at.clone());
        let mut command = self.command("ceph-fuse");
        command.args(["-f", "-n", "client.admin"]).arg(&self.at);
        command.stdout(self.log("fuse.out")?).stderr(self.log("fuse.err")?);
        *self.client.borrow_mut() = Some(Guarded::spawn(&mut command)?);
        self.wait_for("the mount", |cluster| {
            fs::metadata(&cluster.at).is_ok_and(|root| root.dev() != outside)
        })
    }

    fn unmount(&self) {
        let Some(mut client) = self.client.borrow_mut().take() else { return };
        // What it has not written yet is not to be lost: it ends by itself when nothing uses it any more.
        haul_crashfs::Mount::detach_stale(&self.at);
        client.wait(START_LIMIT);
    }

    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.at
    }

    /// The process of an OSD.
    pub fn osd(&self, number: usize) -> i32 {
        self.osds.borrow()[number].pid()
    }

    /// Starts OSDs that have ended, and waits until all are up.
    pub fn restart(&self) -> io::Result<()> {
        let count = self.osds.borrow().len();
        for number in 0..count {
            let ended = self.osds.borrow_mut()[number].status().is_some();
            if ended {
                let osd = self.server("ceph-osd", &number.to_string())?;
                self.osds.borrow_mut()[number] = osd;
            }
        }
        self.wait_for("all OSDs", |cluster| {
            let told = cluster.ask(&["osd", "stat", "-f", "json"]);
            let told: Value = told.ok().and_then(|told| serde_json::from_str(&told).ok()).unwrap_or_default();
            told["num_up_osds"].as_u64() == Some(count as u64)
        })
    }

    /// Which OSD has an object of the contents.
    pub fn holder(&self, object: &str) -> io::Result<usize> {
        let told: Value = serde_json::from_str(&self.ask(&["osd", "map", POOL, object, "-f", "json"])?)?;
        let holder = told["acting_primary"].as_u64();
        holder.map(|osd| osd as usize).ok_or_else(|| io::Error::other(format!("nobody has {object}: {told}")))
    }

    /// What `ceph` says to these words.
    fn ask(&self, words: &[&str]) -> io::Result<String> {
        let mut command = self.command("ceph");
        command.args(["--connect-timeout", "20"]).args(words);
        Ok(String::from_utf8_lossy(&succeed(&mut command)?.stdout).into_owned())
    }

    fn server(&self, program: &str, name: &str) -> io::Result<Guarded> {
        let mut command = self.command(program);
        command.args(["-f", "-i", name]);
        command.stdout(self.log(&format!("{program}.{name}.out"))?);
        command.stderr(self.log(&format!("{program}.{name}.err"))?);
        Guarded::spawn(&mut command)
    }

    fn log(&self, name: &str) -> io::Result<File> {
        File::options().create(true).append(true).open(self.directory.join("log").join(name))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.network.command(program);
        command.arg("-c").arg(self.directory.join("ceph.conf"));
        command
    }

    fn wait_for(&self, what: &str, ready: impl Fn(&Cluster) -> bool) -> io::Result<()> {
        let waited = wait_until(START_LIMIT, || {
            let ready = ready(self);
            if !ready {
                std::thread::sleep(Duration::from_millis(100));
            }
            ready
        });
        if waited { Ok(()) } else { Err(io::Error::other(format!("Ceph: {what} did not come up"))) }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        haul_crashfs::Mount::detach_stale(&self.at);
        *self.client.borrow_mut() = None;
    }
}

fn configuration_of(directory: &Path, osd_bytes: u64) -> String {
    let directory = directory.display();
    format!(
        "[global]
fsid = {FSID}
mon_initial_members = a
mon_host = [v2:{ADDRESS}:3300/0,v1:{ADDRESS}:6789/0]
public_addr = {ADDRESS}
cluster_addr = {ADDRESS}
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_crit = 1
mon_data_avail_warn = 2
run_dir = {directory}/run
log_file = {directory}/log/$name.log
admin_socket = {directory}/run/$name.asok
pid_file = {directory}/run/$name.pid
keyring = {directory}/keyring
crash_dir = {directory}/run
osd_data = {directory}/osd$id
osd_objectstore = bluestore
bluestore_block_size = {osd_bytes}
bluestore_block_create = true
bluestore_block_db_create = false
bluestore_block_wal_create = false
bluestore_cache_autotune = false
bluestore_cache_size = 67108864
osd_memory_target = 939524096
osd_op_num_shards = 2
osd_op_num_threads_per_shard = 2
mon_data = {directory}/mon/a
mds_data = {directory}/mds/m
client_mount_timeout = 20
[client]
admin_socket = {directory}/run/$name.$pid.asok
"
    )
}
