//! The scan: a dataset as a stream of entries.
//!
//! Depth first, each directory before what is in it and its end after it, in batches. Called by one thread, which
//! stops calling when nobody takes more: memory and descriptors do not grow with the dataset.

mod ahead;
mod begun;
mod listing;
mod merged;
mod posix;

pub use begun::Begun;
pub use posix::PosixScan;

use haul_model::limits::BATCH_ITEMS_MAX;
use haul_model::{Failure, Item};

/// What one call of [`Scan::next`] finds at most (and a few more).
pub const SCAN_BATCH: usize = BATCH_ITEMS_MAX;

/// What is found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Scanned {
    /// An entry, or the end of a directory.
    Item(Item),
    /// Something cannot be read; the scan goes on with what comes next.
    Error {
        /// The label of its SOURCE, `/`, the path below it. Any bytes, any length.
        path: Vec<u8>,
        /// Why.
        failure: Failure,
    },
}

/// Walks the SOURCEs of a session.
///
/// The top entry of the k-th SOURCE has the parent [`EntryId::root`](haul_model::EntryId::root)`(k)` and an empty
/// name. A parent comes before its entries; [`Item::End`] comes after the last entry of a directory, never for a root.
pub trait Scan: Send {
    /// Appends about [`SCAN_BATCH`] finds. False once nothing is left; then nothing was appended.
    fn next(&mut self, out: &mut Vec<Scanned>) -> bool;
}

/// Whether this is the name of one of haul's own unfinished files: `.haul-<32 hex digits>`, `.sums` behind it or not, or a
/// name in front of it (`sink::tokens`).
pub fn is_unfinished_name(name: &[u8]) -> bool {
    crate::sink::tokens::parse(name).is_some()
}

/// On this socket the owner of a job is asked, in the job's directory (`haul_mover::owner`), which may be below a SOURCE: a home
/// directory. It is passed over: nobody misses it elsewhere.
pub const OWNER_SOCKET: &str = ".haul-owner.sock";
/// What becomes the record of a job, and how far it is: there for a moment in each copy that goes on meanwhile.
pub const STATE_NEW: [&str; 2] = [".haul-record.new", ".haul-progress.new"];

/// `parent/name`, where `parent` may end in a slash or be empty.
pub fn push_name(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exactly_our_own_names_are_unfinished_files() {
        let token = "0123456789abcdef0123456789abcdef";
        assert!(is_unfinished_name(format!(".haul-{token}").as_bytes()));
        assert!(is_unfinished_name(format!(".haul-{token}.sums").as_bytes()));
        assert!(is_unfinished_name(format!(".x.haul-{token}").as_bytes()));
        for other in [
            format!(".haul-{}", &token[1..]),
            format!(".haul-{token}0"),
            format!(".haul-{token}.sum"),
            format!(".haul-{token}.sums.sums"),
            format!("x.haul-{token}"),
            format!(".haul-{}", token.to_uppercase()),
            format!("haul-{token}"),
            ".haul-".into(),
            ".haul-notes".into(),
        ] {
            assert!(!is_unfinished_name(other.as_bytes()), "{other}");
        }
    }
}
