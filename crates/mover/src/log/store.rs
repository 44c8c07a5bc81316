//! Logs in files of a directory.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use haul_objectlog::LogStore;

use crate::durable::{self, StatePoint};

/// A directory of log files.
pub struct DirectoryStore {
    path: PathBuf,
    directory: File,
    open: HashMap<String, File>,
}

/// Logs that are kept open. There may be one for each file.
const OPEN_MAX: usize = 64;

impl DirectoryStore {
    /// Opens the directory; it must be there.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Ok(DirectoryStore { path: path.to_owned(), directory: File::open(path)?, open: HashMap::new() })
    }

    /// Finds out whether a page can be written at all.
    pub(super) fn probe(&self) -> std::io::Result<()> {
        let path = self.path.join("probe");
        let written = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .and_then(|file| file.write_all_at(&[0; haul_objectlog::PAGE_BYTES], 0));
        let removed = std::fs::remove_file(&path);
        written.and(removed)
    }

    fn file(&mut self, name: &str, create: bool) -> std::io::Result<&File> {
        if !self.open.contains_key(name) {
            // What was written stays to be synced, by whichever descriptor.
            if self.open.len() >= OPEN_MAX {
                self.open.clear();
            }
            let file = std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(create)
                .truncate(false)
                .mode(0o600)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(self.path.join(name))
                .or_else(|error| if create { Err(error) } else { self.only_to_read(name, error) })?;
            self.open.insert(name.to_owned(), file);
        }
        Ok(&self.open[name])
    }

    /// One that may not be written knows what it knows all the same.
    fn only_to_read(&self, name: &str, error: std::io::Error) -> std::io::Result<File> {
        use std::io::ErrorKind;
        if !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) {
            return Err(error);
        }
        let flags = rustix::fs::OFlags::NOFOLLOW.bits() as i32;
        std::fs::OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(name))
    }
}

impl LogStore for DirectoryStore {
    type Error = std::io::Error;

    fn list(&mut self) -> Result<Vec<String>, Self::Error> {
        let names = std::fs::read_dir(&self.path)?;
        names.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn length(&mut self, name: &str) -> Result<Option<u64>, Self::Error> {
        match self.file(name, false) {
            Ok(file) => Ok(Some(file.metadata()?.len())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_at(&mut self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        self.file(name, false)?.read_at(buffer, offset)
    }

    fn write_at(&mut self, name: &str, offset: u64, bytes: &[u8]) -> Result<(), Self::Error> {
        self.file(name, true)?.write_all_at(bytes, offset)
    }

    fn remove(&mut self, name: &str) -> Result<(), Self::Error> {
        self.open.remove(name);
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, names: &[&str]) -> Result<(), Self::Error> {
        names.iter().try_for_each(|name| durable::sync_data(StatePoint::LogData, self.file(name, false)?))
    }

    fn sync_names(&mut self) -> Result<(), Self::Error> {
        durable::sync(StatePoint::LogNames, &self.directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_logs_are_not_kept_open_all_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let mut store = DirectoryStore::open(directory.path()).unwrap();
        let names: Vec<String> = (0..3 * OPEN_MAX).map(|number| format!("file-{number}.log")).collect();
        for (number, name) in names.iter().enumerate() {
            store.write_at(name, 0, &[number as u8]).unwrap();
            assert!(store.open.len() <= OPEN_MAX);
        }
        store.sync(&names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        for (number, name) in names.iter().enumerate() {
            let mut byte = [0];
            assert_eq!(
                (store.length(name).unwrap(), store.read_at(name, 0, &mut byte).unwrap()),
                (Some(1), 1)
            );
            assert_eq!((byte[0], store.open.len() <= OPEN_MAX), (number as u8, true));
        }
    }
}
