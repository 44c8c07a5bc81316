//! Machines as files: `tests/machines/*.tree`, unpacked into a directory. The head of each says what of it somebody has recorded; loads,
//! what is free of memory, and where pages came from are made up everywhere.
//!
//! A line is a path and, after a tab, what the file says, with `\n` and `\t`; or `PATH -> TARGET`, a symlink. `{LIST}` in a path stands
//! for each number of the list, `{}` in the contents for that number. `@include NAME` stands for all lines of another
//! machine; of two lines for one path the second counts. `#` begins a comment.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use haul_topology::{Cpus, Machine};
use tempfile::TempDir;

pub const NAMES: [&str; 11] = [
    "container",
    "epyc-7451-2s",
    "kunpeng-920-2s",
    "partition",
    "slurm-cpuset",
    "vm-2cpu",
    "vm-2nodes",
    "xeon-2s-data-transfer-node",
    "xeon-2s-offline",
    "xeon-e7-4s",
    "xeon-x7550-4s",
];

/// No user that anybody is.
pub const ANOTHER_USER: u32 = 54_321;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "machines"].iter().collect()
}

/// The tree of a machine.
pub fn tree(name: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    unpack(name, directory.path());
    directory
}

pub fn machine(name: &str) -> Machine {
    Machine::read(tree(name).path())
}

/// All of them, read once.
pub fn machines() -> &'static [(&'static str, Machine)] {
    static ALL: OnceLock<Vec<(&'static str, Machine)>> = OnceLock::new();
    ALL.get_or_init(|| NAMES.iter().map(|name| (*name, machine(name))).collect())
}

pub fn cpus(list: &str) -> Cpus {
    list.parse().unwrap()
}

/// Another user than this one listens there, in a directory that everybody may write to. None where this one is not root.
pub fn served_by_another_user(socket: &Path) -> Option<UnixListener> {
    if !rustix::process::geteuid().is_root() {
        haul_testkit::lacks("root, to be another user");
        return None;
    }
    fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    let listen = || {
        let user = rustix::process::Uid::from_raw(ANOTHER_USER);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        UnixListener::bind(socket).unwrap()
    };
    // The kernel keeps users by thread; the one of this test stays who it is.
    Some(std::thread::scope(|scope| scope.spawn(listen).join().unwrap()))
}

fn unpack(name: &str, root: &Path) {
    let text = fs::read_to_string(folder().join(format!("{name}.tree"))).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(other) = line.strip_prefix("@include ") {
            unpack(other, root);
        } else if let Some((path, target)) = line.split_once(" -> ") {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(target, path).unwrap();
        } else {
            let (path, contents) = line.split_once('\t').expect(line);
            let contents = contents.replace("\\n", "\n").replace("\\t", "\t") + "\n";
            for (path, number) in expanded(path) {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, contents.replace("{}", &number)).unwrap();
            }
        }
    }
}

fn expanded(path: &str) -> Vec<(String, String)> {
    let Some((before, rest)) = path.split_once('{') else { return vec![(path.to_owned(), String::new())] };
    let (list, after) = rest.split_once('}').unwrap();
    let one = |cpu: usize| (format!("{before}{cpu}{after}"), cpu.to_string());
    cpus(list).iter().map(one).collect()
}

#[test]
fn every_recorded_machine_is_named_here() {
    let files = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> =
        files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, NAMES);
}
