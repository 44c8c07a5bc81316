//! Who moves the files: haul, its peers, what a machine does without a network, and its limits.
//!
//! Each peer is there as it comes and as its manual recommends it for one fast path; some also with their own check of
//! contents switched on. A table, so that what is compared is seen at one glance.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::case::{BIG_FILE, Case};
use super::servers::{Daemon, Servers};
use crate::evaluation::installed;
use crate::machine;

/// What may be compared with what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// The program under test.
    Haul,
    /// Over the network, in clear text, with no more checks than it comes with.
    Clear,
    /// The same with its own check of contents switched on.
    Verified,
    /// Over the network, encrypted.
    Encrypted,
    /// On one machine.
    Local,
    /// As little as can be done.
    Limit,
}

impl Class {
    /// In tables.
    pub const fn name(self) -> &'static str {
        match self {
            Class::Haul => "haul",
            Class::Clear => "clear",
            Class::Verified => "clear, verified",
            Class::Encrypted => "encrypted",
            Class::Local => "one machine",
            Class::Limit => "limit",
        }
    }

    /// A peer that moves files over a network.
    pub const fn is_network_peer(self) -> bool {
        matches!(self, Class::Clear | Class::Verified | Class::Encrypted)
    }
}

/// How it is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// To this host through ssh, with these options.
    Haul(&'static [&'static str]),
    /// From path to path, with these options.
    HaulHere(&'static [&'static str]),
    Raw,
    Fio,
    Cp,
    Tar,
    Dcp,
    /// With these options of ssh.
    Scp(&'static [&'static str]),
    /// With these options, and those of ssh.
    RsyncSsh(&'static [&'static str], &'static str),
    RsyncDaemon(&'static [&'static str]),
    /// With these options for big files, and those for many.
    GridFtp(&'static [&'static str], &'static [&'static str]),
    Xrootd(&'static [&'static str]),
    RcloneWebdav(&'static [&'static str]),
    RcloneSftp(&'static [&'static str]),
    Bbcp(&'static [&'static str]),
    Fdt(&'static [&'static str]),
    EScp,
}

/// A program with settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tool {
    /// On the command line, in files and in tables.
    pub name: &'static str,
    /// What must be installed; empty: only haul.
    pub program: &'static str,
    /// Where it comes from, if it is not there.
    pub package: &'static str,
    /// What it may be compared with.
    pub class: Class,
    /// Programs of one family are one peer.
    pub family: &'static str,
    /// Its settings in words.
    pub setting: &'static str,
    how: How,
}

const fn tool(
    (name, program, package): (&'static str, &'static str, &'static str),
    class: Class,
    family: &'static str,
    setting: &'static str,
    how: How,
) -> Tool {
    Tool { name, program, package, class, family, setting, how }
}

const FAST_CIPHER: &str = "Ciphers=aes128-gcm@openssh.com";
const DEFAULT: &str = "as it comes";

/// All of them, in the order of tables.
pub static TOOLS: [Tool; 34] = {
    use Class::{Clear, Encrypted, Haul, Limit, Local, Verified};
    const GRIDFTP: &str = "globus-gass-copy-progs globus-gridftp-server-progs";
    const ELSEWHERE: &str = "not in Debian";
    [
        tool(("haul", "", ""), Haul, "haul", "default: encrypted, BLAKE3, durable", How::Haul(&[])),
        tool(
            ("haul-plain", "", ""),
            Haul,
            "haul",
            "clear, BLAKE3 at both ends, durable",
            How::Haul(&["--plain"]),
        ),
        tool(
            ("haul-xxh3", "", ""),
            Haul,
            "haul",
            "clear, XXH3 at both ends, durable",
            How::Haul(&["--plain", "--hash", "xxh3"]),
        ),
        tool(
            ("haul-none", "", ""),
            Haul,
            "haul",
            "clear, no hash, durable",
            How::Haul(&["--plain", "--hash", "none"]),
        ),
        tool(("haul-here", "", ""), Haul, "haul", "on one machine: BLAKE3, durable", How::HaulHere(&[])),
        tool(
            ("haul-here-xxh3", "", ""),
            Haul,
            "haul",
            "on one machine: XXH3, durable",
            How::HaulHere(&["--hash", "xxh3"]),
        ),
        tool(("raw", "", ""), Limit, "raw", "the raw pair: only reads, sends, receives, writes", How::Raw),
        tool(
            ("fio", "fio", "fio"),
            Limit,
            "fio",
            "reads and writes sequentially, both at a time, past the page cache",
            How::Fio,
        ),
        tool(("rsyncd", "rsync", "rsync"), Clear, "rsync daemon", DEFAULT, How::RsyncDaemon(&[])),
        tool(
            ("rsyncd-tuned", "rsync", "rsync"),
            Clear,
            "rsync daemon",
            "whole files, in place",
            How::RsyncDaemon(&["--whole-file", "--inplace"]),
        ),
        tool(
            ("rsyncd-checksum", "rsync", "rsync"),
            Verified,
            "rsync daemon",
            "--checksum",
            How::RsyncDaemon(&["--checksum"]),
        ),
        tool(("gridftp", "globus-url-copy", GRIDFTP), Clear, "GridFTP", DEFAULT, How::GridFtp(&[], &[])),
        tool(
            ("gridftp-tuned", "globus-url-copy", GRIDFTP),
            Clear,
            "GridFTP",
            "big files: -fast -p 4; many: -fast -pp -cc 8",
            How::GridFtp(&["-fast", "-p", "4"], &["-fast", "-pp", "-cc", "8"]),
        ),
        tool(
            ("gridftp-verify", "globus-url-copy", GRIDFTP),
            Verified,
            "GridFTP",
            "the same with -verify-checksum",
            How::GridFtp(
                &["-fast", "-p", "4", "-verify-checksum"],
                &["-fast", "-pp", "-cc", "8", "-verify-checksum"],
            ),
        ),
        tool(("xrootd", "xrdcp", "xrootd-client xrootd-server"), Clear, "XRootD", DEFAULT, How::Xrootd(&[])),
        tool(
            ("xrootd-tuned", "xrdcp", "xrootd-client xrootd-server"),
            Clear,
            "XRootD",
            "4 streams, 4 files at a time",
            How::Xrootd(&["--streams", "4", "--parallel", "4"]),
        ),
        tool(
            ("xrootd-verify", "xrdcp", "xrootd-client xrootd-server"),
            Verified,
            "XRootD",
            "--cksum adler32:source",
            How::Xrootd(&["--cksum", "adler32:source"]),
        ),
        tool(("rclone-webdav", "rclone", "rclone"), Clear, "rclone webdav", DEFAULT, How::RcloneWebdav(&[])),
        tool(
            ("rclone-webdav-tuned", "rclone", "rclone"),
            Clear,
            "rclone webdav",
            "16 files at a time, 64 MiB buffers, no look at the destination",
            How::RcloneWebdav(&["--transfers", "16", "--buffer-size", "64M", "--no-check-dest"]),
        ),
        tool(("bbcp", "bbcp", ELSEWHERE), Clear, "bbcp", DEFAULT, How::Bbcp(&[])),
        tool(
            ("bbcp-tuned", "bbcp", ELSEWHERE),
            Clear,
            "bbcp",
            "4 streams, windows of 8 MiB",
            How::Bbcp(&["-s", "4", "-w", "8m"]),
        ),
        tool(
            ("bbcp-verify", "bbcp", ELSEWHERE),
            Verified,
            "bbcp",
            "the same with -e",
            How::Bbcp(&["-s", "4", "-w", "8m", "-e"]),
        ),
        tool(("fdt", "fdt", ELSEWHERE), Clear, "FDT", DEFAULT, How::Fdt(&[])),
        tool(
            ("fdt-tuned", "fdt", ELSEWHERE),
            Clear,
            "FDT",
            "one stream: no distance here",
            How::Fdt(&["-P", "1"]),
        ),
        tool(("scp", "scp", "openssh-client"), Encrypted, "scp", DEFAULT, How::Scp(&[])),
        tool(
            ("scp-tuned", "scp", "openssh-client"),
            Encrypted,
            "scp",
            "AES-128-GCM",
            How::Scp(&["-o", FAST_CIPHER]),
        ),
        tool(("rsync", "rsync", "rsync"), Encrypted, "rsync over ssh", DEFAULT, How::RsyncSsh(&[], "")),
        tool(
            ("rsync-tuned", "rsync", "rsync"),
            Encrypted,
            "rsync over ssh",
            "whole files, in place, AES-128-GCM",
            How::RsyncSsh(&["--whole-file", "--inplace"], FAST_CIPHER),
        ),
        tool(("rclone-sftp", "rclone", "rclone"), Encrypted, "rclone sftp", DEFAULT, How::RcloneSftp(&[])),
        tool(
            ("rclone-sftp-tuned", "rclone", "rclone"),
            Encrypted,
            "rclone sftp",
            "16 files at a time, no hashes, no look at the destination",
            How::RcloneSftp(&["--transfers", "16", "--sftp-disable-hashcheck", "--no-check-dest"]),
        ),
        tool(("escp", "escp", ELSEWHERE), Encrypted, "EScp", DEFAULT, How::EScp),
        tool(("cp", "cp", "coreutils"), Local, "cp", "cp -r", How::Cp),
        tool(("tar", "tar", "tar"), Local, "tar", "from one to another", How::Tar),
        tool(("dcp", "dcp", ELSEWHERE), Local, "dcp", "2 ranks", How::Dcp),
    ]
};

/// The one of this name.
pub fn from_name(name: &str) -> Option<&'static Tool> {
    TOOLS.iter().find(|tool| tool.name == name)
}

/// What a result has of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keeps {
    /// Times and modes.
    pub attributes: bool,
    /// Symlinks as they are; else they may be followed, tidied or left out.
    pub symlinks: bool,
}

/// Where a run happens.
pub struct Place<'a> {
    /// The program under test.
    pub haul: &'a Path,
    /// The directory that is moved.
    pub source: &'a Path,
    /// Where it is to be then.
    pub result: &'a Path,
    /// Of haul, at both ends.
    pub state: &'a Path,
    /// The far end's program: haul with a state of its own.
    pub far_haul: &'a Path,
    /// What was started for the peers.
    pub servers: &'a Servers,
    /// Which case.
    pub case: Case,
    /// Where fio writes what it found.
    pub findings: &'a Path,
}

impl Tool {
    /// Which servers it needs.
    pub fn daemon(&self) -> Option<Daemon> {
        match self.how {
            How::Haul(_) | How::Scp(_) | How::RsyncSsh(..) | How::RcloneSftp(_) | How::EScp => {
                Some(Daemon::Ssh)
            }
            How::RsyncDaemon(_) => Some(Daemon::Rsync),
            How::GridFtp(..) => Some(Daemon::GridFtp),
            How::Xrootd(_) => Some(Daemon::Xrootd),
            How::RcloneWebdav(_) => Some(Daemon::Webdav),
            How::Fdt(_) => Some(Daemon::Fdt),
            _ => None,
        }
    }

    /// Cases in which it says something.
    pub fn takes_part_in(&self, case: Case) -> bool {
        match (self.how, self.class) {
            (How::Raw, _) => case == Case::Big,
            (How::Fio, _) => case == Case::BigDisk,
            (_, Class::Verified) => case == Case::Big,
            _ => true,
        }
    }

    /// Why it cannot be measured here, if it cannot. `help` is what `haul cp --help` prints.
    pub fn missing(&self, help: &str) -> Option<String> {
        let (How::Haul(options) | How::HaulHere(options)) = self.how else {
            let is_there = self.program.is_empty() || installed(self.program).is_some();
            return (!is_there).then(|| match self.package {
                "not in Debian" => format!("not installed: no {} on the PATH", self.program),
                package => format!("not installed (Debian: {package})"),
            });
        };
        let long = options.iter().filter(|option| option.starts_with("--"));
        let unknown = long.into_iter().find(|option| !help.contains(**option))?;
        Some(format!("this haul has no {unknown}"))
    }

    /// What it says of its version.
    pub fn version(&self, haul: &Path) -> String {
        match self.how {
            How::Haul(_) | How::HaulHere(_) | How::Raw => {
                machine::first_line(&haul.to_string_lossy(), &["--version"])
            }
            How::Scp(_) => machine::first_line("ssh", &["-V"]),
            How::GridFtp(..) => machine::first_line(self.program, &["-version"]),
            How::Bbcp(_) => machine::first_line(self.program, &["-#"]),
            How::Fdt(_) => machine::first_line(self.program, &["-V"]),
            _ => machine::first_line(self.program, &["--version"]),
        }
    }

    /// What its result has.
    pub fn keeps(&self) -> Keeps {
        let attributes =
            matches!(self.how, How::Haul(_) | How::HaulHere(_) | How::RsyncSsh(..) | How::RsyncDaemon(_));
        // rsync's daemon tidies the path that a symlink leads to.
        let symlinks =
            matches!(self.how, How::Haul(_) | How::HaulHere(_) | How::RsyncSsh(..) | How::Cp | How::Tar);
        Keeps { attributes, symlinks }
    }

    /// It writes what it likes.
    pub fn is_compared(&self) -> bool {
        self.how != How::Fio
    }

    /// The time is what it says itself, see [`fio_seconds`](super::run::fio_seconds).
    pub fn tells_its_time(&self) -> bool {
        self.how == How::Fio
    }

    /// The destination must be a directory that exists.
    pub fn needs_directory(&self) -> bool {
        matches!(
            self.how,
            How::Raw | How::Fio | How::Tar | How::Xrootd(_) | How::Bbcp(_) | How::Fdt(_) | How::EScp
        )
    }

    /// Complaints with which it ends though it has done what it can: scp has no way to send a symlink that leads to a
    /// directory; it goes on and fails at the end.
    pub fn forgives(&self, line: &str) -> bool {
        matches!(self.how, How::Scp(_))
            && (line.ends_with(" is not a regular file")
                || line.starts_with("scp: upload ")
                || line.starts_with("scp: failed to upload directory "))
    }

    /// How to start it.
    pub fn command(&self, place: &Place) -> Command {
        let Place { source, result, servers, .. } = *place;
        let mut command = Command::new(if self.program.is_empty() {
            place.haul.as_os_str()
        } else {
            self.program.as_ref()
        });
        let within = |path: &Path| with_slash("", path);
        let port = self.daemon().map_or(0, |daemon| servers.port(daemon));
        match self.how {
            How::Haul(options) => {
                haul(&mut command, place.state);
                command.args(["cp", "-r", "-q"]).args(options);
                command.arg("--ssh").arg(servers.ssh_command()).arg("--haul-path").arg(place.far_haul);
                command.arg(source).arg(with_prefix("127.0.0.1:", result));
            }
            How::HaulHere(options) => {
                haul(&mut command, place.state);
                command.args(["cp", "-r", "-q"]).args(options).arg(source).arg(result);
            }
            How::Raw => {
                command.args(["bench", "raw"]).arg(source.join(BIG_FILE)).arg(result.join(BIG_FILE));
            }
            How::Fio => {
                let bytes = source.join(BIG_FILE).metadata().map_or(0, |metadata| metadata.len());
                command.args(["--output-format=json", "--ioengine=io_uring", "--direct=1", "--bs=1M"]);
                command.args(["--iodepth=8", "--end_fsync=1"]).arg(format!("--size={bytes}"));
                command.arg(with_prefix("--output=", place.findings));
                command.args(["--name=read", "--rw=read"]);
                command.arg(with_prefix("--filename=", &source.join(BIG_FILE)));
                command.args(["--name=write", "--rw=write"]);
                command.arg(with_prefix("--filename=", &result.join(BIG_FILE)));
            }
            How::Cp => {
                command.arg("-r").arg(source).arg(result);
            }
            How::Tar => {
                command = Command::new("bash");
                command.args(["-o", "pipefail", "-c", "tar -C \"$1\" -cf - . | tar -C \"$2\" -xf -", "tar"]);
                command.arg(source).arg(result);
            }
            How::Dcp => {
                command = Command::new("mpirun");
                command.args(["--allow-run-as-root", "-np", "2", "dcp"]).arg(source).arg(result);
            }
            How::Scp(options) => {
                command.args(["-q", "-r", "-F"]).arg(servers.ssh_configuration()).args(options);
                command.arg(source).arg(with_prefix("127.0.0.1:", result));
            }
            How::RsyncSsh(options, ssh_option) => {
                let mut ssh = servers.ssh_command();
                if !ssh_option.is_empty() {
                    ssh = format!("{ssh} -o {ssh_option}");
                }
                command.arg("-a").args(options).arg("-e").arg(ssh).arg(within(source));
                command.arg(with_slash("127.0.0.1:", result));
            }
            How::RsyncDaemon(options) => {
                command.arg("-a").args(options).arg(within(source));
                command.arg(format!("rsync://127.0.0.1:{port}/sink/{}/", name(result)));
            }
            How::GridFtp(big, many) => {
                command.args(["-r", "-cd"]).args(if place.case.has_big_files() { big } else { many });
                command.arg(with_slash("file://", source));
                command.arg(with_slash(&format!("ftp://127.0.0.1:{port}"), result));
            }
            How::Xrootd(options) => {
                command.args(["--nopbar", "--recursive"]).args(options).arg(source);
                command.arg(with_slash(&format!("root://127.0.0.1:{port}/"), result));
            }
            How::RcloneWebdav(options) => {
                rclone(&mut command, source, options);
                command.arg("--webdav-url").arg(format!("http://127.0.0.1:{port}"));
                command.arg(format!(":webdav:/{}", name(result)));
            }
            How::RcloneSftp(options) => {
                rclone(&mut command, source, options);
                command.args(["--sftp-host", "127.0.0.1", "--sftp-port", &port.to_string()]);
                command.arg("--sftp-user").arg(servers.user());
                command.arg("--sftp-key-file").arg(servers.ssh_key());
                command.arg(with_prefix(":sftp:", result));
            }
            How::Bbcp(options) => {
                command.arg("-r").args(options).args(["-S", "bbcp", "-T", "bbcp"]);
                command.arg(source).arg(with_prefix("localhost:", result));
            }
            How::Fdt(options) => {
                command.args(["-c", "127.0.0.1", "-p", &port.to_string(), "-r"]).args(options);
                command.arg("-d").arg(result).arg(source);
            }
            How::EScp => {
                command.args(["-q", "-r", "-P", &port.to_string(), "-i"]).arg(servers.ssh_key());
                command.arg(source).arg(with_prefix("127.0.0.1:", result));
            }
        }
        command
    }
}

/// Nobody's settings, and the state of this run alone.
pub fn haul(command: &mut Command, state: &Path) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HAUL_")) {
        command.env_remove(name);
    }
    command.env("HAUL_STATE_DIR", state).env("XDG_CONFIG_HOME", state.join("no-config"));
}

fn rclone(command: &mut Command, source: &Path, options: &[&str]) {
    command.env("RCLONE_CONFIG", "/dev/null");
    // It says what it leaves out.
    command.args(["--quiet", "copy"]).args(options).arg(source);
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn with_prefix(prefix: &str, path: &Path) -> OsString {
    let mut text = OsString::from(prefix);
    text.push(path);
    text
}

fn with_slash(prefix: &str, path: &Path) -> OsString {
    let mut bytes = with_prefix(prefix, path).into_vec();
    bytes.push(b'/');
    OsString::from_vec(bytes)
}

/// A command as a person would type it, with the paths and ports of this run taken out.
pub fn shown(command: &Command, place: &Place) -> String {
    let mut words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let replaced: [(PathBuf, &str); 5] = [
        (place.haul.to_owned(), "haul"),
        (place.far_haul.to_owned(), "haul"),
        (place.source.to_owned(), "SOURCE"),
        (place.result.to_owned(), "RESULT"),
        (place.findings.to_owned(), "FINDINGS"),
    ];
    for word in &mut words {
        for (path, name) in &replaced {
            *word = word.replace(&*path.to_string_lossy(), name);
        }
        if let Some(directory) = place.servers.ssh_directory() {
            *word = word.replace(&*directory.to_string_lossy(), "SSH");
        }
        for port in place.servers.ports() {
            *word = word.replace(&format!(":{port}RESULT"), ":PORT/RESULT");
            *word = word.replace(&format!(":{port}"), ":PORT");
            if *word == port.to_string() {
                *word = "PORT".into();
            }
        }
        if word.contains(' ') {
            *word = format!("'{word}'");
        }
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn place<'a>(servers: &'a Servers, case: Case) -> Place<'a> {
        Place {
            haul: Path::new("/bin/haul"),
            source: Path::new("/m/source"),
            result: Path::new("/m/sink/result"),
            state: Path::new("/m/state"),
            far_haul: Path::new("/m/far-haul"),
            servers,
            case,
            findings: Path::new("/m/findings"),
        }
    }

    fn words(name: &str, case: Case) -> String {
        let servers = Servers::none();
        let place = place(&servers, case);
        shown(&from_name(name).unwrap().command(&place), &place)
    }

    #[test]
    fn names_are_unique_and_every_peer_comes_as_it_is() {
        let names: BTreeSet<_> = TOOLS.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), TOOLS.len());
        for tool in TOOLS.iter().filter(|tool| tool.class == Class::Verified) {
            let plain = TOOLS.iter().any(|other| other.class == Class::Clear && other.family == tool.family);
            assert!(plain, "{} has nothing to be compared with", tool.name);
        }
    }

    #[test]
    fn commands_name_source_and_result_and_nothing_of_the_run() {
        assert_eq!(words("cp", Case::Tree), "cp -r SOURCE RESULT");
        assert_eq!(words("haul-here", Case::Big), "haul cp -r -q SOURCE RESULT");
        assert_eq!(words("raw", Case::Big), "haul bench raw SOURCE/big RESULT/big");
        assert_eq!(
            words("gridftp-tuned", Case::Big),
            "globus-url-copy -r -cd -fast -p 4 file://SOURCE/ ftp://127.0.0.1:0RESULT/"
        );
        assert!(words("gridftp-tuned", Case::Files).contains("-fast -pp -cc 8 file://"));
    }

    #[test]
    fn an_option_that_haul_does_not_have_is_told_of() {
        let xxh3 = from_name("haul-xxh3").unwrap();
        assert_eq!(xxh3.missing("--plain --streams").as_deref(), Some("this haul has no --hash"));
        assert_eq!(xxh3.missing("--plain --hash"), None);
        assert_eq!(from_name("haul").unwrap().missing(""), None);
        let absent = Tool { program: "no-such-program", ..*from_name("bbcp").unwrap() };
        assert_eq!(absent.missing("").as_deref(), Some("not installed: no no-such-program on the PATH"));
    }

    #[test]
    fn limits_and_checks_are_in_the_cases_that_ask_for_them() {
        let of = |case| TOOLS.iter().filter(move |tool| tool.takes_part_in(case)).map(|tool| tool.name);
        assert!(of(Case::Big).any(|name| name == "raw") && of(Case::Big).all(|name| name != "fio"));
        assert!(of(Case::BigDisk).any(|name| name == "fio"));
        assert!(of(Case::Tree).all(|name| name != "raw" && !name.ends_with("-verify")));
    }
}
