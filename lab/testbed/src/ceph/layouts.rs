//! What `haul layout` says of files on CephFS, against what `getfattr` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::network::succeed;
use crate::parallel::{files, join};

/// So many targets stand in for the OSDs of a pool, or the next multiple of a file's stripe count.
const TARGETS: u64 = 16;

/// How a file is cut into objects, from the attribute.
pub(super) struct Striping {
    unit: u64,
    count: u64,
    object: u64,
    pool: String,
}

impl Striping {
    pub(super) fn of(path: &Path) -> io::Result<Striping> {
        let field = |name: &str| -> io::Result<String> {
            let mut command = Command::new("getfattr");
            let name = format!("ceph.file.layout.{name}");
            command.args(["--only-values", "--absolute-names", "-n", &name]).arg(path);
            Ok(String::from_utf8_lossy(&succeed(&mut command)?.stdout).trim_end_matches('\0').to_owned())
        };
        let number = |name: &str| field(name)?.parse().map_err(io::Error::other);
        Ok(Striping {
            unit: number("stripe_unit")?,
            count: number("stripe_count")?,
            object: number("object_size")?,
            pool: field("pool")?,
        })
    }

    /// The number of the object of a byte, as docs.ceph.com defines it.
    fn object_at(&self, offset: u64) -> u64 {
        let (block, rows) = (offset / self.unit, self.object / self.unit);
        block / self.count / rows * self.count + block % self.count
    }

    /// Numbers of the objects of a file of this size.
    pub(super) fn objects(&self, size: u64) -> BTreeSet<u64> {
        (0..size).step_by(self.unit as usize).map(|offset| self.object_at(offset)).collect()
    }

    /// The bytes of a file on each of the targets that haul is to name.
    fn shares(&self, inode: u64, size: u64) -> BTreeMap<String, u64> {
        let count = TARGETS.next_multiple_of(self.count);
        let mut shares = BTreeMap::new();
        for offset in (0..size).step_by(self.unit as usize) {
            let target = format!("{}.{}", self.pool, (inode + self.object_at(offset)) % count);
            *shares.entry(target).or_default() += self.unit.min(size - offset);
        }
        shares
    }
}

/// What is wrong with the JSON of a tree.
pub(super) fn is_wrong(haul: &Path, tree: &Path) -> io::Result<Option<String>> {
    for path in files(tree)? {
        let path = join(tree, &path);
        let found = fs::metadata(&path)?;
        let expected = Striping::of(&path)?.shares(found.ino(), found.len());
        let text = succeed(Command::new(haul).args(["layout", "--json"]).arg(&path))?.stdout;
        let events: Vec<Value> =
            text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let [layout, summary] = &*events else { return Ok(Some(format!("haul layout --json: {events:?}"))) };
        // Objects that a file would have if it were larger are told with no bytes.
        let told: BTreeMap<String, u64> = summary["targets"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|target| Some((target["name"].as_str()?.to_owned(), target["bytes"].as_u64()?)))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        if layout["kind"] != "ceph" || told != expected {
            return Ok(Some(format!(
                "{} lies on {expected:?}, and haul says {layout} {told:?}",
                path.display()
            )));
        }
    }
    Ok(None)
}
