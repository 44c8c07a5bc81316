//! What a user is told when something cannot go on: what, about what, and what would help.

use std::fmt;
use std::io;

use haul_model::{Code, Failure, Place};
use rustix::io::Errno;

/// An error with its row of the table, the thing that it is about, and a hint.
#[derive(Clone, Debug)]
pub struct Error {
    /// Row and errno.
    pub failure: Failure,
    /// What it is about, or what was being done.
    pub about: String,
    /// What would help.
    pub hint: Option<String>,
}

impl Error {
    /// Without errno and hint.
    pub fn new(code: Code, about: impl Into<String>) -> Self {
        let failure = Failure { code, errno: 0, place: Place::default() };
        Error { failure, about: about.into(), hint: None }
    }

    /// Of a system call.
    pub fn os(code: Code, about: impl Into<String>, error: &io::Error) -> Self {
        let of_state = matches!(code, Code::StateUnwritable | Code::LogUnwritable | Code::LogDamaged);
        if of_state && lacks_descriptors(error) {
            // There is nothing wrong with the directory.
            return Error::os(Code::SystemRefused, about, error).hint("allow more open files (ulimit -n)");
        }
        // What it is about says more than where it was noticed, and it may be nobody's mistake.
        let failure = Failure { code, errno: error.raw_os_error().unwrap_or(0), place: Place::default() };
        let about = match error.raw_os_error() {
            Some(_) => about.into(),
            None => format!("{}: {error}", about.into()),
        };
        Error { failure, about, hint: None }
    }

    /// Of a stream: the transport knows which row it is.
    pub fn stream(about: impl fmt::Display, error: &io::Error) -> Self {
        let code = haul_transport::cause(error).code();
        Error { failure: code.into(), about: format!("{about}: {error}"), hint: None }
    }

    /// With a hint, in place of another one. Where descriptors are missing that helps, whatever is to be opened.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        let has_few = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error).contains(&self.failure.errno);
        if self.hint.is_none() || !has_few || self.failure.code != Code::SystemRefused {
            self.hint = Some(hint.into());
        }
        self
    }
}

/// This process, or this host, has as many open as it may.
pub(crate) fn lacks_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE].into_iter().any(|lacks| errno == Some(lacks.raw_os_error()))
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        Error { failure, about: String::new(), hint: None }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.failure.code.text();
        match (self.about.as_str(), self.failure.code) {
            ("", _) => f.write_str(text)?,
            // Where it is said what is wrong with a command, that something is says nothing.
            (about, Code::Usage) => f.write_str(about)?,
            (about, _) => write!(f, "{about}: {text}")?,
        }
        write!(f, "{}", self.failure.place)?;
        match self.failure.errno {
            errno if errno == 0 || says_as_much(self.failure.code, errno) => Ok(()),
            errno => {
                let said = io::Error::from_raw_os_error(errno).to_string();
                let said = said.split(" (os error").next().unwrap_or(&said);
                write!(f, ": {}", said.to_lowercase())
            }
        }
    }
}

/// The row's text is what the system's would only repeat.
fn says_as_much(code: Code, errno: i32) -> bool {
    let usual = match code {
        Code::SourceMissing | Code::SourceVanished | Code::SinkMissing => Errno::NOENT,
        Code::SourcePermission | Code::SinkPermission => Errno::ACCESS,
        Code::SinkNoSpace => Errno::NOSPC,
        Code::SinkQuota => Errno::DQUOT,
        Code::SinkReadOnly => Errno::ROFS,
        Code::SinkNotDirectory => Errno::NOTDIR,
        Code::SinkIsDirectory => Errno::ISDIR,
        _ => return false,
    };
    usual.raw_os_error() == errno
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_haul_is_named_only_where_nothing_else_can_be_said() {
        let full = io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error());
        let said = Error::os(Code::Internal, "writing the output", &full).to_string();
        assert_eq!(said, "writing the output: internal error: no space left on device");
        let here = Error::from(Failure::new(Code::Internal)).to_string();
        assert!(here.starts_with("internal error (noticed at ") && here.contains("error.rs:"), "{here}");
    }
}
