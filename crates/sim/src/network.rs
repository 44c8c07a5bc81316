//! The network: one connection at a time, frames in order, payloads on several streams.
//!
//! A cut takes what was in flight or lets it through: of the frames of each direction a prefix arrives, of the payloads
//! any. Each end notices in its own time.

use haul_model::{BlockId, Code, Failure, Hash, SlotId};
use haul_protocol::Event;
use haul_protocol::link::{Frame, Link};
use haul_protocol::planted::Bug;
use haul_wire::{Connect, FEATURE_BEFORE, FrameHeader, Message, Role, VERSION, VERSION_MIN};

use crate::content::{GARBAGE, HOLE, InFile, Payload};
use crate::world::{Happening, World, note};

/// One way of the control stream.
#[derive(Default)]
struct Way {
    sent: u64,
    delivered: u64,
    /// Frames from this one on never arrive.
    lost_from: u64,
    last_nanos: u64,
}

/// The connection made last.
#[derive(Default)]
pub(crate) struct Connection {
    pub epoch: u32,
    pub cut: bool,
    to_source: Way,
    to_sink: Way,
    /// When each data stream has carried what was given to it.
    streams: Vec<u64>,
}

impl Connection {
    fn new(epoch: u32, streams: usize) -> Self {
        let way = || Way { lost_from: u64::MAX, ..Way::default() };
        Connection { epoch, cut: false, to_source: way(), to_sink: way(), streams: vec![0; streams] }
    }

    fn way(&mut self, to: Role) -> &mut Way {
        match to {
            Role::Source => &mut self.to_source,
            Role::Sink => &mut self.to_sink,
        }
    }
}

/// How long an end waits for the other.
const PATIENCE_NANOS: u64 = 20_000_000_000;
/// How long a lost payload may wander about.
const STALE_NANOS: u64 = 2_000_000_000;

impl World {
    /// Cuts the connection. False if there is none.
    pub(crate) fn cut(&mut self) -> bool {
        let stands = self.source.as_ref().is_some_and(|it| it.up.is_some() && it.outcome.is_none())
            && self.sink.as_ref().is_some_and(|it| it.up.is_some() && it.outcome.is_none());
        if !stands || self.connection.cut {
            return false;
        }
        self.report.cuts += 1;
        self.sever();
        true
    }

    /// Ends the connection for whatever reason.
    pub(crate) fn sever(&mut self) {
        if self.connection.cut {
            return;
        }
        note!(self, "connection {} is cut", self.connection.epoch);
        self.connection.cut = true;
        for to in [Role::Source, Role::Sink] {
            let way = self.connection.way(to);
            let kept = self.random.below(way.sent - way.delivered + 1);
            way.lost_from = way.delivered + kept;
            let (session, epoch) = (self.session, self.connection.epoch);
            self.after(100_000_000, Happening::LinkDown { session, epoch, of: to });
        }
    }

    pub(crate) fn transmit(&mut self, to: Role, frame: Frame) {
        let nanos = self.delay(self.plan.delays.frame);
        let connection = &mut self.connection;
        if connection.cut {
            return;
        }
        let (epoch, way) = (connection.epoch, connection.way(to));
        way.last_nanos = way.last_nanos.max(self.now + nanos);
        way.sent += 1;
        let (at, index) = (way.last_nanos, way.sent - 1);
        self.queue.push(at, Happening::Frame { session: self.session, epoch, to, index, frame });
    }

    fn connect_message(&self, role: Role) -> Message {
        let slots = match role {
            Role::Source => self.source.as_ref().map_or(0, |it| it.slots.len()),
            Role::Sink => self.sink.as_ref().map_or(0, |it| it.slots.len()),
        };
        let mut session = [7; 16];
        session[..4].copy_from_slice(&self.session.to_le_bytes());
        Message::Connect(Connect {
            version: VERSION,
            version_min: VERSION_MIN,
            role,
            session: haul_model::SessionId(session),
            job: haul_model::JobId([1; 16]),
            object_bytes: self.checker.object_bytes,
            slots: slots as u32,
            features: FEATURE_BEFORE,
        })
    }

    /// The source dials; the sink may be there or not.
    pub(crate) fn on_dial(&mut self, session: u32) -> bool {
        let Some(end) = self.source.as_mut().filter(|it| session == self.session && it.outcome.is_none())
        else {
            return false;
        };
        if end.up.is_some() || end.dialing.is_some() {
            return false;
        }
        if self.sink.as_ref().is_none_or(|sink| sink.outcome.is_some()) {
            // Nobody answers; until the source's patience ends it tries again.
            if !end.impatient {
                self.after(4_000_000_000, Happening::Dial { session });
            }
            return true;
        }
        self.epochs += 1;
        let epoch = self.epochs;
        end.dialing = Some(epoch);
        let streams = self.checker.streams;
        self.connection = Connection::new(epoch, streams);
        note!(self, "source dials connection {epoch}");
        let message = self.connect_message(Role::Source);
        let understated = self.understated();
        if let Some(end) = &mut self.source {
            let mut frame = end.link.unsequenced(epoch, &message);
            frame.header.received = frame.header.received.saturating_sub(understated);
            self.transmit(Role::Sink, frame);
        }
        true
    }

    pub(crate) fn on_frame(&mut self, session: u32, epoch: u32, to: Role, index: u64, frame: Frame) -> bool {
        if session != self.session {
            return false;
        }
        if epoch != self.connection.epoch {
            // Left over from an old connection: refused by its epoch.
            let (link, up) = match to {
                Role::Source => self.source.as_mut().map(|end| (&mut end.link, end.up)),
                Role::Sink => self.sink.as_mut().map(|end| (&mut end.link, end.up)),
            }
            .unzip();
            // Who has not noticed yet that the connection is gone hears no more of it.
            let noticed = frame.header.kind != 0 && up != Some(Some(epoch));
            let Some(link) = link.filter(|_| noticed) else { return false };
            if link.receive(&frame.header, &frame.body) != Ok(None) {
                self.violate(format!("{to:?} takes a frame of connection {epoch}"));
            }
            return true;
        }
        let way = self.connection.way(to);
        way.delivered += 1;
        if index >= way.lost_from {
            return false;
        }
        match (to, frame.header.kind) {
            (Role::Source, 0) => self.source_connected(&frame.header, &frame.body),
            (Role::Sink, 0) => self.sink_connected(&frame.header, &frame.body),
            (Role::Source, _) => self.source_frame(&frame),
            (Role::Sink, _) => self.sink_frame(&frame),
        }
        true
    }

    /// How many messages more than CONNECT says an end has received: the number may have been taken before the last
    /// frames of the old connection were.
    fn understated(&mut self) -> u64 {
        if self.random.chance(300) { self.random.below(4) } else { 0 }
    }

    /// CONNECT reaches the sink.
    fn sink_connected(&mut self, header: &FrameHeader, body: &[u8]) {
        let Some(end) = self.sink.as_ref().filter(|end| end.outcome.is_none()) else { return };
        if end.up.is_some() {
            // The old connection is over, whether it was noticed or not.
            self.sink_link_down();
        }
        if self.connection.cut {
            let (session, epoch) = (self.session, header.epoch);
            self.after(100_000_000, Happening::LinkDown { session, epoch, of: Role::Sink });
        }
        let answer = self.connect_message(Role::Sink);
        let understated = self.understated();
        let Some(end) = &mut self.sink else { return };
        let mut frames = vec![end.link.unsequenced(header.epoch, &answer)];
        frames[0].header.received = frames[0].header.received.saturating_sub(understated);
        match connected(&mut end.link, header, body) {
            Ok((peer, again)) => {
                end.up = Some(header.epoch);
                end.generation += 1;
                frames.extend(again);
                frames.into_iter().for_each(|frame| self.transmit(Role::Source, frame));
                note!(self, "sink is connected ({})", header.epoch);
                // As long as it ever is: else hardly a history would use slots that are for a long network.
                let nanos = self.plan.delays.frame + self.plan.delays.payload;
                self.sink_event(self.session, Event::RoundTrip { nanos });
                self.sink_event(self.session, Event::LinkUp { epoch: header.epoch, peer });
            }
            Err(failure) => self.violate(format!("the sink refuses an honest CONNECT: {failure}")),
        }
    }

    /// CONNECT reaches the source: the answer to its own.
    fn source_connected(&mut self, header: &FrameHeader, body: &[u8]) {
        if self.connection.cut {
            let (session, epoch) = (self.session, header.epoch);
            self.after(100_000_000, Happening::LinkDown { session, epoch, of: Role::Source });
        }
        let Some(end) = &mut self.source else { return };
        if end.dialing != Some(header.epoch) {
            return;
        }
        end.dialing = None;
        match connected(&mut end.link, header, body) {
            Ok((peer, again)) => {
                end.up = Some(header.epoch);
                end.generation += 1;
                again.into_iter().for_each(|frame| self.transmit(Role::Sink, frame));
                note!(self, "source is connected ({})", header.epoch);
                let may = self.random.coin();
                self.source_event(Event::HashesOnTheWay(may));
                self.source_event(Event::LinkUp { epoch: header.epoch, peer });
            }
            Err(failure) => self.violate(format!("the source refuses an honest CONNECT: {failure}")),
        }
    }

    pub(crate) fn on_link_down(&mut self, session: u32, epoch: u32, of: Role) -> bool {
        if session != self.session {
            return false;
        }
        match of {
            Role::Source => {
                let Some(end) = &mut self.source else { return false };
                let (up, dialing) = (end.up == Some(epoch), end.dialing == Some(epoch));
                if up {
                    self.source_link_down();
                } else if dialing {
                    end.dialing = None;
                }
                if up || dialing {
                    self.after(400_000_000, Happening::Dial { session });
                }
                up || dialing
            }
            Role::Sink => {
                let up = self.sink.as_ref().is_some_and(|end| end.up == Some(epoch));
                if up {
                    self.sink_link_down();
                }
                up
            }
        }
    }

    /// From now on this end waits for the other.
    pub(crate) fn wait_for_peer(&mut self, of: Role) {
        let (ended, generation) = match of {
            Role::Source => {
                self.source.as_ref().map_or((true, 0), |it| (it.outcome.is_some(), it.generation))
            }
            Role::Sink => self.sink.as_ref().map_or((true, 0), |it| (it.outcome.is_some(), it.generation)),
        };
        if !ended {
            let session = self.session;
            let at = self.now + PATIENCE_NANOS + self.random.below(PATIENCE_NANOS);
            self.queue.push(at, Happening::Patience { session, of, generation });
        }
    }

    pub(crate) fn on_patience(&mut self, session: u32, of: Role, generation: u32) -> bool {
        if session != self.session {
            return false;
        }
        let failure = Failure::new(Code::ConnectionLost);
        match of {
            Role::Source => {
                let waits = |end: &&mut crate::source_end::SourceEnd| {
                    end.generation == generation && end.up.is_none() && end.outcome.is_none()
                };
                let Some(end) = self.source.as_mut().filter(waits) else { return false };
                end.impatient = true;
                end.dialing = None;
                note!(self, "the source waits no longer");
                self.source_event(Event::Stop(failure));
            }
            Role::Sink => {
                let waits = |end: &&mut crate::sink_end::SinkEnd| {
                    end.generation == generation && end.up.is_none() && end.outcome.is_none()
                };
                if self.sink.as_mut().filter(waits).is_none() {
                    return false;
                }
                note!(self, "the sink waits no longer");
                self.sink_event(session, Event::Stop(failure));
            }
        }
        true
    }

    /// A payload is given to a stream.
    pub(crate) fn dispatch(&mut self, epoch: u32, block: BlockId, slot: SlotId, local: SlotId, length: u32) {
        let nanos = self.delay(self.plan.delays.payload);
        let stream = self.random.below(self.connection.streams.len() as u64) as usize;
        let Some(free) = self.connection.streams.get_mut(stream) else { return };
        *free = (*free).max(self.now) + nanos;
        let at = *free;
        self.queue.push(at, Happening::Depart { session: self.session, epoch, block, slot, local, length });
    }

    /// The last byte of a payload has left the source's slot.
    pub(crate) fn on_depart(
        &mut self,
        session: u32,
        epoch: u32,
        block: BlockId,
        slot: SlotId,
        local: SlotId,
        length: u32,
    ) -> bool {
        let connected =
            |it: &&mut crate::source_end::SourceEnd| it.up == Some(epoch) && session == self.session;
        let Some(end) = self.source.as_mut().filter(connected) else { return false };
        end.sending -= 1;
        let mut payload = end.slots[local.0 as usize].clone();
        let mut arriving = block;
        if !payload.in_files.is_empty() {
            payload = self.left_files(payload);
        }
        if self.random.chance(self.rates().alter) && !payload.pieces.is_empty() {
            if self.random.chance(250) {
                note!(self, "the header of block {} is altered on its way", block.0);
                arriving.0 ^= 1 << self.random.below(8);
            } else {
                payload = self.altered(payload);
            }
        }
        let stale = self.connection.cut;
        if !stale || self.random.chance(300) {
            let nanos = if stale { STALE_NANOS } else { self.plan.delays.payload };
            let block = arriving;
            self.after(nanos, Happening::Arrive { session, epoch, block, slot, length, payload });
        }
        note!(self, "payload of block {} has left", block.0);
        self.checker.leaving.remove(&block);
        self.source_event(Event::Sent(block));
        true
    }

    /// What stayed in its files when it leaves, and the hashes then.
    fn left_files(&mut self, payload: Payload) -> Payload {
        let mut pieces = payload.pieces.to_vec();
        let mut hashes = Vec::new();
        let mut altered = payload.altered;
        for InFile { piece, id, inode, stamp: announced } in payload.in_files.iter().copied() {
            let piece = &mut pieces[piece];
            let stamp = self.tree.inodes[inode].stamp;
            let now = self.tree.stamps[stamp as usize];
            // What it has no more leaves as zeros.
            let whole = piece.offset + u64::from(piece.length) <= now.size;
            piece.content = if whole { now.content } else { HOLE };
            let mut hash = piece.hash(piece.offset, announced.is_some());
            if announced.is_none() {
                self.checker.was_hashed(id, piece.offset, &hash);
            } else if announced != Some(stamp) && self.bug != Some(Bug::ChangedMemberKept) {
                altered = true;
                hash = Hash(hash.0.map(|byte| !byte));
            }
            hashes.push(hash);
        }
        Payload { pieces: pieces.into(), hashes, altered, ..payload }
    }

    fn altered(&mut self, payload: Payload) -> Payload {
        let mut pieces = payload.pieces.to_vec();
        let hit = self.random.below(pieces.len() as u64) as usize;
        for (index, piece) in pieces.iter_mut().enumerate() {
            if index == hit || self.random.chance(300) {
                let path = self.tree.stamps.get(piece.content as usize).map_or(0, |stamp| stamp.path);
                self.checker.troubled[path] = true;
                piece.content = GARBAGE;
            }
        }
        note!(self, "a payload is altered on its way");
        Payload { pieces: pieces.into(), altered: true, in_spill: None, ..payload }
    }

    pub(crate) fn on_arrive(
        &mut self,
        session: u32,
        epoch: u32,
        block: BlockId,
        slot: SlotId,
        length: u32,
        payload: Payload,
    ) -> bool {
        let Some(end) = self.sink.as_mut().filter(|_| session == self.session) else { return false };
        if end.outcome.is_some() {
            end.late += usize::from(end.up == Some(epoch));
            return false;
        }
        if end.up == Some(epoch) {
            if self.connection.cut && self.random.coin() {
                // It was still under way when the connection was cut.
                if self.random.coin() {
                    let again = Happening::Arrive { session, epoch, block, slot, length, payload };
                    self.after(STALE_NANOS, again);
                } else if self.random.coin()
                    && let Some(end) = &mut self.sink
                {
                    // A part of it had come: that used up the grant.
                    end.granted[slot.0 as usize] = false;
                }
                return false;
            }
            if !std::mem::take(&mut end.granted[slot.0 as usize]) {
                self.violate(format!("{block:?} arrives in {slot:?}, which was not granted"));
                return true;
            }
            end.slots[slot.0 as usize] = payload.clone();
            self.check_sent_from_spill(&payload);
        } else if end.up.is_none() {
            return false;
        }
        let hashes = payload.hashes;
        note!(self, "payload of block {} arrives in slot {} (connection {epoch})", block.0, slot.0);
        self.sink_event(session, Event::Payload { epoch, block, slot, length, hashes });
        true
    }
}

fn connected(link: &mut Link, header: &FrameHeader, body: &[u8]) -> Result<(Connect, Vec<Frame>), Failure> {
    let Message::Connect(peer) = Message::decode(header.kind, body)? else {
        return Err(Failure::new(Code::Protocol));
    };
    Ok((peer, link.connected(header.epoch, header.received)?))
}
