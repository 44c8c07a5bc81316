//! What tests of one master by itself have in common.

use haul_model::placement::Piece;
use haul_model::{JobId, Laid, Placement, SessionId, Target};
use haul_protocol::{LogView, Logged};
use haul_wire::{Connect, Role, VERSION, VERSION_MIN};

/// Bytes of an object.
pub const OBJECT: u32 = 64 << 10;

/// Nothing was ever logged.
pub struct NoLog;

impl LogView for NoLog {
    fn lookup(&mut self, _path: &[u8]) -> Option<Logged> {
        None
    }
}

/// A file that lies on this target.
pub fn on(target: Target) -> Laid {
    let pieces = vec![Piece { first: 0, run: 1, targets: [target].into() }];
    Laid { object_bytes: OBJECT, placement: Placement::new(pieces).unwrap() }
}

/// The other end, as it says hello.
pub fn peer(role: Role, slots: u32) -> Connect {
    Connect {
        version: VERSION,
        version_min: VERSION_MIN,
        role,
        session: SessionId([0; 16]),
        job: JobId([0; 16]),
        object_bytes: OBJECT,
        slots,
        features: 0,
    }
}
