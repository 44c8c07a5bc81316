//! What goes into a master and what comes out.

use alloc::boxed::Box;
use alloc::vec::Vec;

use haul_model::op::{Lane, SinkDone, SinkOp, SourceDone, SourceOp};
use haul_model::report::{Fact, Stats};
use haul_model::{Bitmap, BlockId, EntryId, Failure, Hash, Identity, Item, SlotId, Target, Token};
use haul_wire::{Connect, Message};

use crate::scheduler::Told;

/// Something happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection stands: CONNECT was exchanged. The first one of a session, or a later one.
    LinkUp {
        /// Its number, higher than all before.
        epoch: u32,
        /// What the other end said of itself.
        peer: Connect,
    },
    /// Sink: so long is the network of the connection that comes up next, there and back again.
    RoundTrip {
        /// As the network was at its fastest.
        nanos: u64,
    },
    /// Source: whoever sends over the connection that comes up next may hash bytes on their way, or not.
    HashesOnTheWay(bool),
    /// The connection is gone. No thread sends from or receives into a slot any more.
    LinkDown,
    /// A message of the other end, in order, each once.
    Message(Message),
    /// Source: the scan found these.
    Scanned(Vec<Item>),
    /// Source: the scan could not read this path (below the destination).
    ScanFailed {
        /// Any bytes.
        path: Box<[u8]>,
        /// Why.
        failure: Failure,
    },
    /// Source: nothing more will be found.
    ScanEnded,
    /// Source: storage is done with an operation.
    SourceDone(SourceDone),
    /// Source: the payload of this block has left its slot.
    Sent(BlockId),
    /// Sink: storage is done with an operation.
    SinkDone(SinkDone),
    /// Sink: storage is done with an errand.
    ErrandDone {
        /// As it was asked.
        number: u64,
        /// What came of it.
        done: SinkDone,
    },
    /// Sink: a payload has arrived whole in a granted slot.
    Payload {
        /// Of its header.
        epoch: u32,
        /// Of its header.
        block: BlockId,
        /// The slot that it was received into.
        slot: SlotId,
        /// Bytes.
        length: u32,
        /// Those that followed it, which its announcement does without.
        hashes: Vec<Hash>,
    },
    /// All that other transfers on this host say of this end's targets now.
    NeighboursSaid(Vec<Told>),
    /// The deadline that the machine asked for has passed, or nothing else happened for a while.
    Tick,
    /// End the session as soon as what is running has ended (interrupted, superseded, peer gone for good).
    Stop(Failure),
}

/// What the machine wants done.
#[derive(Clone, Debug)]
pub enum Action {
    /// Hand the message to the link.
    Send(Message),
    /// Source: send the bytes of `local` into the credit `slot`; report [`Event::Sent`]. Always preceded by its
    /// announcement (NEW_BLOCK or MANIFEST).
    Payload {
        /// Of the payload header.
        epoch: u32,
        /// Of the payload header.
        block: BlockId,
        /// The sink's slot.
        slot: SlotId,
        /// The source's slot with the bytes.
        local: SlotId,
        /// How many.
        length: u32,
    },
    /// So many I/O threads are of use from now on.
    Hands(u32),
    /// The thread that storage holds with this block, or with its members of one target, is taken for hung: another one takes
    /// its place.
    Replace(BlockId, Option<Target>),
    /// Source: the thread that is at what storage was asked about this entry beside its contents takes long: if there is one, another
    /// one takes its place.
    RelieveLook(EntryId),
    /// Sink: to storage, on a thread of this lane. What comes of it is [`Event::ErrandDone`].
    Errand {
        /// Names it.
        number: u64,
        /// Which threads.
        lane: Lane,
        /// How many of them are of use.
        threads: u32,
        /// What to do.
        op: SinkOp,
    },
    /// The thread that is on this errand takes long: another one takes its place.
    Relieve {
        /// Which threads.
        lane: Lane,
        /// The errand.
        number: u64,
    },
    /// Sink: allow one payload into this slot. Always precedes the BLOCK_DONE that tells the source; said again when a connection
    /// is lost of what the source knows already.
    Grant(SlotId),
    /// Sink: the payload that was allowed into this slot was lost with its connection, and none is allowed now.
    Revoke(SlotId),
    /// Sink: the payload that was allowed into this slot was lost with an earlier connection, says the source. None has come with
    /// this one then, not in part either; else the session ends.
    TakeBack(SlotId),
    /// Sink: what has come with this connection is not what was announced: somebody on the path of a clear stream may have altered
    /// it. The connection is to be made again, and what is missing then is sent again.
    Distrust,
    /// Source: to storage.
    Source(SourceOp),
    /// Sink: to storage.
    Sink(SinkOp),
    /// Source: to the object log, in order.
    Log(LogOp),
    /// For the report.
    Fact(Fact),
    /// The session has ended; nothing follows.
    Ended(Outcome),
}

/// What the source asks of its object log. Operations are performed in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogOp {
    /// A new entry, in place of any other of this path.
    Begin {
        /// The file.
        id: EntryId,
        /// What the entry is found by.
        path: Vec<u8>,
        /// What it is bound to.
        identity: Identity,
        /// Bytes of an object.
        object_bytes: u32,
        /// How many objects the file has.
        objects: u64,
        /// The sink's unfinished file.
        token: Token,
    },
    /// The entry of this path goes on.
    Resume {
        /// The file.
        id: EntryId,
        /// What the entry is found by.
        path: Vec<u8>,
    },
    /// The object is durable at the sink.
    Record {
        /// The file.
        id: EntryId,
        /// Object number.
        index: u32,
    },
    /// The file is complete, or dropped: its entry goes.
    Remove {
        /// The file.
        id: EntryId,
    },
    /// The whole job is complete: nothing of the log stays.
    Clear,
}

/// What the log knows of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Logged {
    /// The version of the file that the bits are about.
    pub identity: Identity,
    /// Bytes of an object.
    pub object_bytes: u32,
    /// The sink's unfinished file.
    pub token: Token,
    /// One bit per object: durable at the sink.
    pub done: Bitmap,
}

/// The log as it was found when the session began.
pub trait LogView {
    /// The entry of this path, whatever it is bound to.
    fn lookup(&mut self, path: &[u8]) -> Option<Logged>;
}

/// How a session ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// What made the whole session end; `None` if every entry has ended one way or the other.
    pub failure: Option<Failure>,
    /// Its counters.
    pub stats: Stats,
}
