//! `haul explain`: what a copy would do, each setting with its origin, and what it would refuse at once. Nothing is contacted and nothing
//! is changed.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use haul_model::Code;
use haul_model::limits::SLOTS_MAX;
use haul_mover::Error;
use haul_storage::sink::{Decision, SinkRoot};
use haul_storage::source::is_lent;
use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;
use serde_json::json;

use crate::alike;
use crate::ends::{read_layout_file, spill_error};
use crate::engines;
use crate::job::{Record, directory, places, read_record, state_directory};
use crate::options::{Congestion, Copy, HashWord, LogMechanism, Seating};
use crate::paths::json as json_line;
use crate::placement;
use crate::plan::{
    Direction, Plan, check_can_become, check_tree_can_become, decision, is_file, is_something_else, is_tree,
    root_error,
};
use crate::report::{self, ended, locked};
use crate::session::lends;
use crate::settings::{Settings, slots_far_here};
use crate::ssh::split_command;
use crate::told::{counted, size};
use crate::within;

/// Where this transfer is kept, and what is known of it.
fn known(plan: &Plan) -> Result<(PathBuf, Option<Record>), Error> {
    let state = state_directory()?;
    let places = places()?.into_iter().map(|place| directory(&place, &plan.id));
    let all = places.filter_map(|job| read_record(&job).map(|record| (job, record)));
    let latest = all.max_by_key(|(_, record)| record.updated);
    Ok(latest.map_or((directory(&state, &plan.id), None), |(job, record)| (job, Some(record))))
}

/// `haul explain`
pub fn explain(arguments: &Copy) -> Result<u8, Error> {
    let plan = match Plan::new(arguments) {
        Ok(plan) => plan,
        Err(error) => return Ok(report::not_begun(&error)),
    };
    let settings = &plan.settings;
    let way = match &plan.direction {
        Direction::Local => "both ends in this process".to_owned(),
        Direction::Push(host) => format!("this host reads, {host} writes (started through ssh)"),
        Direction::Pull(host) => format!("{host} reads (started through ssh), this host writes"),
    };
    if let Err(error) = alike::check(&plan.id, &plan.typed_otherwise) {
        return Ok(report::not_begun(&error));
    }
    let (job, record) = known(&plan)?;
    let earlier = match &record {
        Some(record) => {
            let state =
                crate::status::at(job.clone()).map_or(record.state.clone(), |found| found.state().to_owned());
            let goes_on = if state == "running" { "" } else { "; it continues" };
            format!("{state}, {} so far{goes_on}", counted(record.sessions, "session"))
        }
        None => "new".into(),
    };
    let mut rows = vec![
        ("job".to_owned(), plan.id.to_string(), earlier),
        ("from".into(), plan.about.sources_shown().join(", "), String::new()),
        ("to".into(), plan.about.destination_shown(), String::new()),
        ("ends".into(), way, String::new()),
        ("state".into(), crate::paths::show(job.as_os_str().as_encoded_bytes()), String::new()),
    ];
    let mut row = |name: &str, value: String, origin: String| rows.push((name.into(), value, origin));
    macro_rules! setting {
        ($name:literal, $field:ident, $value:expr) => {
            row($name, $value, settings.$field.origin.to_string())
        };
    }
    setting!("object-size", object_bytes, size(settings.object_bytes.value));
    let mut tuning = settings.tuning(false);
    let wanted = tuning.slots;
    // The second end finds what the first one has left. Nothing stays of either.
    let ends = if plan.direction == Direction::Local { 2 } else { 1 };
    let pools = (0..ends).map(|_| tuning.pool(wanted)).collect::<Result<Vec<_>, Error>>();
    let pools = pools.map(|pools| {
        let told = pools.iter().map(|pool| (pool.count(), pool.bytes(), pool.locked_bytes()));
        told.min().unwrap_or_default()
    });
    tuning.slots = pools.as_ref().map_or(wanted, |(count, ..)| wanted.min(*count));
    let (least, most) = (tuning.slots_least(), tuning.slots);
    let of_slots = |slots: u32| size(u64::from(slots) * u64::from(tuning.object_bytes));
    // No end has more slots than that.
    let (is_cut, is_short) = (most == SLOTS_MAX, most < wanted);
    let bytes = if is_cut || is_short { of_slots(most) } else { size(settings.memory.value) };
    let slots = format!("at most {bytes} ({least} to {most} slots, as the path needs)");
    let far = match &plan.direction {
        _ if !settings.memory_grows() => String::new(),
        _ if is_cut || is_short => String::new(),
        Direction::Local => String::new(),
        Direction::Push(host) => format!("; {host} more, if the network is long and it has the memory"),
        Direction::Pull(_) => match slots_far_here(most, tuning.object_bytes) {
            far if far == most => "; more would not fit here".into(),
            far => format!("; here up to {}, if the network is long", of_slots(far)),
        },
    };
    let bound = match (is_cut, is_short) {
        (true, _) => "; no end has more slots",
        (_, true) => "; as this process may have few addresses (ulimit -v)",
        _ => "",
    };
    setting!("memory", memory, slots + &far + bound);
    let buffers = match &pools {
        Ok((_, bytes, locked_bytes)) => locked(*bytes, *locked_bytes),
        Err(error) => error.to_string(),
    };
    row("buffers", buffers, "here".into());
    let bundle = match tuning.bundle_bytes_max {
        below if below < settings.bundle_below.value => {
            format!("{}, as an object holds no more", size(below))
        }
        below => size(below),
    };
    setting!("bundle-below", bundle_below, bundle);
    setting!("io-threads", io_threads, settings.io_threads.value.to_string());
    let (engine, io) = settings.engines().words();
    setting!("engine", engine, engine.to_owned());
    setting!("io", io, io.to_owned());
    let wish = settings.engines();
    let lent = lends(&plan) && plan.sources.iter().all(|source| is_lent(Path::new(source)));
    let end = |path: &Path| match lent {
        true => "from file to file, without buffers where the kernel can".to_owned(),
        false => engines::forecast(wish, path),
    };
    if !matches!(plan.direction, Direction::Pull(_))
        && let Some(source) = plan.sources.first()
    {
        row("  reading here", end(Path::new(source)), String::new());
    }
    if let Some(destination) = &plan.about.destination_here {
        row("  writing here", end(destination), String::new());
    }
    let stripe =
        settings.stripe.value.as_ref().map_or("as at the source, or by size".into(), ToString::to_string);
    setting!("stripe", stripe, stripe);
    if let Some(file) = &settings.layout_file.value {
        setting!("layout-file", layout_file, file.display().to_string());
    }
    if let Some(directory) = &settings.spill.value {
        setting!("spill", spill, directory.display().to_string());
        let max = settings.spill_max.value.map_or("half of what is free there".into(), size);
        setting!("spill-max", spill_max, max);
    }
    let after = settings.hang_after.value.map_or("as measured".into(), |after| format!("{after} s"));
    setting!("hang-after", hang_after, after);
    setting!("congestion", congestion, format!("{:?}", settings.congestion.value).to_lowercase());
    let measured = || "as measured".to_owned();
    if matches!(settings.congestion.value, Congestion::Adaptive | Congestion::Lads) {
        let threshold = settings.congestion_threshold.value.map_or_else(measured, |time| time.to_string());
        setting!("congestion-threshold", congestion_threshold, threshold);
    }
    if settings.congestion.value == Congestion::Lads {
        let skips = settings.congestion_skips.value.map_or_else(measured, |skips| skips.to_string());
        setting!("congestion-skips", congestion_skips, skips);
    }
    setting!("neighbours", neighbours, format!("{:?}", settings.neighbours.value).to_lowercase());
    setting!("topology", topology, format!("{:?}", settings.topology.value).to_lowercase());
    if settings.topology.value == Seating::Auto {
        let told = placement::explained(&plan);
        let line = placement::line(&told);
        row("placement", line, {
            let told = told.reached.into_iter().chain(told.trouble);
            told.map(|line| crate::paths::show(line.as_bytes())).collect::<Vec<_>>().join("; ")
        });
    }
    setting!("streams", streams, settings.streams.value.to_string());
    let bandwidth =
        settings.bandwidth.value.map_or("no limit".into(), |rate| format!("{}/s", size(rate.get())));
    setting!("bandwidth", bandwidth, bandwidth);
    setting!("log-mechanism", log_mechanism, format!("{:?}", settings.log_mechanism.value).to_lowercase());
    if settings.log_mechanism.value == LogMechanism::Transaction {
        setting!(
            "log-transaction-files",
            log_transaction_files,
            settings.log_transaction_files.value.to_string()
        );
    }
    if settings.log_mechanism.value != LogMechanism::None {
        setting!("log-method", log_method, format!("{:?}", settings.log_method.value).to_lowercase());
        setting!("log-writer", log_writer, format!("{:?}", settings.log_writer.value).to_lowercase());
        setting!("log-required", log_required, settings.log_required.value.to_string());
    }
    if plan.direction != Direction::Local {
        let encryption = if settings.plain.value {
            "data in CLEAR text; control encrypted; streams authenticated"
        } else {
            "TLS 1.3, both certificates pinned over ssh"
        };
        setting!("plain", plain, encryption.into());
        let (first, last) = settings.ports.value;
        let ports = if first == 0 { "any".into() } else { format!("{first} to {last}") };
        setting!("port-range", ports, ports);
        setting!("listen", listen, format!("{:?}", settings.listen.value).to_lowercase());
        setting!("reconnect", reconnect, format!("{} s", settings.reconnect.value));
        setting!("ssh", ssh, settings.ssh.value.clone());
        setting!("haul-path", haul_path, settings.haul_path.value.clone());
    }
    setting!("hash", hash, hashing(settings, lent));
    row("durability", "an object is acknowledged when it is durable".into(), "always".into());
    ended(show(&rows, arguments.json))?;
    let earlier = record.and_then(|record| record.decision);
    let checked = plan
        .check_policy()
        .and_then(|()| crate::job::known(&job).map(drop))
        .and_then(|()| pools.map(drop))
        .and_then(|()| check_state(&plan))
        .and_then(|()| check_ssh(&plan))
        .and_then(|()| check_files_of_settings(&plan))
        .and_then(|()| check_destination(&plan, earlier.as_deref()));
    let decided = match checked {
        Ok(decided) => decided,
        Err(error) => return Ok(report::not_begun(&error)),
    };
    let mut refused: Vec<Error> = match plan.direction {
        Direction::Pull(_) => Vec::new(),
        _ => plan.sources.iter().filter_map(|source| refused(source, plan.recursive)).collect(),
    };
    let there = Path::new(&plan.destination).symlink_metadata();
    if decided == Some(Decision::As) && there.is_ok_and(|there| is_special(there.file_type())) {
        refused.push(Error::new(Code::SinkSpecial, crate::paths::show(plan.destination.as_bytes())));
    }
    refused.iter().for_each(report::error);
    Ok(refused.first().map_or(0, |error| error.failure.code.exit()))
}

/// Where the log must be kept, what keeps it from that, as far as it is seen without writing.
fn check_state(plan: &Plan) -> Result<(), Error> {
    if !plan.settings.log_required.value {
        return Ok(());
    }
    let job = directory(&state_directory()?, &plan.id);
    let nearest = job.ancestors().find(|place| place.symlink_metadata().is_ok()).unwrap_or(&job);
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let written = rustix::fs::open(nearest, flags, Mode::empty())
        .and_then(|_held| rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK));
    written.map_err(|error| {
        let error = std::io::Error::from(error);
        Error::os(Code::StateUnwritable, crate::paths::show(job.as_os_str().as_bytes()), &error)
            .hint(haul_mover::owner::state_hint(&error))
    })
}

fn check_ssh(plan: &Plan) -> Result<(), Error> {
    if plan.direction == Direction::Local {
        return Ok(());
    }
    split_command(&plan.settings.ssh.value).map(drop)
}

/// What a copy would find wrong with DEST before anything else, as far as that is seen from here; else what DEST means.
fn check_destination(plan: &Plan, earlier: Option<&str>) -> Result<Option<Decision>, Error> {
    let local = plan.direction == Direction::Local;
    if local && plan.recursive {
        within::check_here(&plan.sources, &plan.destination)?;
    }
    if matches!(plan.direction, Direction::Push(_)) {
        if plan.names.len() > 1 {
            let into = Path::new(&plan.destination);
            SinkRoot::check_names(into, Decision::Into, &plan.names)
                .map_err(|failure| root_error(&failure))?;
        }
        return Ok(None);
    }
    let file = local && is_file(&plan.sources, plan.recursive);
    let decided = decision(&plan.destination, &plan.names, file || (!local && plan.is_one_file()), earlier)?;
    check_can_become(&plan.destination, file, decided)?;
    let (tree, stands) =
        (local && is_tree(&plan.sources, plan.recursive), is_something_else(&plan.destination));
    check_tree_can_become(&plan.destination, decided, tree, stands)?;
    SinkRoot::open(Path::new(&plan.destination), decided, &plan.names)
        .map_err(|failure| root_error(&failure))?;
    Ok(Some(decided))
}

/// What a copy would find wrong with a layout file or a spill directory on this host.
fn check_files_of_settings(plan: &Plan) -> Result<(), Error> {
    let Settings { layout_file, spill, .. } = &plan.settings;
    layout_file.value.as_deref().map(read_layout_file).transpose()?;
    match &spill.value {
        Some(directory) if !matches!(plan.direction, Direction::Pull(_)) => {
            let denied = |error: Errno| spill_error(directory, &error.into());
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(directory, flags, Mode::empty()).map_err(denied)?;
            rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(denied)
        }
        _ => Ok(()),
    }
}

/// Why a copy would name this SOURCE and leave it out.
fn refused(source: &OsStr, recursive: bool) -> Option<Error> {
    let path = Path::new(source);
    let found = if recursive { path.symlink_metadata() } else { path.metadata() };
    let about = || crate::paths::show(source.as_bytes());
    match found {
        Ok(found) if found.is_dir() && !recursive => Some(Error::new(Code::SourceDirectory, about())),
        Ok(found) if is_special(found.file_type()) => Some(Error::new(Code::UnsupportedKind, about())),
        Ok(found) if found.is_symlink() => None,
        Ok(_) => match rustix::fs::access(path, Access::READ_OK) {
            Err(error @ Errno::ACCESS) => Some(Error::os(Code::SourcePermission, about(), &error.into())),
            _ => None,
        },
        Err(error) => {
            let denied = error.kind() == io::ErrorKind::PermissionDenied;
            let code = if denied { Code::SourcePermission } else { Code::SourceMissing };
            Some(Error::os(code, about(), &error))
        }
    }
}

fn is_special(kind: std::fs::FileType) -> bool {
    !(kind.is_file() || kind.is_dir() || kind.is_symlink())
}

fn show(rows: &[(String, String, String)], json: bool) -> io::Result<()> {
    let width = rows.iter().map(|(_, value, _)| value.chars().count()).max().unwrap_or(0).min(48);
    let mut out = io::stdout().lock();
    if json {
        return rows.iter().try_for_each(|(name, value, origin)| {
            let event = json!({"event": "setting", "name": name.trim(), "value": value, "origin": origin});
            writeln!(out, "{}", json_line(&event))
        });
    }
    for (name, value, origin) in rows {
        let origin = if origin.is_empty() { String::new() } else { format!("  ({origin})") };
        writeln!(out, "{name:<21} {value:<width$}{origin}")?;
    }
    Ok(())
}

/// How contents are checked; those that are `lent` reach no other process.
fn hashing(settings: &Settings, lent: bool) -> String {
    let kind = match settings.hash.value {
        HashWord::Blake3 => "BLAKE3",
        HashWord::Xxh3 => "XXH3",
        HashWord::None => return "none: what arrives is NOT compared with what was read".into(),
    };
    let bundled = size(settings.tuning(false).bundle_bytes_max);
    match lent {
        true => format!("{kind} of files over {bundled}, of what has arrived; smaller ones are not hashed"),
        false => format!("{kind} over every object, checked before it is written"),
    }
}
