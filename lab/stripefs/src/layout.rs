//! Which object on which target holds which byte of a file.
//!
//! A layout is a row of components, each with an extent of the file; a plain layout is one component over all of it.
//! Offsets count as in Lustre (`lov_offset.c`): from the beginning of the file in every component, so the objects of a
//! component that begins at 64 MiB have a hole where the earlier bytes would be.

/// Where the last component ends: everywhere.
pub const END: u64 = u64::MAX;
/// Any target may be the first of a component.
pub const ANY: u16 = u16::MAX;
/// Stripe sizes and the ends of components are multiples of it.
pub const UNIT_BYTES: u64 = 64 << 10;

/// How the bytes of a component are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Over objects on different targets.
    Striped,
    /// Over objects, several of which may be on one target.
    Overstriped,
    /// They are kept by the metadata server.
    Metadata,
}

/// A file on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Object {
    /// Number of the target.
    pub target: u32,
    /// Its name there; never used twice in one file system.
    pub id: u64,
}

/// One component.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// 1 and up; 0 in a plain layout.
    pub id: u32,
    /// First byte of the file in it.
    pub start: u64,
    /// First byte behind it, or [`END`].
    pub end: u64,
    /// How it is spread.
    pub pattern: Pattern,
    /// Bytes of a stripe; of a metadata component, all of it. 0 is the default.
    pub stripe_bytes: u32,
    /// Objects that are wanted; 0 is the default, from 0xffe0 on as many for each target as there are below 0x10000.
    pub stripe_count: u16,
    /// The target of the first object, or [`ANY`].
    pub first: u16,
    /// The pool whose targets are used; empty for all.
    pub pool: String,
    /// These targets and no other, in this order; empty for those that are next.
    pub listed: Vec<u32>,
    /// The objects, once it has some; empty for a metadata component.
    pub objects: Option<Vec<Object>>,
}

/// The layout of a file, or the wish for one (no component has objects).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Shown as a composite attribute, also with one component.
    pub composite: bool,
    /// Rises when components get objects.
    pub generation: u32,
    /// In the order of their extents, the first at 0, each at the end of the one before.
    pub components: Vec<Component>,
}

/// Where a range of a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere: it reads as zeros.
    Hole,
    /// On the metadata server.
    Metadata,
    /// In an object.
    Object(Object),
}

/// A range of a file that is in one place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where.
    pub place: Place,
    /// From which byte on there.
    pub object_offset: u64,
    /// From which byte on in the file.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}

impl Component {
    /// Of a plain layout.
    pub fn plain(stripe_count: u16, stripe_bytes: u32) -> Component {
        Component {
            id: 0,
            start: 0,
            end: END,
            pattern: Pattern::Striped,
            stripe_bytes,
            stripe_count,
            first: ANY,
            pool: String::new(),
            listed: Vec::new(),
            objects: None,
        }
    }

    /// Bytes of the file in one row of stripes.
    fn row_bytes(&self, objects: usize) -> u64 {
        u64::from(self.stripe_bytes) * objects as u64
    }

    /// How long its object number `index` is in a file of `size` bytes: what lies behind is to be cut off.
    pub fn object_bytes(&self, index: usize, size: u64) -> u64 {
        let objects = self.objects.as_ref().map_or(0, Vec::len);
        if objects == 0 || size <= self.start {
            return 0;
        }
        let (size, row) = (size.min(self.end), self.row_bytes(objects));
        let stripe = u64::from(self.stripe_bytes);
        let in_last_row = (size % row).saturating_sub(index as u64 * stripe).min(stripe);
        size / row * stripe + in_last_row
    }

    /// Where the byte at `at`, which is in this component, is, and the first byte that may be elsewhere.
    fn locate(&self, at: u64) -> (Place, u64, u64) {
        match (&self.objects, self.pattern) {
            (None, _) => (Place::Hole, 0, self.end),
            (Some(_), Pattern::Metadata) => (Place::Metadata, at, self.end),
            (Some(objects), _) => {
                let (stripe, row) = (u64::from(self.stripe_bytes), self.row_bytes(objects.len()));
                let object = objects[(at % row / stripe) as usize];
                let next = (at - at % stripe).saturating_add(stripe);
                (Place::Object(object), at / row * stripe + at % stripe, next.min(self.end))
            }
        }
    }
}

impl Layout {
    /// The wish for one component over everything.
    pub fn plain(stripe_count: u16, stripe_bytes: u32) -> Layout {
        Layout {
            composite: false,
            generation: 0,
            components: vec![Component::plain(stripe_count, stripe_bytes)],
        }
    }

    /// First byte that no component has.
    pub fn end(&self) -> u64 {
        self.components.last().map_or(0, |last| last.end)
    }

    /// Where the range is, in order.
    pub fn pieces(&self, offset: u64, bytes: u64) -> Vec<Piece> {
        let end = offset.saturating_add(bytes);
        let mut pieces = Vec::new();
        let mut at = offset;
        while at < end {
            let component = self.components.iter().find(|component| at < component.end);
            let (place, object_offset, next) =
                component.map_or((Place::Hole, 0, END), |component| component.locate(at));
            let next = next.min(end);
            pieces.push(Piece { place, object_offset, offset: at, bytes: next - at });
            at = next;
        }
        pieces
    }

    /// All objects, with the component that they belong to and their position in it.
    pub fn objects(&self) -> impl Iterator<Item = (&Component, usize, Object)> {
        self.components.iter().flat_map(|component| {
            let objects = component.objects.iter().flatten();
            objects.enumerate().map(move |(index, object)| (component, index, *object))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K64: u64 = UNIT_BYTES;

    fn with_objects(mut component: Component, targets: &[u32], first_id: u64) -> Component {
        let ids = first_id..;
        component.objects =
            Some(targets.iter().zip(ids).map(|(target, id)| Object { target: *target, id }).collect());
        component
    }

    /// [0, 128k) metadata, [128k, 512k) one object, the rest three, 64 KiB each.
    fn progressive() -> Layout {
        let mut first = Component { id: 1, end: 2 * K64, ..Component::plain(0, 2 * K64 as u32) };
        (first.pattern, first.objects) = (Pattern::Metadata, Some(Vec::new()));
        let second = Component { id: 2, start: 2 * K64, end: 8 * K64, ..Component::plain(1, K64 as u32) };
        let third = Component { id: 3, start: 8 * K64, ..Component::plain(3, K64 as u32) };
        let components = vec![first, with_objects(second, &[5], 10), with_objects(third, &[1, 2, 0], 20)];
        Layout { composite: true, generation: 3, components }
    }

    #[test]
    fn stripes_go_round_the_objects() {
        let component = with_objects(Component::plain(3, K64 as u32), &[4, 5, 6], 1);
        let layout = Layout { composite: false, generation: 1, components: vec![component] };
        let pieces = layout.pieces(2 * K64 - 1, 2 * K64 + 2);
        let seen: Vec<_> = pieces
            .iter()
            .map(|piece| match piece.place {
                Place::Object(object) => (object.target, piece.object_offset, piece.offset, piece.bytes),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            seen,
            [
                (5, K64 - 1, 2 * K64 - 1, 1),
                (6, 0, 2 * K64, K64),
                (4, K64, 3 * K64, K64),
                (5, K64, 4 * K64, 1),
            ]
        );
    }

    #[test]
    fn components_keep_their_extents_and_offsets_count_from_the_beginning_of_the_file() {
        let layout = progressive();
        let at = |offset| layout.pieces(offset, 1)[0];
        assert_eq!((at(0).place, at(0).object_offset), (Place::Metadata, 0));
        assert_eq!((at(2 * K64 - 1).place, at(2 * K64 - 1).object_offset), (Place::Metadata, 2 * K64 - 1));
        assert_eq!((at(2 * K64).place, at(2 * K64).object_offset), (object(5, 10), 2 * K64));
        // Stripe 8 of the file: row 2, object 2.
        assert_eq!((at(8 * K64).place, at(8 * K64).object_offset), (object(0, 22), 2 * K64));
        assert_eq!((at(9 * K64).place, at(9 * K64).object_offset), (object(1, 20), 3 * K64));
        let whole = layout.pieces(0, 10 * K64);
        assert_eq!(whole.iter().map(|piece| piece.bytes).sum::<u64>(), 10 * K64);
        assert!(whole.windows(2).all(|two| two[0].offset + two[0].bytes == two[1].offset));
    }

    #[test]
    fn what_has_no_objects_is_a_hole_as_is_what_no_component_has() {
        let mut layout = progressive();
        layout.components[1].objects = None;
        layout.components[2].end = 16 * K64;
        assert_eq!(layout.pieces(3 * K64, K64)[0].place, Place::Hole);
        assert_eq!(layout.pieces(20 * K64, K64)[0].place, Place::Hole);
    }

    #[test]
    fn an_object_is_as_long_as_its_last_byte_in_the_file_says() {
        let layout = progressive();
        for size in (0..20 * K64).step_by(K64 as usize / 2).chain([2 * K64 + 1, 8 * K64 + 1, 11 * K64 - 1]) {
            for (component, index, object) in layout.objects() {
                let place = Place::Object(object);
                let longest = layout
                    .pieces(0, size)
                    .iter()
                    .filter(|piece| piece.place == place)
                    .map(|piece| piece.object_offset + piece.bytes)
                    .max();
                let bytes = component.object_bytes(index, size);
                // Where nothing of the object is in the file, the part before its component may remain.
                assert!(longest.is_none_or(|longest| longest == bytes), "{size} {object:?}");
                assert!(longest.is_some() || bytes <= component.start, "{size} {object:?} {bytes}");
            }
        }
    }

    fn object(target: u32, id: u64) -> Place {
        Place::Object(Object { target, id })
    }
}
