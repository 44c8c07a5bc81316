//! One line for each request at a target, for pictures.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The heading; times are seconds since the file system was made.
const HEADING: &str = "start,end,target,inode,offset,bytes,rw";

/// A file of lines.
pub struct Trace {
    file: Mutex<BufWriter<File>>,
}

/// A line.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When it came.
    pub start: Duration,
    /// When it was answered.
    pub end: Duration,
    /// Which target; `None` is the metadata server.
    pub target: Option<u32>,
    /// Of which file.
    pub inode: u64,
    /// Where in the file its first byte is.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Not read.
    pub is_write: bool,
}

impl Trace {
    /// A new file.
    pub fn create(path: &Path) -> io::Result<Trace> {
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        writeln!(file, "{HEADING}")?;
        Ok(Trace { file: Mutex::new(file) })
    }

    /// Adds a line. A trace that cannot be written ends nothing.
    pub fn add(&self, request: &Request) {
        let target = request.target.map_or_else(|| "mds".to_owned(), |target| target.to_string());
        let Request { inode, offset, bytes, .. } = request;
        let direction = if request.is_write { 'w' } else { 'r' };
        let (start, end) = (request.start.as_secs_f64(), request.end.as_secs_f64());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(file, "{start:.6},{end:.6},{target},{inode},{offset},{bytes},{direction}");
    }

    /// What was added is in the file.
    pub fn flush(&self) {
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}
