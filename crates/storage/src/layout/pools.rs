//! Whether a file system has a pool of some name, as Lustre's client says in its parameters.
//!
//! Lustre takes a layout with a pool that does not exist, keeps the name, and restricts nothing; `lfs` looks before it
//! asks, and so does this. Where the parameters are cannot be relied on (procfs, sysfs, or debugfs, which only root may
//! read), so there are three answers.

use std::fs;
use std::path::{Path, PathBuf};

/// Where clients of Lustre have had their parameters, the newest last.
pub(super) fn usual_places() -> Vec<PathBuf> {
    ["/proc/fs/lustre", "/sys/fs/lustre", "/sys/kernel/debug/lustre"].map(PathBuf::from).into()
}

/// Whether the file system that was mounted from `source` (`server@network:/name`) has this pool; `None` if nobody tells.
pub(super) fn exists(places: &[PathBuf], source: &str, pool: &str) -> Option<bool> {
    let name = source.rsplit_once(":/")?.1.split('/').next().filter(|name| !name.is_empty())?;
    let lists = places.iter().flat_map(|place| lists(&place.join("lov"), name));
    let mut told = None;
    for list in lists {
        match list.join(pool).try_exists() {
            Ok(true) => return Some(true),
            Ok(false) => told = Some(false),
            Err(_) => {}
        }
    }
    told
}

/// Directories with an entry for each pool: `lov/NAME-clilov-ADDRESS/pools`.
fn lists(lov: &Path, name: &str) -> Vec<PathBuf> {
    let of = |entry: fs::DirEntry| {
        let device = entry.file_name();
        let rest = device.to_str()?.strip_prefix(name)?;
        let pools = entry.path().join("pools");
        (rest.starts_with("-clilov-") && fs::read_dir(&pools).is_ok()).then_some(pools)
    };
    fs::read_dir(lov).into_iter().flatten().filter_map(|entry| of(entry.ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_there_is_not_there_or_nobody_tells() {
        let scratch = tempfile::tempdir().unwrap();
        let (old, new) = (scratch.path().join("proc"), scratch.path().join("sys"));
        let make = |path: &str| fs::create_dir_all(new.join("lov").join(path)).unwrap();
        make("data-clilov-ffff8800/pools/flash");
        make("data2-clilov-ffff8801/pools/disk");
        make("bare-clilov-ffff8802");
        let places = [old, new];
        let told = |source: &str, pool| exists(&places, source, pool);
        assert_eq!(told("10.0.0.1@tcp:10.0.0.2@tcp:/data", "flash"), Some(true));
        assert_eq!(told("10.0.0.1@tcp:/data/below", "disk"), Some(false), "that is another file system's");
        assert_eq!(told("10.0.0.1@tcp:/data2", "disk"), Some(true));
        for unknown in ["10.0.0.1@tcp:/bare", "10.0.0.1@tcp:/other", "10.0.0.1@tcp:/", "stripefs", ""] {
            assert_eq!(told(unknown, "flash"), None, "{unknown}");
        }
        assert_eq!(exists(&[], "10.0.0.1@tcp:/data", "flash"), None);
    }
}
