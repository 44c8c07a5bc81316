//! The far end as a child of the system's ssh: the user's configuration, keys, jump hosts and prompts apply.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use haul_model::Code;
use haul_mover::{Error, threads};
use haul_storage::local::keep_descriptor_limit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::bar::Bar;
use crate::bootstrap::{self, Line};
use crate::interrupt::Interrupt;

/// How much of what ssh says is kept to explain a failure.
const STDERR_LINES_MAX: usize = 20;

/// A line of ssh or the far end that is longer is shown in pieces.
const STDERR_LINE_BYTES_MAX: u64 = 16 << 10;

/// ssh, with the far end behind it.
pub struct Ssh {
    child: Child,
    input: Option<ChildStdin>,
    /// The same once what it is told has been written.
    written: Option<Receiver<std::io::Result<ChildStdin>>>,
    output: BufReader<ChildStdout>,
    /// Of a line that has not ended yet.
    begun: Vec<u8>,
    /// What has come that is no greeting, in bytes.
    passed_over: usize,
    said: Arc<Mutex<Vec<String>>>,
    host: String,
    haul_path: String,
    /// As a user would type it, with the host.
    by_hand: String,
    /// What it would connect to.
    resolved: ResolvedHost,
    /// It has started haul there.
    has_reached: bool,
    /// It was not waited for any more.
    is_interrupted: bool,
}

/// Splits `--ssh CMD` as a shell would do with quotes and backslashes; nothing is expanded, no shell is run.
pub fn split_command(text: &str) -> Result<Vec<String>, Error> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            // Within quotes a backslash stays where nothing needs it.
            (Some('"'), '\\') => {
                let word = word.get_or_insert_default();
                let next = characters.next();
                word.extend(Some(c).filter(|_| !next.is_some_and(|next| "$`\"\\\n".contains(next))));
                word.extend(next.filter(|next| *next != '\n'));
            }
            (None, '\\') => word.get_or_insert_default().extend(characters.next()),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if quote.is_some() || words.is_empty() {
        return Err(Error::new(Code::Usage, format!("--ssh {text:?} is not a command")));
    }
    Ok(words)
}

/// For the remote shell: one word, whatever is in it. A leading `~/` stays outside the quotes, so that it is expanded.
pub fn quoted(word: &str) -> String {
    let (home, rest) = match word.strip_prefix("~/") {
        Some(rest) => ("~/", rest),
        None => ("", word),
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !rest.is_empty() && rest.chars().all(plain) {
        return word.to_owned();
    }
    format!("{home}'{}'", rest.replace('\'', r"'\''"))
}

/// ssh takes an IPv6 address without brackets.
fn ssh_host(host: &str) -> String {
    host.replace(['[', ']'], "")
}

/// What `scp` asks for, too: a transfer needs neither what else a host's configuration forwards, nor the agent, which the other
/// host's root could use for as long as it lasts. Of flags the last one counts, so what the user says does,
const FLAGS: [&str; 2] = ["-a", "-x"];
/// and of options the first.
const OPTIONS: [&str; 2] = ["-oClearAllForwardings=yes", "-oPermitLocalCommand=no"];

/// A far end that answers later is told of.
const TELL_AFTER: Duration = Duration::from_secs(5);
/// So is one that is not there yet: who is asked for a password needs some time.
const TELL_OF_LOGIN_AFTER: Duration = Duration::from_secs(15);
/// That the command is interrupted is noticed within this, whatever ssh does.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// What ssh says of a host it says at once, unless its configuration runs something first: that ran when it connected, too.
pub const RESOLVES_WITHIN: Duration = Duration::from_secs(10);
/// Who has reached the far end has been told all.
const WRITES_WITHIN: Duration = Duration::from_secs(10);
/// A command that starts ssh for us, and what it starts in turn.
const FAMILY_MAX: usize = 64;

/// With what is added to the words of `--ssh`: flags behind the ssh (others, before it, have other options), and options at the end.
fn with_options(words: &[String]) -> Vec<&str> {
    let is_ssh = |word: &String| Path::new(word).file_name() == Some("ssh".as_ref());
    let mut with: Vec<&str> = words.iter().map(String::as_str).collect();
    if let Some(at) = words.iter().position(is_ssh) {
        with.splice(at + 1..at + 1, FLAGS);
        with.extend(OPTIONS);
    }
    with
}

/// Can ssh ask somebody for a password?
fn can_ask() -> bool {
    let has_terminal = || std::fs::File::options().read(true).write(true).open("/dev/tty").is_ok();
    std::env::var_os("SSH_ASKPASS").is_some() || has_terminal()
}

/// A process with all that it has started, directly or not.
fn family(pid: i32) -> Vec<i32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(pid) = family.get(next).copied().filter(|_| family.len() < FAMILY_MAX) {
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        family.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        next += 1;
    }
    family
}

/// Is it fed by a process? What a shell has put into the background reads from nowhere, and may be for others.
fn is_fed(pid: i32) -> bool {
    let input = std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap_or_default();
    ["pipe:", "socket:"].iter().any(|kind| input.as_os_str().as_encoded_bytes().starts_with(kind.as_bytes()))
}

/// Asks it to end, with those of its family: ssh does not end what it connects through while it logs in, nor all others what they start.
fn end_family(child: &Child, with: impl Fn(i32) -> bool) {
    let own = child.id().try_into().unwrap_or(0);
    let family = family(own).into_iter().filter(|pid| *pid == own || with(*pid));
    for pid in family.filter_map(Pid::from_raw) {
        // It may have ended by itself.
        let _ = kill_process(pid, Signal::TERM);
    }
}

impl Ssh {
    /// Starts `haul serve --stdio` on `host`. What it says on stderr appears above `bar`.
    pub fn start(command: &str, host: &str, haul_path: &str, bar: Bar) -> Result<Ssh, Error> {
        let words = split_command(command)?;
        let words = with_options(&words);
        let mut child = keep_descriptor_limit(&mut Command::new(words[0]))
            .args(&words[1..])
            .arg("-T")
            .arg("--")
            .arg(ssh_host(host))
            .arg(format!("{} serve --stdio", quoted(haul_path)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Error::os(Code::SshFailed, format!("starting {:?}", words[0]), &error)
                    .hint("install an ssh client, or say --ssh CMD")
            })?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let said = Arc::new(Mutex::new(Vec::new()));
        forward_stderr(child.stderr.take().expect("stderr is piped"), said.clone(), bar);
        let typed = ssh_host(host);
        let by_hand = format!("{command} {typed}");
        Ok(Ssh {
            child,
            input,
            written: None,
            begun: Vec::new(),
            passed_over: 0,
            output,
            said,
            host: host.to_owned(),
            haul_path: haul_path.to_owned(),
            by_hand,
            resolved: ResolvedHost::ask(command, host),
            has_reached: false,
            is_interrupted: false,
        })
    }

    /// The name or address that it connects to, by its own configuration; the host as it was typed if it says nothing.
    pub fn host_name(&mut self, interrupt: &Interrupt) -> Result<String, Error> {
        let until = Instant::now() + RESOLVES_WITHIN;
        while Instant::now() < until && !self.resolved.is_there(LOOK_EVERY) {
            interrupt.check()?;
        }
        interrupt.check()?;
        Ok(self.resolved.answer(Duration::ZERO).0.clone())
    }

    /// Of the ssh that was started; it is not waited for before this is dropped.
    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap_or(0)
    }

    /// Tells the far end something, beside this thread: ssh takes no more than a pipe holds before it has reached it.
    fn write(&mut self, line: Line) -> Result<(), Error> {
        let Some(mut input) = self.input.take() else { return Ok(()) };
        let (sender, written) = sync_channel(1);
        let write = move || {
            let result = bootstrap::write(&mut input, &line).map(|()| input);
            let _ = sender.send(result);
        };
        threads::start("haul-ssh-request", write)?;
        self.written = Some(written);
        Ok(())
    }

    /// It has been told.
    fn take_written(&mut self) -> Result<(), Error> {
        let Some(written) = self.written.take() else { return Ok(()) };
        match written.recv_timeout(WRITES_WITHIN) {
            Ok(Ok(input)) => self.input = Some(input),
            // A far end that has ended already says why.
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                return Err(Error::os(Code::SshFailed, "writing to ssh", &error));
            }
            _ => {}
        }
        Ok(())
    }

    /// What the far end answers to this; if it has ended instead, why. Until it has the request ssh may ask for a password, for
    /// as long as it likes, if there is somebody to ask. What takes long is told of with `tell`, and what takes longer than
    /// `patience` is not waited for: storage there hangs, or the host has gone.
    pub fn answer(
        &mut self,
        request: Line,
        patience: Duration,
        interrupt: &Interrupt,
        mut tell: impl FnMut(Silence),
    ) -> Result<Line, Error> {
        self.write(request)?;
        let began = Instant::now();
        let limit = (!can_ask()).then(|| began + patience);
        let mut come = self.answer_by(Some(began + TELL_OF_LOGIN_AFTER.min(patience)), interrupt)?;
        if come.is_none() {
            tell(Silence::OfLogin);
            come = self.answer_by(limit, interrupt)?;
        }
        let seconds = patience.as_secs();
        match come {
            Some(line) => {
                self.has_reached = true;
                self.take_written()?;
                if !matches!(line, Line::Reached {}) {
                    return Ok(line);
                }
            }
            None => {
                let about = format!("{}: ssh has started nothing there for {seconds} s", self.host);
                return Err(Error::new(Code::PeerSilent, about)
                    .hint(format!("try it by hand: {} true", self.by_hand)));
            }
        }
        let began = Instant::now();
        if let Some(line) = self.answer_by(Some(began + TELL_AFTER.min(patience)), interrupt)? {
            return Ok(line);
        }
        tell(Silence::OfStorage);
        if let Some(line) = self.answer_by(Some(began + patience), interrupt)? {
            return Ok(line);
        }
        let left = match self.is_for_others() {
            true => format!("; ssh (process {}) is left, as other sessions may go through it", self.pid()),
            false => String::new(),
        };
        Err(Error::new(Code::PeerSilent, format!("{} has not answered for {seconds} s", self.host)).hint(
            format!("what is copied there, or its home directory, is on storage that does not answer{left}"),
        ))
    }

    /// Its answer, if it comes until then. What else is said there is none.
    fn answer_by(&mut self, deadline: Option<Instant>, interrupt: &Interrupt) -> Result<Option<Line>, Error> {
        while deadline.is_none_or(|deadline| Instant::now() < deadline) {
            if let Err(interrupted) = interrupt.check() {
                self.is_interrupted = true;
                return Err(interrupted);
            }
            let soon = Instant::now() + LOOK_EVERY;
            if !self.says_something(deadline.map_or(soon, |deadline| deadline.min(soon)))? {
                continue;
            }
            let unreadable = |error| Error::os(Code::SshFailed, "reading from ssh", &error);
            let come = self.output.fill_buf().map_err(unreadable)?;
            if come.is_empty() {
                return Err(self.why_ended());
            }
            let end = come.iter().position(|byte| *byte == b'\n').map(|at| at + 1);
            let count = end.unwrap_or(come.len());
            self.begun.extend_from_slice(&come[..count]);
            self.output.consume(count);
            if end.is_none() && self.begun.len() <= bootstrap::ANSWER_BYTES_MAX {
                continue;
            }
            let line = std::mem::take(&mut self.begun);
            if let Some(line) = bootstrap::read_at_most(&mut &line[..], bootstrap::ANSWER_BYTES_MAX)? {
                return Ok(Some(line));
            }
            self.passed_over += line.len();
            if self.passed_over as u64 > bootstrap::LINE_BYTES_MAX {
                return Err(Error::new(Code::LimitExceeded, "ssh printed too much before the greeting"));
            }
        }
        Ok(None)
    }

    /// Whether something comes until then, if only the end.
    fn says_something(&self, deadline: Instant) -> Result<bool, Error> {
        while self.output.buffer().is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(self.output.get_ref(), PollFlags::IN)], Some(&time)) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(Error::os(Code::SshFailed, "reading from ssh", &errno.into())),
            }
        }
        Ok(true)
    }

    /// The end that tells the far end where to dial, on its own.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.input.take()
    }

    fn why_ended(&mut self) -> Error {
        let code = self.wait(Duration::from_secs(10)).unwrap_or(255);
        // The last words may still be on their way through the pipe.
        std::thread::sleep(Duration::from_millis(50));
        let said = self.said.lock().map(|said| said.clone()).unwrap_or_default();
        // What a login message says is nothing of ssh's.
        let begins = ["ssh:", "channel ", "kex_exchange_identification:", "connect to ", "Connection "];
        let of_ssh = |index: usize, line: &str| {
            index + 1 == said.len() || begins.iter().any(|begins| line.starts_with(begins))
        };
        let says = |text: &str| {
            said.iter().enumerate().any(|(index, line)| of_ssh(index, line) && line.contains(text))
        };
        let (host, by_hand) = (&self.host, &self.by_hand);
        let about = match said.last() {
            Some(last) => format!("{host}: {last}"),
            None => host.clone(),
        };
        match code {
            126 => Error::new(Code::SshFailed, about).hint(format!(
                "{} is there and cannot be run: see its mode, how its file system is mounted (noexec), and whether it was built for that processor",
                self.haul_path
            )),
            // What csh says, which has no code for it.
            1 if said.last().is_some_and(|last| last.ends_with("Command not found.")) => self.missing(),
            127 => self.missing(),
            255 if says("Could not resolve") || says("Name or service not known") => {
                Error::new(Code::HostUnknown, host.clone())
                    .hint("check the spelling, or the Host lines of your ssh configuration")
            }
            255 if says("Connection refused")
                || says("timed out")
                || says("No route to host")
                || says("unreachable") =>
            {
                Error::new(Code::HostUnreachable, about).hint(format!("try it by hand: {by_hand} true"))
            }
            255 if says("command-line and remote command") => Error::new(Code::SshFailed, about).hint(
                "its configuration has a RemoteCommand for that host: add --ssh 'ssh -o RemoteCommand=none'",
            ),
            255 => Error::new(Code::SshFailed, about).hint(format!("try it by hand: {by_hand} true")),
            2 => Error::new(Code::PeerVersion, about)
                .hint("haul there is older or is another program; install the same version on both hosts"),
            code => Error::new(Code::SshFailed, format!("{about}: the other end has ended with {code}"))
                .hint(format!("try it by hand: {by_hand} {} --version", self.haul_path)),
        }
    }

    /// Other sessions of the user may go through its connection: then it ends with the last of them. Not while it
    /// logs in: hardly anybody goes through it yet, and each run would leave one more.
    fn is_for_others(&mut self) -> bool {
        self.has_reached && self.resolved.answer(Duration::from_secs(1)).1
    }

    fn missing(&self) -> Error {
        let (host, path, by_hand) = (&self.host, &self.haul_path, &self.by_hand);
        // What else `--ssh` says, scp would not know.
        let copy = match *by_hand == format!("ssh {}", ssh_host(host)) {
            true => format!("scp $(command -v haul) {host}:haul"),
            false => format!("{by_hand} 'cat > haul && chmod +x haul' < $(command -v haul)"),
        };
        Error::new(Code::PeerMissing, format!("{host}: {path}"))
            .hint(format!("copy it there: {copy}, then add --haul-path ./haul"))
    }

    fn wait(&mut self, time: Duration) -> Option<i32> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.code().unwrap_or(255)),
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        // Where it is still written to, that ends with what reads it.
        (self.input, self.written) = (None, None);
        if self.is_interrupted && !self.is_for_others() {
            // It may be another program that has started ssh, which then waits for its user.
            end_family(&self.child, is_fed);
        }
        if self.wait(Duration::from_secs(3)).is_none() && !self.is_for_others() {
            end_family(&self.child, is_fed);
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// What is waited for longer than a user would expect.
pub enum Silence {
    /// ssh has not started haul there.
    OfLogin,
    /// It has, and haul looks at its storage.
    OfStorage,
}

/// ssh and the far end speak to the user directly; the last lines are kept to explain a failure.
fn forward_stderr(stderr: std::process::ChildStderr, said: Arc<Mutex<Vec<String>>>, bar: Bar) {
    let forward = move || {
        let mut stderr = BufReader::new(stderr);
        let mut line = Vec::new();
        while line_of(&mut stderr, &mut line) {
            let shown = crate::paths::said(line.strip_suffix(b"\r").unwrap_or(&line));
            bar.above(|| drop(writeln!(std::io::stderr(), "{shown}")));
            if let Ok(mut said) = said.lock() {
                if said.len() == STDERR_LINES_MAX {
                    said.remove(0);
                }
                said.push(shown);
            }
        }
    };
    let _ = std::thread::Builder::new().name("haul-ssh".into()).spawn(forward);
}

/// The next line, or as much of it as may be kept. False at the end.
fn line_of(from: &mut impl BufRead, line: &mut Vec<u8>) -> bool {
    line.clear();
    let read = from.take(STDERR_LINE_BYTES_MAX).read_until(b'\n', line);
    line.pop_if(|byte| *byte == b'\n');
    read.is_ok_and(|count| count > 0)
}

/// The name or address that ssh would connect to, by its own configuration.
pub struct ResolvedHost {
    typed: String,
    asked: Option<(Child, Receiver<String>)>,
    text: Option<String>,
    answer: Option<(String, bool)>,
}

impl ResolvedHost {
    /// Asks ssh, and does not wait for the answer.
    pub fn ask(command: &str, host: &str) -> ResolvedHost {
        let asked = split_command(command).ok().and_then(|words| {
            let mut ssh = Command::new(&words[0]);
            ssh.args(&words[1..]).args(["-G", "--", &ssh_host(host)]);
            ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut asked = keep_descriptor_limit(&mut ssh).spawn().ok()?;
            let output = asked.stdout.take()?;
            let (sender, answer) = sync_channel(1);
            let read = move || {
                let mut text = Vec::new();
                let _ = output.take(bootstrap::LINE_BYTES_MAX).read_to_end(&mut text);
                let _ = sender.send(String::from_utf8_lossy(&text).into_owned());
            };
            let _ = std::thread::Builder::new().name("haul-ssh-name".into()).spawn(read);
            Some((asked, answer))
        });
        let typed = ssh_host(host.rsplit('@').next().unwrap_or(host));
        ResolvedHost { typed, asked, text: None, answer: None }
    }

    /// Has it said all, or will it never?
    fn is_there(&mut self, within: Duration) -> bool {
        let Some((_, answer)) = &self.asked else { return true };
        if self.text.is_none() {
            match answer.recv_timeout(within) {
                Ok(text) => self.text = Some(text),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        true
    }

    /// What ssh said, if it does within this; the host as it was typed if it said nothing. With whether a connection that it makes is
    /// one that other sessions of the user may go through (`ControlMaster`).
    pub fn answer(&mut self, within: Duration) -> &(String, bool) {
        if self.answer.is_none() {
            self.is_there(within);
        }
        let (text, typed) = (self.text.take().unwrap_or_default(), &self.typed);
        self.answer.get_or_insert_with(|| {
            let told = |word: &str| text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
            let name = told("hostname").map(str::trim).filter(|name| !name.is_empty());
            let is_shared = told("controlmaster").is_some_and(|how| !matches!(how.trim(), "no" | "false"));
            (name.unwrap_or(typed).to_owned(), is_shared)
        })
    }
}

impl Drop for ResolvedHost {
    fn drop(&mut self) {
        if let Some((asked, _)) = &mut self.asked {
            // It only answers a question.
            end_family(asked, |_| true);
            let _ = asked.kill();
            let _ = asked.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ssh_command_is_split_like_a_shell_would() {
        assert_eq!(
            split_command(r#"ssh -F 'my config' -o "A=b c" d\ e"#).unwrap(),
            ["ssh", "-F", "my config", "-o", "A=b c", "d e"]
        );
        // As `sh` does it.
        assert_eq!(
            split_command(r#"ssh -l "CORP\alice" "a\"b\\c\$d" CORP\\bob 'x\y'"#).unwrap(),
            ["ssh", "-l", r"CORP\alice", r#"a"b\c$d"#, r"CORP\bob", r"x\y"]
        );
        assert!(split_command("  ").is_err());
        assert!(split_command("ssh 'x").is_err());
    }

    #[test]
    fn what_ssh_must_not_forward_is_said_to_it_whatever_starts_it() {
        let with = |command: &str| with_options(&split_command(command).unwrap()).join(" ");
        let options = OPTIONS.join(" ");
        assert_eq!(with("ssh"), format!("ssh -a -x {options}"));
        assert_eq!(with("/usr/bin/ssh -A -J jump"), format!("/usr/bin/ssh -a -x -A -J jump {options}"));
        assert_eq!(with("timeout 60 env X=1 ssh -v"), format!("timeout 60 env X=1 ssh -a -x -v {options}"));
        assert_eq!(with("ssh -A bastion ssh"), format!("ssh -a -x -A bastion ssh {options}"));
        assert_eq!(with("rsh -l me"), "rsh -l me");
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_memory_than_others() {
        let mut said = BufReader::new(std::io::repeat(b'x').take(40 << 10));
        let (mut line, mut lengths) = (Vec::new(), Vec::new());
        while line_of(&mut said, &mut line) {
            lengths.push(line.len());
        }
        assert_eq!(lengths, [16 << 10, 16 << 10, 8 << 10]);
        let mut said = &b"one\r\n\nlast"[..];
        let mut lines = Vec::new();
        while line_of(&mut said, &mut line) {
            lines.push(line.clone());
        }
        assert_eq!(lines, [&b"one\r"[..], b"", b"last"]);
    }

    #[test]
    fn the_remote_shell_sees_one_word() {
        assert_eq!(quoted("haul"), "haul");
        assert_eq!(quoted("~/bin/haul"), "~/bin/haul");
        assert_eq!(quoted("~/my bin/haul"), "~/'my bin/haul'");
        assert_eq!(quoted("a'b; rm -rf"), r"'a'\''b; rm -rf'");
        assert_eq!(quoted(""), "''");
    }
}
