//! Frame headers of the control stream and of the data streams.

use haul_model::limits::{HASHES_FOLLOWING_MAX, MESSAGE_BYTES_MAX, OBJECT_BYTES_MAX};
use haul_model::{BlockId, SlotId};

use crate::Malformed;

/// Bytes of a [`FrameHeader`].
pub const FRAME_HEADER_BYTES: usize = 28;
/// Bytes of a [`PayloadHeader`].
pub const PAYLOAD_HEADER_BYTES: usize = 24;
/// From this bit of a payload's length on: how many hashes follow the payload.
const HASHES_FOLLOW_SHIFT: u32 = 27;
const _: () = assert!(OBJECT_BYTES_MAX < 1 << HASHES_FOLLOW_SHIFT);
const _: () = assert!(HASHES_FOLLOWING_MAX <= (u32::MAX >> HASHES_FOLLOW_SHIFT) as usize);
/// "HAUL" read as a little-endian number: a stream that lost its place is noticed at once.
const PAYLOAD_MAGIC: u32 = u32::from_le_bytes(*b"HAUL");

/// Stands before each message on the control stream.
///
/// `sequence` and `received` make the control stream survive a lost connection: what the peer has not received is
/// sent again on the next one, and nothing is processed twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Bytes of the message that follows.
    pub length: u32,
    /// The connection that the frame belongs to.
    pub epoch: u32,
    /// Number of this message, from 1; 0 for CONNECT and PING, which are never repeated.
    pub sequence: u64,
    /// All messages of the other end up to this number have been received.
    pub received: u64,
    /// Which message.
    pub kind: u8,
}

impl FrameHeader {
    /// To bytes.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.received.to_le_bytes());
        bytes[24] = self.kind;
        bytes
    }

    /// From bytes; refuses a message over [`MESSAGE_BYTES_MAX`].
    pub fn decode(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Self, Malformed> {
        let header = FrameHeader {
            length: u32::from_le_bytes(part(bytes, 0)),
            epoch: u32::from_le_bytes(part(bytes, 4)),
            sequence: u64::from_le_bytes(part(bytes, 8)),
            received: u64::from_le_bytes(part(bytes, 16)),
            kind: bytes[24],
        };
        if header.length as usize > MESSAGE_BYTES_MAX {
            return Err(Malformed("message is over its limit"));
        }
        if bytes[25..] != [0; 3] {
            return Err(Malformed("reserved bytes are not zero"));
        }
        Ok(header)
    }
}

/// Stands before each payload on a data stream. It is checked against the grant and the announcement of its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadHeader {
    /// The connection that the payload belongs to.
    pub epoch: u32,
    /// Which transfer of which object, as announced by NEW_BLOCK or MANIFEST.
    pub block: BlockId,
    /// The credit that is used up: a slot of the sink.
    pub slot: SlotId,
    /// Payload bytes that follow.
    pub length: u32,
    /// Behind them come so many hashes ([`haul_model::Hash`]), at most [`HASHES_FOLLOWING_MAX`]: those, in order, which the
    /// announcement does without.
    pub hashes_following: u8,
}

impl PayloadHeader {
    /// To bytes.
    ///
    /// # Panics
    ///
    /// If the length or the number of hashes is over its limit.
    pub fn encode(&self) -> [u8; PAYLOAD_HEADER_BYTES] {
        assert!(self.length <= OBJECT_BYTES_MAX, "a payload has at most {OBJECT_BYTES_MAX} bytes");
        assert!(
            usize::from(self.hashes_following) <= HASHES_FOLLOWING_MAX,
            "at most {HASHES_FOLLOWING_MAX} hashes follow a payload"
        );
        let mut bytes = [0; PAYLOAD_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&PAYLOAD_MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.block.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.slot.0.to_le_bytes());
        let length = self.length | u32::from(self.hashes_following) << HASHES_FOLLOW_SHIFT;
        bytes[20..24].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// From bytes; refuses a payload over [`OBJECT_BYTES_MAX`].
    pub fn decode(bytes: &[u8; PAYLOAD_HEADER_BYTES]) -> Result<Self, Malformed> {
        if u32::from_le_bytes(part(bytes, 0)) != PAYLOAD_MAGIC {
            return Err(Malformed("no payload starts here"));
        }
        let length = u32::from_le_bytes(part(bytes, 20));
        let header = PayloadHeader {
            epoch: u32::from_le_bytes(part(bytes, 4)),
            block: BlockId(u64::from_le_bytes(part(bytes, 8))),
            slot: SlotId(u32::from_le_bytes(part(bytes, 16))),
            length: length & ((1 << HASHES_FOLLOW_SHIFT) - 1),
            hashes_following: (length >> HASHES_FOLLOW_SHIFT) as u8,
        };
        if header.length > OBJECT_BYTES_MAX {
            return Err(Malformed("payload is over its limit"));
        }
        Ok(header)
    }
}

fn part<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[start..start + N]);
    array
}
