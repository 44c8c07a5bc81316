//! haul on CephFS.
//!
//! Called by `make ceph`: four OSDs, one copy of each object, two directories with different layouts. What Ceph does not
//! do is give up: a request to an OSD that is down waits until it is up again.

mod cluster;
mod layouts;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use cluster::Cluster;
use layouts::Striping;

use crate::network::succeed;
use crate::parallel::{self, Settings, System, join};

const OSDS: usize = 4;
const OSD_BYTES: u64 = 4 << 30;
/// Of the second directory: a file's bytes go around four objects.
const STRIPED: &str = "stripe_unit=1048576 stripe_count=4 object_size=4194304";

/// Plays the scenarios. True if all went as they should.
pub fn run(settings: &Settings) -> io::Result<bool> {
    let ceph = Ceph::start(&settings.directory.join("ceph"))?;
    parallel::run(settings, &ceph)
}

struct Ceph {
    cluster: Cluster,
}

impl Ceph {
    fn start(directory: &Path) -> io::Result<Ceph> {
        let ceph = Ceph { cluster: Cluster::start(directory, OSDS, OSD_BYTES)? };
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

    fn layout_is_wrong(&self, haul: &Path, tree: &Path) -> io::Result<Option<String>> {
        layouts::is_wrong(haul, tree)
    }

    /// Its client keeps what it read and wrote.
    fn refresh(&self) -> io::Result<()> {
        self.cluster.mount()
    }

    /// All that has an object there.
    fn needing(&self, server: usize, tree: &Path) -> io::Result<BTreeSet<Vec<u8>>> {
        let mut needing = BTreeSet::new();
        for path in parallel::files(tree)? {
            let file = join(tree, &path);
            let (inode, size) = (fs::metadata(&file)?.ino(), fs::metadata(&file)?.len());
            for object in Striping::of(&file)?.objects(size) {
                if self.cluster.holder(&format!("{inode:x}.{object:08x}"))? == server {
                    needing.insert(path);
                    break;
                }
            }
        }
        Ok(needing)
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
