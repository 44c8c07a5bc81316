//! Ceph on this machine: a monitor, a metadata server, OSDs, a CephFS, a mount.
//!
//! All of it runs in a network of its own, with its files below one directory, without authentication and with one copy
//! of each object. Call from the main thread: everything dies with the thread that started it.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::network::{Network, succeed, succeed_with};
use crate::process::{Guarded, wait_until};
use crate::remember_mount;

const ADDRESS: &str = "10.98.0.2";
/// The pool of the contents.
const POOL: &str = "contents";
const START_LIMIT: Duration = Duration::from_secs(60);
/// Fixed, as nothing else of its kind is in its network.
const FSID: &str = "3f0d5c2e-6f0a-4c0f-9b1e-6f1f3f2a7c11";

/// What a cluster is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where each OSD keeps its objects; made if missing.
    pub osds: Vec<PathBuf>,
    /// Room of each.
    pub osd_bytes: u64,
    /// Placement groups of the contents: the more, the more even OSDs are filled.
    pub groups: u32,
    /// One more OSD, beside the cluster's own files, has all names and nothing else.
    pub names_apart: bool,
    /// As for ceph.conf.
    pub options: Vec<(String, String)>,
}

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
    /// Starts it with all its files in `directory`, and mounts its file system at `at`, an existing directory.
    pub fn start(directory: &Path, at: &Path, plan: &Plan) -> io::Result<Cluster> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        for part in ["log", "run", "mon", "mds", "bin"] {
            fs::create_dir_all(directory.join(part))?;
        }
        fs::write(directory.join("ceph.conf"), configuration_of(&directory, plan))?;
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
            at: at.canonicalize()?,
            directory,
            client: RefCell::new(None),
            osds: RefCell::new(Vec::new()),
            _others: Vec::new(),
            network,
        };
        let mut made = cluster.command("ceph-mon");
        succeed(made.args(["-i", "a", "--mkfs", "--monmap"]).arg(&map).arg("--keyring").arg(&keys))?;
        let monitor = cluster.server("ceph-mon", "a")?;
        cluster.write_client(monitor.pid())?;
        cluster._others.push(monitor);
        let of_names = plan.names_apart.then(|| cluster.directory.join("names"));
        for (number, place) in plan.osds.iter().chain(&of_names).enumerate() {
            fs::create_dir_all(place)?;
            std::os::unix::fs::symlink(
                place.canonicalize()?,
                cluster.directory.join(format!("osd{number}")),
            )?;
            cluster.make_osd(number)?;
        }
        let metadata = cluster.server("ceph-mds", "m")?;
        cluster._others.push(metadata);
        cluster.make_pools(plan)?;
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
        let mut made = self.command("ceph-osd");
        succeed(made.args(["-i", &number.to_string(), "--mkfs", "--osd-uuid", &id]))?;
        let osd = self.server("ceph-osd", &number.to_string())?;
        self.osds.borrow_mut().push(osd);
        Ok(())
    }

    /// A pool of names and one of contents, on OSDs of their own if that is planned.
    fn make_pools(&self, plan: &Plan) -> io::Result<()> {
        self.wait_for("all OSDs", Cluster::all_are_up)?;
        let mut questions = Vec::new();
        if plan.names_apart {
            for number in 0..=plan.osds.len() {
                let class = if number < plan.osds.len() { POOL } else { "names" };
                questions.push(format!("osd crush set-device-class {class} osd.{number}"));
            }
            for class in ["names", POOL] {
                questions.push(format!("osd crush rule create-replicated {class} default osd {class}"));
            }
        }
        let rule = |pool: &str| if plan.names_apart { format!(" replicated {pool}") } else { String::new() };
        for (pool, groups) in [("names", 4), (POOL, plan.groups)] {
            questions.push(format!("osd pool create {pool} {groups} {groups}{}", rule(pool)));
        }
        self.ask_all(&questions).map(drop)
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

    /// The process of the client.
    pub fn client(&self) -> i32 {
        self.client.borrow().as_ref().map_or(0, Guarded::pid)
    }

    /// A directory with a program `ceph` in it that asks this cluster, wherever it is started.
    pub fn programs(&self) -> PathBuf {
        self.directory.join("bin")
    }

    fn write_client(&self, monitor: i32) -> io::Result<()> {
        let path = self.programs().join("ceph");
        let configuration = self.directory.join("ceph.conf");
        // This file is no program of that name: the one behind it on the PATH is.
        let text = format!(
            "#!/bin/sh\nPATH=${{PATH#{}:}}\nexec nsenter --net=/proc/{monitor}/ns/net ceph -c {} \"$@\"\n",
            self.programs().display(),
            configuration.display()
        );
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
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
        self.wait_for("all OSDs", Cluster::all_are_up)
    }

    fn all_are_up(&self) -> bool {
        let told = self.ask(&["osd", "stat", "-f", "json"]);
        let told: Value = told.ok().and_then(|told| serde_json::from_str(&told).ok()).unwrap_or_default();
        told["num_up_osds"].as_u64() == Some(self.osds.borrow().len() as u64)
    }

    /// Which OSD has each of some objects of the contents.
    pub fn holders(&self, objects: &[String]) -> io::Result<Vec<usize>> {
        let questions: Vec<String> =
            objects.iter().map(|object| format!("osd map {POOL} {object}")).collect();
        let told = self.ask_all(&questions)?;
        if told.len() != objects.len() {
            return Err(io::Error::other(format!(
                "of {} objects ceph told of {}",
                objects.len(),
                told.len()
            )));
        }
        let holder = |told: &Value| Some(told["acting_primary"].as_u64()? as usize);
        let named =
            |told: &Value| holder(told).ok_or_else(|| io::Error::other(format!("nobody has it: {told}")));
        told.iter().map(named).collect()
    }

    /// What `ceph` says to each of these lines that it says something to.
    fn ask_all(&self, questions: &[String]) -> io::Result<Vec<Value>> {
        let mut lines = tempfile::tempfile_in(&self.directory)?;
        questions.iter().try_for_each(|question| writeln!(lines, "{question}"))?;
        lines.rewind()?;
        let mut command = self.command("ceph");
        command.args(["--connect-timeout", "20", "-f", "json"]).stdin(lines);
        let output = succeed_with(&mut command)?;
        // It goes on after a question that it could not answer.
        let said = String::from_utf8_lossy(&output.stderr);
        if let Some(error) =
            said.lines().find(|line| line.starts_with("Error") || line.contains("Invalid command"))
        {
            return Err(io::Error::other(format!("ceph: {error}")));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let objects = text.lines().filter_map(|line| line.find('{').map(|start| &line[start..]));
        objects.map(|line| serde_json::from_str(line).map_err(io::Error::other)).collect()
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
        haul_crashfs::Mount::abort(&self.at);
        *self.client.borrow_mut() = None;
    }
}

fn configuration_of(directory: &Path, plan: &Plan) -> String {
    let (directory, osd_bytes) = (directory.display(), plan.osd_bytes);
    let options: String = plan.options.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
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
osd_class_update_on_start = false
client_mount_timeout = 20
{options}[client]
admin_socket = {directory}/run/$name.$pid.asok
"
    )
}
