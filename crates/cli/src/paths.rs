//! Paths and names of any bytes: as the user types them, and as they are shown.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use haul_model::Code;
use haul_mover::Error;
use haul_storage::sink::SourceName;
use serde::Serialize;

/// A SOURCE or DEST as it was typed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// On this host.
    Here(OsString),
    /// On another, reached by ssh.
    There {
        /// `[user@]host`, as typed.
        host: String,
        /// Relative to the home directory there, unless absolute.
        path: OsString,
    },
}

impl Place {
    /// As scp reads it: a colon before any slash separates a host. `./a:b` is a path.
    pub fn parse(text: &OsStr) -> Result<Place, Error> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(Error::new(Code::Usage, "a path is empty"));
        }
        let colon = colon(bytes);
        let Some(colon) = colon else { return Ok(Place::Here(text.to_owned())) };
        let shown = show(bytes);
        let host = std::str::from_utf8(&bytes[..colon])
            .map_err(|_| Error::new(Code::Usage, format!("{shown}: a host name is text")))?;
        // A host that begins with a dash would be an option to ssh, which is given an address without its brackets.
        let bare = host.replace(['[', ']'], "");
        let wrong = bare.starts_with('-')
            || bare.contains(|c: char| c.is_whitespace() || c.is_control())
            || bare.rsplit('@').next().is_none_or(|name| name.is_empty() || name.starts_with('-'));
        if wrong {
            return Err(Error::new(Code::Usage, format!("{shown}: not a host name"))
                .hint(format!("a file of this name is ./{shown}")));
        }
        let path = match &bytes[colon + 1..] {
            b"" => b".",
            path => path,
        };
        // The home directory of somebody else, to whoever types it; haul asks no shell for it.
        if path.starts_with(b"~") && !matches!(path, [_] | [_, b'/', ..]) {
            let name = show(path);
            return Err(Error::new(Code::Usage, format!("{shown}: only ~ and ~/... are known"))
                .hint(format!("say where that is; a file of this name is {host}:./{name}")));
        }
        Ok(Place::There { host: host.to_owned(), path: OsStr::from_bytes(path).to_owned() })
    }

    /// The name that it gets in a directory. A home directory on another host has none that is known here.
    pub fn name(&self) -> SourceName {
        match name_of(self.path()) {
            SourceName::Named(name) if name == b"~" && self.is_home_there() => SourceName::Contents,
            name => name,
        }
    }

    fn is_home_there(&self) -> bool {
        let Place::There { path, .. } = self else { return false };
        path.as_bytes().strip_prefix(b"~").is_some_and(|rest| rest.iter().all(|byte| *byte == b'/'))
    }

    /// The path, wherever it is.
    pub fn path(&self) -> &OsStr {
        match self {
            Place::Here(path) | Place::There { path, .. } => path,
        }
    }
}

/// `[::1]:path` and `user@[::1]:path` hold colons that are part of the host.
fn colon(bytes: &[u8]) -> Option<usize> {
    let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
    let head = &bytes[..slash];
    let from = match head.iter().position(|byte| *byte == b'[') {
        Some(open) if open == 0 || head[open - 1] == b'@' => {
            open + head[open..].iter().position(|byte| *byte == b']').unwrap_or(0)
        }
        _ => 0,
    };
    head[from..].iter().position(|byte| *byte == b':').map(|colon| from + colon)
}

/// The name that a SOURCE gets in a directory: its last component, or its contents alone for `src/.`.
pub fn name_of(path: &OsStr) -> SourceName {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let start = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match &bytes[start..end] {
        b"" | b"." | b".." => SourceName::Contents,
        name => SourceName::Named(name.to_vec()),
    }
}

/// Relative paths count from the working directory. Nothing is resolved: a symlink may point elsewhere next time.
pub fn absolute(path: &OsStr) -> Result<PathBuf, Error> {
    let path = PathBuf::from(path);
    if path.is_absolute() {
        return Ok(path);
    }
    let here = std::env::current_dir()
        .map_err(|error| Error::os(Code::SourceMissing, "the working directory", &error))?;
    // Not `join` and not `canonicalize`: a trailing `/.` has a meaning.
    let mut bytes = here.into_os_string().into_vec();
    bytes.push(b'/');
    bytes.extend_from_slice(path.as_os_str().as_bytes());
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}

/// For a terminal or a log: control characters, escapes and bytes that are no text cannot do anything.
pub fn show(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => shown.push_str("\\\\"),
                c => push_harmless(&mut shown, c),
            }
        }
        chunk.invalid().iter().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
    }
    shown
}

/// The same of text in which paths may stand as they are; what was shown already stays.
pub fn harmless(text: &str) -> String {
    let mut shown = String::new();
    text.chars().for_each(|c| push_harmless(&mut shown, c));
    shown
}

/// What another program has said, which may be no text: backslashes and tabs are its own.
pub fn said(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == '\t' { shown.push(c) } else { push_harmless(&mut shown, c) }
        }
        chunk.invalid().iter().for_each(|byte| shown.push_str(&format!("\\x{byte:02x}")));
    }
    shown
}

fn push_harmless(shown: &mut String, c: char) {
    match c {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        c if is_shown_by_number(c) => shown.push_str(&format!("\\u{{{:x}}}", c as u32)),
        c => shown.push(c),
    }
}

/// One line of JSON. What would do something to a terminal is written as `\uXXXX`, also where JSON itself allows it as it is.
pub fn json(value: &impl Serialize) -> String {
    let mut line = Vec::new();
    write_json(&mut line, value).expect("what is told has only plain values");
    String::from_utf8(line).expect("JSON is text")
}

/// The same, however long it is.
pub fn write_json(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    value.serialize(&mut serde_json::Serializer::with_formatter(out, Harmless)).map_err(io::Error::from)
}

struct Harmless;

impl serde_json::ser::Formatter for Harmless {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, mut text: &str) -> io::Result<()> {
        while let Some((at, c)) = text.char_indices().find(|(_, c)| is_shown_by_number(*c)) {
            out.write_all(&text.as_bytes()[..at])?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            text = &text[at + c.len_utf8()..];
        }
        out.write_all(text.as_bytes())
    }
}

fn is_shown_by_number(c: char) -> bool {
    c.is_control() || is_invisible(c)
}

/// Characters that reorder or hide text.
pub fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Hexadecimal, for bytes within JSON.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Back from [`hex`].
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_said_stays_as_it_was_but_does_nothing() {
        assert_eq!(said(b"CORP\\alice@host:\tdenied"), "CORP\\alice@host:\tdenied");
        assert_eq!(said(b"\x1b[2J\xff\r"), "\\u{1b}[2J\\xff\\r");
    }

    #[test]
    fn json_has_nothing_that_does_something_to_a_terminal_and_says_the_same() {
        let name = "a\u{9b}2J\u{7f}\u{202e}\u{1b}\n\u{feff}ü\u{1f300}\u{e0041}\u{61c}";
        let line = json(&serde_json::json!({ name: name }));
        assert!(!line.contains(is_shown_by_number), "{line:?}");
        assert!(line.contains("ü\u{1f300}\\udb40\\udc41"), "what is only text stays: {line}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&line).unwrap(),
            serde_json::json!({ name: name })
        );
    }

    fn parse(text: &str) -> Result<Place, Error> {
        Place::parse(OsStr::new(text))
    }

    #[test]
    fn a_colon_before_any_slash_is_a_host() {
        let there = |host: &str, path: &str| Place::There { host: host.into(), path: path.into() };
        assert_eq!(parse("host:dir/x").unwrap(), there("host", "dir/x"));
        assert_eq!(parse("me@host:").unwrap(), there("me@host", "."));
        assert_eq!(parse("[::1]:/x").unwrap(), there("[::1]", "/x"));
        assert_eq!(parse("me@[fe80::1]:x:y").unwrap(), there("me@[fe80::1]", "x:y"));
        for path in ["x", "./a:b", "/a:b", "dir/a:b", "[x]"] {
            assert_eq!(parse(path).unwrap(), Place::Here(path.into()), "{path}");
        }
        let dashes = ["-oProxyCommand=id:x", "a@-b:x", "[-oProxyCommand=id]:x", "a@[-b]:x", "[[-b]]:x"];
        for wrong in ["", ":x", "a b:x", "@:x", "a@:x", "[]:x"].iter().chain(&dashes) {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_as_cp_takes_them() {
        let named = |name: &str| SourceName::Named(name.as_bytes().to_vec());
        for (path, name) in [("a/b", "b"), ("a/b/", "b"), ("b//", "b"), ("/b", "b")] {
            assert_eq!(name_of(OsStr::new(path)), named(name), "{path}");
        }
        for path in [".", "/", "a/.", "a/..", "..", "a/./"] {
            assert_eq!(name_of(OsStr::new(path)), SourceName::Contents, "{path}");
        }
    }

    #[test]
    fn a_home_directory_elsewhere_gives_its_contents() {
        let name = |text: &str| Place::parse(OsStr::new(text)).unwrap().name();
        for home in ["host:", "host:~", "host:~/", "host:~//", "host:~/."] {
            assert_eq!(name(home), SourceName::Contents, "{home}");
        }
        for (path, named) in [("host:~/data", "data"), ("host:a/~", "~"), ("./~", "~")] {
            assert_eq!(name(path), SourceName::Named(named.into()), "{path}");
        }
    }

    #[test]
    fn what_is_shown_cannot_control_a_terminal() {
        assert_eq!(show(b"a\nb\x1b[31m\xff\xc2\x9b"), "a\\nb\\u{1b}[31m\\xff\\u{9b}");
        assert_eq!(show("naïve \u{202e}".as_bytes()), "naïve \\u{202e}");
    }

    #[test]
    fn bytes_survive_hex() {
        assert_eq!(unhex(&hex(b"\x00\xffz")), Some(b"\x00\xffz".to_vec()));
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("+f"), None);
    }
}
