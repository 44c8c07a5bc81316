//! From the command line to a job: what goes where, under which names. Parsing and planning do nothing yet.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use haul_model::limits::SOURCES_MAX;
use haul_model::{Code, JobId};
use haul_mover::Error;
use haul_storage::sink::{Decision, Destination, RootFailure, SourceName, decide, probe};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use crate::alike::{Otherwise, typed_otherwise};
use crate::bench::Measure;
use crate::job::{self, About, Identity, spelled, this_host};
use crate::kin::Kin;
use crate::options::Copy;
use crate::paths::{Place, absolute, name_of, show};
use crate::settings::Settings;

/// Which way the data goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Both ends in this process.
    Local,
    /// To this host.
    Push(String),
    /// From this host.
    Pull(String),
}

/// A copy, planned.
#[derive(Debug)]
pub struct Plan {
    /// With their origins.
    pub settings: Settings,
    /// Which way.
    pub direction: Direction,
    /// Paths at the source.
    pub sources: Vec<OsString>,
    /// Their names at the sink.
    pub names: Vec<SourceName>,
    /// Path at the sink.
    pub destination: OsString,
    /// What its record says of it.
    pub about: About,
    /// Which job it is.
    pub id: JobId,
    /// And would be, if the paths were typed in another way.
    pub typed_otherwise: Otherwise,
    /// `-r`
    pub recursive: bool,
    /// `-p`
    pub preserve: bool,
    /// `-v`
    pub verbose: bool,
    /// A file of this host with a colon in its name, which was taken for a place on another one.
    pub colon_here: Option<String>,
    /// Of `haul bench`.
    pub measure: Measure,
}

impl Plan {
    /// A host that cannot be reached may be none.
    pub fn doubt_host(&self, error: Error) -> Error {
        use Code::{HostUnknown, HostUnreachable, SshFailed};
        match &self.colon_here {
            Some(name) if [HostUnknown, HostUnreachable, SshFailed].contains(&error.failure.code) => {
                error.hint(format!("a file of that name is here: ./{name}"))
            }
            _ => error,
        }
    }

    /// Of this command line.
    pub fn new(arguments: &Copy) -> Result<Plan, Error> {
        let settings = Settings::resolve(arguments)?;
        let mut places: Vec<Place> =
            arguments.paths.iter().map(|path| Place::parse(path)).collect::<Result<_, _>>()?;
        let destination = places.pop().ok_or_else(|| Error::new(Code::Usage, "no DEST"))?;
        if places.is_empty() {
            let about = format!(
                "{}: a DEST to copy it to is missing",
                crate::paths::show(destination.path().as_bytes())
            );
            return Err(Error::new(Code::Usage, about));
        }
        if places.len() > SOURCES_MAX {
            return Err(Error::new(Code::Usage, format!("more than {SOURCES_MAX} SOURCEs")));
        }
        let colon_here = places.iter().chain([&destination]).find_map(colon_here);
        let direction = direction(&places, &destination).map_err(|error| match &colon_here {
            Some(name) => error.hint(format!("a file of the name {name} is here: ./{name}")),
            None => error,
        })?;
        let sources = places.iter().map(key).collect::<Result<Vec<_>, Error>>()?;
        let here: Vec<&Place> = places.iter().chain([&destination]).collect();
        let of_this_host = here.iter().any(|place| is_of_this_host(place));
        let here: Vec<PathBuf> = here.into_iter().filter_map(here_at).collect();
        let identity = Identity {
            sources,
            destination: key(&destination)?,
            recursive: arguments.recursive,
            preserve: arguments.preserve,
            host: of_this_host.then(this_host),
        };
        let kin = Kin::of(&identity, here.iter().map(PathBuf::as_path));
        let own = identity.id();
        let known_as = kin.as_ref().and_then(|kin| kin.known_as(&job::places().ok()?, &own));
        let destination_here = match direction {
            Direction::Push(_) => None,
            Direction::Local | Direction::Pull(_) => absolute(destination.path()).ok(),
        };
        Ok(Plan {
            id: known_as.unwrap_or(own),
            typed_otherwise: typed_otherwise(&identity),
            about: About {
                sources: identity.sources.iter().map(|(host, path)| spelled(host, path)).collect(),
                destination: spelled(identity.destination.0, &identity.destination.1),
                destination_here,
                recursive: arguments.recursive,
                kin,
            },
            names: places.iter().map(Place::name).collect(),
            sources: places.iter().map(|place| place.path().to_owned()).collect(),
            destination: destination.path().to_owned(),
            direction,
            settings,
            recursive: arguments.recursive,
            preserve: arguments.preserve,
            verbose: arguments.verbose,
            colon_here,
            measure: Measure::default(),
        })
    }
}

fn colon_here(place: &Place) -> Option<String> {
    let Place::There { host, path } = place else { return None };
    let name = spelled(host, path.as_bytes());
    Path::new(OsStr::from_bytes(&name)).symlink_metadata().is_ok().then(|| show(&name))
}

fn here_at(place: &Place) -> Option<PathBuf> {
    let Place::Here(path) = place else { return None };
    absolute(path).ok()
}

/// Is it, or will it be, on a file system that no other host has? There, the same path is another place.
fn is_of_this_host(place: &Place) -> bool {
    let found =
        here_at(place).and_then(|path| path.ancestors().find_map(haul_storage::local::is_of_one_host));
    found.unwrap_or(false)
}

/// Host and path as they count for the job's id.
fn key(place: &Place) -> Result<(&str, Vec<u8>), Error> {
    match place {
        Place::Here(path) => Ok(("", absolute(path)?.into_os_string().into_vec())),
        Place::There { host, path } => Ok((host.as_str(), path.as_bytes().to_vec())),
    }
}

fn direction(sources: &[Place], destination: &Place) -> Result<Direction, Error> {
    let usage = |about: &str| Err(Error::new(Code::Usage, about));
    let mut hosts = sources.iter().map(|source| match source {
        Place::Here(_) => None,
        Place::There { host, .. } => Some(host),
    });
    let first = hosts.next().flatten();
    if hosts.any(|host| host != first) {
        return usage("all SOURCEs must be on the same host; copy the others with a second command");
    }
    match (first, destination) {
        (None, Place::Here(_)) => Ok(Direction::Local),
        (None, Place::There { host, .. }) => Ok(Direction::Push(host.clone())),
        (Some(host), Place::Here(_)) => Ok(Direction::Pull(host.clone())),
        (Some(_), Place::There { .. }) => {
            usage("one of SOURCE and DEST must be on this host; run haul on one of the two hosts")
        }
    }
}

impl Plan {
    /// The one SOURCE, wherever it is, can be copied only if it is no directory.
    pub fn is_one_file(&self) -> bool {
        self.sources.len() == 1 && !self.recursive
    }

    /// May data of this host leave it as the command says?
    pub fn check_policy(&self) -> Result<(), Error> {
        if self.settings.plain.value && self.direction != Direction::Local {
            crate::policy::check_plain()?;
        }
        Ok(())
    }
}

/// What DEST means: as an earlier session decided, else as cp would. `file` as [`is_file`] says it, or, where that is not known,
/// [`Plan::is_one_file`].
pub fn decision(
    destination: &OsStr,
    names: &[SourceName],
    file: bool,
    earlier: Option<&str>,
) -> Result<Decision, Error> {
    let failed = |failure: RootFailure| root_error(&failure);
    let path = PathBuf::from(destination);
    Ok(match earlier {
        Some("into") => Decision::Into,
        // What was a directory then may be a file now; and a file does not become a directory that was made since.
        Some("as") if !(file && (ends_in_slash(destination) || path.is_dir())) => Decision::As,
        _ => {
            let there: Destination = probe(&path).map_err(failed)?;
            decide(&path, there, names).map_err(failed)?
        }
    })
}

/// A file goes into `DEST/`, and never becomes it.
pub fn check_can_become(destination: &OsStr, file: bool, decided: Decision) -> Result<(), Error> {
    if decided == Decision::As && file && ends_in_slash(destination) {
        let failure = RootFailure { failure: Code::SinkMissing.into(), path: PathBuf::from(destination) };
        return Err(root_error(&failure));
    }
    Ok(())
}

/// A tree becomes a directory, and never takes the place of something else that stands at DEST.
pub fn check_tree_can_become(
    destination: &OsStr,
    decided: Decision,
    tree: bool,
    stands: bool,
) -> Result<(), Error> {
    if decided == Decision::As && tree && stands {
        let path = PathBuf::from(destination);
        return Err(root_error(&RootFailure { failure: Code::SinkNotDirectory.into(), path }));
    }
    Ok(())
}

/// Something else than a directory is at DEST, on this host.
pub fn is_something_else(destination: &OsStr) -> bool {
    probe(Path::new(destination)) == Ok(Destination::Other)
}

/// The one SOURCE, on this host, is a directory that is copied with all that is in it.
pub fn is_tree(sources: &[OsString], recursive: bool) -> bool {
    let [source] = sources else { return false };
    recursive && Path::new(source).symlink_metadata().is_ok_and(|found| found.is_dir())
}

fn ends_in_slash(path: &OsStr) -> bool {
    path.as_bytes().ends_with(b"/")
}

/// The one SOURCE, on this host, is something else than a directory. One that is not there is nothing yet.
pub fn is_file(sources: &[OsString], recursive: bool) -> bool {
    let [source] = sources else { return false };
    let source = Path::new(source);
    // With `-r` a symlink is copied as a link.
    let found = if recursive { source.symlink_metadata() } else { source.metadata() };
    found.is_ok_and(|found| !found.is_dir())
}

/// For the record and the greeting.
pub fn decision_of(word: &str) -> Option<Decision> {
    [Decision::Into, Decision::As].into_iter().find(|decision| decision_word(*decision) == word)
}

pub fn decision_word(decision: Decision) -> &'static str {
    match decision {
        Decision::Into => "into",
        Decision::As => "as",
    }
}

/// For people: what is wrong with DEST, and what would help.
pub fn root_error(failure: &RootFailure) -> Error {
    let about = crate::paths::show(failure.path.as_os_str().as_bytes());
    let hint = match failure.failure.code {
        // As it is shown it may be another name.
        Code::SinkMissing if about.as_bytes() != failure.path.as_os_str().as_bytes() => {
            Some("make that directory first".into())
        }
        Code::SinkMissing => {
            let dashes = if about.starts_with('-') { "-- " } else { "" };
            Some(format!("make it first: mkdir -p {dashes}{}", quoted_here(&about)))
        }
        Code::SinkNotDirectory => Some("name a directory as DEST, or a new name".into()),
        Code::Usage => Some("copy them to different directories".into()),
        Code::SinkPermission if is_not_listed(&failure.path) => Some(
            "you may write to it, but not list it, which haul has to: chmod +r, or choose another directory"
                .into(),
        ),
        Code::SinkPermission => Some("choose a directory that you may write to".into()),
        Code::SystemRefused => Some("allow more open files (ulimit -n)".into()),
        _ => None,
    };
    let about = match failure.failure.code {
        Code::Usage => format!("{about}: two SOURCEs have the same name"),
        _ => about,
    };
    // A destination that cannot be used fails the whole job, whatever the row says of single files.
    Error { failure: failure.failure, about, hint }
}

/// A directory in which things can be made, and not be seen.
fn is_not_listed(path: &Path) -> bool {
    let may = |access| accessat(CWD, path, access, AtFlags::EACCESS).is_ok();
    may(Access::WRITE_OK | Access::EXEC_OK) && !may(Access::READ_OK)
}

/// For a shell on the host of the path, which is to take it as it stands.
fn quoted_here(path: &str) -> String {
    match path.starts_with('~') {
        true => crate::ssh::quoted(&format!("./{path}")),
        false => crate::ssh::quoted(path),
    }
}

/// What the other end refuses is to be put right there, but for what is wrong with the command, and for DEST where it is here.
pub fn error_of_host(host: &str, push: bool, error: Error) -> Error {
    use Code::{LogUnwritable, StateUnwritable, Superseded, Usage};
    use Code::{PeerVersion, SinkMissing, SinkNotDirectory, SinkPermission, SinkReadOnly, SinkSpecial};
    match error.failure.code {
        Usage | PeerVersion | Superseded => error,
        StateUnwritable | LogUnwritable => {
            let hint = error.hint.as_deref().unwrap_or("make it writable");
            let hint = match hint.ends_with("HAUL_STATE_DIR") {
                true => format!("on {host}, {hint} (in a script there that --haul-path names)"),
                false => format!("on {host}, {hint}"),
            };
            Error { about: format!("{host}:{}", error.about), ..error }.hint(hint)
        }
        SinkMissing | SinkNotDirectory | SinkPermission | SinkReadOnly | SinkSpecial if !push => error,
        SinkMissing | SinkNotDirectory | SinkPermission | SinkReadOnly | SinkSpecial => Error {
            about: format!("{host}:{}", error.about),
            hint: error.hint.map(|hint| format!("on {host}, {hint}")),
            ..error
        },
        _ => Error { about: format!("{host}: {}", error.about), ..error },
    }
}

/// Under which names the SOURCEs stand below the destination, in reports and in the log.
pub fn labels(decision: Decision, names: &[SourceName], destination: &OsStr) -> Vec<Box<[u8]>> {
    let label = |name: &SourceName| match (decision, name) {
        (Decision::Into, SourceName::Named(name)) => name.as_slice().into(),
        (Decision::Into, SourceName::Contents) => Box::default(),
        (Decision::As, _) => match name_of(destination) {
            SourceName::Named(name) => name.into(),
            SourceName::Contents => Box::default(),
        },
    };
    names.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        Place::parse(OsStr::new(text)).unwrap()
    }

    #[test]
    fn one_side_may_be_remote_and_all_sources_are_on_one_host() {
        let way = |sources: &[&str], destination: &str| {
            let sources: Vec<_> = sources.iter().map(|source| place(source)).collect();
            direction(&sources, &place(destination))
        };
        assert_eq!(way(&["a", "b"], "c").unwrap(), Direction::Local);
        assert_eq!(way(&["a"], "h:c").unwrap(), Direction::Push("h".into()));
        assert_eq!(way(&["h:a", "h:b"], "c").unwrap(), Direction::Pull("h".into()));
        for (sources, destination) in [(&["h:a", "b"][..], "c"), (&["h:a", "g:b"], "c"), (&["h:a"], "g:b")] {
            assert_eq!(way(sources, destination).unwrap_err().failure.code, Code::Usage);
        }
    }

    #[test]
    fn labels_are_the_names_that_exist_below_the_destination() {
        let names = [SourceName::Named(b"a".to_vec()), SourceName::Contents];
        let into = labels(Decision::Into, &names, OsStr::new("d"));
        assert_eq!(into, [Box::from(b"a".as_slice()), Box::default()]);
        assert_eq!(labels(Decision::As, &names[..1], OsStr::new("x/d/")), [Box::from(b"d".as_slice())]);
    }
}
