//! `haul status` and `haul stop`: what can be continued, and how to end or forget it.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use haul_model::{Code, Failure};
use haul_mover::Error;
use haul_mover::owner::{is_gone, remove_directory};
use haul_mover::runner::Runner;
use haul_storage::sink::{SourceName, leftovers, leftovers_in};
use serde_json::json;

use crate::job::{Record, is_running, known, lock, now, places, read_record, runner};
use crate::kin;
use crate::options;
use crate::paths::{hex, json as json_line, name_of, show, unhex};
use crate::report::ended;
use crate::told::{counted, size};

/// A transfer, as its record has it.
pub struct Found {
    /// Of the record.
    pub directory: PathBuf,
    /// What was known of it at another place, and is older.
    older: Vec<PathBuf>,
    /// The latest one.
    pub record: Record,
    /// A process is at it.
    pub running: bool,
}

impl Found {
    /// A process that was killed could not write down how it ended.
    pub fn state(&self) -> &str {
        match (self.running, self.record.state.as_str()) {
            (true, _) => "running",
            (false, "running") => "interrupted",
            (false, state) => state,
        }
    }

    /// It has begun, and is neither done nor all that can be done.
    pub fn can_go_on(&self) -> bool {
        let needs_nothing = self.state() == "done" || self.has_never_begun() || self.is_beyond_help();
        self.running || !needs_nothing
    }

    fn can_continue(&self) -> bool {
        !matches!(self.state(), "running" | "done") && !self.has_never_begun() && !self.record.is_unreadable()
    }

    fn has_never_begun(&self) -> bool {
        !self.running && self.record.has_never_begun()
    }

    fn is_beyond_help(&self) -> bool {
        !self.running && self.record.is_beyond_help()
    }

    /// It ended long ago, and there is nothing to continue: it is done, or has never begun.
    fn is_of_the_past(&self, now: u64) -> bool {
        !self.can_go_on() && now.saturating_sub(self.record.updated) >= PAST_SECONDS
    }
}

/// What ended so long ago is shown when it is asked for.
const PAST_SECONDS: u64 = 86_400;

/// All transfers, and why some may be missing among them.
fn all() -> Result<(Vec<Found>, Option<Error>), Error> {
    let mut all: Vec<Found> = Vec::new();
    let mut wrong = None;
    for place in places()? {
        match below(&place.join("jobs")) {
            Ok(found) => all.extend(found),
            Err(error) => wrong = Some(error),
        }
    }
    if let Some(error) = wrong.take_if(|_| all.is_empty()) {
        return Err(error);
    }
    all.sort_by_key(|found| {
        std::cmp::Reverse((found.running, !found.record.is_unreadable(), found.record.updated))
    });
    let mut latest: HashMap<String, Found> = HashMap::new();
    for found in all {
        match latest.entry(found.record.job.clone()) {
            Entry::Occupied(mut known) => known.get_mut().older.push(found.directory),
            Entry::Vacant(place) => drop(place.insert(found)),
        }
    }
    let mut latest: Vec<Found> = latest.into_values().collect();
    // Those of one second in one order each time, too.
    latest.sort_by(|one, other| {
        (other.record.updated, &one.record.job).cmp(&(one.record.updated, &other.record.job))
    });
    Ok((latest, wrong))
}

/// The transfer of which the record is there.
pub fn at(directory: PathBuf) -> Option<Found> {
    let mut record = read_record(&directory)?;
    let running = is_running(&directory);
    record.look_at_progress(&directory, running);
    Some(Found { running, directory, record, older: Vec::new() })
}

fn below(jobs: &Path) -> Result<Vec<Found>, Error> {
    let entries = match std::fs::read_dir(jobs) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(Error::os(Code::StateDamaged, jobs.display().to_string(), &error)),
    };
    let entries = entries.flatten().filter(|entry| !is_gone(&entry.file_name()));
    Ok(entries.filter_map(|entry| at(entry.path()).or_else(|| unreadable(entry.path()))).collect())
}

/// The transfer that has its directory there, and a record that says nothing.
fn unreadable(directory: PathBuf) -> Option<Found> {
    let job = directory.file_name()?.to_str().filter(|name| unhex(name).is_some())?.to_owned();
    let error = known(&directory).err()?;
    let found = std::fs::metadata(directory.join("job.json")).or_else(|_| std::fs::metadata(&directory));
    let updated = found.map_or(0, |found| found.mtime());
    let record = Record::unreadable(job, &error, u64::try_from(updated).unwrap_or(0));
    Some(Found { running: is_running(&directory), directory, record, older: Vec::new() })
}

/// `haul status`
pub fn status(arguments: &options::Status) -> Result<u8, Error> {
    let wanted = arguments.job.as_deref().unwrap_or("");
    let (mut found, wrong) = all()?;
    found.retain(|found| found.record.job.starts_with(wanted));
    if found.is_empty() && !wanted.is_empty() {
        return Err(wrong.unwrap_or_else(|| no_such_transfer(wanted)));
    }
    let mut out = io::stdout().lock();
    let written = match arguments.json {
        true => found.iter().try_for_each(|found| writeln!(out, "{}", json_line(&event(found)))),
        false => list(&mut out, found, arguments.all || !wanted.is_empty()),
    };
    ended(written)?;
    // A script must not take what is told for all that there is.
    Ok(wrong.map_or(0, |error| {
        crate::report::error(&error);
        error.failure.code.exit()
    }))
}

fn event(found: &Found) -> serde_json::Value {
    let record = &found.record;
    let mut event = json!({
        "event": "job",
        "job": record.job,
        "state": found.state(),
        "can_continue": found.can_continue(),
        "sources": record.sources,
        "destination": record.destination,
        "sessions": record.sessions,
        "started": record.started,
        "updated": record.updated,
        "files_done": record.files_done,
        "files_total": record.files_total,
        "bytes_done": record.bytes_done,
        "bytes_total": record.bytes_total,
        "files_failed": record.files_failed,
        "error": record.error,
        "state_directory": found.directory.to_string_lossy(),
    });
    if found.directory.to_str().is_none() {
        event["state_directory_hex"] = hex(found.directory.as_os_str().as_encoded_bytes()).into();
    }
    // What people see is escaped.
    if let Some(paths) = record.paths.iter().map(|path| unhex(path)).collect::<Option<Vec<_>>>()
        && let Some((destination, sources)) = paths.split_last()
    {
        let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        event["sources"] = sources.iter().map(text).collect();
        event["destination"] = text(destination).into();
        if paths.iter().any(|path| std::str::from_utf8(path).is_err()) {
            event["sources_hex"] = sources.iter().map(|path| hex(path)).collect();
            event["destination_hex"] = hex(destination).into();
        }
    }
    event
}

/// For people; without `past` only how many there are that need nothing more.
fn list(out: &mut impl Write, mut found: Vec<Found>, past: bool) -> io::Result<()> {
    let known = found.len();
    let time = now();
    found.retain(|found| past || !found.is_of_the_past(time));
    let left_out = known - found.len();
    if known == 0 {
        writeln!(out, "no transfers")?;
    }
    for found in &found {
        let record = &found.record;
        writeln!(
            out,
            "{}  {:<11}  {} ago  {} of {}, {} of {}{}",
            shortened(record),
            found.state(),
            age(time.saturating_sub(record.updated)),
            record.files_done,
            counted(record.files_total, "file"),
            size(record.bytes_done),
            size(record.bytes_total),
            match record.files_failed {
                0 => String::new(),
                failed => format!("; {failed} failed"),
            },
        )?;
        if !record.is_unreadable() {
            writeln!(out, "    {} -> {}", record.sources.join(" "), record.destination)?;
        }
        if let Some(error) = record.error.as_ref().filter(|error| *error != found.state()) {
            writeln!(out, "    {error}")?;
        }
        if record.is_unreadable() {
            writeln!(
                out,
                "    to begin anew, see what DEST is by now, then: haul stop {} --discard",
                shortened(record)
            )?;
        } else if found.is_beyond_help() {
            writeln!(out, "    what failed is neither file, directory nor symlink: it cannot be copied")?;
        } else if found.can_continue() {
            writeln!(out, "    run the same command again to continue")?;
        }
    }
    if left_out > 0 {
        writeln!(out, "{left_out} ended a day or longer ago and need nothing more: haul status --all")?;
    }
    Ok(())
}

/// As much of the id as tells it from others.
fn shortened(record: &Record) -> &str {
    &record.job[..12.min(record.job.len())]
}

fn no_such_transfer(wanted: &str) -> Error {
    let about = format!("{}: no such transfer", show(wanted.as_bytes()));
    Error::new(Code::Usage, about).hint("haul status lists them")
}

fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// `haul stop`
pub fn stop(arguments: &options::Stop) -> Result<u8, Error> {
    if arguments.job.is_empty() {
        return Err(Error::new(Code::Usage, "the id of a transfer is empty").hint("haul status lists them"));
    }
    let (all, wrong) = all()?;
    wrong.iter().for_each(crate::report::error);
    let mut matching: Vec<_> =
        all.into_iter().filter(|found| found.record.job.starts_with(&arguments.job)).collect();
    let found = match (matching.pop(), matching.is_empty()) {
        (Some(found), true) => found,
        (Some(_), false) => {
            return Err(Error::new(Code::Usage, format!("{}: more than one transfer", arguments.job))
                .hint("give more of the id; haul status lists them"));
        }
        (None, _) => return Err(no_such_transfer(&arguments.job)),
    };
    let mut told = Vec::new();
    if found.running {
        end(&found.directory)?;
        told.push(stopped(&found.directory, arguments.discard));
    } else if !arguments.discard {
        told.push("not running");
    }
    let forgotten;
    if arguments.discard {
        let removed = discard(&found)?;
        forgotten = format!("forgotten{}", left(&found.record, &removed));
        told.push(&forgotten);
    }
    let mut out = io::stdout().lock();
    ended(told.iter().try_for_each(|line| writeln!(out, "{line}")))?;
    Ok(0)
}

/// It may have been done before it heard of it.
fn stopped(directory: &Path, discard: bool) -> &'static str {
    match read_record(directory) {
        Some(record) if record.state == "done" => "done before it was stopped",
        _ if discard => "stopped",
        _ => "stopped; run the same command again to continue",
    }
}

/// What is there no more of a transfer that is forgotten, or may still be.
fn left(record: &Record, removed: &Removed) -> String {
    let Record { destination, .. } = record;
    let mut told = String::new();
    if record.is_unreadable() {
        return "; unfinished files may be left where it copied to, with .haul- in their names".into();
    }
    if record.destination_here.is_some() {
        told = format!("; {} removed", counted(removed.count, "unfinished file"));
        let Some(failure) = removed.missed else { return told };
        let why = Error { failure, about: String::new(), hint: None };
        told.push_str(&format!(", but not all of it could be looked at ({why})"));
    }
    // Unfinished files are where complete ones will be.
    let place = match record.decision.as_deref() {
        Some("into") => format!("in {destination} or below it"),
        Some(_) => format!("beside {destination} or below it"),
        None => return told,
    };
    // By which whoever can reach them tells them from those of other transfers.
    let tag = record.instance.get(..12).unwrap_or_default();
    format!("{told}; unfinished files may be left {place}, with .haul-{tag} in their names")
}

/// Asks the process to end, and waits until it has.
fn end(directory: &Path) -> Result<(), Error> {
    use rustix::process::Signal;
    // Whoever took the lock a moment ago is about to write down who that is.
    let look = |_| {
        let found = runner(directory);
        if found.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        found
    };
    let Some(runner) = (0..100).find_map(look) else {
        return Err(Error::new(Code::AlreadyRunning, "a process has this transfer, and does not say which")
            .hint("one on another host is told of within half a minute"));
    };
    let Some(process) = runner.process() else {
        return match runner.is_here() {
            true if is_running(directory) => Err(another_goes_on(&runner)),
            // It has ended since.
            true => Ok(()),
            false if !is_running(directory) => Ok(()),
            false => Err(Error::new(Code::AlreadyRunning, runner.to_string()).hint("stop it there")),
        };
    };
    // Anybody may have written the number of any process into a file of their own.
    let of_lock = std::fs::metadata(directory.join("lock")).map(|found| found.uid()).ok();
    if user_of(runner.pid()).is_some_and(|user| Some(user) != of_lock) {
        let about = format!("{runner} is another user's than the state of this transfer");
        return Err(Error::new(Code::SystemRefused, about).hint("it was not ended"));
    }
    process
        .signal(Signal::TERM)
        .map_err(|errno| Error::os(Code::SystemRefused, format!("ending {runner}"), &errno.into()))?;
    // One that a terminal has stopped (Ctrl-Z) does not hear of it before it goes on.
    let _ = process.signal(Signal::CONT);
    let began = std::time::Instant::now();
    let (mut is_asked_again, mut another_since) = (false, None);
    while is_running(directory) {
        // Something may start it again before anybody sees that nobody has the lock. Others have it for a moment only.
        let is_another = process.has_ended() && self::runner(directory).is_some_and(|found| found != runner);
        let since = *another_since.get_or_insert_with(std::time::Instant::now);
        match is_another {
            true if since.elapsed() >= ANOTHER_GOES_ON_AFTER => return Err(another_goes_on(&runner)),
            true => {}
            false => another_since = None,
        }
        // It may wait for whoever reads what it prints. The second time it ends at once; what is durable is so.
        if began.elapsed() >= ASKED_AGAIN_AFTER && !std::mem::replace(&mut is_asked_again, true) {
            let _ = process.signal(Signal::TERM);
        }
        if began.elapsed() >= ENDS_WITHIN {
            return Err(Error::new(Code::AlreadyRunning, format!("{runner} does not end")));
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Ok(())
}

fn another_goes_on(ended: &Runner) -> Error {
    Error::new(Code::AlreadyRunning, format!("{ended} has ended, and another one goes on"))
        .hint("what starts it again has to end first")
}

/// How long one that is to stop may take, before it is told to stop at once, and in all.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(10);
const ENDS_WITHIN: Duration = Duration::from_secs(30);
const ANOTHER_GOES_ON_AFTER: Duration = Duration::from_secs(1);

/// Whose files it makes. (The owner of its directory in /proc is root where the program has capabilities.)
fn user_of(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().nth(3)?.parse().ok()
}

fn discard(found: &Found) -> Result<Removed, Error> {
    let places = || std::iter::once(&found.directory).chain(&found.older);
    // Nobody may begin again with what goes. Where there are no locks, nobody has one.
    let mut held = Vec::new();
    for directory in places() {
        match lock(directory) {
            Ok(lock) => held.push((directory, Some(lock))),
            Err(error) if error.failure.code == Code::AlreadyRunning => return Err(error),
            Err(_) => held.push((directory, None)),
        }
    }
    let mut removed = Removed::default();
    let instance = unhex(&found.record.instance).unwrap_or_default();
    if let (Some(path), Some(tag)) = (&found.record.destination_here, instance.get(..6)) {
        let destination = PathBuf::from(OsString::from_vec(unhex(path).unwrap_or_default()));
        let mut job_tag = [0; 6];
        job_tag.copy_from_slice(tag);
        removed = remove_leftovers(&found.record, &destination, job_tag);
    }
    for (directory, lock) in held {
        kin::forget(directory, &found.record);
        remove_directory(directory, lock)
            .map_err(|error| Error::os(Code::StateUnwritable, directory.display().to_string(), &error))?;
    }
    Ok(removed)
}

/// What came of removing unfinished files.
#[derive(Default)]
struct Removed {
    count: u64,
    /// There may be more: why that is not known, the first time.
    missed: Option<Failure>,
}

/// There is nothing there, or something else.
fn is_no_directory(failure: Failure) -> bool {
    use rustix::io::Errno;
    [Errno::NOENT, Errno::NOTDIR].iter().any(|errno| errno.raw_os_error() == failure.errno)
}

/// Where unfinished files of the job are, and whether also in all below.
fn where_unfinished(record: &Record, destination: &Path) -> Vec<(PathBuf, bool)> {
    let name = |source: &String| {
        match name_of(OsStr::new(source)) {
            // As it is shown it may be another name, or have the host in front.
            SourceName::Named(name) if !name.iter().any(|byte| b"\\:".contains(byte)) => {
                Some(destination.join(OsStr::from_bytes(&name)))
            }
            _ => None,
        }
    };
    let names: Option<Vec<PathBuf>> = record.sources.iter().map(name).collect();
    match (record.decision.as_deref(), names, destination.parent()) {
        // Much else may be below DEST.
        (Some("into"), Some(names), _) => {
            let below = names.into_iter().map(|name| (name, true));
            std::iter::once((destination.to_owned(), false)).chain(below).collect()
        }
        (Some("into"), None, _) | (_, _, None) => vec![(destination.to_owned(), true)],
        // The unfinished file of a single file lies beside its final name.
        (_, _, Some(parent)) => vec![(parent.to_owned(), false), (destination.to_owned(), true)],
    }
}

fn remove_leftovers(record: &Record, destination: &Path, job_tag: [u8; 6]) -> Removed {
    // What has the same token is the same file: its contents, and the hashes of its objects.
    let mut tokens = HashSet::new();
    let mut missed = None;
    for (number, (place, below)) in where_unfinished(record, destination).into_iter().enumerate() {
        let found =
            if below { leftovers(&place, Some(job_tag)) } else { leftovers_in(&place, Some(job_tag)) };
        let found = match found {
            Ok(found) => found,
            // It is a file, or was not made.
            Err(failure) if number > 0 && is_no_directory(failure) => {
                continue;
            }
            Err(failure) => {
                missed.get_or_insert(failure);
                continue;
            }
        };
        for leftover in found {
            match leftover.map_err(|(_, failure)| failure).and_then(|it| it.remove().map(|()| it.token)) {
                Ok(token) => _ = tokens.insert(token),
                Err(failure) => _ = missed.get_or_insert(failure),
            }
        }
    }
    Removed { count: tokens.len() as u64, missed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_files_are_looked_for_where_the_transfer_makes_them() {
        let places = |sources: &[&str], decision: Option<&str>| {
            let record = json!({
                "version": 1, "job": "", "instance": "", "sources": sources, "destination": "",
                "destination_here": null, "decision": decision, "state": "failed", "started": 1, "updated": 1,
                "sessions": 1,
            });
            let places = where_unfinished(&serde_json::from_value(record).unwrap(), Path::new("/big/dest"));
            let shown = |(place, below): (PathBuf, bool)| {
                format!("{}{}", place.display(), if below { "/*" } else { "" })
            };
            places.into_iter().map(shown).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(places(&["/a/b", "host:c/d/"], Some("into")), "/big/dest /big/dest/b/* /big/dest/d/*");
        // What the name is cannot be told from what is shown, or there is none.
        for source in ["/data/run_2026-11-28T12:30:00", "host:run", "/a/b\\\\c", "/a/.", "/"] {
            assert_eq!(places(&[source], Some("into")), "/big/dest/*", "{source}");
        }
        for decision in [Some("as"), None] {
            assert_eq!(places(&["/a/b"], decision), "/big /big/dest/*");
        }
    }

    #[test]
    fn what_needs_nothing_more_is_of_the_past_after_a_day() {
        let found = |state: &str, sessions, files_total, running| {
            let record = json!({
                "version": 1, "job": "", "instance": "", "sources": [], "destination": "",
                "destination_here": null, "decision": null, "state": state, "started": 1000,
                "updated": 1000, "sessions": sessions, "files_total": files_total,
            });
            Found {
                directory: PathBuf::new(),
                older: Vec::new(),
                record: serde_json::from_value(record).unwrap(),
                running,
            }
        };
        let later = 1000 + PAST_SECONDS;
        for (state, sessions, files_total, running, expected) in [
            ("done", 1, 5, false, true),
            ("failed", 1, 0, false, true),
            ("failed", 2, 0, false, false),
            ("failed", 1, 5, false, false),
            ("incomplete", 1, 5, false, false),
            ("running", 1, 5, false, false),
            ("running", 1, 0, true, false),
        ] {
            let found = found(state, sessions, files_total, running);
            assert_eq!(found.is_of_the_past(later), expected, "{state} {sessions} {files_total}");
            assert!(!found.is_of_the_past(later - 1));
        }
    }
}
