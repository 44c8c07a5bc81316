//! What the tests of the log share: bindings, random numbers, and the reader written from the specification.
#![allow(dead_code)]

pub mod allocation;
pub mod case;
pub mod cuts;
pub mod mutate;
pub mod read_check;
pub mod slow_reader;
pub mod truth;
pub mod world;

use haul_model::{Identity, Timestamp, Token};
use haul_objectlog::{Binding, Config, Mechanism, Method};

/// All 18 combinations.
pub fn combinations() -> impl Iterator<Item = Config> {
    Mechanism::ALL.into_iter().flat_map(|mechanism| {
        Method::ALL.into_iter().map(move |method| Config { mechanism, method, ..Config::default() })
    })
}

/// A binding that differs from that of every other `version`, in its token and in everything else.
pub fn binding(version: u64, objects: u64) -> Binding {
    let object_bytes = 1 << 20;
    let mut token = [0; 16];
    token[..8].copy_from_slice(&version.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    token[8..].copy_from_slice(&version.to_le_bytes());
    Binding {
        identity: Identity {
            size: objects * u64::from(object_bytes) - 17,
            mtime: Timestamp { seconds: 1_700_000_000 + version as i64, nanos: 123_456_789 },
            ctime: Timestamp { seconds: 1_700_000_100, nanos: version as u32 },
            inode: 1000 + version,
        },
        object_bytes,
        objects,
        hash_kind: 1,
        token: Token(token),
        sink_boot: version.is_multiple_of(5).then_some([version as u8; 16]),
    }
}

/// SplitMix64: enough for tests, the same everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
