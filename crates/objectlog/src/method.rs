//! The three mechanisms and six methods, how much room a method needs, and how numbers become bytes.
//!
//! Used by the writer ([`crate::flush`]) and the reader ([`crate::read`]); knows nothing of pages beyond the payload
//! of one cell.

use crate::format::{CELL_HEADER_BYTES, CELL_PAYLOAD_MAX, PAGE_BYTES};

/// How many files of the dataset share a log (FT-LADS section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Mechanism {
    /// One log a file.
    File = 0,
    /// One log for K files.
    Transaction = 1,
    /// One log for all files of the source.
    Universal = 2,
}

impl Mechanism {
    /// All, in the order of the paper.
    pub const ALL: [Mechanism; 3] = [Mechanism::File, Mechanism::Transaction, Mechanism::Universal];

    /// As in options and log names.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::File => "file",
            Mechanism::Transaction => "transaction",
            Mechanism::Universal => "universal",
        }
    }

    /// The mechanism of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mechanism| mechanism.name() == name)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// How durable objects are written down (FT-LADS section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Method {
    /// Decimal digits and a line feed.
    Char = 0,
    /// 64-bit integers.
    Int = 1,
    /// Integers of variable length, 7 bits a byte.
    Enc = 2,
    /// 32-bit integers.
    Binary = 3,
    /// One bit an object, in bytes.
    Bit8 = 4,
    /// One bit an object, in 64-bit words.
    Bit64 = 5,
}

impl Method {
    /// All, in the order of the paper.
    pub const ALL: [Method; 6] =
        [Method::Char, Method::Int, Method::Enc, Method::Binary, Method::Bit8, Method::Bit64];

    /// As in options.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Char => "char",
            Method::Int => "int",
            Method::Enc => "enc",
            Method::Binary => "binary",
            Method::Bit8 => "bit8",
            Method::Bit64 => "bit64",
        }
    }

    /// The method of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// One bit an object, at a fixed place; the other methods append numbers.
    pub(crate) const fn is_bits(self) -> bool {
        matches!(self, Method::Bit8 | Method::Bit64)
    }

    /// Bytes of the widest number that a file of so many objects can need.
    fn width_max(self, objects: u64) -> u64 {
        match self {
            Method::Char => u64::from(objects.saturating_sub(1).checked_ilog10().unwrap_or(0)) + 2,
            Method::Int => 8,
            Method::Enc => u64::from(objects.max(1).ilog2()) / 7 + 1,
            Method::Binary => 4,
            Method::Bit8 | Method::Bit64 => 0,
        }
    }

    /// The room for a file of `objects` objects (at least 1, at most 2^32 - 1).
    pub(crate) fn plan(self, objects: u64) -> Plan {
        let page = PAGE_BYTES as u64;
        let payload_max = CELL_PAYLOAD_MAX as u64;
        let payload = match self {
            Method::Bit8 => objects.div_ceil(8),
            Method::Bit64 => objects.div_ceil(64) * 8,
            _ => objects * self.width_max(objects),
        };
        let mut lengths = [0; EXTENTS_MAX];
        if payload <= payload_max {
            lengths[0] = CELL_HEADER_BYTES as u64 + payload;
            return Plan { lengths, count: 1, numbers_a_cell: objects };
        }
        if self.is_bits() {
            lengths[0] = payload.div_ceil(payload_max) * page;
            return Plan { lengths, count: 1, numbers_a_cell: 0 };
        }
        let numbers_a_cell = payload_max / self.width_max(objects);
        let pages = objects.div_ceil(numbers_a_cell);
        let first = pages.div_ceil(16);
        let (mut left, mut count) = (pages, 0);
        for (length, step) in lengths.iter_mut().zip([1, 1, 2, 4, 8]) {
            if left == 0 {
                break;
            }
            let here = left.min(first * step);
            *length = here * page;
            left -= here;
            count += 1;
        }
        Plan { lengths, count, numbers_a_cell }
    }

    /// Appends the number of an object at `used`; the new `used`, or `None` if it does not fit in this cell.
    pub(crate) fn append(self, object: u64, payload: &mut [u8], used: usize) -> Option<usize> {
        let mut text = [0u8; 20];
        let number: &[u8] = match self {
            Method::Char => {
                let mut start = text.len() - 1;
                text[start] = b'\n';
                let mut rest = object;
                loop {
                    start -= 1;
                    text[start] = b'0' + (rest % 10) as u8;
                    rest /= 10;
                    if rest == 0 {
                        break;
                    }
                }
                &text[start..]
            }
            Method::Int => {
                text[..8].copy_from_slice(&(object + 1).to_le_bytes());
                &text[..8]
            }
            Method::Binary => {
                text[..4].copy_from_slice(&(object as u32 + 1).to_le_bytes());
                &text[..4]
            }
            Method::Enc => {
                let (mut rest, mut length) = (object + 1, 0);
                while rest >= 0x80 {
                    text[length] = rest as u8 | 0x80;
                    rest >>= 7;
                    length += 1;
                }
                text[length] = rest as u8;
                &text[..=length]
            }
            Method::Bit8 | Method::Bit64 => return None,
        };
        let end = used + number.len();
        payload.get_mut(used..end)?.copy_from_slice(number);
        Some(end)
    }

    /// Tells every object that an appending method wrote into this cell. False if the cell is not well formed; what
    /// was told up to there is then still true, because the cell's checksum was.
    pub(crate) fn each(self, payload: &[u8], mut tell: impl FnMut(u64)) -> bool {
        match self {
            Method::Char => {
                let mut number: Option<u64> = None;
                for byte in payload {
                    match (byte, number) {
                        (0, None) => return true,
                        (b'0'..=b'9', _) => {
                            let digit = u64::from(byte - b'0');
                            match number.unwrap_or(0).checked_mul(10).and_then(|tens| tens.checked_add(digit))
                            {
                                Some(value) => number = Some(value),
                                None => return false,
                            }
                        }
                        (b'\n', Some(value)) => {
                            tell(value);
                            number = None;
                        }
                        _ => return false,
                    }
                }
                number.is_none()
            }
            Method::Int => {
                for word in payload.as_chunks::<8>().0 {
                    match u64::from_le_bytes(*word) {
                        0 => return true,
                        value => tell(value - 1),
                    }
                }
                true
            }
            Method::Binary => {
                for word in payload.as_chunks::<4>().0 {
                    match u32::from_le_bytes(*word) {
                        0 => return true,
                        value => tell(u64::from(value) - 1),
                    }
                }
                true
            }
            Method::Enc => {
                let (mut value, mut shift) = (0u64, 0u32);
                for byte in payload {
                    if *byte == 0 {
                        return shift == 0;
                    }
                    if shift > 35 {
                        return false;
                    }
                    value |= u64::from(byte & 0x7f) << shift;
                    if byte & 0x80 != 0 {
                        shift += 7;
                    } else {
                        tell(value - 1);
                        (value, shift) = (0, 0);
                    }
                }
                shift == 0
            }
            Method::Bit8 | Method::Bit64 => false,
        }
    }
}

/// Extents of one entry: an appending method takes its room in at most this many steps.
pub(crate) const EXTENTS_MAX: usize = 5;

/// The room of one entry: the lengths of its extents, all known from the start, taken one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    lengths: [u64; EXTENTS_MAX],
    count: usize,
    /// How many numbers every full cell holds at least.
    numbers_a_cell: u64,
}

impl Plan {
    pub(crate) fn lengths(&self) -> &[u64] {
        &self.lengths[..self.count]
    }

    /// How many extents must be there before `numbers` objects are written down.
    pub(crate) fn extents_needed(&self, numbers: u64) -> usize {
        if self.count == 1 {
            return 1;
        }
        let mut bytes = numbers.div_ceil(self.numbers_a_cell) * PAGE_BYTES as u64;
        for (index, length) in self.lengths().iter().enumerate() {
            if bytes <= *length {
                return index + 1;
            }
            bytes -= length;
        }
        self.count
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn numbers_at_every_edge_of_width_come_back_and_a_cell_ends_at_its_first_zero() {
        let edges = [
            0,
            1,
            9,
            10,
            99,
            100,
            126,
            127,
            128,
            16_382,
            16_383,
            16_384,
            99_999,
            2_097_151,
            u32::MAX as u64 - 1,
        ];
        for method in [Method::Char, Method::Int, Method::Enc, Method::Binary] {
            let mut payload = [0u8; CELL_PAYLOAD_MAX];
            let mut used = 0;
            for object in edges {
                used = method.append(object, &mut payload, used).unwrap();
            }
            let mut found = Vec::new();
            assert!(method.each(&payload, |object| found.push(object)), "{method:?}");
            assert_eq!(found, edges, "{method:?}");
        }
    }

    #[test]
    fn a_number_that_does_not_fit_changes_nothing() {
        for method in [Method::Char, Method::Int, Method::Enc, Method::Binary] {
            let mut payload = [0u8; 3];
            assert_eq!(method.append(u64::from(u32::MAX) - 1, &mut payload, 0), None);
            assert_eq!(payload, [0; 3]);
        }
    }

    #[test]
    fn the_worst_numbers_of_a_file_always_fit_into_its_plan() {
        for method in [Method::Char, Method::Int, Method::Enc, Method::Binary] {
            for objects in
                [1, 2, 10, 11, 63, 64, 100, 101, 126, 127, 128, 129, 252, 253, 1_000, 1_001, 16_384, 50_000]
            {
                let plan = method.plan(objects);
                let mut cells = plan.lengths().iter().flat_map(|length| {
                    let whole = (*length / 512) as usize;
                    let part = (*length % 512) as usize;
                    core::iter::repeat_n(CELL_PAYLOAD_MAX, whole).chain((part > 0).then(|| part - 8))
                });
                let mut payload = alloc::vec![0; cells.next().unwrap()];
                let mut used = 0;
                for object in (0..objects).rev() {
                    used = method.append(object, &mut payload, used).unwrap_or_else(|| {
                        payload = alloc::vec![0; cells.next().expect("the plan is too small")];
                        method.append(object, &mut payload, 0).unwrap()
                    });
                }
            }
        }
    }

    #[test]
    fn plans_grow_in_at_most_five_steps_and_never_past_twice_what_is_needed() {
        for method in [Method::Char, Method::Int, Method::Enc, Method::Binary] {
            for objects in [600, 954, 10_000, 1_000_000, u64::from(u32::MAX)] {
                let plan = method.plan(objects);
                let total: u64 = plan.lengths().iter().sum();
                assert_eq!(plan.extents_needed(objects), plan.lengths().len());
                for share in 1..=64 {
                    let numbers = (objects * share / 64).max(1);
                    let room: u64 = plan.lengths()[..plan.extents_needed(numbers)].iter().sum();
                    let needed = numbers.div_ceil(plan.numbers_a_cell) * 512;
                    assert!(
                        room >= needed && room <= 2 * needed + total / 8 + 512,
                        "{method:?} {objects} {share}"
                    );
                }
            }
        }
    }

    #[test]
    fn bit_regions_have_the_lengths_of_the_paper() {
        let length = |method: Method, objects| method.plan(objects).lengths()[0];
        assert_eq!((length(Method::Bit8, 1), length(Method::Bit64, 1)), (8 + 1, 8 + 8));
        assert_eq!((length(Method::Bit8, 954), length(Method::Bit64, 954)), (8 + 120, 8 + 120));
        assert_eq!((length(Method::Bit8, 4032), length(Method::Bit64, 4032)), (512, 512));
        assert_eq!((length(Method::Bit8, 4033), length(Method::Bit64, 4033)), (1024, 1024));
    }

    #[test]
    fn malformed_cells_are_told_apart() {
        for (method, payload) in [
            (Method::Char, &b"12x\n"[..]),
            (Method::Char, b"\n"),
            (Method::Char, b"12"),
            (Method::Char, b"99999999999999999999999\n"),
            (Method::Enc, b"\x80\x00"),
            (Method::Enc, b"\xff\xff\xff\xff\xff\xff\xff\x01"),
            (Method::Enc, b"\x81"),
        ] {
            assert!(!method.each(payload, |_| ()), "{method:?} {payload:?}");
        }
    }
}
