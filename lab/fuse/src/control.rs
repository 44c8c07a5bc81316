//! Commands by text on a Unix socket: one a line in, one answer a line out, beginning with `ok` or `error`.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

/// Longest command line in bytes.
const LINE_BYTES_MAX: u64 = 4096;

/// Runs a command. Both texts are one line, for people.
pub trait Execute: Fn(&str) -> Result<String, String> + Send + Sync + 'static {}

impl<F: Fn(&str) -> Result<String, String> + Send + Sync + 'static> Execute for F {}

/// Answers every connection, each on a thread of its own, until the listener fails.
pub fn serve(listener: &UnixListener, execute: impl Execute) {
    let execute = Arc::new(execute);
    for stream in listener.incoming() {
        let Ok(stream) = stream else { return };
        let execute = Arc::clone(&execute);
        // A client that goes away takes nothing with it.
        std::thread::spawn(move || converse(stream, &*execute));
    }
}

fn converse(stream: UnixStream, execute: &impl Execute) -> std::io::Result<()> {
    let mut answers = stream.try_clone()?;
    let mut commands = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if (&mut commands).take(LINE_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let answer = match execute(line.trim()) {
            Ok(text) => format!("ok {text}"),
            Err(text) => format!("error {text}"),
        };
        writeln!(answers, "{}", answer.trim_end())?;
    }
}

/// Sends one command and waits for its answer: what followed `ok`, or in `Err` what followed `error`.
pub fn send(socket: &Path, line: &str) -> std::io::Result<Result<String, String>> {
    let mut stream = UnixStream::connect(socket)?;
    writeln!(stream, "{line}")?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    let answer = answer.trim_end();
    match answer.split_once(' ').unwrap_or((answer, "")) {
        ("ok", text) => Ok(Ok(text.to_owned())),
        ("error", text) => Ok(Err(text.to_owned())),
        _ => Err(std::io::Error::other(format!("{answer:?} is no answer"))),
    }
}
