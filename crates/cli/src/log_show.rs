//! `haul log show`: where the object logs of a transfer are, and what they say. It only reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use haul_model::Code;
use haul_mover::Error;

use crate::job::{self, read_record};
use crate::log_document::{Document, Done, Entry, Log, Place, Source, read, unreadable};
use crate::options;
use crate::paths::{show, write_json};
use crate::report::ended;
use crate::told::size;

/// So many ranges of objects are written out.
const RANGES_SHOWN_MAX: usize = 8;

/// `haul log show`
pub fn log_show(arguments: &options::LogShow) -> Result<u8, Error> {
    let found = find(Path::new(&arguments.what))?;
    let mut out = BufWriter::new(io::stdout().lock());
    for (index, place) in found.places.iter().enumerate() {
        let document = read(place)?;
        let written = match arguments.json {
            true => write_json(&mut out, &document).and_then(|()| writeln!(out)),
            false => tell(&mut out, &document, &found, index),
        };
        ended(written)?;
    }
    ended(out.flush())?;
    Ok(0)
}

fn tell(out: &mut impl Write, document: &Document, found: &Found, index: usize) -> io::Result<()> {
    if index > 0 {
        writeln!(out)?;
    }
    if found.is_job {
        writeln!(out, "{}", document.directory)?;
    }
    Text { out: &mut *out, sources: &sources(&found.places[index]) }.document(document)?;
    match &found.kept_at {
        Some(source) if document.logs.is_empty() => {
            writeln!(out, "The log of a transfer is kept where its source is: {source}")
        }
        _ => Ok(()),
    }
}

struct Found {
    places: Vec<Place>,
    is_job: bool,
    /// The source is there, and so is the log.
    kept_at: Option<String>,
}

/// A path if there is one of that name or it can be none but a path; else the beginning of a job's id.
fn find(what: &Path) -> Result<Found, Error> {
    let shown = show(what.as_os_str().as_bytes());
    let place = match std::fs::metadata(what) {
        Ok(found) if found.is_dir() => Place { directory: what.to_owned(), only: None },
        Ok(_) => of_file(what)?,
        Err(error) if !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(unreadable(what, &error));
        }
        Err(_) if what.as_os_str().as_bytes().contains(&b'/') => {
            return Err(Error::new(Code::Usage, format!("{shown}: no such file or directory"))
                .hint("give an object log, a directory of them, or the beginning of a transfer's id"));
        }
        Err(_) => return of_job(&shown),
    };
    Ok(Found { places: vec![place], is_job: false, kept_at: None })
}

fn of_file(path: &Path) -> Result<Place, Error> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.filter(|name| haul_objectlog::is_log_name(name)).ok_or_else(|| {
        let shown = show(path.as_os_str().as_bytes());
        Error::new(Code::Usage, format!("{shown}: not the name of an object log"))
            .hint("logs are called file-N.log, transaction-N.log or universal-N.log, and are read under that name only")
    })?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(Place { directory: directory.to_owned(), only: Some(name.to_owned()) })
}

/// Both ends of a transfer on one host share the state directory; either may be the source.
fn of_job(wanted: &str) -> Result<Found, Error> {
    let states = job::places()?;
    let mut jobs: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    for kind in states.iter().flat_map(|state| ["jobs", "far"].map(|kind| state.join(kind))) {
        for name in names(&kind)?.iter().filter(|name| name.starts_with(wanted)) {
            let id = name.split('-').next().unwrap_or_default();
            let directory = kind.join(name).join("log");
            jobs.entry(id.to_owned()).or_default().push(Place { directory, only: None });
        }
    }
    let Some((id, mut places)) = jobs.pop_first() else {
        return Err(Error::new(Code::Usage, format!("{wanted}: no such transfer"))
            .hint("haul status lists them; a path is one with a slash, e.g. ./name"));
    };
    if !jobs.is_empty() {
        return Err(Error::new(Code::Usage, format!("{wanted}: more than one transfer"))
            .hint("give more of the id; haul status lists them"));
    }
    let first = places[0].clone();
    places.retain(|place| place.directory.is_dir());
    if places.is_empty() {
        places.push(first);
    }
    // Paths on this host are absolute.
    let record = states.iter().find_map(|state| read_record(&state.join("jobs").join(&id)));
    let source = record.and_then(|record| record.sources.into_iter().next());
    Ok(Found { places, is_job: true, kept_at: source.filter(|source| !source.starts_with('/')) })
}

/// In order; none if the directory is not there.
fn names(directory: &Path) -> Result<BTreeSet<String>, Error> {
    let read = || -> io::Result<_> {
        let names = std::fs::read_dir(directory)?.map(|name| Ok(name?.file_name().into_string().ok()));
        names.filter_map(io::Result::transpose).collect()
    };
    match read() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        result => result.map_err(|error| unreadable(directory, &error)),
    }
}

/// The SOURCEs as the user named them, if the record of the transfer is beside its log.
fn sources(place: &Place) -> Vec<String> {
    read_record(&place.directory.join("..")).map(|record| record.sources).unwrap_or_default()
}

/// In a log a file is the number of its SOURCE, and what is below that; nothing if it is the SOURCE.
fn name(path: &[u8], sources: &[String]) -> String {
    let number = |text| std::str::from_utf8(text).ok()?.parse::<usize>().ok();
    let found = path.iter().position(|byte| *byte == b'/').and_then(|slash| {
        let source = sources.get(number(&path[..slash])?)?;
        Some((source, &path[slash + 1..]))
    });
    match found {
        None => show(path),
        Some((source, b"")) => source.clone(),
        Some((source, below)) => {
            let source = source.strip_suffix("/.").unwrap_or(source);
            format!("{}/{}", source.strip_suffix('/').unwrap_or(source), show(below))
        }
    }
}

/// For a person.
struct Text<'a, W> {
    out: W,
    sources: &'a [String],
}

impl<W: Write> Text<'_, W> {
    fn document(&mut self, document: &Document) -> io::Result<()> {
        for log in &document.logs {
            self.log(log)?;
        }
        let entries = document.entries.len();
        match (document.logs.is_empty(), entries) {
            (true, _) => writeln!(self.out, "no log: nothing is in progress"),
            (false, 0) => writeln!(self.out, "what counts: nothing"),
            (false, _) => writeln!(self.out, "what counts: {}", count(entries as u64, "file")),
        }?;
        document.entries.iter().try_for_each(|entry| self.entry(entry))
    }

    fn log(&mut self, log: &Log) -> io::Result<()> {
        let kind = match (log.mechanism, log.method, log.transaction_files) {
            (Some("transaction"), Some(method), Some(files)) => {
                format!("transaction (K = {files}) x {method}")
            }
            (Some(mechanism), Some(method), _) => format!("{mechanism} x {method}"),
            _ => "no index page can be read".into(),
        };
        writeln!(
            self.out,
            "{}: {kind}, {}, {} in progress, {}",
            log.name,
            size(log.bytes),
            count(log.records.len() as u64, "file"),
            count(log.damaged, "damaged part"),
        )?;
        let rows = log.records.iter().map(|record| {
            let (source, done) = (&record.source, &record.done);
            let token = source.token[..8].to_owned();
            let continued = if record.continued { "yes" } else { "no" }.to_owned();
            [objects(done), bytes(source, done), token, continued, name(&record.path.0, self.sources)]
        });
        let heads = ["objects", "bytes", "token", "continued", "file"].map(str::to_owned);
        let rows: Vec<_> = std::iter::once(heads).filter(|_| !log.records.is_empty()).chain(rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
        let widths = [0, 1, 2, 3].map(width);
        for row in &rows {
            for (text, width) in row.iter().zip(widths) {
                write!(self.out, "    {text:<width$}")?;
            }
            writeln!(self.out, "    {}", row[4])?;
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        writeln!(self.out, "    {}", name(&entry.path.0, self.sources))?;
        writeln!(self.out, "        {} objects, {}: {}", objects(&entry.done), entry.log, ranges(&entry.done))
    }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn objects(done: &Done) -> String {
    format!("{}/{}", done.0.count(), done.0.len())
}

fn bytes(source: &Source, done: &Done) -> String {
    format!("{} of {}", size(source.bytes_in(done)), size(source.size))
}

/// `0-76, 78-999`
fn ranges(done: &Done) -> String {
    let mut ranges = done.ranges();
    let shown = ranges.by_ref().take(RANGES_SHOWN_MAX).map(|[first, last]| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    let shown: Vec<_> = shown.collect();
    match (shown.is_empty(), ranges.count()) {
        (true, _) => "none".into(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{}, and {more} more ranges", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use haul_model::Bitmap;

    use super::*;

    #[test]
    fn files_are_told_as_the_user_named_them_where_that_is_known() {
        let sources = ["/a/file", "/a/tree", "host:tree/.", "/"].map(str::to_owned);
        for (path, told) in [
            (&b"0/"[..], "/a/file"),
            (b"1/sub/x", "/a/tree/sub/x"),
            (b"1/\xff\n", "/a/tree/\\xff\\n"),
            (b"2/x", "host:tree/x"),
            (b"3/x", "/x"),
            (b"4/x", "4/x"),
            (b"x/0", "x/0"),
            (b"/x", "/x"),
            (b"0", "0"),
        ] {
            assert_eq!(name(path, &sources), told);
        }
        assert_eq!(name(b"0/x", &[]), "0/x");
    }

    #[test]
    fn objects_are_told_in_ranges_and_not_without_end() {
        let told = |objects: &mut dyn Iterator<Item = u64>| {
            let mut done = Bitmap::new(100);
            objects.for_each(|object| assert!(done.set(object)));
            ranges(&Done(done))
        };
        assert_eq!(told(&mut [].into_iter()), "none");
        assert_eq!(told(&mut (0..100)), "0-99");
        assert_eq!(told(&mut (0..100).filter(|object| *object != 7)), "0-6, 8-99");
        assert_eq!(told(&mut (0..16).step_by(2)), "0, 2, 4, 6, 8, 10, 12, 14");
        assert_eq!(told(&mut (0..20).step_by(2)), "0, 2, 4, 6, 8, 10, 12, 14, and 2 more ranges");
    }
}
