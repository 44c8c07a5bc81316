//! Files that lie on several targets, by chance.

use haul_model::placement::Piece;
use haul_model::{Laid, Placement, Target};

use crate::random::Random;

/// Targets that an end has, beside the one that nothing is known of.
pub(crate) const TARGETS: u64 = 5;

/// How a file lies, in objects of this size.
pub fn laid(object_bytes: u32, random: &mut Random) -> Laid {
    let mut first = 0;
    let pieces = (0..random.between(1, 3)).map(|_| {
        let targets = (0..random.between(1, 4)).map(|_| random.between(0, TARGETS) as Target).collect();
        let piece = Piece { first, run: random.between(1, 3) as u32, targets };
        first += random.between(1, 9) as u32;
        piece
    });
    let placement = Placement::new(pieces.collect()).unwrap_or_default();
    Laid { object_bytes, placement }
}
