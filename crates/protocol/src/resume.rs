//! May a log entry be believed? And how is a file cut into objects?

use haul_model::limits::OBJECTS_PER_FILE_MAX;
use haul_model::placement::is_object_size;
use haul_model::{Code, Failure, Identity};

use crate::event::Logged;
use crate::planted::{Bug, Planted};

/// How many objects a file of `size` has.
pub fn objects_of(size: u64, object_bytes: u32) -> Result<u64, Failure> {
    let objects = size.div_ceil(u64::from(object_bytes));
    if objects > OBJECTS_PER_FILE_MAX { Err(Failure::new(Code::SourceTooLarge)) } else { Ok(objects) }
}

/// Where object `index` starts, and how long it is.
pub fn object_range(size: u64, object_bytes: u32, index: u32) -> (u64, u32) {
    let offset = u64::from(index) * u64::from(object_bytes);
    (offset, size.saturating_sub(offset).min(u64::from(object_bytes)) as u32)
}

/// A log entry counts only for exactly the version of the file that it was written about. It is then cut as the entry
/// says: the sink may have wanted smaller objects than the source proposed, or less was known of how the file lies; but never
/// larger ones than fit a slot.
///
/// A lost entry costs a resend; a wrongly believed one costs the data.
pub fn believe(logged: &Logged, identity: &Identity, slot_bytes: u32, planted: Planted) -> bool {
    let objects = identity.size.div_ceil(u64::from(logged.object_bytes.max(1)));
    (identity.is_still(&logged.identity) || planted.has(Bug::LogWithoutIdentity))
        && (is_object_size(logged.object_bytes, slot_bytes) || planted.has(Bug::LogOfOtherObjectSize))
        && (logged.done.len() == objects || planted.has(Bug::LogWithoutIdentity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_model::{Bitmap, Timestamp, Token};

    #[test]
    fn objects_cover_a_file_exactly() {
        for size in [1u64, 4095, 4096, 4097, 8191, 8192, 8193] {
            let objects = objects_of(size, 4096).unwrap();
            let total: u64 =
                (0..objects).map(|index| u64::from(object_range(size, 4096, index as u32).1)).sum();
            assert_eq!(total, size);
            assert!((0..objects).all(|index| object_range(size, 4096, index as u32).1 > 0));
        }
        assert_eq!(objects_of(0, 4096), Ok(0));
        assert!(objects_of(u64::MAX, 4096).is_err());
    }

    #[test]
    fn any_difference_of_identity_or_cut_discredits_a_log() {
        let identity = Identity { size: 300 << 10, inode: 4, ..Identity::default() };
        let kib = |count: u32| count << 10;
        let logged = Logged { identity, object_bytes: kib(128), token: Token([1; 16]), done: Bitmap::new(3) };
        let no_bug = Planted::default();
        assert!(believe(&logged, &identity, kib(128), no_bug));
        assert!(believe(&logged, &identity, kib(1024), no_bug), "the sink may have wanted smaller ones");
        assert!(!believe(&logged, &identity, kib(64), no_bug), "they would not fit a slot");
        let odd = Logged { object_bytes: kib(96), done: Bitmap::new(4), ..logged.clone() };
        assert!(!believe(&odd, &identity, kib(1024), no_bug));
        let short = Logged { done: Bitmap::new(2), ..logged.clone() };
        assert!(!believe(&short, &identity, kib(128), no_bug));
        let later = Timestamp { seconds: 0, nanos: 1 };
        for other in [
            Identity { size: (300 << 10) + 1, ..identity },
            Identity { inode: 5, ..identity },
            Identity { mtime: later, ..identity },
            Identity { ctime: later, ..identity },
        ] {
            assert!(!believe(&logged, &other, kib(128), no_bug));
        }
    }
}
