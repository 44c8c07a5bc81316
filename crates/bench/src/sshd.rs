//! An sshd of one's own: loopback only, own keys, known_hosts and configuration, all in one directory.
//!
//! Works as root and as an ordinary user (who can then log in as himself only). Nothing in `~/.ssh` or of a running
//! service is read or written.

use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{Guarded, end_descendants, unblock_signals, wait_until};

/// Programs of Debian and Ubuntu that are not in everybody's PATH.
const SSHD_PLACES: [&str; 3] = ["/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd"];
const START_TRIES: usize = 5;
const START_LIMIT: Duration = Duration::from_secs(5);

/// A running sshd; it and its sessions end when this is dropped.
pub struct Sshd {
    directory: PathBuf,
    port: u16,
    server: Guarded,
}

impl Sshd {
    /// Starts one with all its files in `directory` (made if missing).
    ///
    /// Call from the main thread: the server dies with the thread that started it.
    pub fn start(directory: &Path) -> io::Result<Sshd> {
        let program = SSHD_PLACES.iter().find(|place| Path::new(place).exists()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "no sshd on this machine; `make deps` installs it")
        })?;
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
        let directory = directory.canonicalize()?;
        make_key(&directory.join("host_key"))?;
        make_key(&directory.join("user_key"))?;
        fs::copy(directory.join("user_key.pub"), directory.join("authorized_keys"))?;
        if rustix::process::geteuid().is_root() {
            // The server wants its empty directory; the system's own service makes the same at boot.
            fs::create_dir_all("/run/sshd")?;
        }
        let mut last = io::Error::other("no port was free");
        for _ in 0..START_TRIES {
            // Another process may take the port before the server does: then the next one is tried.
            let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
            write_configuration(&directory, port)?;
            let log = fs::File::create(directory.join("sshd.log"))?;
            let server = Guarded::spawn(
                unblock_signals(&mut Command::new(program))
                    .args(["-D", "-e", "-f"])
                    .arg(directory.join("sshd_config"))
                    .stdin(Stdio::null())
                    .stdout(Stdio::null())
                    .stderr(log),
            )?;
            let mut sshd = Sshd { directory: directory.clone(), port, server };
            let mut up = false;
            wait_until(START_LIMIT, || {
                up = TcpStream::connect(("127.0.0.1", port)).is_ok();
                up || sshd.server.status().is_some()
            });
            // Who answers may be another one, that has the port a moment longer than this one lives: by its key it is known.
            let answers =
                if up { sshd.run("true").map(drop) } else { Err(io::Error::other("nobody answers")) };
            let Err(error) = answers else { return Ok(sshd) };
            let log = fs::read_to_string(directory.join("sshd.log")).unwrap_or_default();
            last = io::Error::other(format!("sshd did not start: {error}: {}", log.trim()));
        }
        Err(last)
    }

    /// Its port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.server.pid()
    }

    /// Where its files are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What to run instead of `ssh`; the host is `127.0.0.1`.
    pub fn ssh_command(&self) -> String {
        format!("ssh -F {}", self.directory.join("ssh_config").display())
    }

    /// Runs a command through it and returns what it printed: shows that logging in works.
    pub fn run(&self, command: &str) -> io::Result<String> {
        let output = Command::new("ssh")
            .arg("-F")
            .arg(self.directory.join("ssh_config"))
            .args(["127.0.0.1", command])
            .stdin(Stdio::null())
            .output()?;
        if !output.status.success() {
            let log = fs::read_to_string(self.directory.join("sshd.log")).unwrap_or_default();
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("ssh failed: {}\n{}", errors.trim(), log.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Keeps it from taking new sessions until [`Sshd::resume`]; running ones go on.
    pub fn pause(&self) {
        crate::process::signal(self.pid(), rustix::process::Signal::STOP);
    }

    /// See [`Sshd::pause`].
    pub fn resume(&self) {
        crate::process::signal(self.pid(), rustix::process::Signal::CONT);
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.resume();
        end_descendants(self.pid());
        self.server.kill();
    }
}

fn make_key(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let output = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "testbed", "-f"])
        .arg(path)
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        Ok(())
    } else {
        Err(io::Error::other(format!(
            "ssh-keygen failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

fn write_configuration(directory: &Path, port: u16) -> io::Result<()> {
    let d = directory.display();
    // A locked password bars the account unless PAM is asked instead, which only root can do.
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let locked = shadow.lines().any(|line| line.starts_with("root:!"));
    let use_pam = if locked && rustix::process::geteuid().is_root() { "yes" } else { "no" };
    // SHLVL: bash takes a shell that ssh started for an interactive one and runs the user's ~/.bashrc, unless it is below
    // another shell. Sessions are killed at random instants here, and what that file runs must not be cut in half.
    fs::write(
        directory.join("sshd_config"),
        format!(
            "ListenAddress 127.0.0.1:{port}\nHostKey {d}/host_key\nPidFile none\n\
             AuthorizedKeysFile {d}/authorized_keys\nStrictModes no\nUsePAM {use_pam}\nPermitRootLogin yes\n\
             PubkeyAuthentication yes\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             AllowAgentForwarding no\nAllowTcpForwarding no\nX11Forwarding no\nPrintMotd no\nPrintLastLog no\n\
             UseDNS no\nSetEnv SHLVL=1\nKexAlgorithms curve25519-sha256\nMaxStartups 1000\nMaxSessions 100\nLogLevel INFO\nSubsystem sftp internal-sftp\n"
        ),
    )?;
    let user = current_user()?;
    fs::write(
        directory.join("ssh_config"),
        format!(
            "Host *\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {d}/user_key\n  \
             IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile {d}/known_hosts\n  \
             GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ControlMaster no\n  \
             ControlPath none\n  LogLevel ERROR\n"
        ),
    )?;
    let host_key = fs::read_to_string(directory.join("host_key.pub"))?;
    fs::write(directory.join("known_hosts"), format!("[127.0.0.1]:{port} {}\n", host_key.trim()))
}

/// Who this process is, as `ssh` and `scp` call him.
pub fn current_user() -> io::Result<String> {
    let output = Command::new("id").arg("-un").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logging_in_works_and_nothing_is_left_afterwards() {
        let directory = tempfile::tempdir().unwrap();
        let sshd = Sshd::start(directory.path()).unwrap();
        let pid = sshd.pid();
        assert_eq!(sshd.run("echo here").unwrap(), "here\n");
        // bash would have run ~/.bashrc at level 1.
        assert_ne!(sshd.run("echo $SHLVL").unwrap().trim(), "1");
        // A session that is still open ends with the server.
        let ssh = sshd.ssh_command();
        let words: Vec<&str> = ssh.split(' ').collect();
        let mut session = Guarded::spawn(
            Command::new(words[0])
                .args(&words[1..])
                .args(["127.0.0.1", "echo $$; exec sleep 60"])
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
        )
        .unwrap();
        let mut line = String::new();
        io::BufRead::read_line(&mut io::BufReader::new(session.child().stdout.as_mut().unwrap()), &mut line)
            .unwrap();
        let far: i32 = line.trim().parse().unwrap();
        assert!(crate::process::is_alive(far));
        drop(sshd);
        assert!(!crate::process::is_alive(pid));
        assert!(crate::process::wait_gone(far, Duration::from_secs(5)));
    }
}
