//! What every [`Stream`] must do, whichever driver, protection or decorators it is made of.
//!
//! Called by tests only: [`conformance!`](crate::conformance!) makes one test of each check for a function that gives
//! a connected pair. Each check ends on its own or fails: a stream that hangs is named, not waited for.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver as Channel};
use std::thread;
use std::time::Duration;

use crate::{Cause, Receiver, Sender, Stream, cause};

/// How long a check may take before it counts as hanging. The slowest takes a second on a small machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a module `$name` with one test for each check, over the pairs that `$pair` makes: a path to a
/// `fn() -> (Stream, Stream)`.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $pair:path) => {
        $crate::conformance!($name, $pair, [
            bytes_arrive_in_order_whatever_the_pieces
            sizes_around_every_edge_arrive
            a_message_of_64_mib_arrives_in_one_send
            many_tiny_sends_arrive
            many_parts_arrive_in_order
            a_range_of_a_file_arrives_behind_its_head
            a_file_that_ends_early_arrives_with_zeros
            what_cannot_be_read_does_not_arrive
            empty_sends_and_receives_do_nothing
            both_directions_run_at_once
            a_finished_direction_ends_cleanly
            a_finished_direction_leaves_the_other_open
            an_end_within_a_message_is_truncation
            the_closer_wakes_a_blocked_receive
            the_closer_wakes_a_blocked_send
            closing_one_end_ends_the_other
            dropping_one_end_ends_the_other
            a_silent_peer_is_noticed_and_may_speak_later
        ]);
    };
    ($name:ident, $pair:path, [$($check:ident)*]) => {
        mod $name {
            use super::*;

            $(
                #[test]
                fn $check() {
                    $crate::conformance::bounded($pair, $crate::conformance::$check);
                }
            )*
        }
    };
}

/// What makes a connected pair: one type for all, so that each check is compiled once.
pub type Pair = fn() -> (Stream, Stream);

/// Runs one check, and fails if it hangs.
pub fn bounded(pair: Pair, check: fn(Pair)) {
    wait_for(spawn(move || check(pair)));
}

/// The bytes of all checks: random up to a period that no size of any layer divides, so that a lost, repeated or
/// swapped piece is seen.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    const PERIOD: usize = 8 * 65_537;
    let mut random = Random(seed);
    let mut bytes = vec![0; length.min(PERIOD).next_multiple_of(8)];
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
    bytes.reserve_exact(length.saturating_sub(bytes.len()));
    while bytes.len() < length {
        bytes.extend_from_within(..bytes.len().min(length - bytes.len()));
    }
    bytes.truncate(length);
    bytes
}

/// SplitMix64: small, and the same sequence everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Mostly small, sometimes large: 1 to `most`, each order of magnitude as likely as any.
    fn size(&mut self, most: usize) -> usize {
        let bits = self.next() % u64::from(most.ilog2() + 1);
        (self.next() as usize % (2 << bits)).clamp(1, most)
    }
}

fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Channel<thread::Result<T>> {
    let (done, result) = mpsc::channel();
    thread::spawn(move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // The check may have failed elsewhere meanwhile.
        let _ = done.send(outcome);
    });
    result
}

fn wait_for<T>(result: Channel<thread::Result<T>>) -> T {
    match result.recv_timeout(PATIENCE) {
        Ok(Ok(value)) => value,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => panic!("hangs: no result within {PATIENCE:?}"),
    }
}

/// A file with these bytes, and no name.
fn file_of(bytes: &[u8]) -> OwnedFd {
    let file = rustix::fs::memfd_create(c"conformance", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(&file, &bytes[written..], written as u64).expect("write");
    }
    file
}

fn send(sender: &mut dyn Sender, bytes: &[u8]) {
    sender.send(&[IoSlice::new(bytes)]).expect("send");
}

fn receive(receiver: &mut dyn Receiver, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    receiver.receive(&mut bytes).expect("receive");
    bytes
}

#[track_caller]
fn assert_fails<T: std::fmt::Debug>(result: io::Result<T>, expected: &[Cause]) {
    let error = result.expect_err("an error");
    assert!(expected.contains(&cause(&error)), "{error} ({:?}) instead of {expected:?}", cause(&error));
}

/// Sends the pattern of `seed` in random pieces, one to three parts each, and finishes.
fn send_pieces(sender: &mut dyn Sender, seed: u64, length: usize, most: usize) {
    let bytes = pattern(seed, length);
    let mut random = Random(seed ^ 1);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let mut parts = Vec::new();
        for _ in 0..1 + random.next() % 3 {
            let (now, later) = rest.split_at(random.size(most).min(rest.len()));
            parts.push(IoSlice::new(now));
            rest = later;
        }
        sender.send(&parts).expect("send");
    }
    sender.finish().expect("finish");
}

/// Receives the pattern of `seed` in random pieces, by both kinds of call, up to the clean end.
fn receive_pieces(receiver: &mut dyn Receiver, seed: u64, length: usize, most: usize) {
    let mut random = Random(seed ^ 2);
    let mut received = Vec::with_capacity(length);
    while received.len() < length {
        let size = random.size(most).min(length - received.len());
        let mut piece = vec![0; size];
        if random.next().is_multiple_of(2) {
            receiver.receive(&mut piece).expect("receive");
        } else {
            let count = receiver.receive_some(&mut piece).expect("receive some");
            assert!(count > 0, "ended after {} of {length} bytes", received.len());
            piece.truncate(count);
        }
        received.extend(piece);
    }
    assert!(received == pattern(seed, length), "other bytes came than were sent");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
}

/// Any partition into sends and receives gives the same string of bytes.
pub fn bytes_arrive_in_order_whatever_the_pieces(pair: impl Fn() -> (Stream, Stream)) {
    for (seed, most) in [(1, 64), (2, 5_000), (3, 40_000), (4, 300_000)] {
        let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
        let length = (40 * most).min(3_000_000);
        let sending = spawn(move || send_pieces(&mut *sender, seed, length, most));
        receive_pieces(&mut *receiver, seed, length, most);
        wait_for(sending);
    }
}

type Halves = (Box<dyn Sender>, Box<dyn Receiver>, crate::Closer);

fn split((one, other): (Stream, Stream)) -> (Halves, Halves) {
    (one.split(), other.split())
}

/// A small header and a payload, received as header and payload, for payloads around every size that a layer has.
pub fn sizes_around_every_edge_arrive(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let mut sizes = vec![0, 1, 2, 4_095, 4_096, 4_097];
    for edge in [1 << 14, 1 << 16, 1 << 18, 1 << 19, 1 << 20] {
        sizes.extend([edge - 65, edge - 64, edge - 63, edge - 1, edge, edge + 1]);
    }
    let to_send = sizes.clone();
    let sending = spawn(move || {
        for size in to_send {
            let (header, payload) = (pattern(size as u64, 64), pattern(!size as u64, size));
            sender.send(&[IoSlice::new(&header), IoSlice::new(&payload)]).expect("send");
        }
        sender.finish().expect("finish");
    });
    for size in sizes {
        assert!(receive(&mut *receiver, 64) == pattern(size as u64, 64), "header before {size} bytes");
        assert!(receive(&mut *receiver, size) == pattern(!size as u64, size), "payload of {size} bytes");
    }
    assert_eq!(receiver.receive_some(&mut [0]).expect("the clean end"), 0);
    wait_for(sending);
}

/// The largest object with its header, in one call at both ends.
pub fn a_message_of_64_mib_arrives_in_one_send(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let sending = spawn(move || {
        let payload = pattern(7, 64 << 20);
        sender.send(&[IoSlice::new(&[9; 48]), IoSlice::new(&payload)]).expect("send");
        sender.finish().expect("finish");
    });
    assert_eq!(receive(&mut *receiver, 48), [9; 48]);
    assert!(receive(&mut *receiver, 64 << 20) == pattern(7, 64 << 20), "payload");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// Ten thousand messages of a few bytes.
pub fn many_tiny_sends_arrive(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let sending = spawn(move || {
        (0..10_000u32)
            .for_each(|number| send(&mut *sender, &number.to_le_bytes()[..1 + number as usize % 4]));
        sender.finish().expect("finish");
    });
    for number in 0..10_000u32 {
        let length = 1 + number as usize % 4;
        assert_eq!(receive(&mut *receiver, length), number.to_le_bytes()[..length], "message {number}");
    }
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// [`Sender::send_file`] sends what `send` would, at any offset and length, and goes on with what comes next.
pub fn a_range_of_a_file_arrives_behind_its_head(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let bytes = pattern(12, 9 << 20);
    let file = file_of(&bytes);
    let ranges = [(0, 0), (0, 1), (4095, 2), (1, 100_000), (1 << 20, 8 << 20), ((9 << 20) - 1, 1)];
    let mut expected = Vec::new();
    for (offset, length) in ranges.into_iter().chain(ranges) {
        expected.extend_from_slice(b"head");
        expected.extend_from_slice(&bytes[offset..offset + length]);
    }
    let bytes_there = bytes;
    let sending = spawn(move || {
        for (offset, length) in ranges {
            let mut room = vec![0xee; length];
            sender.send_file(b"head", file.as_fd(), offset as u64, &mut room, None).expect("send");
        }
        // And the same where somebody sees them.
        for (offset, length) in ranges {
            let (mut room, mut seen) = (vec![0xee; length], Vec::new());
            let mut see = |bytes: &[u8]| seen.extend_from_slice(bytes);
            sender.send_file(b"head", file.as_fd(), offset as u64, &mut room, Some(&mut see)).expect("send");
            assert!(seen == bytes_there[offset..offset + length], "other bytes were seen");
        }
        sender.finish().expect("finish");
    });
    assert!(receive(&mut *receiver, expected.len()) == expected, "other bytes came than were sent");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// A file that was cut short since it was read must not break the order of the stream.
pub fn a_file_that_ends_early_arrives_with_zeros(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let bytes = pattern(13, 100_000);
    let file = file_of(&bytes);
    let sending = spawn(move || {
        let mut room = vec![0xee; 150_000];
        sender.send_file(b"head", file.as_fd(), 50_000, &mut room, None).expect("send");
        sender.send_file(b"next", file.as_fd(), 200_000, &mut room[..10], None).expect("send");
        sender.finish().expect("finish");
    });
    let mut expected = b"head".to_vec();
    expected.extend_from_slice(&bytes[50_000..]);
    expected.resize(4 + 150_000, 0);
    expected.extend_from_slice(b"next\0\0\0\0\0\0\0\0\0\0");
    assert!(receive(&mut *receiver, expected.len()) == expected, "other bytes came than were sent");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// Nothing arrives in the place of bytes that cannot be read.
pub fn what_cannot_be_read_does_not_arrive(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let directory = std::fs::File::open("/").expect("a directory");
    let sending = spawn(move || {
        let mut room = vec![0xee; 100_000];
        assert_fails(sender.send_file(b"head", directory.as_fd(), 0, &mut room, None), &[Cause::Unreadable]);
        drop(sender);
    });
    let mut bytes = vec![0; 4 + 100_000];
    assert!(receiver.receive(&mut bytes).is_err(), "a payload arrived that nobody could read");
    wait_for(sending);
}

/// One send of more parts than a system call takes, empty ones among them.
pub fn many_parts_arrive_in_order(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    let bytes = pattern(11, 300_000);
    let to_send = bytes.clone();
    let sending = spawn(move || {
        let mut rest = &to_send[..];
        let mut parts = vec![IoSlice::new(&[])];
        for number in 0.. {
            let (now, later) = rest.split_at((number % 200).min(rest.len()));
            parts.push(IoSlice::new(now));
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        parts.push(IoSlice::new(&[]));
        assert!(parts.len() > 1_024);
        sender.send(&parts).expect("send");
        sender.finish().expect("finish");
    });
    assert!(receive(&mut *receiver, bytes.len()) == bytes, "other bytes came than were sent");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// Nothing is sent, nothing is waited for, nothing ends.
pub fn empty_sends_and_receives_do_nothing(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    receiver.receive(&mut []).expect("an empty receive");
    sender.send(&[]).expect("no parts");
    sender.send(&[IoSlice::new(&[]), IoSlice::new(&[])]).expect("empty parts");
    send(&mut *sender, b"x");
    assert_eq!(receive(&mut *receiver, 1), b"x");
    receiver.receive(&mut []).expect("an empty receive");
    sender.finish().expect("finish");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    receiver.receive(&mut []).expect("an empty receive after the end");
}

/// Four threads, bulk both ways: no direction waits for the other.
pub fn both_directions_run_at_once(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut forth, mut back, _), (mut reply, mut incoming, _)) = split(pair());
    const LENGTH: usize = 8 << 20;
    let threads = [
        spawn(move || send_pieces(&mut *forth, 21, LENGTH, 1 << 20)),
        spawn(move || send_pieces(&mut *reply, 22, LENGTH, 1 << 20)),
        spawn(move || receive_pieces(&mut *incoming, 21, LENGTH, 1 << 20)),
        spawn(move || receive_pieces(&mut *back, 22, LENGTH, 1 << 20)),
    ];
    threads.into_iter().for_each(wait_for);
}

/// All that was sent arrives, then the end, as often as it is asked for; nothing can be sent behind it.
pub fn a_finished_direction_ends_cleanly(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    send(&mut *sender, b"last words");
    sender.finish().expect("finish");
    sender.finish().expect("a second finish");
    assert_fails(sender.send(&[IoSlice::new(b"more")]), &[Cause::Lost]);
    drop(sender);
    assert_eq!(receive(&mut *receiver, 10), b"last words");
    for _ in 0..3 {
        assert_fails(receiver.receive(&mut [0; 8]), &[Cause::CleanEnd]);
        assert_eq!(receiver.receive_some(&mut [0; 8]).expect("the clean end"), 0);
    }
}

/// Half-close: an answer may come after the question has ended.
pub fn a_finished_direction_leaves_the_other_open(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, mut back, _), (mut reply, mut receiver, _)) = split(pair());
    send(&mut *sender, b"question");
    sender.finish().expect("finish");
    drop(sender);
    assert_eq!(receive(&mut *receiver, 8), b"question");
    assert_fails(receiver.receive(&mut [0]), &[Cause::CleanEnd]);
    let answer = pattern(31, 200_000);
    let expected = answer.clone();
    let sending = spawn(move || {
        send(&mut *reply, &answer);
        reply.finish().expect("finish");
    });
    assert!(receive(&mut *back, expected.len()) == expected, "answer");
    assert_fails(back.receive(&mut [0]), &[Cause::CleanEnd]);
    wait_for(sending);
}

/// A clean end, but not where the receiver needed one.
pub fn an_end_within_a_message_is_truncation(pair: impl Fn() -> (Stream, Stream)) {
    for sent in [1, 99, 20_000] {
        let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
        let sending = spawn(move || {
            send(&mut *sender, &pattern(41, sent));
            sender.finish().expect("finish");
        });
        let error = receiver.receive(&mut vec![0; sent + 1]).expect_err("an error");
        assert_eq!((cause(&error), error.kind()), (Cause::Truncated, io::ErrorKind::UnexpectedEof));
        wait_for(sending);
    }
}

/// A receive that waits for a peer which says nothing ends as soon as the stream is closed, and so does all that follows.
pub fn the_closer_wakes_a_blocked_receive(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, mut receiver, closer), (mut far, _far_receiver, _)) = split(pair());
    send(&mut *far, b"go");
    let (ready, started) = mpsc::channel();
    let receiving = spawn(move || {
        assert_eq!(receive(&mut *receiver, 2), b"go");
        ready.send(()).expect("the check waits");
        assert_fails(receiver.receive(&mut [0; 100]), &[Cause::Closed]);
        assert_fails(receiver.receive(&mut [0; 100]), &[Cause::Closed]);
        assert_fails(receiver.receive_some(&mut [0; 100]), &[Cause::Closed]);
    });
    started.recv_timeout(PATIENCE).expect("the receiver starts");
    closer.close();
    closer.clone().close();
    wait_for(receiving);
    assert_fails(sender.send(&[IoSlice::new(b"late")]), &[Cause::Closed]);
    assert_fails(sender.send(&[IoSlice::new(b"late")]), &[Cause::Closed]);
}

/// A send that waits for a peer which takes nothing ends as soon as the stream is closed.
pub fn the_closer_wakes_a_blocked_send(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, mut receiver, closer), (_far, _far_receiver, _)) = split(pair());
    let (progress, sent) = mpsc::channel();
    let sending = spawn(move || {
        let payload = pattern(51, 1 << 20);
        loop {
            if let Err(error) = sender.send(&[IoSlice::new(&payload)]) {
                return error;
            }
            // The check listens until it closes the stream.
            let _ = progress.send(());
        }
    });
    // No driver takes bytes without end: once nothing moves any more the sender is blocked, most likely. Whether it is
    // decides only what this check covers, not whether it passes.
    while sent.recv_timeout(Duration::from_millis(100)).is_ok() {}
    closer.close();
    assert_fails::<()>(Err(wait_for(sending)), &[Cause::Closed]);
    assert_fails(receiver.receive(&mut [0]), &[Cause::Closed]);
}

/// What the peer makes of a closed stream: an end or an error, but never a wait.
pub fn closing_one_end_ends_the_other(pair: impl Fn() -> (Stream, Stream)) {
    let ((_sender, _receiver, closer), (far, far_receiver, _)) = split(pair());
    ends(far, far_receiver, move || closer.close());
}

/// The same when both halves are dropped, as when a process dies.
pub fn dropping_one_end_ends_the_other(pair: impl Fn() -> (Stream, Stream)) {
    let ((sender, receiver, closer), (far, far_receiver, _)) = split(pair());
    ends(far, far_receiver, move || drop((sender, receiver)));
    // Nothing is left to close, and that is no error.
    closer.close();
}

fn ends(mut sender: Box<dyn Sender>, mut receiver: Box<dyn Receiver>, end: impl FnOnce()) {
    const ENDS: &[Cause] = &[Cause::CleanEnd, Cause::Truncated, Cause::Lost];
    let receiving = spawn(move || assert_fails(receiver.receive(&mut [0; 100]), ENDS));
    end();
    wait_for(receiving);
    let sending = spawn(move || {
        let payload = pattern(61, 1 << 20);
        while sender.send(&[IoSlice::new(&payload)]).is_ok() {}
    });
    wait_for(sending);
}

/// The timeout ends one call, not the stream.
pub fn a_silent_peer_is_noticed_and_may_speak_later(pair: impl Fn() -> (Stream, Stream)) {
    let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
    receiver.set_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    for _ in 0..2 {
        let error = receiver.receive(&mut [0; 5]).expect_err("silence");
        assert_eq!((cause(&error), error.kind()), (Cause::Silent, io::ErrorKind::TimedOut));
    }
    assert_fails(receiver.receive_some(&mut [0; 5]), &[Cause::Silent]);
    receiver.set_timeout(None).expect("no timeout");
    send(&mut *sender, b"hello");
    assert_eq!(receive(&mut *receiver, 5), b"hello");
}

/// For protections that can tell (TLS, memory): a sender that vanishes without finishing is not taken for a clean end,
/// be it between two messages or within one.
pub fn an_unclean_end_is_told(pair: impl Fn() -> (Stream, Stream)) {
    for wanted in [5, 6] {
        let ((mut sender, _back, _), (_forth, mut receiver, _)) = split(pair());
        send(&mut *sender, b"hello");
        drop(sender);
        let mut bytes = vec![0; wanted];
        let result = receiver.receive(&mut bytes);
        match wanted {
            5 => assert_fails(
                result.and_then(|()| receiver.receive(&mut [0])),
                &[Cause::Truncated, Cause::Lost],
            ),
            _ => assert_fails(result, &[Cause::Truncated, Cause::Lost]),
        }
    }
}
