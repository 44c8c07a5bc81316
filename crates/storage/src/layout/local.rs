//! Disks of this host: from a file system's device down through partitions, md, device mapper and btrfs.
//!
//! Which block of a file is on which disk of a set only the set knows, and a write may go to several: so a set of disks is
//! one target, named by them. Two file systems on partitions of one disk share that disk, and so a target.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use haul_model::Layout;
use rustix::fs;
use rustix::ioctl::{Getter, ioctl, opcode};

use super::{Answer, Domain, Kind, LayoutSource, Subject, Targets};

/// More layers than anybody stacks (a partition of a logical volume on md on partitions has four).
const DEPTH_MAX: usize = 16;
/// A set is named by its disks, as long as that is no longer than this; else by its device.
const SET_NAME_BYTES_MAX: usize = 200;
const DISKS_MAX: usize = 1024;

const BTRFS_MAGIC: u64 = 0x9123_683E;
/// `struct btrfs_ioctl_fs_info_args`: `max_id` and `num_devices` of 8 bytes each, then the id.
type FsInfo = [u8; 1024];
const BTRFS_IOC_FS_INFO: u32 = opcode::read::<FsInfo>(0x94, 31) as u32;

/// Looks into sysfs.
pub struct Local {
    sys: PathBuf,
}

impl Local {
    /// With sysfs at `sys`.
    pub fn new(sys: PathBuf) -> Local {
        Local { sys }
    }

    /// The disks below a device, and the device's own name.
    fn disks(&self, subject: &Subject<'_>) -> Option<(BTreeSet<String>, String)> {
        let mut disks = BTreeSet::new();
        if let Some(id) = subject.file_system.btrfs {
            let id = uuid(&id);
            let members = self.sys.join("fs/btrfs").join(&id).join("devices");
            for member in std::fs::read_dir(members).ok()?.take(DISKS_MAX).flatten() {
                collect(&member.path(), 0, &mut disks);
            }
            return Some((disks, format!("btrfs {id}")));
        }
        let device = subject.file_system.device;
        let (major, minor) = (fs::major(device), fs::minor(device));
        // File systems without a device have numbers of this kind.
        if major == 0 {
            return None;
        }
        let entry = self.sys.join(format!("dev/block/{major}:{minor}")).canonicalize().ok()?;
        collect(&entry, 0, &mut disks);
        Some((disks, name(&entry)?))
    }
}

impl LayoutSource for Local {
    fn kind(&self) -> Kind {
        Kind::Local
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        let Some((disks, own)) = self.disks(file) else { return Answer::Never };
        let disks = disks.into_iter().collect::<Vec<_>>().join("+");
        let name = if disks.is_empty() || disks.len() > SET_NAME_BYTES_MAX { own } else { disks };
        Answer::Found(Layout::single(targets.id(Domain::Host, &name)))
    }
}

/// Adds the disks below a block device.
fn collect(device: &Path, depth: usize, disks: &mut BTreeSet<String>) {
    let Ok(mut device) = device.canonicalize() else { return };
    if device.join("partition").exists()
        && let Some(whole) = device.parent()
    {
        device = whole.to_owned();
    }
    let below = std::fs::read_dir(device.join("slaves")).into_iter().flatten().take(DISKS_MAX).flatten();
    let below: Vec<_> = below.map(|entry| entry.path()).filter(|_| depth < DEPTH_MAX).collect();
    if below.is_empty() && disks.len() < DISKS_MAX {
        disks.extend(name(&device));
    }
    below.iter().for_each(|entry| collect(entry, depth + 1, disks));
}

fn name(device: &Path) -> Option<String> {
    Some(device.file_name()?.to_string_lossy().into_owned())
}

/// As sysfs writes it: `8-4-4-4-12` digits.
fn uuid(id: &[u8; 16]) -> String {
    let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// Which btrfs a descriptor is on: its `st_dev` is one subvolume's only.
pub(super) fn btrfs_id(file: BorrowedFd<'_>, magic: u64) -> Option<[u8; 16]> {
    if magic != BTRFS_MAGIC {
        return None;
    }
    // SAFETY: the opcode is the one of a call that writes a value of exactly this type; any bytes are one.
    let info: FsInfo = unsafe { ioctl(file, Getter::<BTRFS_IOC_FS_INFO, FsInfo>::new()) }.ok()?;
    info[16..].first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use crate::layout::{FileSystem, Mount};

    /// sda with sda1 and sda2; sdb; md0 on sda2 and sdb; dm-0 on md0; md0p1, a partition of md0; loop0.
    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        create_dir_all(at("dev/block")).unwrap();
        let device = |number: &str, path: &str, below: &[&str]| {
            create_dir_all(at(path).join("slaves")).unwrap();
            symlink(at(path), at("dev/block").join(number)).unwrap();
            for below in below {
                symlink(at(below), at(path).join("slaves").join(below.rsplit('/').next().unwrap())).unwrap();
            }
        };
        device("8:0", "devices/pci/sda", &[]);
        device("8:1", "devices/pci/sda/sda1", &[]);
        device("8:2", "devices/pci/sda/sda2", &[]);
        device("8:16", "devices/pci/sdb", &[]);
        device("9:0", "devices/virtual/md0", &["devices/pci/sda/sda2", "devices/pci/sdb"]);
        device("259:0", "devices/virtual/md0/md0p1", &[]);
        device("253:0", "devices/virtual/dm-0", &["devices/virtual/md0"]);
        device("7:0", "devices/virtual/loop0", &[]);
        for partition in ["devices/pci/sda/sda1", "devices/pci/sda/sda2", "devices/virtual/md0/md0p1"] {
            write(at(partition).join("partition"), "1\n").unwrap();
        }
        // A device that is below itself, as no kernel makes it.
        device("253:9", "devices/virtual/dm-9", &["devices/virtual/dm-9"]);
        let members = "fs/btrfs/00010203-0405-0607-0809-0a0b0c0d0e0f/devices";
        create_dir_all(at(members)).unwrap();
        symlink(at("devices/pci/sda/sda1"), at(members).join("sda1")).unwrap();
        symlink(at("devices/virtual/loop0"), at(members).join("loop0")).unwrap();
        symlink(at("devices/gone"), at(members).join("sdz")).unwrap();
        sys
    }

    fn told(sys: &Path, device: u64, btrfs: Option<[u8; 16]>) -> Option<String> {
        let mount = Mount { source: "source".into(), point: "/".into() };
        let file_system = FileSystem { device, magic: 0, mount, btrfs };
        let file = std::fs::File::open(sys).unwrap();
        let file = std::os::fd::AsFd::as_fd(&file);
        let subject = Subject { file_system: &file_system, attributes: &file, path: None, known: true };
        let targets = Targets::default();
        match Local::new(sys.to_owned()).layout(&subject, &targets) {
            Answer::Found(layout) => Some(targets.describe(layout.target_at(0)?).to_string()),
            _ => None,
        }
    }

    #[test]
    fn file_systems_are_on_the_disks_below_their_device() {
        let sys = sys();
        for (major, minor, name) in [
            (8, 0, "sda"),
            (8, 1, "sda"),
            (8, 16, "sdb"),
            (9, 0, "sda+sdb"),
            (259, 0, "sda+sdb"),
            (253, 0, "sda+sdb"),
            (7, 0, "loop0"),
            (253, 9, "dm-9"),
        ] {
            let found = told(sys.path(), fs::makedev(major, minor), None);
            assert_eq!(found.as_deref(), Some(name), "{major}:{minor}");
        }
        assert_eq!(told(sys.path(), fs::makedev(8, 99), None), None);
        assert_eq!(told(sys.path(), fs::makedev(0, 40), None), None);
    }

    #[test]
    fn btrfs_is_on_all_its_members() {
        let sys = sys();
        let id = std::array::from_fn(|index| index as u8);
        assert_eq!(told(sys.path(), fs::makedev(0, 40), Some(id)).as_deref(), Some("loop0+sda"));
        assert_eq!(told(sys.path(), fs::makedev(0, 40), Some([9; 16])), None);
    }
}
