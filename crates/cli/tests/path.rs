//! Somebody on the path of a clear stream (`--plain`), between two real processes: who alters bytes, and who delays them.
//!
//! The far end's greeting is altered so that the near end connects to a relay of the test. Members of bundles stay in their files
//! until the kernel moves them to the stream.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use haul_testkit::alone;

/// Longer than anything here lasts.
const PATIENCE: Duration = Duration::from_secs(60);
/// For so long somebody may refuse connections.
const REFUSES: Duration = Duration::from_secs(2);
/// A member of a bundle that stays in its file (`docs/decisions/0007-clear-streams-take-objects-from-files.md`).
const FILE_BYTES: usize = 3 << 20;

/// What somebody on the path does.
trait Meddler: Send + Sync + 'static {
    /// The header of a payload has come, and of its bytes no more than the sockets hold.
    fn begins(&self) {}

    /// A payload has come, and has not been passed on.
    fn passes(&self, _header: &mut [u8; 24], _bytes: &mut Vec<u8>) {}

    /// It is not passed on at all, though its sender has been told that it has come.
    fn swallows(&self) -> bool {
        false
    }

    /// A connection is taken, and nothing is ever passed on or answered.
    fn is_mute(&self) -> bool {
        false
    }

    /// A connection is cut before anything has passed.
    fn cuts(&self) -> bool {
        false
    }

    /// What is no control stream is cut before anything has passed.
    fn cuts_data(&self) -> bool {
        false
    }

    /// The stream is cut, and for some time all others are refused.
    fn refuses(&self) -> bool {
        false
    }
}

/// A source with one file, and a relay to the sink.
struct Bed {
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let bed = Bed { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(bed.path("source")).unwrap();
        fs::write(bed.path("source/file"), content(1)).unwrap();
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `haul cp --plain` through the relay.
    fn push(&self, meddler: Arc<dyn Meddler>, options: &[&str]) -> Output {
        self.push_with(&[], meddler, options)
    }

    /// With these variables in its environment.
    fn push_with(&self, variables: &[(&str, &str)], meddler: Arc<dyn Meddler>, options: &[&str]) -> Output {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        // What has not been read here stays with its sender: only then can it be changed behind its back.
        rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        let port = listener.local_addr().unwrap().port();
        let real = self.path("real-port");
        let haul = env!("CARGO_BIN_EXE_haul");
        // `ssh -G` only asks for a name. A second sed would empty the file that the first has written the port to.
        let script = format!(
            "[ \"$1\" != -G ] || exec '{haul}' bench shell \"$@\"\n\
             '{haul}' bench shell \"$@\" | sed -u -e 'h;s/^HAUL1 .*\"port\":\\([0-9]\\{{1,\\}}\\).*/\\1/w {}' \
             -e 'g;s/\"port\":[0-9]\\{{1,\\}}/\"port\":{port}/'\n",
            real.display()
        );
        fs::write(self.path("ssh"), script).unwrap();
        thread::spawn(move || {
            let mut listener = Arc::new(listener);
            loop {
                while let Ok((near, _)) = listener.accept() {
                    let (real, meddler, listener) =
                        (real.clone(), Arc::clone(&meddler), Arc::clone(&listener));
                    thread::spawn(move || {
                        // Connections end in errors here when their ends leave.
                        let _ = relay(near, &real, &*meddler, &listener);
                    });
                }
                thread::sleep(REFUSES);
                listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
            }
        });
        alone(haul, self.directory.path())
            .envs(variables.iter().copied())
            .args(["cp", "-r", "--plain", "--streams", "1", "--haul-path", haul])
            .arg("--ssh")
            .arg(format!("sh '{}'", self.path("ssh").display()))
            .args(options)
            .arg(self.path("source"))
            .arg(format!("localhost:{}", self.path("sink").display()))
            .output()
            .unwrap()
    }
}

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn relay(mut near: TcpStream, real: &Path, meddler: &dyn Meddler, listener: &TcpListener) -> io::Result<()> {
    let began = Instant::now();
    let port: u16 = loop {
        match fs::read_to_string(real).unwrap_or_default().trim().parse() {
            Ok(port) => break port,
            Err(_) if began.elapsed() > PATIENCE => panic!("the far end has not greeted"),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    if meddler.cuts() {
        return near.shutdown(Shutdown::Both);
    }
    if meddler.is_mute() {
        return io::copy(&mut near, &mut io::sink()).map(drop);
    }
    let mut far = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    near.set_read_timeout(Some(PATIENCE))?;
    let (mut from_far, mut to_near) = (far.try_clone()?, near.try_clone()?);
    let back = thread::spawn(move || {
        let _ = io::copy(&mut from_far, &mut to_near);
        let _ = to_near.shutdown(Shutdown::Write);
    });
    let mut first = [0];
    near.peek(&mut first)?;
    let ended = match first {
        // docs/spec/streams.md: a hello, in clear.
        [b'h'] if meddler.cuts_data() => near.shutdown(Shutdown::Both),
        [b'h'] => carry(&mut near, &mut far, meddler, listener),
        _ => io::copy(&mut near, &mut far).map(drop),
    };
    far.shutdown(Shutdown::Write)?;
    back.join().unwrap();
    ended
}

/// The challenge, the epoch, and then payloads (docs/spec/streams.md and wire.md).
fn carry(
    near: &mut TcpStream,
    far: &mut TcpStream,
    meddler: &dyn Meddler,
    listener: &TcpListener,
) -> io::Result<()> {
    let mut opening = [0; 64 + 32 + 4];
    for part in [0..64, 64..96, 96..100] {
        near.read_exact(&mut opening[part.clone()])?;
        far.write_all(&opening[part])?;
    }
    loop {
        let mut header = [0; 24];
        near.read_exact(&mut header)?;
        meddler.begins();
        let length = u32::from_le_bytes(header[20..].try_into().unwrap());
        assert_eq!(length >> 27, 0, "a hash follows in clear");
        let mut bytes = vec![0; length as usize];
        near.read_exact(&mut bytes)?;
        meddler.passes(&mut header, &mut bytes);
        if meddler.refuses() {
            rustix::net::shutdown(listener, rustix::net::Shutdown::Both)?;
            near.shutdown(Shutdown::Both)?;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if !meddler.swallows() {
            far.write_all(&[&header, &bytes[..]].concat())?;
        }
    }
}

/// Alters a byte of the first payloads.
struct Alters {
    payloads: usize,
    /// And puts a hash that fits behind it.
    fits: bool,
    passed: AtomicUsize,
}

impl Alters {
    fn first(payloads: usize, fits: bool) -> Arc<Alters> {
        Arc::new(Alters { payloads, fits, passed: AtomicUsize::new(0) })
    }
}

impl Meddler for Alters {
    fn passes(&self, header: &mut [u8; 24], bytes: &mut Vec<u8>) {
        if self.passed.fetch_add(1, Ordering::SeqCst) >= self.payloads {
            return;
        }
        bytes[0] ^= 1;
        if self.fits {
            header[23] |= 1 << 3;
            bytes.extend(*blake3::hash(bytes).as_bytes());
        }
    }
}

#[test]
fn bytes_that_are_altered_are_not_believed_whatever_hash_follows_them() {
    for fits in [false, true] {
        let bed = Bed::new();
        let meddler = Alters::first(1, fits);
        let output = bed.push(meddler.clone(), &[]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(meddler.passed.load(Ordering::SeqCst) > 1, "it was sent again");
        assert!(fs::read(bed.path("sink/file")).unwrap() == content(1));
    }
}

/// Alters one byte of the first payload's header.
struct Readdresses {
    byte: usize,
    passed: AtomicUsize,
}

impl Meddler for Readdresses {
    fn passes(&self, header: &mut [u8; 24], _bytes: &mut Vec<u8>) {
        if self.passed.fetch_add(1, Ordering::SeqCst) == 0 {
            header[self.byte] ^= 1;
        }
    }
}

/// Its mark, its connection, what it is, where it goes.
#[test]
fn a_header_that_is_altered_costs_a_connection_and_not_the_transfer() {
    for byte in [0, 4, 8, 15, 19] {
        let bed = Bed::new();
        let meddler = Arc::new(Readdresses { byte, passed: AtomicUsize::new(0) });
        let output = bed.push(meddler.clone(), &[]);
        assert_eq!(output.status.code(), Some(0), "{byte}: {}", said(&output));
        assert!(meddler.passed.load(Ordering::SeqCst) > 1, "{byte}: it was sent again");
        assert!(fs::read(bed.path("sink/file")).unwrap() == content(1), "{byte}");
    }
}

#[test]
fn who_alters_everything_prevents_a_transfer_and_nothing_else() {
    let bed = Bed::new();
    let meddler = Alters::first(usize::MAX, true);
    let began = Instant::now();
    let output = bed.push(meddler.clone(), &["--reconnect", "2"]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("lost before anything whole has passed"), "{}", said(&output));
    assert!(began.elapsed() < PATIENCE);
    assert!(!bed.path("sink/file").exists());
    // Every connection had its payload, and there were pauses between them.
    let passed = meddler.passed.load(Ordering::SeqCst);
    assert!((5..20).contains(&passed), "{passed} payloads");
}

/// Swallows the first payloads: messages go on, and both ends of the data stream live.
struct Swallows {
    payloads: usize,
    passed: AtomicUsize,
}

impl Meddler for Swallows {
    fn swallows(&self) -> bool {
        self.passed.fetch_add(1, Ordering::SeqCst) < self.payloads
    }
}

#[test]
fn what_is_swallowed_on_the_way_is_sent_again() {
    let bed = Bed::new();
    let meddler = Arc::new(Swallows { payloads: 1, passed: AtomicUsize::new(0) });
    let output = bed.push_with(&[("HAUL_TEST_QUIET_MAX", "2")], meddler.clone(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("connecting again"), "{}", said(&output));
    assert_eq!(meddler.passed.load(Ordering::SeqCst), 2);
    assert!(fs::read(bed.path("sink/file")).unwrap() == content(1));
}

#[test]
fn where_everything_is_swallowed_a_transfer_ends() {
    let bed = Bed::new();
    let meddler = Arc::new(Swallows { payloads: usize::MAX, passed: AtomicUsize::new(0) });
    let output = bed.push_with(&[("HAUL_TEST_QUIET_MAX", "1")], meddler, &["--reconnect", "2"]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("lost before anything whole has passed"), "{}", said(&output));
}

/// Cuts the first payload off, and lets nobody in for a while.
struct Refuses(AtomicUsize);

impl Meddler for Refuses {
    fn refuses(&self) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst) == 0
    }
}

/// A router that begins anew resets what it does not know. The other end lives, and so does ssh.
#[test]
fn who_refuses_for_a_while_ends_nothing() {
    let bed = Bed::new();
    let meddler = Arc::new(Refuses(AtomicUsize::new(0)));
    let began = Instant::now();
    let output = bed.push(meddler.clone(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(meddler.0.load(Ordering::SeqCst) > 1 && began.elapsed() >= REFUSES, "{}", said(&output));
    assert!(fs::read(bed.path("sink/file")).unwrap() == content(1));
}

/// A firewall that shakes hands for those behind it, and drops what follows.
struct Mute;

impl Meddler for Mute {
    fn is_mute(&self) -> bool {
        true
    }
}

#[test]
fn where_connections_are_taken_and_nothing_passes_the_other_end_dials_back() {
    let bed = Bed::new();
    let output = bed.push(Arc::new(Mute), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(fs::read(bed.path("sink/file")).unwrap() == content(1));
    let output = bed.push(Arc::new(Mute), &["--listen", "far"]);
    assert_eq!(output.status.code(), Some(4), "nobody may dial back: {}", said(&output));
    assert!(said(&output).contains("takes connections to port"), "{}", said(&output));
}

/// Cuts the first connections.
struct Cuts {
    connections: usize,
    come: AtomicUsize,
}

impl Meddler for Cuts {
    fn cuts(&self) -> bool {
        self.come.fetch_add(1, Ordering::SeqCst) < self.connections
    }
}

#[test]
fn a_first_connection_that_is_cut_while_it_is_made_is_tried_again() {
    for (connections, listens, expected) in [(1, "far", 0), (usize::MAX, "auto", 0), (usize::MAX, "far", 4)] {
        let bed = Bed::new();
        let meddler = Arc::new(Cuts { connections, come: AtomicUsize::new(0) });
        let began = Instant::now();
        let output = bed.push(meddler.clone(), &["--listen", listens]);
        assert_eq!(output.status.code(), Some(expected), "{}", said(&output));
        assert_eq!(bed.path("sink/file").exists(), expected == 0);
        assert_eq!(said(&output).contains("may cut connections"), expected == 4, "{}", said(&output));
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
    }
}

/// This end is behind a translator of addresses.
#[test]
fn where_all_connections_are_cut_and_nobody_can_dial_back_it_ends_soon_and_says_why() {
    let bed = Bed::new();
    let meddler = Arc::new(Cuts { connections: usize::MAX, come: AtomicUsize::new(0) });
    let began = Instant::now();
    let elsewhere = [("SSH_CONNECTION", "192.0.2.1 5000 127.0.0.1 22")];
    let output = bed.push_with(&elsewhere, meddler.clone(), &[]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("may cut connections"), "{}", said(&output));
    assert_eq!(meddler.come.load(Ordering::SeqCst), 3, "tries");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

/// It counts connections.
struct OnlyControl;

impl Meddler for OnlyControl {
    fn cuts_data(&self) -> bool {
        true
    }
}

/// The far end waits for the others of a connection first.
#[test]
fn where_only_the_first_connection_is_let_through_the_other_end_dials_back() {
    let bed = Bed::new();
    let output = bed.push(Arc::new(OnlyControl), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(fs::read(bed.path("sink/file")).unwrap() == content(1));
    let output = bed.push(Arc::new(OnlyControl), &["--listen", "far"]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("try fewer --streams"), "{}", said(&output));
}

/// How long nothing comes counts, not how long a payload takes.
#[test]
fn what_comes_slowly_comes() {
    let bed = Bed::new();
    let haul = env!("CARGO_BIN_EXE_haul");
    let output = alone(haul, bed.directory.path())
        .env("HAUL_TEST_QUIET_MAX", "2")
        .args(["cp", "-r", "--plain", "--bandwidth", "600KiB", "--haul-path", haul])
        .args(["--ssh", &format!("'{haul}' bench shell")])
        .arg(bed.path("source"))
        .arg(format!("localhost:{}", bed.path("sink").display()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(!said(&output).contains("connecting again"), "{}", said(&output));
}

/// Holds the first payload back while the file is written anew.
struct Holds {
    change: Box<dyn Fn() + Send + Sync>,
    begun: AtomicUsize,
}

impl Meddler for Holds {
    fn begins(&self) {
        if self.begun.fetch_add(1, Ordering::SeqCst) == 0 {
            (self.change)();
        }
    }
}

/// The file is changed while it is sent: what stands at the sink in the end, and how often a payload was sent.
fn changed_on_its_way(change: impl Fn(&Path) + Send + Sync + 'static) -> (Vec<u8>, usize) {
    let bed = Bed::new();
    let file = bed.path("source/file");
    let change = Box::new(move || change(&file));
    let meddler = Arc::new(Holds { change, begun: AtomicUsize::new(0) });
    let output = bed.push(meddler.clone(), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    (fs::read(bed.path("sink/file")).unwrap(), meddler.begun.load(Ordering::SeqCst))
}

#[test]
fn a_member_that_is_written_to_while_it_is_sent_is_sent_again() {
    let (arrived, times) = changed_on_its_way(|file| {
        let file = fs::OpenOptions::new().write(true).open(file).unwrap();
        file.write_all_at(&content(2)[FILE_BYTES - 1000..], FILE_BYTES as u64 - 1000).unwrap();
    });
    let expected = [&content(1)[..FILE_BYTES - 1000], &content(2)[FILE_BYTES - 1000..]].concat();
    assert!(arrived == expected && times > 1, "{times} times");
}

#[test]
fn a_member_that_is_cut_short_while_it_is_sent_is_sent_again() {
    let (arrived, times) = changed_on_its_way(|file| {
        fs::OpenOptions::new().write(true).open(file).unwrap().set_len(1 << 20).unwrap();
    });
    assert!(arrived == content(1)[..1 << 20] && times > 1, "{times} times");
}

#[test]
fn a_member_that_is_replaced_while_it_is_sent_arrives_whole() {
    let (arrived, _) = changed_on_its_way(|file| {
        let next = file.with_extension("next");
        fs::write(&next, content(2)).unwrap();
        fs::rename(next, file).unwrap();
    });
    assert!(arrived == content(1) || arrived == content(2), "a mixture");
}

#[test]
fn what_is_never_right_is_named_and_not_stored() {
    let bed = Bed::new();
    let meddler = Alters::first(usize::MAX, false);
    let output = bed.push(meddler.clone(), &[]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(
        said(&output).contains("sink/file: arrived with other bytes than were read"),
        "{}",
        said(&output)
    );
    assert!(!bed.path("sink/file").exists());
    let passed = meddler.passed.load(Ordering::SeqCst);
    assert!((2..10).contains(&passed), "{passed} payloads");
}
