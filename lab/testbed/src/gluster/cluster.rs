//! GlusterFS on this machine: its daemon, volumes on given directories, mounts.
//!
//! The daemon refuses loopback addresses, so it and everything of it runs in a network of its own. Its state, sockets
//! and logs are below one directory; a GlusterFS of the system is neither used nor disturbed.
//!
//! Call from the main thread: the daemon and the clients die with the thread that started them. Bricks are started by
//! the daemon and belong to nobody; they are found again by the directory that they serve.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use crate::network::{Network, succeed};
use crate::process::{Guarded, descendants, own_pid, signal, wait_gone, wait_until};
use crate::watchdog::processes;
use crate::{remember_file, remember_mount};

/// Of no network that anybody has: the namespace is its own.
const ADDRESS: &str = "10.98.0.1";
const START_LIMIT: Duration = Duration::from_secs(30);
/// Paths of Unix sockets are short.
const SOCKET_BYTES_MAX: usize = 107;

/// A running daemon and what it started. All of it ends when this is dropped; drop [`Mounted`] first.
pub struct Cluster {
    directory: PathBuf,
    network: Network,
    daemon: Guarded,
    /// Of bricks, outside of the directory.
    sockets: RefCell<Vec<PathBuf>>,
}

impl Cluster {
    /// Starts the daemon with all its files in `directory` (made if missing).
    pub fn start(directory: &Path) -> io::Result<Cluster> {
        fs::create_dir_all(directory)?;
        let directory = directory.canonicalize()?;
        for part in ["state", "run", "log"] {
            fs::create_dir_all(directory.join(part))?;
        }
        let network = Network::new(ADDRESS)?;
        let configuration = directory.join("glusterd.vol");
        fs::write(&configuration, configuration_of(&directory)?)?;
        let mut command = network.command("glusterd");
        command.arg("--no-daemon").arg("--volfile").arg(&configuration);
        command.arg("--log-file").arg(directory.join("log/glusterd.log"));
        command.arg("--pid-file").arg(directory.join("run/glusterd.pid"));
        command.stdout(File::create(directory.join("log/glusterd.out"))?);
        command.stderr(File::create(directory.join("log/glusterd.err"))?);
        let daemon = Guarded::spawn(&mut command)?;
        let mut cluster = Cluster { directory, network, daemon, sockets: RefCell::default() };
        let mut answer = cluster.ask(&["volume", "list"]);
        wait_until(START_LIMIT, || {
            if answer.is_err() && cluster.daemon.status().is_none() {
                thread::sleep(Duration::from_millis(50));
                answer = cluster.ask(&["volume", "list"]);
            }
            answer.is_ok() || cluster.daemon.status().is_some()
        });
        match answer {
            Ok(_) => Ok(cluster),
            Err(error) => {
                let log = fs::read_to_string(cluster.directory.join("log/glusterd.log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(5).collect();
                Err(io::Error::other(format!("glusterd does not answer: {error}\n{}", last.join("\n"))))
            }
        }
    }

    /// Makes and starts a volume that distributes files over bricks in these directories (made if missing). Options are
    /// those of `gluster volume set`.
    pub fn volume(&self, name: &str, bricks: &[PathBuf], options: &[(&str, &str)]) -> io::Result<Volume> {
        let mut arguments = vec!["volume".into(), "create".into(), name.to_owned()];
        for brick in bricks {
            fs::create_dir_all(brick)?;
            arguments.push(format!("{ADDRESS}:{}", utf8(brick)?));
        }
        // Bricks on the root file system, or at a mount point, are asked for.
        arguments.push("force".into());
        self.ask(&arguments)?;
        // Bricks of tests are small.
        for (option, value) in [("storage.reserve", "0")].iter().chain(options) {
            self.ask(&["volume", "set", name, option, value])?;
        }
        self.ask(&["volume", "start", name])?;
        for brick in bricks {
            // Where the system's are, whatever the daemon is told; a brick that is killed leaves it behind.
            let words = words_of(self.brick(brick)?);
            let socket = words.windows(2).find(|pair| pair[0] == b"-S").map(|pair| &pair[1]);
            if let Some(socket) = socket.map(|socket| PathBuf::from(OsStr::from_bytes(socket))) {
                remember_file(socket.clone());
                self.sockets.borrow_mut().push(socket);
            }
        }
        Ok(Volume { name: name.to_owned(), bricks: bricks.to_vec() })
    }

    /// Starts the bricks of a volume that do not run.
    pub fn restart(&self, volume: &Volume) -> io::Result<()> {
        // The daemon takes a process that nobody has waited for yet for one that runs.
        let ended = descendants(own_pid()).into_iter().filter(|seen| seen.has_ended());
        ended.filter(|seen| seen.name.starts_with("glusterfsd")).for_each(|seen| wait_for(seen.pid));
        self.ask(&["volume", "start", &volume.name, "force"]).map(drop)
    }

    /// Mounts a volume at an existing directory.
    pub fn mount(&self, volume: &Volume, at: &Path) -> io::Result<Mounted> {
        let mut command = self.network.command("glusterfs");
        command.args(["--no-daemon", "--process-name", "fuse"]);
        command.arg(format!("--volfile-server={ADDRESS}")).arg(format!("--volfile-id={}", volume.name));
        command.arg("--log-file").arg(self.directory.join(format!("log/mount-{}.log", volume.name)));
        command.arg(at);
        let outside = fs::metadata(at)?.dev();
        remember_mount(at.to_owned());
        let mut mounted = Mounted { client: Guarded::spawn(&mut command)?, at: at.to_owned() };
        let (tell, told) = mpsc::channel();
        let asked = at.to_owned();
        // A client that hangs answers nothing at all: not for this thread to wait for.
        thread::spawn(move || {
            let ready = || {
                fs::metadata(&asked).is_ok_and(|root| root.dev() != outside) && fs::read_dir(&asked).is_ok()
            };
            let _ = tell.send(wait_until(START_LIMIT, ready));
        });
        let mut ready = false;
        wait_until(START_LIMIT, || {
            ready = told.try_recv().unwrap_or(false);
            ready || mounted.client.status().is_some()
        });
        if ready {
            return Ok(mounted);
        }
        let kind = if mounted.client.status().is_some() { ErrorKind::Other } else { ErrorKind::TimedOut };
        let (name, at, all) = (&volume.name, at.display(), processes());
        Err(io::Error::new(kind, format!("volume {name} could not be mounted at {at}. There are\n{all}")))
    }

    /// The process that serves a brick; an error where none does.
    pub fn brick(&self, directory: &Path) -> io::Result<i32> {
        let named = |pair: &[Vec<u8>]| {
            pair[0] == b"--brick-name" && pair[1] == directory.as_os_str().as_encoded_bytes()
        };
        let serves = |pid: i32| words_of(pid).windows(2).any(named);
        let found = descendants(own_pid()).into_iter().find(|seen| !seen.has_ended() && serves(seen.pid));
        let missing = || io::Error::other(format!("no process serves the brick {}", directory.display()));
        found.map(|seen| seen.pid).ok_or_else(missing)
    }

    /// What `gluster` says to these words.
    fn ask(&self, words: &[impl AsRef<str>]) -> io::Result<String> {
        let mut command = self.network.command("gluster");
        command.arg("--mode=script").arg(format!("--glusterd-sock={}", utf8(&socket(&self.directory))?));
        command.arg(format!("--log-file={}", utf8(&self.directory.join("log/cli.log"))?));
        command.args(words.iter().map(AsRef::as_ref));
        let output = succeed(&mut command)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.daemon.kill();
        // Nothing on the bricks is wanted any more.
        let run = self.directory.join("run");
        let is_ours = |word: &Vec<u8>| word.starts_with(run.as_os_str().as_encoded_bytes());
        for seen in descendants(own_pid()) {
            if words_of(seen.pid).iter().any(is_ours) {
                end(seen.pid);
            }
        }
        for socket in self.sockets.borrow().iter() {
            let _ = fs::remove_file(socket);
        }
    }
}

/// A volume that was started.
pub struct Volume {
    name: String,
    bricks: Vec<PathBuf>,
}

impl Volume {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The directories of its bricks, in order.
    pub fn bricks(&self) -> &[PathBuf] {
        &self.bricks
    }
}

/// A volume at a directory; unmounted, and its client ended, when this is dropped.
pub struct Mounted {
    client: Guarded,
    at: PathBuf,
}

impl Mounted {
    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.at
    }

    /// Its client.
    pub fn pid(&self) -> i32 {
        self.client.pid()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // First the mount: a client that hangs can only be killed when nobody waits for it any more, and what asks for a
        // mount whose client is dead gets nothing but errors.
        haul_crashfs::Mount::abort(&self.at);
        self.client.kill();
    }
}

/// Kills a process that this one adopted, and waits for its end.
fn end(pid: i32) {
    signal(pid, Signal::KILL);
    wait_gone(pid, START_LIMIT);
    wait_for(pid);
}

/// Takes in a child that has ended. What is no child of this process is its parent's to wait for.
fn wait_for(pid: i32) {
    let _ = Pid::from_raw(pid).map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
}

/// The command line of a process; empty for one that has ended.
fn words_of(pid: i32) -> Vec<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("run/cli.socket")
}

fn configuration_of(directory: &Path) -> io::Result<String> {
    let socket = socket(directory);
    if socket.as_os_str().len() > SOCKET_BYTES_MAX {
        let text = format!("{} is too long for a socket; choose another directory", socket.display());
        return Err(io::Error::other(text));
    }
    let (directory, socket) = (utf8(directory)?, utf8(&socket)?);
    Ok(format!(
        "volume management
    type mgmt/glusterd
    option working-directory {directory}/state
    option run-directory {directory}/run
    option logging-directory {directory}/log
    option glusterd-sockfile {socket}
    option transport-type socket
    option transport.socket.bind-address {ADDRESS}
    option transport.address-family inet
    option base-port 49152
    option max-port 49251
end-volume
"
    ))
}

fn utf8(path: &Path) -> io::Result<&str> {
    path.to_str().ok_or_else(|| io::Error::other(format!("{} is no text", path.display())))
}
