//! The user's layout file: what no file system tells. Its format is in `docs/spec/layout-file.md`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use haul_model::layout::{STRIPE_BYTES_MIN, STRIPE_BYTES_WHOLE, Stripes};
use haul_model::limits::OBJECT_BYTES_MIN;
use haul_model::{Layout, TargetId, size};

use super::mounts::unescaped;
use super::targets::NAME_BYTES_MAX;
use super::{Answer, Domain, Kind, LayoutSource, Subject, TARGETS_MAX, Targets};

/// Bytes of a layout file.
const FILE_BYTES_MAX: u64 = 1 << 20;
const RULES_MAX: usize = 4096;

/// Where files are, as the user says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutFile {
    /// By prefix without slash at its end; `/` is empty.
    rules: HashMap<Vec<u8>, Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// 0: not striped.
    stripe_size: u64,
    targets: Vec<String>,
}

/// A layout file that is not one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutFileError {
    /// Which file.
    pub path: PathBuf,
    /// From 1; 0 where it is about all of it.
    pub line: usize,
    /// Why.
    pub reason: String,
}

impl fmt::Display for LayoutFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.reason),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.reason),
        }
    }
}

impl std::error::Error for LayoutFileError {}

impl LayoutFile {
    /// Reads one.
    pub fn read(path: &Path) -> Result<LayoutFile, LayoutFileError> {
        let fail = |line, reason| LayoutFileError { path: path.to_owned(), line, reason };
        let mut text = Vec::new();
        let file = File::open(path).map_err(|error| fail(0, error.to_string()))?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|error| fail(0, error.to_string()))?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(fail(0, format!("a layout file has at most {FILE_BYTES_MAX} bytes")));
        }
        LayoutFile::parse(&text).map_err(|(line, reason)| fail(line, reason))
    }

    /// From its bytes; else the line, from 1, and the reason.
    pub fn parse(text: &[u8]) -> Result<LayoutFile, (usize, String)> {
        let mut file = LayoutFile::default();
        let mut names = HashSet::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let fail = |reason: String| (index + 1, reason);
            let fields =
                line.split(|byte| matches!(byte, b' ' | b'\t' | b'\r')).filter(|field| !field.is_empty());
            let fields: Vec<_> = fields.take_while(|field| field[0] != b'#').map(unescaped).collect();
            let Some((first, rest)) = fields.split_first() else { continue };
            let prefix = prefix(first).map_err(fail)?;
            let rule = rule(rest).map_err(fail)?;
            names.extend(rule.targets.iter().cloned());
            if names.len() > TARGETS_MAX {
                return Err(fail(format!("more than {TARGETS_MAX} targets")));
            }
            if file.rules.len() >= RULES_MAX {
                return Err(fail(format!("more than {RULES_MAX} lines with a path")));
            }
            if file.rules.insert(prefix, rule).is_some() {
                return Err(fail("this path has a line already".into()));
            }
        }
        Ok(file)
    }

    /// The rule of the longest prefix.
    fn rule(&self, path: &[u8]) -> Option<&Rule> {
        let ends = (0..path.len()).rev().filter(|end| path[*end] == b'/');
        std::iter::once(path.len()).chain(ends).find_map(|end| self.rules.get(&path[..end]))
    }
}

impl LayoutSource for LayoutFile {
    fn kind(&self) -> Kind {
        Kind::File
    }

    fn layout(&self, file: &Subject<'_>, targets: &Targets) -> Answer {
        let Some(rule) = file.path.and_then(|path| self.rule(path)) else { return Answer::Unknown };
        let ids: Vec<TargetId> = rule.targets.iter().map(|name| targets.id(Domain::Host, name)).collect();
        let stripes = match (rule.stripe_size, &*ids) {
            (0, [target]) => Some(Stripes::one(*target)),
            _ => Stripes::round_robin(rule.stripe_size, ids),
        };
        stripes.map_or(Answer::Unknown, |stripes| Answer::Found(Layout::whole(stripes)))
    }
}

fn prefix(field: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "a line begins with an absolute path without . and ..".to_owned();
    let path = field.strip_prefix(b"/").ok_or_else(wrong)?;
    if path.is_empty() {
        return Ok(Vec::new());
    }
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let names = path.split(|byte| *byte == b'/');
    if names.into_iter().any(|name| matches!(name, b"" | b"." | b"..") || name.contains(&0)) {
        return Err(wrong());
    }
    Ok([b"/", path].concat())
}

fn rule(fields: &[Vec<u8>]) -> Result<Rule, String> {
    let (stripe_size, names) = fields.split_first().ok_or("a stripe size or - is missing behind the path")?;
    let stripe_size = match &**stripe_size {
        b"-" if names.len() > 1 => return Err("more than one target needs a stripe size".into()),
        b"-" => 0,
        text => {
            let bytes = size::parse(&String::from_utf8_lossy(text))?;
            match bytes {
                // Objects are powers of two, and would lie across the edges of its stripes.
                STRIPE_BYTES_WHOLE.. if !bytes.is_multiple_of(u64::from(OBJECT_BYTES_MIN)) => {
                    return Err("a stripe size from 1MiB on is a multiple of 64KiB (4MiB, not 4MB)".into());
                }
                STRIPE_BYTES_MIN..=0x0010_0000_0000 => bytes,
                _ => return Err("a stripe size is 4KiB to 64GiB, or - for none".into()),
            }
        }
    };
    if names.is_empty() {
        return Err("no target is named".into());
    }
    let name = |bytes: &Vec<u8>| {
        let name = String::from_utf8(bytes.clone()).ok().filter(|name| !name.chars().any(char::is_control));
        name.filter(|name| name.len() <= NAME_BYTES_MAX)
            .ok_or_else(|| format!("a target is named by at most {NAME_BYTES_MAX} bytes of text"))
    };
    Ok(Rule { stripe_size, targets: names.iter().map(name).collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# what the file systems do not tell
/scratch          4MiB  ost0 ost1 ost2   # three of them
/scratch/small/   -     ost0
/a\\040b\t64k x y\r

/                 -     rest
";

    #[test]
    fn the_longest_prefix_of_whole_names_counts() {
        let file = LayoutFile::parse(FILE.as_bytes()).unwrap();
        for (path, targets) in [
            ("/scratch/file", &["ost0", "ost1", "ost2"][..]),
            ("/scratch", &["ost0", "ost1", "ost2"]),
            ("/scratch/small", &["ost0"]),
            ("/scratch/small/deep/file", &["ost0"]),
            ("/scratch/smaller", &["ost0", "ost1", "ost2"]),
            ("/scratchy/file", &["rest"]),
            ("/a b/c", &["x", "y"]),
            ("/", &["rest"]),
        ] {
            assert_eq!(file.rule(path.as_bytes()).unwrap().targets, targets, "{path}");
        }
        assert_eq!(LayoutFile::parse(b"/a - x\n").unwrap().rule(b"/b/a"), None);
        assert_eq!(LayoutFile::parse(b"").unwrap(), LayoutFile::default());
    }

    #[test]
    fn a_wrong_line_is_named_with_its_reason() {
        for (text, line, word) in [
            ("\n\nrelative - x", 3, "absolute"),
            ("/a/../b - x", 1, "absolute"),
            ("/a//b - x", 1, "absolute"),
            ("// - x", 1, "absolute"),
            ("/a", 1, "stripe size"),
            ("/a -", 1, "no target"),
            ("/a 4MiB", 1, "no target"),
            ("/a - x y", 1, "more than one target"),
            ("/a 1KiB x y", 1, "4KiB"),
            ("/a 65GiB x y", 1, "64GiB"),
            ("/a 4MB x y", 1, "64KiB"),
            ("/a 4XB x y", 1, "no such unit"),
            ("/a - x\n/b - x\n/a/ - y", 3, "already"),
            ("/a - x\\000", 1, "text"),
            ("/a\\000 - x", 1, "absolute"),
            ("/a 4MiB \u{7f}", 1, "text"),
        ] {
            let (at, reason) = LayoutFile::parse(text.as_bytes()).unwrap_err();
            assert!(at == line && reason.contains(word), "{text:?}: {at}: {reason}");
        }
        assert!(LayoutFile::parse(b"/a - \xff").unwrap_err().1.contains("text"));
        let many: String = (0..=RULES_MAX).map(|number| format!("/{number} - x\n")).collect();
        assert_eq!(LayoutFile::parse(many.as_bytes()).unwrap_err().0, RULES_MAX + 1);
        let many: String = (0..=TARGETS_MAX).map(|number| format!(" t{number}")).collect();
        assert!(LayoutFile::parse(format!("/ 1m{many}").as_bytes()).unwrap_err().1.contains("targets"));
    }

    #[test]
    fn a_file_that_is_too_large_or_missing_is_named() {
        let error = LayoutFile::read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!((error.line, &*error.path), (0, Path::new("/dev/zero")));
        let error = LayoutFile::read(Path::new("/no/such")).unwrap_err();
        assert!(error.to_string().starts_with("/no/such: "), "{error}");
    }
}
