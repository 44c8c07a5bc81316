//! Which OSD serves each placement group of a pool, asked of the cluster.
//!
//! Only the cluster's map and its rules tell that, and only Ceph's own code knows these. So two of its programs are asked, once for a
//! pool: `ceph osd getmap` for the map, and `osdmaptool` for what follows from it, for all groups at once and without a word to the
//! cluster.
//!
//! What must stay true: nobody waits longer than [`LIMIT`] whatever the programs do, and nothing of them is left behind.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use super::hash;

/// All questions together take no longer, or there is no answer.
pub(super) const LIMIT: Duration = Duration::from_secs(5);
/// As `ceph --connect-timeout` takes it, in seconds.
const CONNECT_LIMIT: &str = "3";
/// How often it is looked whether a program that has said everything has ended.
const POLL: Duration = Duration::from_millis(2);
/// Pools with more groups are unknown: the largest clusters have fewer.
const GROUPS_MAX: usize = 1 << 18;
/// No answer is longer: the map of ten thousand OSDs, in text, has a tenth of this.
const ANSWER_BYTES_MAX: usize = 128 << 20;

/// The programs that are asked: names on the PATH, or paths.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CephPrograms {
    /// Asks a cluster.
    pub ceph: PathBuf,
    /// Understands what the cluster says.
    pub osdmaptool: PathBuf,
}

impl Default for CephPrograms {
    fn default() -> Self {
        CephPrograms { ceph: "ceph".into(), osdmaptool: "osdmaptool".into() }
    }
}

/// The placement groups of a pool, and who serves them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pool {
    /// The OSD that reads and writes go to; none where nobody serves the group now.
    groups: Vec<Option<u32>>,
}

impl Pool {
    /// The OSD of an object.
    pub(super) fn osd(&self, namespace: &str, object: &str) -> Option<u32> {
        let group = hash::group(namespace, object, self.groups.len() as u32);
        self.groups.get(group as usize).copied().flatten()
    }
}

/// What a cluster has said of a pool.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Told {
    Pool(Pool),
    /// It has answered, and this pool is not in its map, or lies in a way that is not known here.
    NothingOfIt,
    /// The programs are not there, do not know, take too long, or speak of another cluster.
    Nothing,
}

/// Asks for a pool of the cluster `fsid`, for `limit` at most.
pub(super) fn ask(programs: &CephPrograms, pool: &str, fsid: Option<&str>, limit: Duration) -> Told {
    match answer(programs, pool, fsid, limit) {
        Some(Some(pool)) => Told::Pool(pool),
        Some(None) => Told::NothingOfIt,
        None => Told::Nothing,
    }
}

/// None where nothing was said; none in that where it says nothing of this pool.
fn answer(programs: &CephPrograms, pool: &str, fsid: Option<&str>, limit: Duration) -> Option<Option<Pool>> {
    if !is_installed(&programs.ceph) || !is_installed(&programs.osdmaptool) {
        return None;
    }
    let until = Instant::now() + limit;
    let mut command = Command::new(&programs.ceph);
    command.args(["--connect-timeout", CONNECT_LIMIT, "osd", "getmap"]).stdin(Stdio::null());
    let mut map = File::from(memfd_create("osdmap", MemfdFlags::CLOEXEC).ok()?);
    map.write_all(&output(&mut command, until)?).ok()?;
    let mut understood = |words: &[&str]| {
        map.rewind().ok()?;
        let mut command = Command::new(&programs.osdmaptool);
        output(command.arg("/dev/stdin").args(words).stdin(map.try_clone().ok()?), until)
    };
    let about = understood(&["--dump", "json"])?;
    // What is before it is said to people.
    let start = about.iter().position(|byte| *byte == b'{')?;
    let about: Value = serde_json::from_slice(&about[start..]).ok()?;
    if fsid.is_some_and(|fsid| about["fsid"].as_str() != Some(fsid)) {
        return None;
    }
    let is_it = |found: &&Value| found["pool_name"].as_str() == Some(pool);
    let Some((id, count)) = about["pools"].as_array()?.iter().find(is_it).and_then(known_kind) else {
        return Some(None);
    };
    let told = understood(&["--test-map-pgs-dump", "--pool", &id.to_string()])?;
    Some(groups(&String::from_utf8_lossy(&told), id, count).map(|groups| Pool { groups }))
}

/// The number of a pool and of its groups, if its objects go to these as is known here.
fn known_kind(pool: &Value) -> Option<(u64, usize)> {
    let count = usize::try_from(pool["pg_num"].as_u64()?).ok()?;
    (pool["object_hash"].as_u64() == Some(hash::RJENKINS)).then_some((pool["pool"].as_u64()?, count))
}

/// `2.1f [3,5] 3`, with tabs: a placement group, all its OSDs, the one that serves it (-1: nobody). Each group has to be told of.
fn groups(text: &str, pool: u64, count: usize) -> Option<Vec<Option<u32>>> {
    if !(1..=GROUPS_MAX).contains(&count) {
        return None;
    }
    let mut groups = vec![None; count];
    let prefix = format!("{pool}.");
    let rows = text.lines().filter_map(|line| line.strip_prefix(&prefix));
    for row in rows {
        let mut fields = row.split('\t');
        let group = usize::from_str_radix(fields.next()?, 16).ok()?;
        let osd: i64 = fields.nth(1)?.trim_end().parse().ok()?;
        *groups.get_mut(group)? = Some(u32::try_from(osd).ok());
    }
    groups.into_iter().collect()
}

/// So that no cluster is asked in vain.
fn is_installed(program: &Path) -> bool {
    if program.components().count() > 1 {
        return program.is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// What a program says until it ends well.
fn output(command: &mut Command, until: Instant) -> Option<Vec<u8>> {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    // It may be a script, whose own children are to end with it.
    let mut running = Running(command.process_group(0).spawn().ok()?);
    let mut said = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let output = running.0.stdout.as_mut()?;
    loop {
        let left = Timespec::try_from(until.checked_duration_since(Instant::now())?).ok()?;
        if poll(&mut [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)], Some(&left)).ok()? == 0 {
            return None;
        }
        match output.read(&mut piece).ok()? {
            0 => break,
            count => said.extend_from_slice(&piece[..count]),
        }
        if said.len() > ANSWER_BYTES_MAX {
            return None;
        }
    }
    loop {
        if let Some(status) = running.0.try_wait().ok()? {
            return status.success().then_some(said);
        }
        until.checked_duration_since(Instant::now())?;
        std::thread::sleep(POLL);
    }
}

/// A program and all that it starts: killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Once it was waited for, its number may be another's.
        if let Ok(None) = self.0.try_wait() {
            if let Some(group) = Pid::from_raw(self.0.id() as i32) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;

    use super::*;

    /// What Ceph 16.2 said of a cluster of three OSDs: `osdmaptool MAP --dump json`, and `--test-map-pgs-dump --pool 2`.
    const MAP: &str = include_str!("recorded/map.json");
    const GROUPS: &str = include_str!("recorded/groups.txt");
    pub(in super::super) const FSID: &str = "2785af5b-303c-4992-ae50-ac8562bd052a";
    pub(in super::super) const POOL: &str = "cfs_data";

    /// Programs that say what was recorded; `asked` is a file with a line for each time that the cluster was asked.
    pub(in super::super) fn programs(directory: &Path) -> CephPrograms {
        fs::write(directory.join("map.json"), MAP).unwrap();
        fs::write(directory.join("groups.txt"), GROUPS).unwrap();
        let here = directory.display();
        scripted(
            directory,
            &format!("echo \"$*\" >> {here}/asked; printf 'a map'"),
            &format!(
                "[ \"$(cat $1)\" = 'a map' ] || exit 1\n\
                 case \"$2 $3 $4\" in '--dump json ') cat {here}/map.json;;\n\
                 '--test-map-pgs-dump --pool 2') cat {here}/groups.txt;; *) exit 1;; esac"
            ),
        )
    }

    fn scripted(directory: &Path, ceph: &str, osdmaptool: &str) -> CephPrograms {
        let script = |name: &str, text: &str| {
            let path = directory.join(name);
            // Written by another process: a program that this one writes while another test starts one cannot be started.
            let mut write = Command::new("sh");
            write
                .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" > \"$0\" && chmod 755 \"$0\""])
                .arg(&path)
                .arg(text);
            assert!(write.status().unwrap().success());
            path
        };
        CephPrograms { ceph: script("ceph", ceph), osdmaptool: script("osdmaptool", osdmaptool) }
    }

    #[test]
    fn what_was_recorded_is_understood() {
        let scratch = tempfile::tempdir().unwrap();
        let programs = programs(scratch.path());
        let Told::Pool(pool) = ask(&programs, POOL, Some(FSID), LIMIT) else { panic!("nothing is told") };
        assert_eq!(pool.groups.len(), 16);
        // As `ceph osd map` says.
        for (object, osd) in
            [("10000000001.00000000", 1), ("10000000001.00000001", 0), ("10000000001.00000002", 2)]
        {
            assert_eq!(pool.osd("", object), Some(osd), "{object}");
        }
        assert_eq!(ask(&programs, POOL, None, LIMIT), Told::Pool(pool));
        assert_eq!(ask(&programs, POOL, Some("another"), LIMIT), Told::Nothing, "another cluster");
        assert_eq!(ask(&programs, "no-pool", Some(FSID), LIMIT), Told::NothingOfIt);
        assert_eq!(
            ask(&programs, "big", Some(FSID), LIMIT),
            Told::Nothing,
            "it cannot say where its groups are"
        );
    }

    #[test]
    fn every_group_has_to_be_told_of() {
        let told = |text| groups(text, 2, 2);
        assert_eq!(
            told("pool 2 pg_num 2\n2.0\t[3,1]\t3\n2.1\t[]\t-1\n#osd\tcount\n"),
            Some(vec![Some(3), None])
        );
        for text in [
            "",
            "2.0\t[3]\t3\n",
            "2.0\t[3]\t3\n2.2\t[3]\t3\n",
            "2.0\t[3]\t3\n2.1\t[3]\n",
            "2.0\t[3]\t3\n2.1\t[3]\tx\n",
            "2.0\t[3]\t3\n2.x\t[3]\t3\n",
            "3.0\t[3]\t3\n3.1\t[3]\t3\n",
        ] {
            assert_eq!(told(text), None, "{text:?}");
        }
        assert_eq!(groups("", 2, 0), None);
        assert_eq!(groups("", 2, usize::MAX), None);
    }

    #[test]
    fn programs_that_fail_or_are_not_there_are_no_answer() {
        let scratch = tempfile::tempdir().unwrap();
        let good = programs(scratch.path());
        for (ceph, osdmaptool) in [
            ("exit 1", "cat"),
            ("printf 'a map'; exit 1", "cat"),
            ("printf 'a map'", "echo no object"),
            ("printf 'a map'", "echo '{\"pools\": 3}'"),
            ("printf 'a map'", "echo '{'"),
        ] {
            let other = tempfile::tempdir().unwrap();
            assert_eq!(
                ask(&scripted(other.path(), ceph, osdmaptool), POOL, None, LIMIT),
                Told::Nothing,
                "{ceph}"
            );
        }
        for missing in ["no-such-program", "/no/such/program"] {
            assert_eq!(
                ask(&CephPrograms { ceph: missing.into(), ..good.clone() }, POOL, None, LIMIT),
                Told::Nothing
            );
            assert_eq!(
                ask(&CephPrograms { osdmaptool: missing.into(), ..good.clone() }, POOL, None, LIMIT),
                Told::Nothing
            );
        }
        assert_eq!(fs::read_to_string(scratch.path().join("asked")).ok(), None, "asked in vain");
    }

    #[test]
    fn nobody_waits_for_a_program_that_hangs_and_it_is_ended_with_its_children() {
        for hangs in ["sleep 1000 & echo $! > PID; wait", "sleep 1000 >&- & echo $! > PID; exec >&-; wait"] {
            let scratch = tempfile::tempdir().unwrap();
            let pid = scratch.path().join("pid");
            let programs = scripted(scratch.path(), &hangs.replace("PID", &pid.to_string_lossy()), "exit 1");
            let (asked, limit) = (Instant::now(), Duration::from_secs(1));
            assert_eq!(ask(&programs, POOL, None, limit), Told::Nothing);
            assert!(asked.elapsed() >= limit && asked.elapsed() < LIMIT, "{hangs}: {:?}", asked.elapsed());
            let pid = fs::read_to_string(pid).unwrap();
            let state = || fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
            let until = Instant::now() + LIMIT;
            while !state().is_empty() && !state().contains(") Z") && Instant::now() < until {
                std::thread::sleep(POLL);
            }
            assert!(state().is_empty() || state().contains(") Z"), "{hangs}: its child lives");
        }
    }
}
