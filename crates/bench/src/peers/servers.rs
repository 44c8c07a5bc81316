//! The far ends that peers need: each a process of its own on a loopback port that was free, ended by its id. All but sshd let
//! in whoever reaches them, and some with the rights of who started them: they are for a network of their own alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::tool::Tool;
use crate::evaluation::installed;
use crate::process::{Guarded, end_descendants, unblock_signals, wait_until};
use crate::sshd::{Sshd, current_user};

/// Who owns nothing.
const NOBODY: u32 = 65534;
const START_TRIES: usize = 3;
const START_LIMIT: Duration = Duration::from_secs(15);

/// A kind of server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Daemon {
    /// sshd.
    Ssh,
    /// `rsync --daemon`.
    Rsync,
    /// `globus-gridftp-server`.
    GridFtp,
    /// `xrootd`.
    Xrootd,
    /// `rclone serve webdav`.
    Webdav,
    /// `fdt`.
    Fdt,
}

impl Daemon {
    /// Who it is, if it will not be root.
    pub fn user(self) -> Option<u32> {
        (self == Daemon::Xrootd).then_some(NOBODY)
    }
}

/// Everything that was started; it ends when this is dropped.
pub struct Servers {
    ssh: Option<Sshd>,
    running: BTreeMap<Daemon, Server>,
    failed: BTreeMap<Daemon, String>,
    user: String,
}

/// One that was started; it ends when this is dropped.
pub struct Server {
    process: Guarded,
    port: u16,
}

impl Server {
    /// Its process.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end_descendants(self.process.pid());
        self.process.kill();
    }
}

impl Servers {
    /// Nothing is started.
    pub fn none() -> Servers {
        Servers { ssh: None, running: BTreeMap::new(), failed: BTreeMap::new(), user: String::new() }
    }

    /// What these tools need. `directory` is for their own files, `sink` is where they write. One that does not start, or may not
    /// as this process has no network of its own, is remembered with its reason ([`Servers::problem`]).
    pub fn start(
        tools: &[&Tool],
        directory: &Path,
        sink: &Path,
        has_own_network: bool,
    ) -> io::Result<Servers> {
        fs::create_dir_all(directory)?;
        let mut servers = Servers { user: current_user()?, ..Servers::none() };
        let mut wanted: Vec<Daemon> = tools.iter().filter_map(|tool| tool.daemon()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        for daemon in wanted {
            let started = match daemon {
                Daemon::Ssh => Sshd::start(&directory.join("sshd")).map(|sshd| servers.ssh = Some(sshd)),
                _ if !has_own_network => {
                    Err(io::Error::other("its server lets everybody in: only in a network of its own"))
                }
                _ => {
                    start(daemon, directory, sink).map(|server| drop(servers.running.insert(daemon, server)))
                }
            };
            if let Err(error) = started {
                servers.failed.insert(daemon, error.to_string());
            }
        }
        Ok(servers)
    }

    /// Why the server of a tool is not there.
    pub fn problem(&self, tool: &Tool) -> Option<&str> {
        self.failed.get(&tool.daemon()?).map(String::as_str)
    }

    /// The id of one of them, if it runs.
    pub fn pid(&self, daemon: Daemon) -> Option<i32> {
        match daemon {
            Daemon::Ssh => self.ssh.as_ref().map(Sshd::pid),
            _ => self.running.get(&daemon).map(|server| server.process.pid()),
        }
    }

    /// Of one of them; 0 if it does not run.
    pub fn port(&self, daemon: Daemon) -> u16 {
        match daemon {
            Daemon::Ssh => self.ssh.as_ref().map_or(0, Sshd::port),
            _ => self.running.get(&daemon).map_or(0, |server| server.port),
        }
    }

    /// Of all that run.
    pub fn ports(&self) -> Vec<u16> {
        let running = self.running.values().map(|server| server.port);
        running.chain(self.ssh.as_ref().map(Sshd::port)).collect()
    }

    /// What to run instead of `ssh`.
    pub fn ssh_command(&self) -> String {
        self.ssh.as_ref().map_or_else(|| "ssh".into(), Sshd::ssh_command)
    }

    /// Where keys and settings of ssh are.
    pub fn ssh_directory(&self) -> Option<&Path> {
        self.ssh.as_ref().map(Sshd::directory)
    }

    /// For `ssh -F`.
    pub fn ssh_configuration(&self) -> PathBuf {
        self.ssh_directory().unwrap_or(Path::new("")).join("ssh_config")
    }

    /// For `ssh -i`.
    pub fn ssh_key(&self) -> PathBuf {
        self.ssh_directory().unwrap_or(Path::new("")).join("user_key")
    }

    /// Who logs in.
    pub fn user(&self) -> &str {
        &self.user
    }
}

/// Any but sshd, in a network of its own. `directory` is for its own files, `sink` is where it writes.
pub fn start(daemon: Daemon, directory: &Path, sink: &Path) -> io::Result<Server> {
    let mut last = io::Error::other("no port was free");
    for _ in 0..START_TRIES {
        // Another process may take the port before the server does: then the next one is tried.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = command(daemon, port, directory, sink)?;
        let log = directory.join(format!("{daemon:?}.log"));
        let errors = fs::File::create(&log)?;
        command.current_dir(directory).stdin(Stdio::null()).stdout(errors.try_clone()?).stderr(errors);
        let process = Guarded::spawn(unblock_signals(&mut command))
            .map_err(|error| io::Error::new(error.kind(), format!("{command:?}: {error}")))?;
        let mut server = Server { process, port };
        let mut is_up = false;
        wait_until(START_LIMIT, || {
            is_up = TcpStream::connect(("127.0.0.1", port)).is_ok();
            is_up || server.process.status().is_some()
        });
        if is_up && server.process.status().is_none() {
            return Ok(server);
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(3).collect();
        last = io::Error::other(format!("the server did not start: {}", lines.join(" / ")));
    }
    Err(last)
}

fn command(daemon: Daemon, port: u16, directory: &Path, sink: &Path) -> io::Result<Command> {
    let is_root = rustix::process::geteuid().is_root();
    let port_text = port.to_string();
    let sink_text = sink.display();
    Ok(match daemon {
        Daemon::Ssh => return Err(io::Error::other("sshd starts by itself")),
        Daemon::Rsync => {
            let owner = if is_root { "uid = 0\ngid = 0\n" } else { "" };
            let configuration = directory.join("rsyncd.conf");
            let log = directory.join("rsyncd.log");
            fs::write(
                &configuration,
                format!(
                    "address = 127.0.0.1\nport = {port}\nuse chroot = no\n{owner}hosts allow = 127.0.0.1\n\
                     log file = {}\n[sink]\npath = {sink_text}\nread only = no\nmunge symlinks = no\n",
                    log.display()
                ),
            )?;
            let mut command = Command::new("rsync");
            command.args(["--daemon", "--no-detach", "--config"]).arg(configuration);
            command
        }
        Daemon::GridFtp => {
            let mut command = Command::new(program("globus-gridftp-server")?);
            command.args(["-s", "-no-chdir", "-c", "none", "-p", &port_text, "-aa"]);
            command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
            if is_root {
                command.args(["-anonymous-user", "root", "-allow-root"]);
            }
            command
        }
        Daemon::Xrootd => {
            let private = directory.join("xrootd");
            fs::create_dir_all(&private)?;
            fs::set_permissions(&private, fs::Permissions::from_mode(0o777))?;
            let configuration = private.join("xrootd.cfg");
            let private = private.display();
            fs::write(
                &configuration,
                format!(
                    "all.export {sink_text}\nall.adminpath {private}\nall.pidpath {private}\nxrd.port {port}\n\
                     xrd.network nodnr\nxrootd.chksum adler32\nall.sitename bench\n"
                ),
            )?;
            let mut command = Command::new(program("xrootd")?);
            command.arg("-c").arg(configuration).args(["-p", &port_text, "-n", "bench"]);
            if is_root {
                // It will not run as root. Were it to change its user by itself (`-R`), it would no longer end when this process does.
                command.uid(NOBODY).gid(NOBODY);
            }
            command
        }
        Daemon::Webdav => {
            let mut command = Command::new("rclone");
            command.env("RCLONE_CONFIG", "/dev/null").env("XDG_CACHE_HOME", directory);
            command
                .args([
                    "--quiet",
                    "serve",
                    "webdav",
                    "--dir-cache-time",
                    "0",
                    "--addr",
                    &format!("127.0.0.1:{port}"),
                ])
                .arg(sink);
            command
        }
        Daemon::Fdt => {
            let mut command = Command::new("fdt");
            command.args(["-p", &port_text]);
            command
        }
    })
}

fn program(name: &str) -> io::Result<PathBuf> {
    installed(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed")))
}
