//! What transfers on one host tell each other of their storage targets: one datagram, a [`Statement`].
//!
//! `docs/spec/neighbours.md` is the specification. Who sent one is not in it: the kernel tells that.

use alloc::vec::Vec;

use haul_model::limits::STATEMENT_TARGETS_MAX;

use crate::bytes::{Malformed, Reader};

/// Version of the format. It is in the names of the sockets too, so versions do not meet.
pub const STATEMENT_VERSION: u16 = 1;
/// The longest statement.
pub const STATEMENT_BYTES_MAX: usize = HEADER_BYTES + STATEMENT_TARGETS_MAX * TARGET_BYTES;

const MAGIC: [u8; 4] = *b"hlnb";
const HEADER_BYTES: usize = 20;
const TARGET_BYTES: usize = 12;
const WANTS: u16 = 1;
const CONGESTED: u16 = 2;
const HANGS: u16 = 4;

/// What one end of a transfer says of all targets that it is at. It replaces what that end said before.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Statement {
    /// Both ends of a transfer say the same number, no two transfers do.
    pub transfer: u64,
    /// When the next one follows, if nothing happens.
    pub period_millis: u16,
    /// At most [`STATEMENT_TARGETS_MAX`].
    pub targets: Vec<TargetStatement>,
}

/// What it says of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TargetStatement {
    /// The same for all transfers of the host.
    pub identity: u64,
    /// Requests of this end that the target has now.
    pub under_way: u16,
    /// It would take on another one.
    pub wants: bool,
    /// It looks congested from here.
    pub congested: bool,
    /// A request to it was given up, and none was answered since.
    pub hangs: bool,
}

impl Statement {
    /// To bytes. Targets beyond [`STATEMENT_TARGETS_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.targets.len().min(STATEMENT_TARGETS_MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + count * TARGET_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(STATEMENT_VERSION.to_le_bytes());
        bytes.extend(self.period_millis.to_le_bytes());
        bytes.extend(self.transfer.to_le_bytes());
        bytes.extend((count as u32).to_le_bytes());
        for target in &self.targets[..count] {
            let TargetStatement { identity, under_way, wants, congested, hangs } = *target;
            let flag = |on: bool, flag: u16| if on { flag } else { 0 };
            let flags = flag(wants, WANTS) | flag(congested, CONGESTED) | flag(hangs, HANGS);
            bytes.extend(identity.to_le_bytes());
            bytes.extend(under_way.to_le_bytes());
            bytes.extend(flags.to_le_bytes());
        }
        bytes
    }

    /// From bytes: a whole datagram.
    pub fn decode(bytes: &[u8]) -> Result<Statement, Malformed> {
        let mut reader = Reader::new(bytes);
        if reader.array()? != MAGIC {
            return Err(Malformed("no statement starts here"));
        }
        if u16::from_le_bytes(reader.array()?) != STATEMENT_VERSION {
            return Err(Malformed("statement of another version"));
        }
        let period_millis = u16::from_le_bytes(reader.array()?);
        let transfer = u64::from_le_bytes(reader.array()?);
        let count = u32::from_le_bytes(reader.array()?) as usize;
        // Before anything is kept: a count that does not fit its bytes asks for no memory.
        if count > STATEMENT_TARGETS_MAX || bytes.len() != HEADER_BYTES + count * TARGET_BYTES {
            return Err(Malformed("statement has another length than it says"));
        }
        let mut targets = Vec::with_capacity(count);
        for _ in 0..count {
            let identity = u64::from_le_bytes(reader.array()?);
            let under_way = u16::from_le_bytes(reader.array()?);
            let flags = u16::from_le_bytes(reader.array()?);
            if flags & !(WANTS | CONGESTED | HANGS) != 0 {
                return Err(Malformed("statement has a flag that nobody knows"));
            }
            let has = |flag| flags & flag != 0;
            let (wants, congested, hangs) = (has(WANTS), has(CONGESTED), has(HANGS));
            targets.push(TargetStatement { identity, under_way, wants, congested, hangs });
        }
        Ok(Statement { transfer, period_millis, targets })
    }
}
