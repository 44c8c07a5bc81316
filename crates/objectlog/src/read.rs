//! Reads one log, whoever wrote it and whatever has happened to it since.
//!
//! Used when logs are opened, and by whoever shows a log. Two passes: the first looks at every page for index pages,
//! the second reads the cells of each record that was found. Memory follows the records, not the log.

use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use haul_model::Bitmap;

use crate::entry::{Binding, Logged};
use crate::error::{Doing, Error};
use crate::format::{
    self, CellKind, CellOwner, Extent, Header, Origin, PAGE_BYTES, Page, Record, RecordPath,
};
use crate::method::{Mechanism, Method};
use crate::store::LogStore;

const BUFFER_BYTES: usize = 64 << 10;

/// One record of a log: `[LogFileName, FileName, TotalBlocks, Offset, Data_Length]`, its binding and its objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordContents {
    /// FileName: any bytes.
    pub path: Vec<u8>,
    /// TotalBlocks, and to what the record is bound.
    pub logged: Logged,
    /// Unique within the log; of two records of a path the one with the higher generation counts.
    pub generation: u32,
    /// The entry moved here: logs with smaller numbers may hold more of its objects, back to this record.
    pub origin: Option<Origin>,
    /// Where its data is: Offset and Data_Length. An appending method takes up to five of them, one after the other.
    pub extents: Vec<Extent>,
}

/// A log as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogContents {
    /// How many files share it.
    pub mechanism: Mechanism,
    /// How objects are written in it.
    pub method: Method,
    /// K of the transaction mechanism.
    pub transaction_files: u32,
    /// From its name; later logs have higher numbers.
    pub number: u64,
    /// Its records, in the order of the log.
    pub records: Vec<RecordContents>,
    /// Index pages, records and cells that were not believed.
    pub pages_damaged: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// What is known of a log that has no readable index page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unreadable {
    /// Length in bytes.
    pub bytes: u64,
    /// Index pages that were not believed.
    pub pages_damaged: u64,
    /// It has content: it was damaged, rather than given up before its first index page was there.
    pub damaged: bool,
}

/// Reads the log `name`. `None` if nothing in it can be read (or it is not a log, or not there).
///
/// `objects_max` bounds memory: records beyond that many objects count as damaged.
pub fn read_log<S: LogStore>(
    store: &mut S,
    name: &str,
    objects_max: u64,
) -> Result<Option<LogContents>, Error<S::Error>> {
    let Some(number) = format::log_number(name) else { return Ok(None) };
    Ok(read_numbered(store, name, number, objects_max)?.ok())
}

/// Reads the log `name`, of which [`crate::log_number`] is `number`. A log that is not there is empty.
///
/// `objects_max` as for [`read_log`].
pub fn read_numbered<S: LogStore>(
    store: &mut S,
    name: &str,
    number: u64,
    objects_max: u64,
) -> Result<Result<LogContents, Unreadable>, Error<S::Error>> {
    let failed = |error| Error::Store { doing: Doing::Reading, name: name.to_string(), error };
    let bytes = store.length(name).map_err(failed)?.unwrap_or(0);
    let mut reader = Reader { store, name, buffer: vec![0; BUFFER_BYTES], path_bytes_left: bytes };
    let mut log: Option<LogContents> = None;
    let mut found: Vec<(Header, Found)> = Vec::new();
    let (mut damaged, mut content, mut offset) = (0, false, 0);
    while offset < bytes {
        let chunk = reader.fill(offset, BUFFER_BYTES)?;
        if chunk.is_empty() {
            break;
        }
        for page in chunk.chunks(PAGE_BYTES) {
            match format::read_index_page(page, offset, number) {
                Page::Newer(version) => return Err(Error::NewerVersion { name: name.to_string(), version }),
                Page::Damaged => damaged += 1,
                Page::Other => {
                    content |= page.iter().any(|byte| *byte != 0);
                    // A log begins with an index page. A first page of zeros was never written.
                    damaged += u64::from(offset == 0 && content);
                }
                Page::Index(header, records) => {
                    log.get_or_insert_with(|| LogContents {
                        mechanism: header.mechanism,
                        method: header.method,
                        transaction_files: header.transaction_files,
                        number,
                        records: Vec::new(),
                        pages_damaged: 0,
                        bytes,
                    });
                    for record in records {
                        match record {
                            Ok(record) => found.push((header, Found::new(record))),
                            Err(()) => damaged += 1,
                        }
                    }
                }
            }
            offset += page.len() as u64;
        }
    }
    let Some(mut log) = log else {
        return Ok(Err(Unreadable { bytes, pages_damaged: damaged, damaged: damaged > 0 || content }));
    };
    let mut objects_left = objects_max;
    for (header, record) in found {
        let extents_fit = record.extents_are_planned(header.method);
        match objects_left.checked_sub(record.binding.objects).filter(|_| extents_fit) {
            Some(left) => match reader.record(&header, record, &mut damaged)? {
                Some(contents) => {
                    objects_left = left;
                    log.records.push(contents);
                }
                None => damaged += 1,
            },
            None => damaged += 1,
        }
    }
    log.pages_damaged = damaged;
    Ok(Ok(log))
}

/// A record without its bits.
struct Found {
    generation: u32,
    origin: Option<Origin>,
    binding: Binding,
    extents: Vec<Extent>,
    path: FoundPath,
}

enum FoundPath {
    Here(Vec<u8>),
    Outside(Extent, usize),
}

impl Found {
    fn new(record: Record<'_>) -> Self {
        let path = match record.path {
            RecordPath::Inline(path) => FoundPath::Here(path.to_vec()),
            RecordPath::Outside { extent, bytes } => FoundPath::Outside(extent, bytes),
        };
        let Record { generation, origin, binding, extents, .. } = record;
        Found { generation, origin, binding, extents, path }
    }

    /// Each extent is as the method planned it for a file of so many objects, or is not taken.
    fn extents_are_planned(&self, method: Method) -> bool {
        let plan = method.plan(self.binding.objects);
        plan.lengths().len() == self.extents.len()
            && plan.lengths().iter().zip(&self.extents).all(|(planned, extent)| {
                extent.length == *planned && extent.is_placed() || *extent == Extent::default()
            })
    }
}

struct Reader<'s, S> {
    store: &'s mut S,
    name: &'s str,
    buffer: Vec<u8>,
    /// A cell belongs to one entry, so all paths outside together are no longer than the log.
    path_bytes_left: u64,
}

impl<S: LogStore> Reader<'_, S> {
    /// Up to `length` bytes (at most the buffer) from `offset`; fewer only at the end of the log.
    fn fill(&mut self, offset: u64, length: usize) -> Result<&[u8], Error<S::Error>> {
        let wanted = length.min(BUFFER_BYTES);
        let mut filled = 0;
        while filled < wanted {
            let read =
                self.store.read_at(self.name, offset + filled as u64, &mut self.buffer[filled..wanted]);
            let failed = |error| Error::Store { doing: Doing::Reading, name: self.name.to_string(), error };
            match read.map_err(failed)? {
                0 => break,
                more => filled = (filled + more).min(wanted),
            }
        }
        Ok(&self.buffer[..filled])
    }

    /// Tells the payload of every cell of the extent that its owner sealed, with its number within the extent.
    fn cells(
        &mut self,
        extent: Extent,
        owner: &CellOwner<'_>,
        damaged: &mut u64,
        mut tell: impl FnMut(u64, &[u8], &mut u64),
    ) -> Result<(), Error<S::Error>> {
        let mut cells = extent.cells().peekable();
        let mut index = 0;
        while let Some(&(start, _)) = cells.peek() {
            let wanted = (extent.offset + extent.length - start).min(BUFFER_BYTES as u64) as usize;
            let bytes = self.fill(start, wanted)?;
            let mut any = false;
            while let Some(&(offset, length)) = cells.peek() {
                let from = (offset - start) as usize;
                let Some(cell) = bytes.get(from..from + length) else { break };
                match owner.open(offset, cell) {
                    Ok(Some(payload)) => tell(index, payload, damaged),
                    Ok(None) => {}
                    Err(()) => *damaged += 1,
                }
                any = true;
                index += 1;
                cells.next();
            }
            if bytes.len() < wanted || !any {
                // The log ends here, perhaps within a cell.
                let cut = cells.peek().and_then(|&(offset, _)| bytes.get((offset - start) as usize..));
                *damaged += u64::from(cut.is_some_and(|cell| owner.has_generation(cell)));
                break;
            }
        }
        Ok(())
    }

    /// The record with its path and bits; `None` if its path cannot be read.
    fn record(
        &mut self,
        header: &Header,
        found: Found,
        damaged: &mut u64,
    ) -> Result<Option<RecordContents>, Error<S::Error>> {
        let Found { generation, origin, binding, extents, path } = found;
        let owner =
            CellOwner { kind: CellKind::Data, number: header.number, generation, token: &binding.token };
        let path = match path {
            FoundPath::Here(path) => path,
            FoundPath::Outside(extent, length) => {
                let Some(left) = self.path_bytes_left.checked_sub(length as u64) else { return Ok(None) };
                if !extent.is_placed() {
                    return Ok(None);
                }
                let (mut path, mut cells) = (Vec::new(), 0);
                let owner = CellOwner { kind: CellKind::Path, ..owner };
                self.cells(extent, &owner, damaged, |_, payload, _| {
                    path.extend_from_slice(payload);
                    cells += 1;
                })?;
                if cells < extent.length.div_ceil(PAGE_BYTES as u64) {
                    return Ok(None);
                }
                path.truncate(length);
                self.path_bytes_left = left;
                path
            }
        };
        let objects = binding.objects;
        let done = if header.method.is_bits() {
            let mut words = vec![0u64; objects.div_ceil(64) as usize];
            let extent = extents.first().copied().unwrap_or_default();
            self.cells(extent, &owner, damaged, |cell, payload, _| {
                let first = cell as usize * (format::CELL_PAYLOAD_MAX / 8);
                for (word, bytes) in words.iter_mut().skip(first).zip(payload.chunks(8)) {
                    let mut all = [0; 8];
                    all[..bytes.len()].copy_from_slice(bytes);
                    *word |= u64::from_le_bytes(all);
                }
            })?;
            Bitmap::from_words(words, objects)
        } else {
            let mut done = Bitmap::new(objects);
            for extent in &extents {
                self.cells(*extent, &owner, damaged, |_, payload, damaged| {
                    let mut in_range = true;
                    let well_formed = header.method.each(payload, |object| {
                        in_range &= object < objects;
                        done.set(object);
                    });
                    *damaged += u64::from(!(well_formed && in_range));
                })?;
            }
            done
        };
        Ok(Some(RecordContents { path, logged: Logged { binding, done }, generation, origin, extents }))
    }
}
