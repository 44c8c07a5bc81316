//! The decorators do what they say, and any partition into sends and receives gives the same bytes.

mod common;

use std::io::IoSlice;
use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

use common::{agreed, memory_pair, protect, tcp_pair};
use haul_transport::conformance::pattern;
use haul_transport::fault::{self, Fault, Signal, When};
use haul_transport::{Cause, Purpose, Receiver, Sender, Stream, cause, memory, rate, trace};
use proptest::prelude::*;

fn send(sender: &mut dyn Sender, bytes: &[u8]) -> Result<(), Cause> {
    sender.send(&[IoSlice::new(bytes)]).map_err(|error| cause(&error))
}

fn receive(receiver: &mut dyn Receiver, count: usize) -> Result<Vec<u8>, Cause> {
    let mut bytes = vec![0; count];
    receiver.receive(&mut bytes).map(|()| bytes).map_err(|error| cause(&error))
}

/// All that arrives until the end, however it comes.
fn drain(receiver: &mut dyn Receiver) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), [0; 1_000]);
    while let Ok(count @ 1..) = receiver.receive_some(&mut buffer) {
        all.extend_from_slice(&buffer[..count]);
    }
    all
}

#[test]
fn a_cut_of_what_is_sent_lets_exactly_so_many_bytes_through() {
    for at in [0, 1, 999, 1_000, 4_321] {
        let (one, other) = tcp_pair();
        let (mut sender, mut back, _) = fault::sending(one, When::Byte(at), Fault::Cut).split();
        let (_reply, mut receiver, _) = other.split();
        let bytes = pattern(1, 10_000);
        let sent: Vec<_> = bytes.chunks(500).map(|piece| send(&mut *sender, piece)).collect();
        let whole = usize::try_from(at).unwrap() / 500;
        assert!(sent[..whole].iter().all(Result::is_ok));
        assert!(sent[whole..].iter().all(|result| *result == Err(Cause::Lost)), "{sent:?}");
        assert_eq!(drain(&mut *receiver), bytes[..at as usize]);
        assert!(receive(&mut *back, 1).is_err(), "both directions are cut");
    }
}

#[test]
fn a_cut_of_what_is_received_lets_exactly_so_many_bytes_through() {
    let (one, other) = memory_pair();
    let (mut sender, _back, _) = one.split();
    let (mut reply, mut receiver, _) = fault::receiving(other, When::Byte(1_000), Fault::Cut).split();
    let bytes = pattern(2, 2_000);
    send(&mut *sender, &bytes).unwrap();
    assert_eq!(receive(&mut *receiver, 990).unwrap(), bytes[..990]);
    assert_eq!(receive(&mut *receiver, 11), Err(Cause::Lost));
    assert_eq!(receive(&mut *receiver, 1), Err(Cause::Lost));
    assert_eq!(send(&mut *reply, b"x"), Err(Cause::Lost), "both directions are cut");
    assert_eq!(send(&mut *sender, b"x"), Err(Cause::Lost), "and the peer's too");
}

#[test]
fn a_flipped_bit_is_not_hidden_by_a_clear_stream() {
    for (byte, bit) in [(0, 0), (1, 7), (16_383, 3), (50_000, 5), (99_999, 1)] {
        for at_sender in [true, false] {
            let agreed = agreed(true);
            let (dialed, accepted) = protect(&agreed, Purpose::Data(0), tcp_pair());
            let (dialed, accepted) = match at_sender {
                true => (fault::sending(dialed, When::Byte(byte), Fault::Flip(bit)), accepted),
                false => (dialed, fault::receiving(accepted, When::Byte(byte), Fault::Flip(bit))),
            };
            let ((mut sender, _back, _), (_reply, mut receiver, _)) = (dialed.split(), accepted.split());
            let mut bytes = pattern(3, 100_000);
            send(&mut *sender, &bytes).unwrap();
            sender.finish().unwrap();
            bytes[byte as usize] ^= 1 << bit;
            assert!(receive(&mut *receiver, 100_000).unwrap() == bytes, "exactly bit {bit} of byte {byte}");
            assert_eq!(receive(&mut *receiver, 1), Err(Cause::CleanEnd));
        }
    }
}

#[test]
fn a_stall_is_noticed_by_the_timeout_and_ended_by_the_closer() {
    let (one, other) = memory_pair();
    let (mut sender, _back, closer) = fault::sending(one, When::Byte(3), Fault::Stall).split();
    let (_reply, mut receiver, _) = other.split();
    let sending = thread::spawn(move || send(&mut *sender, b"hello"));
    assert_eq!(receive(&mut *receiver, 3).unwrap(), b"hel");
    receiver.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(receive(&mut *receiver, 2), Err(Cause::Silent));
    assert!(!sending.is_finished());
    closer.close();
    assert_eq!(sending.join().unwrap(), Err(Cause::Closed));

    let (one, other) = memory_pair();
    let (mut sender, _back, _) = one.split();
    let (_reply, mut receiver, closer) = fault::receiving(other, When::Byte(3), Fault::Stall).split();
    send(&mut *sender, b"hello").unwrap();
    assert_eq!(receive(&mut *receiver, 3).unwrap(), b"hel");
    receiver.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(receive(&mut *receiver, 2), Err(Cause::Silent));
    receiver.set_timeout(None).unwrap();
    let receiving = thread::spawn(move || receive(&mut *receiver, 2));
    closer.close();
    assert_eq!(receiving.join().unwrap(), Err(Cause::Closed));
}

#[test]
fn a_signal_cuts_at_once_even_a_blocked_receive() {
    for raised_before in [false, true] {
        let signal = Signal::new();
        if raised_before {
            signal.raise();
        }
        let (one, other) = tcp_pair();
        let (_sender, mut receiver, _) =
            fault::receiving(one, When::Signal(signal.clone()), Fault::Cut).split();
        let (_reply, mut far, _) = other.split();
        let receiving = thread::spawn(move || receive(&mut *receiver, 1));
        signal.raise();
        assert_eq!(receiving.join().unwrap(), Err(Cause::Lost));
        assert!(receive(&mut *far, 1).is_err());
    }
}

#[test]
fn a_signal_begins_a_stall_or_a_flip() {
    let (stall, flip) = (Signal::new(), Signal::new());
    let (one, other) = memory_pair();
    let one = fault::sending(one, When::Signal(flip.clone()), Fault::Flip(0));
    let (mut sender, _back, closer) = fault::sending(one, When::Signal(stall.clone()), Fault::Stall).split();
    let (_reply, mut receiver, _) = other.split();
    send(&mut *sender, b"aa").unwrap();
    flip.raise();
    send(&mut *sender, b"bb").unwrap();
    assert_eq!(receive(&mut *receiver, 4).unwrap(), b"aacb");
    stall.raise();
    let sending = thread::spawn(move || send(&mut *sender, b"c"));
    receiver.set_timeout(Some(Duration::from_millis(20))).unwrap();
    assert_eq!(receive(&mut *receiver, 1), Err(Cause::Silent));
    closer.close();
    assert_eq!(sending.join().unwrap(), Err(Cause::Closed));
}

#[test]
fn a_delay_holds_each_call_up_and_alters_nothing() {
    let pause = Duration::from_millis(15);
    let (one, other) = memory_pair();
    let (mut sender, _back, _) = fault::sending(one, When::Byte(5), Fault::Delay(pause)).split();
    let (_reply, mut receiver, _) = other.split();
    send(&mut *sender, b"quick").unwrap();
    let start = Instant::now();
    send(&mut *sender, b"slow").unwrap();
    send(&mut *sender, b"slow").unwrap();
    assert!(start.elapsed() >= 2 * pause);
    sender.finish().unwrap();
    assert_eq!(receive(&mut *receiver, 13).unwrap(), b"quickslowslow");
}

#[test]
fn bytes_and_calls_are_counted_each_way() {
    let counters = trace::Counters::default();
    let (one, other) = memory_pair();
    let ((mut sender, mut back, _), (mut reply, mut receiver, _)) =
        (trace::wrap(one, &counters).split(), other.split());
    sender.send(&[IoSlice::new(&[1; 10]), IoSlice::new(&[2; 90])]).unwrap();
    send(&mut *sender, &[3; 5]).unwrap();
    receive(&mut *receiver, 105).unwrap();
    send(&mut *reply, &[4; 7]).unwrap();
    receive(&mut *back, 3).unwrap();
    let mut rest = [0; 100];
    assert_eq!(back.receive_some(&mut rest).unwrap(), 4);
    assert_eq!((counters.sent_bytes(), counters.sends()), (105, 2));
    assert_eq!((counters.received_bytes(), counters.receives()), (7, 2));
}

#[test]
fn a_limit_holds_for_all_its_streams_together_and_a_closer_ends_the_wait() {
    let limit = rate::Limit::new(NonZeroU64::new(10_000_000).unwrap());
    let start = Instant::now();
    let streams: Vec<_> = (0..2)
        .map(|_| {
            let (one, other) = memory_pair();
            let (mut sender, _back, _) = rate::wrap(one, &limit).split();
            thread::spawn(move || {
                let receiving = thread::spawn(move || drain(&mut *other.split().1).len());
                send(&mut *sender, &[5; 1_000_000]).unwrap();
                sender.finish().unwrap();
                assert_eq!(receiving.join().unwrap(), 1_000_000);
            })
        })
        .collect();
    streams.into_iter().for_each(|stream| stream.join().unwrap());
    // 2 MB at 10 MB/s, of which 50 ms are the bucket's.
    assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());

    limit.set(NonZeroU64::new(1).unwrap());
    let (one, _other) = memory_pair();
    let (mut sender, _back, closer) = rate::wrap(one, &limit).split();
    let sending = thread::spawn(move || send(&mut *sender, &[5; 1_000]));
    closer.close();
    assert_eq!(sending.join().unwrap(), Err(Cause::Closed));
}

/// Sends `bytes` in pieces of these sizes and receives it in pieces of those; the rest in one piece.
fn transfer((one, other): (Stream, Stream), bytes: &[u8], sends: &[usize], receives: &[usize]) -> Vec<u8> {
    let ((mut sender, _back, _), (_reply, mut receiver, _)) = (one.split(), other.split());
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut rest = bytes;
            for pair in sends.chunks(2) {
                let (first, later) = rest.split_at(pair[0].min(rest.len()));
                let (second, later) = later.split_at(pair.get(1).map_or(0, |size| (*size).min(later.len())));
                sender.send(&[IoSlice::new(first), IoSlice::new(second)]).unwrap();
                rest = later;
            }
            send(&mut *sender, rest).unwrap();
            sender.finish().unwrap();
        });
        let mut all = Vec::new();
        for (index, size) in receives.iter().enumerate() {
            let mut piece = vec![0; (*size).min(bytes.len() - all.len())];
            if piece.is_empty() {
                break;
            }
            if index % 2 == 0 {
                receiver.receive(&mut piece).unwrap();
            } else {
                let count = receiver.receive_some(&mut piece).unwrap();
                piece.truncate(count);
            }
            all.extend(piece);
        }
        all.extend(drain(&mut *receiver));
        all
    })
}

/// Sizes that are small, near the edge of a record, or large.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    let size = prop_oneof![1..100usize, 4_000..4_200usize, 16_300..16_500usize, 1..60_000usize];
    prop::collection::vec(size, 0..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_partition_gives_the_same_bytes_through_memory(
        length in 0..200_000usize, capacity in 1..70_000usize, sends in sizes(), receives in sizes()
    ) {
        let bytes = pattern(length as u64, length);
        prop_assert!(transfer(memory::pair(capacity), &bytes, &sends, &receives) == bytes);
    }

    #[test]
    fn any_partition_gives_the_same_bytes_through_tls(
        length in 0..200_000usize, capacity in 4_096..70_000usize, sends in sizes(), receives in sizes()
    ) {
        let bytes = pattern(length as u64, length);
        let pair = protect(&agreed(false), Purpose::Control, memory::pair(capacity));
        prop_assert!(transfer(pair, &bytes, &sends, &receives) == bytes);
    }

    #[test]
    fn any_partition_gives_the_same_bytes_through_tcp(
        length in 0..200_000usize, sends in sizes(), receives in sizes()
    ) {
        let bytes = pattern(length as u64, length);
        prop_assert!(transfer(tcp_pair(), &bytes, &sends, &receives) == bytes);
    }
}

#[test]
fn records_may_be_larger_than_what_the_layer_below_holds() {
    let pair = protect(&agreed(false), Purpose::Data(0), memory::pair(4_096));
    let bytes = pattern(9, 2_000_000);
    assert!(transfer(pair, &bytes, &[7, 100], &[3, 9]) == bytes);
}
