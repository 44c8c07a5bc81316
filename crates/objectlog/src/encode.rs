//! Turns entries into bytes: their records, the paths that have no room there, and their data.
//!
//! Used by [`crate::flush`], which decides what is written when.

use crate::batch::Batch;
use crate::entry::{Entry, Tail, Unwritten};
use crate::error::Error;
use crate::format::{
    CELL_HEADER_BYTES, CELL_PAYLOAD_MAX, CellKind, CellOwner, Extent, PAGE_BYTES, Record, RecordPath,
};
use crate::logfile::LogFile;
use crate::method::Method;
use crate::object_log::Usage;
use crate::store::LogStore;

/// Writes the batch to this log and keeps account of its length.
pub(crate) fn hand_over<S: LogStore>(
    batch: &mut Batch,
    store: &mut S,
    file: &mut LogFile,
    usage: &mut Usage,
) -> Result<(), Error<S::Error>> {
    (file.begun, file.unsynced) = (true, true);
    batch.end = file.bytes;
    let result = batch.write(store, &file.name);
    usage.grow(batch.end - file.bytes, u64::from(file.bytes == 0 && batch.end > 0));
    file.bytes = batch.end;
    result
}

pub(crate) fn record_of(entry: &Entry) -> Option<Record<'_>> {
    let place = entry.place.as_ref()?;
    let path = match place.path_extent {
        Some(extent) => RecordPath::Outside { extent, bytes: entry.path.len() },
        None => RecordPath::Inline(&entry.path),
    };
    Some(Record {
        generation: place.generation,
        origin: entry.origin,
        binding: entry.logged.binding,
        extents: place.extents.clone(),
        path,
    })
}

/// The cells of a path that has no room in its record, unless they are durable.
pub(crate) fn write_path(entry: &Entry, number: u64, batch: &mut Batch) {
    let Some(place) = entry.place.as_ref().filter(|place| !place.indexed) else { return };
    let Some(extent) = place.path_extent else { return };
    let token = &entry.logged.binding.token;
    let owner = CellOwner { kind: CellKind::Path, number, generation: place.generation, token };
    for ((offset, length), piece) in extent.cells().zip(entry.path.chunks(CELL_PAYLOAD_MAX)) {
        let cell = batch.add(offset, length);
        cell[CELL_HEADER_BYTES..CELL_HEADER_BYTES + piece.len()].copy_from_slice(piece);
        owner.seal(offset, cell);
    }
}

/// Turns what was recorded into cells.
pub(crate) struct DataWriter<'a, S> {
    pub batch: &'a mut Batch,
    pub store: &'a mut S,
    pub file: &'a mut LogFile,
    pub usage: &'a mut Usage,
}

impl<S: LogStore> DataWriter<'_, S> {
    /// Everything that was recorded of this entry and is not in the store. It is in a place that is indexed.
    pub(crate) fn entry(&mut self, entry: &mut Entry, method: Method) -> Result<(), Error<S::Error>> {
        let Some(place) = &mut entry.place else { return Ok(()) };
        let logged = &entry.logged;
        let owner = CellOwner {
            kind: CellKind::Data,
            number: self.file.number,
            generation: place.generation,
            token: &logged.binding.token,
        };
        if method.is_bits() {
            let extent = place.extents[0];
            let words = logged.done.words();
            return match &entry.unwritten {
                Unwritten::Cells(cells) => {
                    for (index, mut word) in cells.iter().copied().enumerate() {
                        while word != 0 {
                            let cell = index * 64 + word.trailing_zeros() as usize;
                            word &= word - 1;
                            self.bits(&owner, extent, words, cell)?;
                        }
                    }
                    Ok(())
                }
                _ => (0..words.len().div_ceil(CELL_PAYLOAD_MAX / 8))
                    .try_for_each(|cell| self.bits(&owner, extent, words, cell)),
            };
        }
        let mut tail = place.tail.clone();
        match &entry.unwritten {
            Unwritten::Objects(objects) => {
                let numbers = objects.iter().map(|object| u64::from(*object));
                self.numbers(&owner, &place.extents, method, &mut tail, numbers)?;
            }
            _ => {
                let done = &logged.done;
                let numbers = done.words().iter().enumerate().flat_map(|(index, word)| {
                    let first = index as u64 * 64;
                    (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)
                });
                self.numbers(&owner, &place.extents, method, &mut tail, numbers)?;
            }
        }
        place.tail_next = Some(tail);
        Ok(())
    }

    /// One cell of a bit method, unless no bit of it is set.
    fn bits(
        &mut self,
        owner: &CellOwner<'_>,
        extent: Extent,
        words: &[u64],
        cell: usize,
    ) -> Result<(), Error<S::Error>> {
        let first = cell * (CELL_PAYLOAD_MAX / 8);
        let words = &words[first..words.len().min(first + CELL_PAYLOAD_MAX / 8)];
        if words.iter().all(|word| *word == 0) {
            return Ok(());
        }
        let skipped = (cell * PAGE_BYTES) as u64;
        let length = (extent.length - skipped).min(PAGE_BYTES as u64) as usize;
        let bytes = self.batch.add(extent.offset + skipped, length);
        for (piece, word) in bytes[CELL_HEADER_BYTES..].chunks_mut(8).zip(words) {
            piece.copy_from_slice(&word.to_le_bytes()[..piece.len()]);
        }
        owner.seal(extent.offset + skipped, bytes);
        self.make_room()
    }

    /// Appends numbers behind `tail`, and leaves it where the next one goes.
    fn numbers(
        &mut self,
        owner: &CellOwner<'_>,
        extents: &[Extent],
        method: Method,
        tail: &mut Tail,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<(), Error<S::Error>> {
        let mut cells = extents
            .iter()
            .flat_map(|extent| extent.cells())
            .skip(usize::try_from(tail.cell).unwrap_or(usize::MAX));
        let Some(mut place) = cells.next() else { return Ok(()) };
        let mut used = tail.payload.len();
        let mut payload = core::mem::take(&mut tail.payload);
        payload.resize(place.1 - CELL_HEADER_BYTES, 0);
        for number in numbers {
            if let Some(more) = method.append(number, &mut payload, used) {
                used = more;
                continue;
            }
            self.number_cell(owner, place, &payload)?;
            let Some(next) = cells.next() else { return Ok(()) };
            place = next;
            payload.clear();
            payload.resize(place.1 - CELL_HEADER_BYTES, 0);
            tail.cell += 1;
            used = method.append(number, &mut payload, 0).unwrap_or(0);
        }
        self.number_cell(owner, place, &payload)?;
        payload.truncate(used);
        tail.payload = payload;
        Ok(())
    }

    fn number_cell(
        &mut self,
        owner: &CellOwner<'_>,
        (offset, length): (u64, usize),
        payload: &[u8],
    ) -> Result<(), Error<S::Error>> {
        let cell = self.batch.add(offset, length);
        cell[CELL_HEADER_BYTES..].copy_from_slice(payload);
        owner.seal(offset, cell);
        self.make_room()
    }

    fn make_room(&mut self) -> Result<(), Error<S::Error>> {
        if !self.batch.is_large() {
            return Ok(());
        }
        hand_over(self.batch, self.store, self.file, self.usage)
    }
}
