//! What `haul layout` says of files on CephFS, against what `getfattr` and `ceph osd map` say.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::cluster::Cluster;
use crate::network::succeed;
use crate::parallel::layouts::Expected;
use crate::parallel::{files, join};

/// How a file is cut into objects, from the attribute.
struct Striping {
    unit: u64,
    count: u64,
    object: u64,
}

impl Striping {
    fn of(path: &Path) -> io::Result<Striping> {
        let number = |name: &str| -> io::Result<u64> {
            let mut command = Command::new("getfattr");
            let name = format!("ceph.file.layout.{name}");
            command.args(["--only-values", "--absolute-names", "-n", &name]).arg(path);
            let told = succeed(&mut command)?.stdout;
            String::from_utf8_lossy(&told).trim_end_matches('\0').parse().map_err(io::Error::other)
        };
        Ok(Striping {
            unit: number("stripe_unit")?,
            count: number("stripe_count")?,
            object: number("object_size")?,
        })
    }

    /// The number of the object of a byte, as docs.ceph.com defines it.
    fn object_at(&self, offset: u64) -> u64 {
        let (block, rows) = (offset / self.unit, self.object / self.unit);
        block / self.count / rows * self.count + block % self.count
    }
}

/// A file and which OSD has each of its objects, and of those that complete the last set of them.
pub(super) struct Lying {
    path: PathBuf,
    size: u64,
    striping: Striping,
    osds: Vec<usize>,
}

impl Lying {
    /// Of all files of a tree.
    pub(super) fn of_tree(cluster: &Cluster, tree: &Path) -> io::Result<Vec<Lying>> {
        let mut all = Vec::new();
        let mut names = Vec::new();
        for path in files(tree)? {
            let path = join(tree, &path);
            let found = fs::metadata(&path)?;
            let (inode, size, striping) = (found.ino(), found.len(), Striping::of(&path)?);
            let sets = size.div_ceil(striping.object * striping.count).max(1);
            let objects = 0..sets * striping.count;
            names.extend(objects.clone().map(|object| format!("{inode:x}.{object:08x}")));
            all.push(Lying { path, size, striping, osds: objects.map(|_| 0).collect() });
        }
        let mut holders = cluster.holders(&names)?.into_iter();
        for osd in all.iter_mut().flat_map(|file| &mut file.osds) {
            *osd = holders.next().unwrap_or_default();
        }
        Ok(all)
    }

    /// Where.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Stripe units: the OSD and the bytes of each.
    pub(super) fn units(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let Striping { unit, .. } = self.striping;
        let osd = move |offset| self.osds[self.striping.object_at(offset) as usize];
        (0..self.size).step_by(unit as usize).map(move |offset| (osd(offset), unit.min(self.size - offset)))
    }

    /// The OSDs that have something of it.
    pub(super) fn needs(&self) -> BTreeSet<usize> {
        self.units().map(|(osd, _)| osd).collect()
    }
}

/// What is wrong with what haul says of a tree.
pub(super) fn is_wrong(
    haul: &dyn Fn() -> Command,
    cluster: &Cluster,
    tree: &Path,
) -> io::Result<Option<String>> {
    let mut expected = Expected::default();
    let name = |osd: usize| format!("osd.{osd}");
    for file in Lying::of_tree(cluster, tree)? {
        file.units().for_each(|(osd, bytes)| expected.bytes(&name(osd), bytes));
        expected.file(file.path, file.osds.into_iter().map(name).collect());
    }
    expected.is_wrong(haul, "ceph", tree)
}
