//! The greeting over ssh: one line of JSON each way, behind a mark that no login message has.
//!
//! The initiator says what the session is; the far end says where it listens, or why it cannot. Fingerprints and the
//! one-time key of clear streams travel here and nowhere else: never in arguments, environment or logs.

use std::io::{BufRead, Write};
use std::num::NonZeroU64;

use haul_model::{Code, Failure, HashKind, Place};
use haul_mover::Error;
use haul_storage::engine::Wish;
use serde::{Deserialize, Serialize};

use crate::bench::Measure;
use crate::paths::is_invisible;
use crate::within::Mark;

/// Begins each line of the greeting, which may follow a login message that has no line end (the title of a terminal).
const MARK: &str = "HAUL1 ";
/// Of what the other end says this much is shown.
const TOLD_CHARACTERS_MAX: usize = 2000;
/// More than this is no greeting.
pub const LINE_BYTES_MAX: u64 = 64 << 20;
/// What a far end says is short; only the initiator has many SOURCEs to name.
pub const ANSWER_BYTES_MAX: usize = 1 << 20;

/// What the initiator says first.
#[derive(Serialize, Deserialize, Debug)]
pub struct Request {
    /// Version of the program.
    pub haul: String,
    /// Versions of the protocol, oldest and newest.
    pub protocol: (u16, u16),
    /// What the far end is: `source` or `sink`.
    pub role: String,
    /// Hex.
    pub job: String,
    /// Hex.
    pub instance: String,
    /// Hex.
    pub session: String,
    /// The initiator's boot, and when it was started since then, in nanoseconds.
    #[serde(default)]
    pub started: Option<(String, u64)>,
    /// Of the initiator's certificate.
    pub fingerprint: String,
    /// Of clear data streams; none when everything is encrypted. Hex.
    pub key: Option<String>,
    /// Data streams.
    pub streams: u16,
    /// Ports that the far end may listen on.
    pub ports: (u16, u16),
    /// The far end listens (else it waits to be told where to dial).
    pub listen: bool,
    /// Paths of the SOURCEs at the source (hex).
    pub sources: Vec<String>,
    /// Names of the SOURCEs (hex); none: contents only.
    pub names: Vec<Option<String>>,
    /// DEST at the sink (hex).
    pub destination: String,
    /// `into` or `as`, if an earlier session has decided it.
    pub decision: Option<String>,
    /// The one SOURCE is no directory, at an initiator that reads.
    #[serde(default)]
    pub file: bool,
    /// The one SOURCE is a directory that is copied with all that is in it, at an initiator that reads.
    #[serde(default)]
    pub tree: bool,
    /// Something else than a directory is at DEST, at an initiator that writes.
    #[serde(default)]
    pub stands: bool,
    /// At an initiator that reads, of the SOURCEs: those of directories; at one that writes, of DEST and what is above it.
    #[serde(default)]
    pub marks: Vec<Option<Mark>>,
    /// `-r`
    pub recursive: bool,
    /// `-p`
    pub preserve: bool,
    /// Choices.
    pub tuning: TuningWords,
    /// Of `haul bench`: not a transfer of files.
    #[serde(default)]
    pub measure: Measure,
}

/// [`haul_mover::Tuning`], and the log's.
#[derive(Serialize, Deserialize, Debug, Clone)]
#[allow(missing_docs)]
pub struct TuningWords {
    pub object_bytes: u32,
    pub slots: u32,
    /// Nobody has said how much memory is to be used at most.
    #[serde(default)]
    pub memory_grows: bool,
    pub io_threads: usize,
    pub io_threads_max: usize,
    pub congestion: String,
    /// How objects are read and written there.
    #[serde(default = "auto")]
    pub engine: String,
    /// Through the page cache or not.
    #[serde(default = "auto")]
    pub io: String,
    #[serde(default)]
    pub congestion_threshold_nanos: Option<u64>,
    #[serde(default)]
    pub congestion_skips: Option<u32>,
    #[serde(default)]
    pub hang_after: Option<u64>,
    /// Other transfers on the far host are ignored.
    #[serde(default)]
    pub alone: bool,
    /// Threads there run where the kernel likes.
    #[serde(default)]
    pub unplaced: bool,
    #[serde(default)]
    pub stripe: Option<String>,
    /// A directory at the source, in hex.
    #[serde(default)]
    pub spill: Option<String>,
    #[serde(default)]
    pub spill_max: Option<u64>,
    /// How contents are hashed.
    #[serde(default = "blake3")]
    pub hash: String,
    pub bundle_bytes_max: u64,
    pub reconnect_seconds: u64,
    pub report_done: bool,
    pub bandwidth: Option<NonZeroU64>,
    /// `none`: no log.
    pub log_mechanism: String,
    pub log_method: String,
    pub log_transaction_files: u32,
    pub log_writer: String,
    pub log_required: bool,
}

/// What the far end answers.
#[derive(Serialize, Deserialize, Debug)]
pub struct Response {
    /// Version of the program.
    pub haul: String,
    /// Of the far end's certificate.
    pub fingerprint: String,
    /// Where it listens; 0 if it does not.
    pub port: u16,
    /// Under which addresses it was reached.
    pub addresses: Vec<String>,
    /// Epochs of this session are above this.
    pub epoch: u32,
    /// `into` or `as`, at a sink.
    pub decision: Option<String>,
    /// How contents are hashed there: both ends must do it alike.
    #[serde(default = "blake3")]
    pub hash: String,
}

/// What is chosen where nobody says.
fn auto() -> String {
    Wish::default().words().0.into()
}

/// What ends do that say nothing of it.
fn blake3() -> String {
    HashKind::Blake3.name().into()
}

/// The far end cannot.
#[derive(Serialize, Deserialize, Debug)]
pub struct Refusal {
    code: u16,
    errno: i32,
    about: String,
    hint: Option<String>,
}

impl From<&Error> for Refusal {
    fn from(error: &Error) -> Self {
        Refusal {
            code: error.failure.code as u16,
            errno: error.failure.errno,
            about: error.about.clone(),
            hint: error.hint.clone(),
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let code = Code::from_number(refusal.code).unwrap_or(Code::Internal);
        let (about, hint) = (told(&refusal.about), refusal.hint.as_deref().map(told));
        // It was noticed there.
        Error { failure: Failure { code, errno: refusal.errno, place: Place::default() }, about, hint }
    }
}

/// What the other end says, as it may be shown on a terminal: it does not move the cursor, and has an end. An honest one has
/// escaped the paths in it already, so nothing is escaped again.
pub fn told(text: &str) -> String {
    text.chars().take(TOLD_CHARACTERS_MAX).map(|c| if is_harmless(c) { c } else { '?' }).collect()
}

fn is_harmless(c: char) -> bool {
    !c.is_control() && !is_invisible(c)
}

/// What travels in a line.
#[derive(Serialize, Deserialize, Debug)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Initiator, first.
    Request(Box<Request>),
    /// Far end, as soon as it has read the request: whatever takes long from now on is not the way to it.
    Reached {},
    /// Far end.
    Response(Response),
    /// Far end, instead.
    Refusal(Refusal),
    /// Initiator, later: the far end is to dial this port of the initiator.
    Dial {
        /// Of the initiator.
        port: u16,
    },
}

/// Writes one line.
pub fn write(mut out: impl Write, line: &Line) -> std::io::Result<()> {
    let text = serde_json::to_string(line).expect("a line has only plain values");
    out.write_all(format!("{MARK}{text}\n").as_bytes())?;
    out.flush()
}

/// Reads the next line of the greeting, of so many bytes at most, and passes over everything else (login messages). `None` at the
/// end.
pub fn read_at_most(from: &mut impl BufRead, most: usize) -> Result<Option<Line>, Error> {
    let mut bytes = Vec::new();
    let mut budget = LINE_BYTES_MAX;
    while budget > 0 {
        bytes.clear();
        let mut limited = std::io::Read::take(&mut *from, budget);
        let count = limited
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Error::os(Code::SshFailed, "reading from ssh", &error))?;
        if count == 0 {
            return Ok(None);
        }
        budget -= count as u64;
        if let Some(text) = marked(&bytes) {
            if text.len() > most {
                return Err(Error::new(Code::LimitExceeded, "the greeting of the other end is too long"));
            }
            return serde_json::from_slice(text).map(Some).map_err(|_| {
                Error::new(Code::PeerVersion, "the greeting of the other end cannot be read")
                    .hint("install the same version of haul on both hosts")
            });
        }
    }
    Err(Error::new(Code::LimitExceeded, "ssh printed too much before the greeting"))
}

/// The same, however long it is.
pub fn read(from: &mut impl BufRead) -> Result<Option<Line>, Error> {
    read_at_most(from, LINE_BYTES_MAX as usize)
}

/// What follows the mark, if it is in the line.
fn marked(line: &[u8]) -> Option<&[u8]> {
    let at = line.windows(MARK.len()).position(|part| part == MARK.as_bytes())?;
    Some(&line[at + MARK.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of all fields, also of those within.
    fn fields(value: &serde_json::Value) -> Vec<String> {
        let serde_json::Value::Object(fields_here) = value else { return Vec::new() };
        fields_here.iter().flat_map(|(name, value)| [vec![name.clone()], fields(value)].concat()).collect()
    }

    #[test]
    fn each_field_is_specified() {
        let tuning = TuningWords {
            object_bytes: 1 << 20,
            slots: 2,
            memory_grows: false,
            io_threads: 1,
            io_threads_max: 1,
            congestion: "adaptive".into(),
            engine: auto(),
            io: auto(),
            congestion_threshold_nanos: None,
            congestion_skips: None,
            hang_after: None,
            alone: false,
            unplaced: false,
            stripe: None,
            spill: None,
            spill_max: None,
            hash: blake3(),
            bundle_bytes_max: 0,
            reconnect_seconds: 0,
            report_done: false,
            bandwidth: None,
            log_mechanism: "none".into(),
            log_method: String::new(),
            log_transaction_files: 1,
            log_writer: String::new(),
            log_required: false,
        };
        let request = Request {
            haul: String::new(),
            protocol: (1, 1),
            role: "sink".into(),
            job: String::new(),
            instance: String::new(),
            session: String::new(),
            started: None,
            fingerprint: String::new(),
            key: None,
            streams: 1,
            ports: (0, 0),
            listen: true,
            sources: Vec::new(),
            names: Vec::new(),
            destination: String::new(),
            decision: None,
            file: false,
            tree: true,
            stands: true,
            marks: Vec::new(),
            recursive: false,
            preserve: false,
            tuning,
            measure: Measure::default(),
        };
        let response = Response {
            haul: String::new(),
            fingerprint: String::new(),
            port: 0,
            addresses: Vec::new(),
            epoch: 0,
            decision: None,
            hash: blake3(),
        };
        let refusal = Refusal { code: 0, errno: 0, about: String::new(), hint: None };
        let lines = [
            Line::Request(Box::new(request)),
            Line::Response(response),
            Line::Refusal(refusal),
            Line::Dial { port: 1 },
            Line::Reached {},
        ];
        let page = include_str!("../../../docs/spec/greeting.md");
        let names: Vec<String> =
            lines.iter().flat_map(|line| fields(&serde_json::to_value(line).unwrap())).collect();
        assert!(names.len() > 60, "{names:?}");
        for name in names {
            assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/spec/greeting.md");
        }
    }

    #[test]
    fn a_login_message_without_a_line_end_is_passed_over() {
        let mut bytes = b"Welcome!\n\x1b]0;title\x07HAUL ".to_vec();
        write(&mut bytes, &Line::Dial { port: 7 }).unwrap();
        let mut from = &bytes[..];
        assert!(matches!(read(&mut from), Ok(Some(Line::Dial { port: 7 }))));
        assert!(matches!(read(&mut from), Ok(None)));
    }

    #[test]
    fn login_messages_are_passed_over() {
        let mut bytes = b"Welcome to host!\n\xff\xfe\n".to_vec();
        write(&mut bytes, &Line::Dial { port: 7 }).unwrap();
        bytes.extend_from_slice(b"more\n");
        let mut from = &bytes[..];
        assert!(matches!(read(&mut from), Ok(Some(Line::Dial { port: 7 }))));
        assert!(matches!(read(&mut from), Ok(None)));
    }

    #[test]
    fn a_refusal_does_nothing_to_the_terminal() {
        let about = format!("\x1b]0;title\x07\u{202e}\r\nname {}", "x".repeat(10_000));
        let refusal = Refusal { code: 53, errno: 0, about, hint: Some("\x1b[2J".into()) };
        let error = Error::from(refusal);
        assert!(error.about.starts_with("?]0;title????name x") && error.about.len() == TOLD_CHARACTERS_MAX);
        assert_eq!(error.hint.as_deref(), Some("?[2J"));
        // Nor is it said to have been noticed here; a later version may have codes that this one does not know.
        for code in [Code::Internal as u16, 999] {
            let error = Error::from(Refusal { code, errno: 0, about: "none".into(), hint: None });
            assert!(!error.to_string().contains("noticed"), "{error}");
        }
    }

    #[test]
    fn an_answer_that_is_longer_than_any_is_not_read() {
        let addresses = "\"\",".repeat(ANSWER_BYTES_MAX / 3) + "\"\"";
        let line = format!(
            "HAUL1 {{\"response\":{{\"haul\":\"1\",\"fingerprint\":\"\",\"port\":1,\"addresses\":[{addresses}],\"epoch\":1,\"decision\":null}}}}\n"
        );
        assert!(matches!(read(&mut line.as_bytes()), Ok(Some(Line::Response(_)))));
        let error = read_at_most(&mut line.as_bytes(), ANSWER_BYTES_MAX).unwrap_err();
        assert_eq!(error.failure.code, Code::LimitExceeded);
    }

    #[test]
    fn a_greeting_that_cannot_be_read_is_another_version() {
        let mut from = &b"HAUL1 {\"hello\":1}\n"[..];
        assert_eq!(read(&mut from).unwrap_err().failure.code, Code::PeerVersion);
    }
}
