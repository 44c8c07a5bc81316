//! The bytes that the two ends exchange: frames and messages, encoded and decoded; and what neighbours on one host tell
//! each other.
//!
//! `docs/spec/wire.md` and `docs/spec/neighbours.md` are the specification; this crate is its only implementation.
//! Decoding is total: any bytes give a message or an error, never a panic, and never more memory than the limits of
//! `haul_model::limits` allow.
//! Payload bytes do not pass through here: they follow a [`PayloadHeader`] on a data stream, from slot to slot.
#![no_std]

extern crate alloc;

mod bytes;
mod entry;
mod frame;
mod message;
mod profile;
mod statement;
mod stripes;

pub use bytes::Malformed;
pub use frame::{FRAME_HEADER_BYTES, FrameHeader, PAYLOAD_HEADER_BYTES, PayloadHeader};
pub use message::{
    Answer, Connect, FEATURE_BEFORE, FEATURE_PROFILE, LogStatus, Member, Message, NewFile, Repair,
    RepairReason, Role, Settled, VERSION, VERSION_MIN,
};
pub use statement::{STATEMENT_BYTES_MAX, STATEMENT_VERSION, Statement, TargetStatement};
