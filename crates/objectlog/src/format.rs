//! The bytes: names of logs, index pages, records, cells. `docs/spec/object-log.md` says the same in words.
//!
//! Used by the writer and the reader. Decoding takes any bytes: what does not add up is `None`, never a panic.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crc32fast::Hasher;
use haul_model::{Identity, Timestamp, Token};

use crate::entry::Binding;
use crate::method::{EXTENTS_MAX, Mechanism, Method};

/// Version of the format that is written; older ones are read, newer ones refused.
pub const VERSION: u16 = 1;
/// The unit of allocation and of tearing: a sector of the smallest disks.
pub const PAGE_BYTES: usize = 512;
/// Longest path that can be logged: the deepest tree of the longest names.
pub const PATH_BYTES_MAX: usize = haul_model::limits::DEPTH_MAX * (haul_model::limits::NAME_BYTES_MAX + 1);

/// Checksum and generation before the payload of a cell.
pub(crate) const CELL_HEADER_BYTES: usize = 8;
/// Payload of a cell that fills a page.
pub(crate) const CELL_PAYLOAD_MAX: usize = PAGE_BYTES - CELL_HEADER_BYTES;
/// Before the records of an index page.
pub(crate) const INDEX_HEADER_BYTES: usize = 28;
/// Room for records in one index page.
pub(crate) const INDEX_ROOM_BYTES: usize = PAGE_BYTES - INDEX_HEADER_BYTES;
/// Paths up to here stand in the record itself.
pub(crate) const PATH_INLINE_MAX: usize = 256;
/// A record without extents, boot id and path.
pub(crate) const RECORD_BYTES_MIN: usize = 80;

const MAGIC: [u8; 4] = *b"HOLX";
const FLAG_CONTINUED: u8 = 1;
const FLAG_BOOT: u8 = 2;
const FLAG_PATH_OUTSIDE: u8 = 4;
const FLAG_ORIGIN: u8 = 8;
const ORIGIN_BYTES: usize = 12;

/// A range of a log: `[Offset, Data_Length]` of the paper. Length 0: not taken yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Extent {
    /// In bytes from the start of the log.
    pub offset: u64,
    /// In bytes, cell headers included.
    pub length: u64,
}

impl Extent {
    /// The cells, as (offset in the log, bytes): an extent is cut where a page ends.
    pub(crate) fn cells(self) -> impl Iterator<Item = (u64, usize)> {
        let end = self.offset.saturating_add(self.length);
        let mut next = self.offset;
        core::iter::from_fn(move || {
            let start = next;
            let page_end = (start / PAGE_BYTES as u64 + 1).saturating_mul(PAGE_BYTES as u64);
            next = page_end.min(end);
            (start < next).then(|| (start, (next - start) as usize))
        })
    }

    /// It lies where an extent of its length can be: up to a page within one, a longer one from the start of one.
    pub(crate) fn is_placed(self) -> bool {
        let page = PAGE_BYTES as u64;
        let within = self.offset % page;
        if self.length <= page { within + self.length <= page } else { within == 0 }
    }
}

/// `<mechanism>-<number>.log`.
pub(crate) fn log_name(mechanism: Mechanism, number: u64) -> String {
    format!("{}-{number}.log", mechanism.name())
}

/// The number in the name of a log; `None`: not a log, none of our business.
pub fn log_number(name: &str) -> Option<u64> {
    let (mechanism, number) = name.strip_suffix(".log")?.split_once('-')?;
    Mechanism::from_name(mechanism)?;
    if number.starts_with('0') || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse().ok()
}

/// What every index page says of its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub mechanism: Mechanism,
    pub method: Method,
    pub transaction_files: u32,
    pub number: u64,
}

/// The record with which an entry began: the number of its log, and its generation there. Of two records of a path the
/// greater one was begun later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Origin {
    /// In the name of the log.
    pub log: u64,
    /// Of the record.
    pub generation: u32,
}

/// One record of an index page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record<'a> {
    pub generation: u32,
    /// The entry moved here: older logs may hold more of it, back to this record.
    pub origin: Option<Origin>,
    pub binding: Binding,
    /// As many as the method plans for this file; the last ones may not be taken yet.
    pub extents: Vec<Extent>,
    pub path: RecordPath<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RecordPath<'a> {
    Inline(&'a [u8]),
    /// In cells of kind [`CellKind::Path`].
    Outside {
        extent: Extent,
        bytes: usize,
    },
}

/// What a cell holds; part of its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CellKind {
    Data = b'D' as isize,
    Path = b'P' as isize,
}

/// Bytes of a record.
pub(crate) fn record_bytes(extents: usize, boot: bool, moved: bool, path_bytes: usize) -> usize {
    let path = if path_bytes > PATH_INLINE_MAX { 16 } else { path_bytes };
    RECORD_BYTES_MIN + 16 * extents + if boot { 16 } else { 0 } + if moved { ORIGIN_BYTES } else { 0 } + path
}

/// Length of the extent that holds a path outside of its record.
pub(crate) fn path_extent_bytes(path_bytes: usize) -> u64 {
    if path_bytes <= CELL_PAYLOAD_MAX {
        (CELL_HEADER_BYTES + path_bytes) as u64
    } else {
        (path_bytes.div_ceil(CELL_PAYLOAD_MAX) * PAGE_BYTES) as u64
    }
}

fn page_checksum(offset: u64, page: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(b"I");
    hasher.update(&offset.to_le_bytes());
    hasher.update(&page[4..]);
    hasher.finalize()
}

/// Appends one index page. The records must fit.
pub(crate) fn write_index_page<'a>(
    page: &mut [u8],
    offset: u64,
    header: &Header,
    records: impl Iterator<Item = Record<'a>>,
) {
    page.fill(0);
    let mut end = INDEX_HEADER_BYTES;
    let mut count = 0u16;
    for record in records {
        end = write_record(page, end, &record);
        count += 1;
    }
    page[4..8].copy_from_slice(&MAGIC);
    page[8..10].copy_from_slice(&VERSION.to_le_bytes());
    page[10] = header.mechanism as u8;
    page[11] = header.method as u8;
    page[12..16].copy_from_slice(&header.transaction_files.to_le_bytes());
    page[16..24].copy_from_slice(&header.number.to_le_bytes());
    page[24..26].copy_from_slice(&count.to_le_bytes());
    page[26..28].copy_from_slice(&((end - INDEX_HEADER_BYTES) as u16).to_le_bytes());
    let checksum = page_checksum(offset, page);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
}

fn write_record(page: &mut [u8], start: usize, record: &Record<'_>) -> usize {
    let mut end = start + 2;
    let mut put = |bytes: &[u8]| {
        page[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
    };
    let binding = &record.binding;
    let identity = &binding.identity;
    let mut flags = if record.origin.is_some() { FLAG_CONTINUED | FLAG_ORIGIN } else { 0 };
    if binding.sink_boot.is_some() {
        flags |= FLAG_BOOT;
    }
    let path_bytes = match record.path {
        RecordPath::Inline(path) => path.len(),
        RecordPath::Outside { bytes, .. } => {
            flags |= FLAG_PATH_OUTSIDE;
            bytes
        }
    };
    put(&[flags, binding.hash_kind]);
    put(&record.generation.to_le_bytes());
    put(&binding.object_bytes.to_le_bytes());
    put(&(binding.objects as u32).to_le_bytes());
    put(&(path_bytes as u32).to_le_bytes());
    put(&(record.extents.len() as u32).to_le_bytes());
    put(&identity.size.to_le_bytes());
    put(&identity.mtime.seconds.to_le_bytes());
    put(&identity.ctime.seconds.to_le_bytes());
    put(&identity.mtime.nanos.to_le_bytes());
    put(&identity.ctime.nanos.to_le_bytes());
    put(&identity.inode.to_le_bytes());
    put(&binding.token.0);
    for extent in &record.extents {
        put(&extent.offset.to_le_bytes());
        put(&extent.length.to_le_bytes());
    }
    if let Some(boot) = &binding.sink_boot {
        put(boot);
    }
    if let Some(origin) = &record.origin {
        put(&origin.log.to_le_bytes());
        put(&origin.generation.to_le_bytes());
    }
    match record.path {
        RecordPath::Inline(path) => put(path),
        RecordPath::Outside { extent, .. } => {
            put(&extent.offset.to_le_bytes());
            put(&extent.length.to_le_bytes());
        }
    }
    let length = (end - start) as u16;
    page[start..start + 2].copy_from_slice(&length.to_le_bytes());
    end
}

/// What a page turned out to be.
pub(crate) enum Page<'a> {
    /// Data, paths, or nothing.
    Other,
    /// It says that it is an index page, but its checksum or a field is wrong.
    Damaged,
    /// An index page of a newer version.
    Newer(u16),
    Index(Header, Records<'a>),
}

/// Looks at the page at `offset`. `number` is that of the log's name.
pub(crate) fn read_index_page(page: &[u8], offset: u64, number: u64) -> Page<'_> {
    if page.get(4..8) != Some(&MAGIC) {
        return Page::Other;
    }
    let Some((page, _)) = page.split_at_checked(PAGE_BYTES) else { return Page::Damaged };
    let mut fields = Fields(page);
    if fields.u32() != Some(page_checksum(offset, page)) {
        return Page::Damaged;
    }
    fields.take(4);
    match fields.u16() {
        Some(version) if version > VERSION => Page::Newer(version),
        Some(VERSION) => read_index_fields(fields, number).unwrap_or(Page::Damaged),
        _ => Page::Damaged,
    }
}

fn read_index_fields(mut fields: Fields<'_>, number: u64) -> Option<Page<'_>> {
    let header = Header {
        mechanism: Mechanism::from_number(fields.u8()?)?,
        method: Method::from_number(fields.u8()?)?,
        transaction_files: fields.u32()?,
        number: fields.u64()?,
    };
    let count = fields.u16()?;
    let used = fields.u16()?;
    let records = fields.take(usize::from(used))?;
    (header.number == number).then_some(Page::Index(header, Records { rest: Fields(records), left: count }))
}

/// The records of an index page; `Err` stands for one that is not well formed, and for all behind it.
pub(crate) struct Records<'a> {
    rest: Fields<'a>,
    left: u16,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let record = read_record(&mut self.rest);
        if record.is_none() {
            self.left = 0;
        }
        Some(record.ok_or(()))
    }
}

fn read_record<'a>(rest: &mut Fields<'a>) -> Option<Record<'a>> {
    let length = usize::from(rest.u16()?);
    let mut fields = Fields(rest.take(length.checked_sub(2)?)?);
    let flags = fields.u8()?;
    let hash_kind = fields.u8()?;
    let generation = fields.u32()?;
    let object_bytes = fields.u32()?;
    let objects = u64::from(fields.u32()?);
    let path_bytes = fields.u32()? as usize;
    let extent_count = fields.u32()? as usize;
    let size = fields.u64()?;
    let (mtime_seconds, ctime_seconds) = (fields.u64()? as i64, fields.u64()? as i64);
    let (mtime_nanos, ctime_nanos) = (fields.u32()?, fields.u32()?);
    let inode = fields.u64()?;
    let token = Token(fields.array()?);
    if flags & !(FLAG_CONTINUED | FLAG_BOOT | FLAG_PATH_OUTSIDE | FLAG_ORIGIN) != 0
        || flags & (FLAG_CONTINUED | FLAG_ORIGIN) == FLAG_ORIGIN
        || generation == 0
        || objects == 0
        || extent_count > EXTENTS_MAX
        || path_bytes > PATH_BYTES_MAX
    {
        return None;
    }
    let mut extents = Vec::with_capacity(extent_count);
    for _ in 0..extent_count {
        extents.push(fields.extent()?);
    }
    let sink_boot = if flags & FLAG_BOOT != 0 { Some(fields.array()?) } else { None };
    let origin = match (flags & FLAG_CONTINUED != 0, flags & FLAG_ORIGIN != 0) {
        (_, true) => Some(Origin { log: fields.u64()?, generation: fields.u32()? }),
        // As they were written before origins were: back to the first of its binding.
        (true, false) => Some(Origin::default()),
        (false, false) => None,
    };
    let path = if flags & FLAG_PATH_OUTSIDE != 0 {
        let extent = fields.extent()?;
        (extent.length == path_extent_bytes(path_bytes))
            .then_some(RecordPath::Outside { extent, bytes: path_bytes })?
    } else {
        RecordPath::Inline(fields.take(path_bytes)?)
    };
    fields.0.is_empty().then_some(())?;
    let identity = Identity {
        size,
        mtime: Timestamp { seconds: mtime_seconds, nanos: mtime_nanos },
        ctime: Timestamp { seconds: ctime_seconds, nanos: ctime_nanos },
        inode,
    };
    let binding = Binding { identity, object_bytes, objects, hash_kind, token, sink_boot };
    Some(Record { generation, origin, binding, extents, path })
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// An extent that ends within the range of offsets.
    fn extent(&mut self) -> Option<Extent> {
        let extent = Extent { offset: self.u64()?, length: self.u64()? };
        extent.offset.checked_add(extent.length).filter(|end| *end <= i64::MAX as u64).map(|_| extent)
    }
}

/// To what the checksum of a cell binds it, beside its place and payload.
#[derive(Clone, Copy)]
pub(crate) struct CellOwner<'a> {
    pub kind: CellKind,
    pub number: u64,
    pub generation: u32,
    pub token: &'a Token,
}

impl CellOwner<'_> {
    fn checksum(&self, offset: u64, cell: &[u8]) -> u32 {
        let mut hasher = Hasher::new();
        hasher.update(&[self.kind as u8]);
        hasher.update(&self.number.to_le_bytes());
        hasher.update(&offset.to_le_bytes());
        hasher.update(&self.token.0);
        hasher.update(&cell[4..]);
        hasher.finalize()
    }

    /// Fills in checksum and generation; the payload from byte 8 on is there already.
    pub(crate) fn seal(&self, offset: u64, cell: &mut [u8]) {
        cell[4..8].copy_from_slice(&self.generation.to_le_bytes());
        let checksum = self.checksum(offset, cell);
        cell[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What there is of a cell bears the generation of this owner.
    pub(crate) fn has_generation(&self, cell: &[u8]) -> bool {
        cell.get(4..CELL_HEADER_BYTES) == Some(&self.generation.to_le_bytes())
    }

    /// The payload, if this cell was sealed by this owner at this place. `Err`: it bears the owner's generation, but
    /// is damaged. `Ok(None)`: never written, or left over from another owner.
    pub(crate) fn open<'c>(&self, offset: u64, cell: &'c [u8]) -> Result<Option<&'c [u8]>, ()> {
        let Some((header, payload)) = cell.split_first_chunk::<CELL_HEADER_BYTES>() else { return Ok(None) };
        if !self.has_generation(cell) {
            return Ok(None);
        }
        if header[..4] != self.checksum(offset, cell).to_le_bytes() {
            return Err(());
        }
        Ok(Some(payload))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    fn binding() -> Binding {
        Binding {
            identity: Identity {
                size: 1 << 40,
                mtime: Timestamp { seconds: -5, nanos: 999_999_999 },
                ctime: Timestamp { seconds: 1_700_000_000, nanos: 1 },
                inode: u64::MAX,
            },
            object_bytes: 4 << 20,
            objects: 262_144,
            hash_kind: 1,
            token: Token([7; 16]),
            sink_boot: None,
        }
    }

    fn header() -> Header {
        Header { mechanism: Mechanism::Universal, method: Method::Bit64, transaction_files: 4, number: 3 }
    }

    fn records() -> [Record<'static>; 2] {
        let extents = vec![Extent { offset: 512, length: 33_280 }];
        [
            Record {
                generation: 9,
                origin: None,
                binding: binding(),
                extents,
                path: RecordPath::Inline(b"a/\xffb\n"),
            },
            Record {
                generation: 10,
                origin: Some(Origin { log: 2, generation: 7 }),
                binding: Binding { sink_boot: Some([3; 16]), ..binding() },
                extents: vec![Extent::default(); EXTENTS_MAX],
                path: RecordPath::Outside { extent: Extent { offset: 1024, length: 512 * 9 }, bytes: 4500 },
            },
        ]
    }

    #[test]
    fn index_pages_round_trip_and_are_bound_to_their_place_and_log() {
        let mut page = [0xee; PAGE_BYTES];
        write_index_page(&mut page, 1024, &header(), records().into_iter());
        let Page::Index(found, list) = read_index_page(&page, 1024, 3) else { panic!("not an index page") };
        assert_eq!(found, header());
        assert!(list.map(Result::unwrap).eq(records()));
        assert!(matches!(read_index_page(&page, 512, 3), Page::Damaged));
        assert!(matches!(read_index_page(&page, 1024, 4), Page::Damaged));
        for bit in 0..PAGE_BYTES * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(read_index_page(&damaged, 1024, 3), Page::Damaged | Page::Other), "bit {bit}");
        }
    }

    #[test]
    fn well_summed_nonsense_is_damage_not_a_panic() {
        for at in INDEX_HEADER_BYTES - 4..PAGE_BYTES {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut page = [0; PAGE_BYTES];
                write_index_page(&mut page, 0, &header(), records().into_iter());
                page[at] = value;
                let checksum = page_checksum(0, &page);
                page[..4].copy_from_slice(&checksum.to_le_bytes());
                if let Page::Index(_, list) = read_index_page(&page, 0, 3) {
                    assert!(list.count() <= usize::from(u16::MAX));
                }
            }
        }
    }

    #[test]
    fn the_largest_record_fits_into_a_page() {
        assert!(record_bytes(EXTENTS_MAX, true, true, PATH_INLINE_MAX) <= INDEX_ROOM_BYTES);
        for record in records() {
            let mut page = [0; PAGE_BYTES];
            let end = write_record(&mut page, 0, &record);
            let path_bytes = match record.path {
                RecordPath::Inline(path) => path.len(),
                RecordPath::Outside { bytes, .. } => bytes,
            };
            assert_eq!(
                end,
                record_bytes(
                    record.extents.len(),
                    record.binding.sink_boot.is_some(),
                    record.origin.is_some(),
                    path_bytes
                )
            );
        }
    }

    #[test]
    fn a_cell_is_believed_only_by_its_owner_at_its_place() {
        let owner = CellOwner { kind: CellKind::Data, number: 3, generation: 9, token: &Token([7; 16]) };
        let mut cell = [0x5a; 40];
        owner.seal(512, &mut cell);
        assert_eq!(owner.open(512, &cell), Ok(Some(&[0x5a; 32][..])));
        assert_eq!(CellOwner { generation: 8, ..owner }.open(512, &cell), Ok(None));
        for other in [
            CellOwner { kind: CellKind::Path, ..owner },
            CellOwner { number: 4, ..owner },
            CellOwner { token: &Token([8; 16]), ..owner },
        ] {
            assert_eq!(other.open(512, &cell), Err(()));
        }
        assert_eq!(owner.open(1024, &cell), Err(()));
        assert_eq!(owner.open(512, &[0; 40]), Ok(None));
        cell[39] ^= 1;
        assert_eq!(owner.open(512, &cell), Err(()));
    }

    #[test]
    fn extents_are_cut_into_cells_where_pages_end() {
        let cells = |offset, length| Extent { offset, length }.cells().collect::<Vec<_>>();
        assert_eq!(cells(640, 128), [(640, 128)]);
        assert_eq!(cells(1024, 1024), [(1024, 512), (1536, 512)]);
        assert_eq!(cells(1000, 100), [(1000, 24), (1024, 76)]);
        assert_eq!(cells(0, 0), []);
    }

    #[test]
    fn an_extent_lies_within_a_page_or_starts_on_one() {
        let is_placed = |offset, length| Extent { offset, length }.is_placed();
        assert!(is_placed(0, 0) && is_placed(640, 384) && is_placed(512, 512) && is_placed(1024, 1024));
        assert!(!is_placed(640, 385) && !is_placed(513, 512) && !is_placed(1025, 1024));
    }

    #[test]
    fn only_names_of_logs_are_taken_for_logs() {
        assert_eq!(log_name(Mechanism::Transaction, 17), "transaction-17.log");
        assert_eq!(log_number("transaction-17.log"), Some(17));
        for name in [
            "",
            "log",
            "file-.log",
            "file-0.log",
            "file-01.log",
            "file-+1.log",
            "other-1.log",
            "file-1.log.new",
            "file-99999999999999999999.log",
        ] {
            assert_eq!(log_number(name), None, "{name}");
        }
    }
}
