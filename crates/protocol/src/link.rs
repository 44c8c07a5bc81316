//! The control stream as one ordered sequence of messages that outlives its connections.
//!
//! Each message has a number; what the other end has not confirmed is kept, and after a reconnect it is sent again from
//! where the other end stopped receiving. So the masters never see a lost or a doubled control message, and only
//! payloads can be lost with a connection. What is kept is bounded because everything that the masters have under way
//! is bounded (open entries, slots, files).

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use haul_model::limits::{UNACKED_BYTES_MAX, UNACKED_MESSAGES_MAX};
use haul_model::{Code, Failure};
use haul_wire::{FrameHeader, Message};

use crate::planted::{Bug, Planted};

/// A frame ready to be written: header, then body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Goes first.
    pub header: FrameHeader,
    /// `header.length` bytes.
    pub body: Vec<u8>,
}

struct Kept {
    sequence: u64,
    kind: u8,
    body: Vec<u8>,
}

/// One end of the control sequence of a session.
pub struct Link {
    epoch: u32,
    up: bool,
    sent: u64,
    received: u64,
    confirmed_by_us: u64,
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    planted: Planted,
}

impl Link {
    /// Nothing sent, nothing received, no connection.
    pub fn new(planted: Planted) -> Self {
        Link {
            epoch: 0,
            up: false,
            sent: 0,
            received: 0,
            confirmed_by_us: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            planted,
        }
    }

    /// The highest message number received: goes into the header of CONNECT.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Does a connection stand?
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Everything sent has been confirmed.
    pub fn is_settled(&self) -> bool {
        self.kept.is_empty()
    }

    /// Is what the other end has not confirmed far from as much as may be? Else nothing is to be begun that will be told of.
    pub fn has_room(&self) -> bool {
        self.kept.len() < UNACKED_MESSAGES_MAX / 4 && self.kept_bytes < UNACKED_BYTES_MAX / 4
    }

    /// A frame that has no number (CONNECT, PING), for the connection `epoch`.
    pub fn unsequenced(&mut self, epoch: u32, message: &Message) -> Frame {
        let mut body = Vec::new();
        message.encode(&mut body);
        self.frame(epoch, 0, message.kind(), body)
    }

    /// A connection stands and the other end has received everything up to `peer_received`. Returns what it lacks.
    pub fn connected(&mut self, epoch: u32, peer_received: u64) -> Result<Vec<Frame>, Failure> {
        self.confirm(peer_received)?;
        self.epoch = epoch;
        self.up = true;
        if self.planted.has(Bug::LinkForgetsUnacked) {
            return Ok(Vec::new());
        }
        let again: Vec<_> =
            self.kept.iter().map(|kept| (kept.sequence, kept.kind, kept.body.clone())).collect();
        Ok(again.into_iter().map(|(sequence, kind, body)| self.frame(epoch, sequence, kind, body)).collect())
    }

    /// The connection is gone.
    pub fn disconnected(&mut self) {
        self.up = false;
    }

    /// Numbers and keeps a message; the frame is to be written now if a connection stands.
    pub fn send(&mut self, message: &Message) -> Option<Frame> {
        let mut body = Vec::new();
        message.encode(&mut body);
        if !message.is_sequenced() {
            return self.up.then(|| self.frame(self.epoch, 0, message.kind(), body));
        }
        self.sent += 1;
        self.kept_bytes += body.len();
        let (sequence, kind) = (self.sent, message.kind());
        if !self.up {
            self.kept.push_back(Kept { sequence, kind, body });
            return None;
        }
        self.kept.push_back(Kept { sequence, kind, body: body.clone() });
        Some(self.frame(self.epoch, sequence, kind, body))
    }

    /// A PING if the other end waits for a confirmation of at least `pending` messages.
    pub fn confirmation(&mut self, pending: u64) -> Option<Frame> {
        (self.up && self.received - self.confirmed_by_us >= pending)
            .then(|| self.frame(self.epoch, 0, Message::Ping.kind(), Vec::new()))
    }

    /// Takes a frame in. `None` for what has been received before or belongs to an old connection.
    pub fn receive(&mut self, header: &FrameHeader, body: &[u8]) -> Result<Option<Message>, Failure> {
        if header.epoch != self.epoch || !self.up {
            return Ok(None);
        }
        self.confirm(header.received)?;
        let message = Message::decode(header.kind, body)?;
        if message.is_sequenced() != (header.sequence != 0) {
            return Err(Failure::new(Code::Protocol));
        }
        if header.sequence == 0 {
            return Ok(Some(message));
        }
        if header.sequence <= self.received && !self.planted.has(Bug::LinkRepeatsDelivered) {
            return Ok(None);
        }
        if header.sequence > self.received + 1 && !self.planted.has(Bug::LinkForgetsUnacked) {
            return Err(Failure::new(Code::Protocol));
        }
        self.received = self.received.max(header.sequence);
        Ok(Some(message))
    }

    fn confirm(&mut self, peer_received: u64) -> Result<(), Failure> {
        if peer_received > self.sent {
            return Err(Failure::new(Code::Protocol));
        }
        while self.kept.front().is_some_and(|kept| kept.sequence <= peer_received) {
            let confirmed = self.kept.pop_front();
            self.kept_bytes -= confirmed.map_or(0, |kept| kept.body.len());
        }
        if self.kept.len() > UNACKED_MESSAGES_MAX || self.kept_bytes > UNACKED_BYTES_MAX {
            return Err(Failure::new(Code::LimitExceeded));
        }
        Ok(())
    }

    fn frame(&mut self, epoch: u32, sequence: u64, kind: u8, body: Vec<u8>) -> Frame {
        self.confirmed_by_us = self.received;
        let header =
            FrameHeader { length: body.len() as u32, epoch, sequence, received: self.received, kind };
        Frame { header, body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use haul_model::SlotId;

    #[test]
    fn who_confirms_nothing_is_told_only_so_much() {
        let (mut a, mut b) = pair();
        let ping = b.unsequenced(1, &Message::Ping);
        let many = Message::BlockDone { slots: vec![SlotId(u32::MAX); 4096], allowances: vec![] };
        let mut told = 0;
        while told <= UNACKED_BYTES_MAX {
            assert!(a.receive(&ping.header, &ping.body).is_ok(), "after {told} bytes");
            told += a.send(&many).unwrap().body.len();
        }
        assert_eq!(a.receive(&ping.header, &ping.body), Err(Failure::new(Code::LimitExceeded)));
    }

    #[test]
    fn nothing_more_is_begun_long_before_too_much_is_unconfirmed() {
        let (mut a, mut b) = pair();
        let mut sent = 0;
        while a.has_room() {
            let frame = a.send(&block_done(1)).unwrap();
            b.receive(&frame.header, &frame.body).unwrap();
            sent += 1;
        }
        assert!((1000..UNACKED_MESSAGES_MAX / 2).contains(&sent), "{sent}");
        // What was begun before can still be told.
        for _ in sent..UNACKED_MESSAGES_MAX {
            a.send(&block_done(1)).unwrap();
        }
        let ping = b.confirmation(1).unwrap();
        a.receive(&ping.header, &ping.body).unwrap();
        assert!(!a.has_room(), "of what came later nothing is confirmed");
        let (mut a, mut b) = pair();
        let frame = a.send(&block_done(1)).unwrap();
        b.receive(&frame.header, &frame.body).unwrap();
        let ping = b.confirmation(1).unwrap();
        a.receive(&ping.header, &ping.body).unwrap();
        assert!(a.is_settled() && a.has_room());
    }

    fn block_done(slot: u32) -> Message {
        Message::BlockDone { slots: vec![SlotId(slot)], allowances: vec![] }
    }

    fn pair() -> (Link, Link) {
        let (mut a, mut b) = (Link::new(Planted::default()), Link::new(Planted::default()));
        assert!(a.connected(1, b.received()).unwrap().is_empty());
        assert!(b.connected(1, a.received()).unwrap().is_empty());
        (a, b)
    }

    #[test]
    fn what_a_cut_swallowed_is_delivered_once_and_in_order_by_the_next_connection() {
        let (mut a, mut b) = pair();
        let first = a.send(&block_done(1)).unwrap();
        let _swallowed = a.send(&block_done(2)).unwrap();
        assert_eq!(b.receive(&first.header, &first.body), Ok(Some(block_done(1))));
        a.disconnected();
        b.disconnected();
        assert_eq!(a.send(&block_done(3)), None);
        let again = a.connected(2, b.received()).unwrap();
        b.connected(2, a.received()).unwrap();
        let delivered: Vec<_> =
            again.iter().map(|frame| b.receive(&frame.header, &frame.body).unwrap().unwrap()).collect();
        assert_eq!(delivered, [block_done(2), block_done(3)]);
        for frame in &again {
            assert_eq!(b.receive(&frame.header, &frame.body), Ok(None), "a repeated frame");
        }
        let confirmation = b.confirmation(1).unwrap();
        a.receive(&confirmation.header, &confirmation.body).unwrap();
        assert!(a.is_settled());
    }

    #[test]
    fn a_gap_a_confirmation_of_the_future_and_an_old_epoch_are_not_taken() {
        let (mut a, mut b) = pair();
        let _lost = a.send(&block_done(1)).unwrap();
        let second = a.send(&block_done(2)).unwrap();
        assert!(b.receive(&second.header, &second.body).is_err());
        let mut ahead = a.unsequenced(1, &Message::Ping);
        ahead.header.received = 9;
        assert!(b.receive(&ahead.header, &ahead.body).is_err());
        let mut old = a.send(&block_done(3)).unwrap();
        old.header.epoch = 0;
        assert_eq!(b.receive(&old.header, &old.body), Ok(None));
    }
}
