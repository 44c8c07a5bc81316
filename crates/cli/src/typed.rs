//! Paths of reports as the user would name them: what stands at an end is told with what was typed for that end.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use haul_model::Blame;
use haul_mover::Error;
use haul_storage::sink::{Decision, SourceName};

use crate::paths::{name_of, show};
use crate::plan::{Direction, Plan};

/// What was typed. Without it paths are as reports have them: below the destination, or with its own name before them.
#[derive(Default)]
pub struct Typed {
    /// SOURCEs, each with the label that its entries are reported under.
    sources: Vec<(Box<[u8]>, Vec<u8>)>,
    destination: Option<Vec<u8>>,
    /// DEST's own name, if paths begin with it.
    own_name: Vec<u8>,
}

impl Typed {
    /// Of a plan whose SOURCEs have these labels.
    pub fn new(plan: &Plan, decision: Decision, labels: &[Box<[u8]>]) -> Typed {
        let (source_host, sink_host) = match &plan.direction {
            Direction::Local => (None, None),
            Direction::Push(host) => (None, Some(host)),
            Direction::Pull(host) => (Some(host), None),
        };
        let typed = |host: Option<&String>, path: &OsStr| match host {
            Some(host) => [host.as_bytes(), b":", path.as_bytes()].concat(),
            None => path.as_bytes().to_vec(),
        };
        let sources = plan.sources.iter().map(|path| typed(source_host, path));
        let own_name = match (decision, name_of(&plan.destination)) {
            (Decision::As, SourceName::Named(name)) => name,
            _ => Vec::new(),
        };
        Typed {
            sources: labels.iter().cloned().zip(sources).collect(),
            destination: Some(typed(sink_host, &plan.destination)),
            own_name,
        }
    }

    /// What is read under this path; none where it cannot be told which SOURCE is meant.
    pub fn at_source(&self, path: &[u8]) -> Option<Vec<u8>> {
        let mut found =
            self.sources.iter().filter_map(|(label, typed)| Some(below(typed, rest(path, label)?)));
        found.next().filter(|_| found.next().is_none())
    }

    /// What is written under this path.
    pub fn at_destination(&self, path: &[u8]) -> Option<Vec<u8>> {
        Some(below(self.destination.as_ref()?, rest(path, &self.own_name)?))
    }

    /// What ends a transfer, with DEST where that is all that is known to be to blame.
    pub fn error(&self, error: Error) -> Error {
        match &self.destination {
            Some(typed) if error.about.is_empty() && error.failure.code.blame() == Blame::Sink => {
                Error { about: show(typed), ..error }
            }
            _ => error,
        }
    }
}

/// What of the path comes after its beginning.
fn rest<'a>(path: &'a [u8], beginning: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(beginning)?;
    if beginning.is_empty() || rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn below(typed: &[u8], rest: &[u8]) -> Vec<u8> {
    if rest.is_empty() {
        return typed.to_vec();
    }
    let typed = typed.strip_suffix(b"/.").unwrap_or(typed);
    let typed = typed.strip_suffix(b"/").unwrap_or(typed);
    [typed, b"/", rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(sources: &[(&str, &str)], destination: &str, own_name: &str) -> Typed {
        let bytes = |text: &str| text.as_bytes().to_vec();
        let sources = sources.iter().map(|(label, typed)| (bytes(label).into(), bytes(typed)));
        Typed { sources: sources.collect(), destination: Some(bytes(destination)), own_name: bytes(own_name) }
    }

    #[test]
    fn a_path_is_below_what_was_typed() {
        let shown = |path: Option<Vec<u8>>| path.map(|path| String::from_utf8(path).unwrap());
        for (label, source, destination, own_name, path, at_source, at_destination) in [
            ("a", "x/a", "d", "", "a/f", "x/a/f", "d/a/f"),
            ("a", "x/a/", "h:d/", "", "a/f", "x/a/f", "h:d/a/f"),
            ("", "x/.", "d", "", "f", "x/f", "d/f"),
            ("d", "h:x/a", "y/d", "d", "d/d/f", "h:x/a/d/f", "y/d/d/f"),
            ("d", "x/a", "y/d", "d", "d", "x/a", "y/d"),
            ("a", "/a", "/", "", "a/f", "/a/f", "/a/f"),
            ("a", "a", ".", "", "a/f", "a/f", "./a/f"),
        ] {
            let typed = typed(&[(label, source)], destination, own_name);
            assert_eq!(shown(typed.at_source(path.as_bytes())).as_deref(), Some(at_source));
            assert_eq!(shown(typed.at_destination(path.as_bytes())).as_deref(), Some(at_destination));
        }
        let two = typed(&[("", "x/."), ("", "y/.")], "d", "");
        assert_eq!(two.at_source(b"f"), None, "it may be of either");
        assert_eq!(shown(two.at_destination(b"f")).as_deref(), Some("d/f"));
        assert_eq!(typed(&[("a", "x/a")], "d", "").at_source(b"ab/f"), None);
        assert_eq!(Typed::default().at_destination(b"a/f"), None);
    }
}
