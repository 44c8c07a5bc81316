//! How a file is cut into objects, so that each has a hash.
//!
//! Objects are equal, aligned and a power of two of KiB long (the last may be shorter), so each is one subtree of the
//! file's BLAKE3 tree and the root is what `b3sum` prints (BLAKE3 paper, section 2.1; crate blake3, `hazmat`).

use haul_model::limits::{FILE_BYTES_MAX, OBJECT_BYTES_MAX};
use haul_model::placement::is_object_size;
use haul_model::{Code, Entry, Failure};

/// How a file is cut into objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    /// Bytes of the file.
    pub size: u64,
    /// Bytes of each object but the last.
    pub object_bytes: u32,
}

impl Cut {
    /// Whether files can be cut into objects of this size at all.
    pub fn allows(object_bytes: u32) -> bool {
        is_object_size(object_bytes, OBJECT_BYTES_MAX)
    }

    /// Of a file in objects of this size, in a session in which they have at most `max`.
    pub fn of(entry: &Entry, object_bytes: u32, max: u32) -> Result<Cut, Failure> {
        let cut = Cut { size: entry.size(), object_bytes };
        if is_object_size(object_bytes, max) { Ok(cut) } else { Err(Code::Protocol.into()) }
    }

    /// How many objects.
    pub fn count(self) -> u64 {
        self.size.div_ceil(u64::from(self.object_bytes))
    }

    /// The whole file is one object, whose hash is the root.
    pub fn is_single(self) -> bool {
        self.count() == 1
    }

    /// Offset and length of an object.
    pub fn range(self, index: u64) -> (u64, u32) {
        let offset = index * u64::from(self.object_bytes);
        (offset, u64::from(self.object_bytes).min(self.size - offset) as u32)
    }

    /// Which object this is; `Protocol` if it is none. Hashing relies on it: BLAKE3 has no value for other ranges.
    pub fn index(self, offset: u64, length: u32, single: bool) -> Result<u64, Failure> {
        let index = offset / u64::from(self.object_bytes);
        let exact = self.size <= FILE_BYTES_MAX
            && index < self.count()
            && self.range(index) == (offset, length)
            && single == self.is_single();
        if exact { Ok(index) } else { Err(Code::Protocol.into()) }
    }
}

#[cfg(test)]
mod tests {
    use haul_model::HashKind;

    use super::*;
    use crate::hashing::{Combiner, object_hash};

    #[test]
    fn objects_combine_to_the_root_of_the_whole_file_around_every_edge() {
        let object_bytes = haul_model::limits::OBJECT_BYTES_MIN;
        let unit = u64::from(object_bytes);
        let bytes: Vec<u8> = (0..19 * unit).map(|at| (at.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
        let mut sizes = Vec::new();
        for objects in 1..=18 {
            sizes.extend(
                [-1025, -1024, -1023, -1, 0, 1, 63, 64, 65, 1023, 1024, 1025, 32 << 10].map(|edge: i64| {
                    (objects * unit).checked_add_signed(edge).expect("no file is that small")
                }),
            );
        }
        for size in sizes {
            let cut = Cut { size, object_bytes };
            let mut combiner = Combiner::new(HashKind::Blake3);
            let mut single = None;
            for index in 0..cut.count() {
                let (offset, length) = cut.range(index);
                assert_eq!(cut.index(offset, length, cut.is_single()), Ok(index));
                let object = &bytes[offset as usize..][..length as usize];
                let hash = object_hash(HashKind::Blake3, object, offset, cut.is_single());
                combiner.push(hash);
                single = Some(hash);
            }
            let root = if cut.is_single() { single } else { combiner.root() };
            assert_eq!(root.unwrap().0, *blake3::hash(&bytes[..size as usize]).as_bytes(), "{size} bytes");
        }
    }

    #[test]
    fn ranges_that_are_not_an_object_are_refused() {
        let cut = Cut { size: 200_000, object_bytes: 65_536 };
        assert_eq!(cut.index(0, 65_536, false), Ok(0));
        assert_eq!(cut.index(196_608, 3392, false), Ok(3));
        for (offset, length, single) in [
            (0, 65_536, true),
            (0, 65_535, false),
            (1, 65_536, false),
            (1024, 65_536, false),
            (196_608, 3393, false),
            (196_608, 65_536, false),
            (262_144, 1, false),
            (u64::MAX, u32::MAX, false),
            (196_608, 0, false),
        ] {
            assert!(cut.index(offset, length, single).is_err(), "{offset} {length} {single}");
        }
        assert!(Cut { size: 0, object_bytes: 65_536 }.index(0, 0, false).is_err());
        assert!(Cut { size: 0, object_bytes: 65_536 }.index(0, 0, true).is_err());
        assert!(Cut { size: u64::MAX, object_bytes: 65_536 }.index(0, 65_536, false).is_err());
        assert!(!Cut::allows(0) && !Cut::allows(65_537) && !Cut::allows(1024) && !Cut::allows(1 << 27));
    }
}
