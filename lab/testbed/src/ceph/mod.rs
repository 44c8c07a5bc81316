//! haul on CephFS.
//!
//! Called by `make ceph`: four OSDs and one for names, one copy of each object, two directories with different layouts; then the evaluation of the
//! scheduler makes a cluster of its own. What Ceph does not do is give up: a request to an OSD that is down waits until it is up again.
//! [`stand`] serves whoever wants a CephFS (`testbed ceph-volume`).

mod cluster;
mod layouts;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

pub use cluster::{Cluster, Plan};
use layouts::Lying;

use crate::network::succeed;
use crate::parallel::{self, Settings, System};

const OSDS: usize = 4;
const OSD_BYTES: u64 = 4 << 30;
/// Placement groups of the scenarios' contents.
const GROUPS: u32 = 16;
/// Of the second directory: a file's bytes go around four objects.
const STRIPED: &str = "stripe_unit=1048576 stripe_count=4 object_size=4194304";

/// Plays the scenarios. True if all went as they should.
pub fn run(settings: &Settings) -> io::Result<bool> {
    parallel::run_all(settings, "ceph", Ceph::start)
}

struct Ceph {
    cluster: Cluster,
}

impl Ceph {
    fn start(directory: &Path) -> io::Result<Ceph> {
        let mount = directory.join("mount");
        fs::create_dir_all(&mount)?;
        let plan = Plan {
            osds: (0..OSDS).map(|number| directory.join(format!("objects-{number}"))).collect(),
            osd_bytes: OSD_BYTES,
            groups: GROUPS,
            // Or one OSD that hangs would take the metadata server with it, and so every name.
            names_apart: true,
            options: Vec::new(),
        };
        let ceph = Ceph { cluster: Cluster::start(directory, &mount, &plan)? };
        let [plain, striped] = ceph.places();
        fs::create_dir(plain)?;
        fs::create_dir(&striped)?;
        let mut command = Command::new("setfattr");
        succeed(command.args(["-n", "ceph.dir.layout", "-v", STRIPED]).arg(&striped))?;
        Ok(ceph)
    }
}

impl System for Ceph {
    fn name(&self) -> &'static str {
        "ceph"
    }

    fn places(&self) -> [PathBuf; 2] {
        ["plain", "striped"].map(|name| self.cluster.mountpoint().join(name))
    }

    fn programs(&self) -> Option<PathBuf> {
        Some(self.cluster.programs())
    }

    fn layout_is_wrong(&self, haul: &dyn Fn() -> Command, tree: &Path) -> io::Result<Option<String>> {
        layouts::is_wrong(haul, &self.cluster, tree)
    }

    /// Its client keeps what it read and wrote.
    fn refresh(&self) -> io::Result<()> {
        self.cluster.mount()
    }

    /// All that has an object there.
    fn needing(&self, server: usize, tree: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
        let all = Lying::of_tree(&self.cluster, tree)?;
        let needing = all.iter().filter(|file| file.needs().contains(&server));
        Ok(needing.map(|file| parallel::below(tree, file.path())).collect())
    }

    fn server(&self, number: usize) -> io::Result<i32> {
        Ok(self.cluster.osd(number))
    }

    fn restart(&self) -> io::Result<()> {
        self.cluster.restart()
    }

    fn gives_up_after(&self) -> Option<Duration> {
        None
    }
}

/// Serves a CephFS on OSDs in given directories until standard input is closed.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Where the cluster keeps its files.
    pub directory: PathBuf,
    /// Where it is mounted, an existing directory.
    pub mount: PathBuf,
    /// What it is made of.
    pub plan: Plan,
}

/// Brings it up, and prints where everything is as JSON in a line. Then, for each directory that a line of standard input names, the
/// bytes that the files below it have on each OSD. Takes it down when standard input ends.
pub fn stand(standing: &Standing) -> io::Result<bool> {
    let cluster = Cluster::start(&standing.directory, &standing.mount, &standing.plan)?;
    let mut told = Vec::new();
    for (number, place) in standing.plan.osds.iter().enumerate() {
        let device = parallel::device_of(place)?;
        told.push(json!({"directory": place, "device": device, "pid": cluster.osd(number)}));
    }
    let (mount, client, programs) = (cluster.mountpoint(), cluster.client(), cluster.programs());
    let first = json!({"mount": mount, "client": client, "programs": programs, "osds": told});
    let mut output = io::stdout().lock();
    writeln!(output, "{first}")?;
    for line in io::stdin().lock().lines() {
        let mut bytes = vec![0; standing.plan.osds.len()];
        for file in Lying::of_tree(&cluster, Path::new(&line?))? {
            file.units().for_each(|(osd, of_unit)| bytes[osd] += of_unit);
        }
        writeln!(output, "{}", json!({"bytes": bytes}))?;
    }
    Ok(true)
}
