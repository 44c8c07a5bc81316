//! The closed table of everything that can go wrong.
//!
//! The number goes over the wire and into JSON; the name is what scripts match; blame, retry class and exit code
//! follow from the row. Rows are only ever added.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::panic::Location;

/// Whose fault it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// What the user asked for.
    User,
    /// The storage or host that is read.
    Source,
    /// The storage or host that is written.
    Sink,
    /// Whatever is between them.
    Network,
    /// The other end broke the protocol.
    Peer,
    /// A bug of haul.
    Haul,
}

/// What may help.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retry {
    /// Nothing within this run.
    Never,
    /// The same object or file again.
    Again,
    /// A new connection.
    Reconnect,
    /// The same command again, once the cause is gone: the job stops at once and nothing is lost.
    Rerun,
}

macro_rules! table {
    ($($number:literal $variant:ident $name:literal $blame:ident $retry:ident $exit:literal $text:literal;)*) => {
        /// An error, as a row of the table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u16)]
        #[allow(missing_docs)]
        pub enum Code { $($variant = $number,)* }

        impl Code {
            /// All rows.
            pub const ALL: &'static [Code] = &[$(Code::$variant),*];
            /// The row with this number.
            pub const fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$variant),)* _ => None }
            }
            /// Stable, for scripts.
            pub const fn name(self) -> &'static str { match self { $(Code::$variant => $name,)* } }
            /// Whose fault it is.
            pub const fn blame(self) -> Blame { match self { $(Code::$variant => Blame::$blame,)* } }
            /// What may help.
            pub const fn retry(self) -> Retry { match self { $(Code::$variant => Retry::$retry,)* } }
            /// Exit code of a command that ends with it.
            pub const fn exit(self) -> u8 { match self { $(Code::$variant => $exit,)* } }
            /// For people.
            pub const fn text(self) -> &'static str { match self { $(Code::$variant => $text,)* } }
        }
    };
}

table! {
    10 SourceMissing     "source-missing"      Source  Never     3 "no such file or directory";
    11 SourceChanged     "source-changed"      Source  Again     3 "changed while it was read";
    12 SourceVanished    "source-vanished"     Source  Never     3 "vanished while it was read";
    13 SourceRead        "source-read"         Source  Again     3 "cannot be read";
    14 SourcePermission  "source-permission"   Source  Never     3 "permission denied at the source";
    15 UnsupportedKind   "unsupported-kind"    Source  Never     3 "is neither file, directory nor symlink";
    16 SourceDirectory   "source-directory"    User    Never     3 "is a directory, and -r was not given";
    17 SourceTwice       "source-twice"        User    Never     3 "an earlier SOURCE has another file of this name";
    18 SourceTooLarge    "source-too-large"    User    Never     3 "is too large for objects of this size: a larger --object-size is needed";
    20 SinkPermission    "sink-permission"     Sink    Never     3 "permission denied at the destination";
    21 SinkNoSpace       "sink-no-space"       Sink    Rerun     1 "no space left at the destination";
    22 SinkQuota         "sink-quota"          Sink    Rerun     1 "quota exceeded at the destination";
    23 SinkReadOnly      "sink-read-only"      Sink    Rerun     1 "the destination's file system is read-only";
    24 SinkWrite         "sink-write"          Sink    Again     3 "cannot be written";
    25 SinkNotDirectory  "sink-not-directory"  Sink    Never     3 "a file or symlink stands where a directory must be";
    26 SinkIsDirectory   "sink-is-directory"   Sink    Never     3 "a directory stands where a file must be";
    27 SinkParentFailed  "sink-parent-failed"  Sink    Never     3 "its directory could not be made";
    28 SinkSync          "sink-sync"           Sink    Again     3 "could not be made durable";
    29 SinkMissing       "sink-missing"        User    Never     1 "no such directory at the destination";
    30 Confinement       "confinement"         Peer    Never     3 "would leave the destination";
    31 NameInvalid       "name-invalid"        Sink    Never     3 "has a name, or as a symlink a target, that the destination cannot store";
    32 SinkAttributes    "sink-attributes"     Sink    Never     3 "attributes could not be set";
    33 SinkSpecial       "sink-special"        Sink    Never     3 "a device, fifo or socket stands there";
    34 SinkHangs         "sink-hangs"          Sink    Rerun     1 "half of the buffers wait for files that the destination never makes";
    35 NameTaken         "name-taken"          Sink    Never     3 "another file has this name by now: the file system takes two names for the same, or somebody else makes files there";
    36 LinkToItself      "link-to-itself"      User    Never     3 "a symlink that leads to the very file that it would replace";
    37 SinkMoved         "sink-moved"          Sink    Never     3 "a directory was moved, removed or replaced during the transfer: what has arrived in it is where it is now";
    40 HashMismatch      "hash-mismatch"       Network Again     3 "arrived with other bytes than were read";
    50 HostUnknown       "host-unknown"        User    Never     4 "the host name cannot be resolved";
    51 HostUnreachable   "host-unreachable"    Network Reconnect 4 "the host cannot be reached";
    52 PortBlocked       "port-blocked"        Network Reconnect 4 "no data port can be reached";
    53 PeerMissing       "peer-missing"        User    Never     4 "haul was not found on the other host";
    54 PeerVersion       "peer-version"        User    Never     4 "the other host has another version of haul";
    55 AuthFailed        "auth-failed"         Peer    Never     4 "the other end could not prove who it is";
    56 PeerSilent        "peer-silent"         Network Reconnect 4 "the other end is silent";
    57 ConnectionLost    "connection-lost"     Network Reconnect 4 "the connection was lost";
    58 SshFailed         "ssh-failed"          User    Never     4 "ssh could not start the other end";
    59 PeerEnded         "peer-ended"          Network Never     4 "the other end has ended";
    60 Protocol          "protocol-violation"  Peer    Never     1 "the other end broke the protocol";
    61 LimitExceeded     "limit-exceeded"      Peer    Never     1 "the other end exceeded a limit";
    70 LogDamaged        "log-damaged"         Source  Again     1 "the object log is damaged";
    71 LogUnwritable     "log-unwritable"      Source  Never     1 "the object log cannot be written";
    72 LogVersion        "log-version"         User    Never     1 "the object log is of a newer version";
    73 SpillFailed       "spill-failed"        Source  Never     1 "the spill directory cannot be used";
    80 PlainDenied       "plain-denied"        User    Never     1 "the host's policy does not allow --plain";
    81 AlreadyRunning    "already-running"     User    Never     1 "this transfer is already running";
    82 StateUnwritable   "state-unwritable"    User    Never     1 "the state directory cannot be written";
    83 Superseded        "superseded"          Haul    Never     1 "a newer session has taken over";
    84 Usage             "usage"               User    Never     2 "the command is not well formed";
    85 SocketUnusable    "socket-unusable"     User    Never     1 "the socket cannot be served";
    86 SystemRefused     "system-refused"      User    Rerun     1 "the system does not allow it";
    87 BenchFailed       "bench-failed"        User    Never     1 "it could not be measured";
    88 StateDamaged      "state-damaged"       User    Never     1 "what is kept of this transfer cannot be read";
    90 Interrupted       "interrupted"         User    Rerun   130 "interrupted";
    91 Internal          "internal"            Haul    Never     1 "internal error";
}

/// An error that happened: its row and, where a system call failed, the errno.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Failure {
    /// The row of the table.
    pub code: Code,
    /// Linux errno, 0 if none.
    pub errno: i32,
    /// Where in haul, if it is to blame.
    pub place: Place,
}

/// Where haul noticed a mistake of its own. It does not cross the network, and two failures are equal wherever they were noticed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place(Option<&'static Location<'static>>);

impl Place {
    /// It was noticed in this process.
    pub const fn is_known(&self) -> bool {
        self.0.is_some()
    }
}

impl PartialEq for Place {
    fn eq(&self, _: &Place) -> bool {
        true
    }
}

impl Eq for Place {}

impl Hash for Place {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Failure {
    /// What a file in objects that the source drops for this has at the sink, and in the log, is of use another time: it could not be
    /// read now.
    pub const fn may_pass(self) -> bool {
        matches!(self.code, Code::SourceRead | Code::SourcePermission)
    }

    /// Storage did not take what was to be written, or may not be written to.
    pub const fn is_unwritten(self) -> bool {
        matches!(self.code, Code::SinkWrite | Code::SinkPermission)
    }

    /// Without errno.
    #[track_caller]
    pub const fn new(code: Code) -> Self {
        Failure::os(code, 0)
    }

    /// With errno.
    #[track_caller]
    pub const fn os(code: Code, errno: i32) -> Self {
        let place = match code {
            Code::Internal => Place(Some(Location::caller())),
            _ => Place(None),
        };
        Failure { code, errno, place }
    }
}

impl From<Code> for Failure {
    #[track_caller]
    fn from(code: Code) -> Self {
        Failure::new(code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.text())?;
        if self.errno != 0 {
            write!(f, " (errno {})", self.errno)?;
        }
        write!(f, "{}", self.place)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, " (noticed at {}:{}; please report it)", place.file(), place.line()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_of_haul_names_its_place_and_is_equal_to_what_the_wire_brings() {
        let here = Failure::new(Code::Internal);
        let line = line!() - 1;
        let words = alloc::format!("internal error (noticed at {}:{line}; please report it)", file!());
        assert_eq!(alloc::format!("{here}"), words);
        let from_afar = Failure { code: Code::Internal, errno: 0, place: Place::default() };
        assert_eq!((alloc::format!("{from_afar}").as_str(), from_afar), ("internal error", here));
        assert_eq!(alloc::format!("{}", Failure::os(Code::SourceRead, 5)), "cannot be read (errno 5)");
    }

    #[test]
    fn numbers_and_names_are_unique_and_round_trip() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::from_number(*code as u16), Some(*code));
            assert!(Code::ALL[..index].iter().all(|other| other.name() != code.name()));
            assert!(matches!(code.exit(), 1..=5 | 130));
        }
    }
}
