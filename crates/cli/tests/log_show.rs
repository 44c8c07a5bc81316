//! `haul log show`: what it says is what the specification's own reader says and what the next run does, and it only reads.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Bed, code, says, stderr};

impl Bed {
    /// A copy of a directory of golden logs.
    fn golden(&self, name: &str, to: &str) {
        for (log, bytes) in golden_files(name) {
            self.write(&format!("{to}/{log}"), &bytes);
        }
    }

    fn show(&self, arguments: &[&str]) -> Output {
        self.haul(&[&["log", "show"], arguments].concat())
    }

    fn text(&self, what: &str) -> String {
        let output = self.show(&[what]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// One document for each directory.
    fn documents(&self, what: &str) -> Vec<Value> {
        let output = self.show(&["--json", what]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    fn document(&self, what: &str) -> Value {
        let [document] = self.documents(what).try_into().expect("one directory");
        document
    }

    fn jobs(&self) -> Vec<PathBuf> {
        let jobs = fs::read_dir(self.path("home/.local/state/haul/jobs"));
        jobs.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }

    fn log_contents(&self) -> Vec<Vec<u8>> {
        let logs = self.jobs().into_iter().filter_map(|job| fs::read_dir(job.join("log")).ok());
        logs.flatten().flatten().filter_map(|entry| fs::read(entry.path()).ok()).collect()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn golden_names() -> Vec<String> {
    let found = fs::read_dir(root().join("crates/objectlog/tests/golden")).unwrap().flatten();
    let found = found.filter(|entry| entry.file_type().unwrap().is_dir());
    let mut names: Vec<_> = found.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 18, "three mechanisms with six methods each");
    names
}

fn golden_files(name: &str) -> BTreeMap<String, Vec<u8>> {
    let found = fs::read_dir(root().join("crates/objectlog/tests/golden").join(name)).unwrap().flatten();
    found.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// What `docs/spec/object_log_reader.py` prints of each path; none if it refuses. One process for all of them.
fn independent(paths: &[String]) -> Vec<Option<Value>> {
    const EACH: &str = "
import contextlib, io, json, sys
reader, *paths = sys.argv[1:]
code = compile(open(reader).read(), reader, 'exec')
for path in paths:
    out, sys.argv, status = io.StringIO(), [reader, path], 0
    with contextlib.redirect_stdout(out):
        try:
            exec(code, {'__name__': '__main__'})
        except SystemExit as end:
            status = end.code
    print(json.dumps(out.getvalue() if status == 0 else None))
";
    let output = Command::new("python3")
        .args(["-c", EACH])
        .arg(root().join("docs/spec/object_log_reader.py"))
        .args(paths)
        .output()
        .expect("python3 is needed for this test");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let printed: Vec<Option<String>> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed.len(), paths.len());
    printed.into_iter().map(|text| Some(serde_json::from_str(&text?).unwrap())).collect()
}

/// Both readers say the same of each path; what they say.
fn agreed(bed: &Bed, paths: &[String]) -> Vec<Value> {
    let compare = |(path, expected): (&String, Option<Value>)| {
        let mut shown = bed.document(path);
        let directory = shown.as_object_mut().unwrap().remove("directory").unwrap();
        assert!(path.starts_with(directory.as_str().unwrap()), "{path} is in {directory}");
        let expected = expected.unwrap_or_else(|| panic!("{path}: refused by the independent reader"));
        for (log, expected) in list(&shown["logs"]).iter().zip(list(&expected["logs"])) {
            assert_eq!(log, expected, "{path}");
        }
        assert_eq!(shown, expected, "{path}");
        shown
    };
    paths.iter().zip(independent(paths)).map(compare).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn sum(values: &[Value], field: &str) -> u64 {
    values.iter().map(|value| value[field].as_u64().unwrap()).sum()
}

#[test]
fn the_golden_logs_say_the_same_to_both_readers() {
    let bed = Bed::new();
    let mut directories = Vec::new();
    let mut logs = Vec::new();
    for name in golden_names() {
        let directory = root().join("crates/objectlog/tests/golden").join(&name).to_str().unwrap().to_owned();
        logs.extend(golden_files(&name).keys().map(|log| format!("{directory}/{log}")));
        directories.push(directory);
    }
    for document in agreed(&bed, &directories) {
        let entries = list(&document["entries"]);
        assert_eq!((entries.len(), sum(entries, "done_count")), (5, 33 + 1 + 318 + 30 + 999));
        let moved = entries.iter().find(|entry| entry["path"] == "moved").unwrap();
        assert_eq!(moved["continued"], true);
        assert!(
            entries
                .iter()
                .any(|entry| entry["path"].is_null() && entry["path_hex"] == "6469722fff0a207365636f6e64")
        );
    }
    for document in agreed(&bed, &logs) {
        let [log] = list(&document["logs"]) else { panic!("{document}") };
        assert_eq!(list(&log["records"]).len(), list(&document["entries"]).len());
    }
}

fn crc32(parts: &[&[u8]]) -> u32 {
    !parts.iter().copied().flatten().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (crc & 1).wrapping_neg() & 0xedb8_8320)
    })
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % bound.max(1) as u64) as usize
    }
}

fn damage(random: &mut Random, logs: &mut BTreeMap<String, Vec<u8>>) {
    let names: Vec<String> = logs.keys().cloned().collect();
    let name = &names[random.below(names.len())];
    let other = logs[&names[random.below(names.len())]].clone();
    let log = logs.get_mut(name).unwrap();
    if log.is_empty() || other.is_empty() {
        return;
    }
    let start = random.below(log.len());
    let end = (start + random.below(600)).min(log.len());
    match random.below(9) {
        0 | 1 => log[start] ^= 1 << random.below(8),
        2 => log[start..end].fill(0),
        3 => log[start..end].iter_mut().for_each(|byte| *byte = random.below(256) as u8),
        4 => log.truncate(start),
        5 => log.extend((0..random.below(2000)).map(|_| random.below(256) as u8)),
        6 | 7 => {
            let (from, to) = (random.below(other.len()) / 512 * 512, start / 512 * 512);
            let bytes = 512.min(other.len() - from).min(log.len() - to);
            log[to..to + bytes].copy_from_slice(&other[from..from + bytes]);
        }
        _ if names.len() > 1 => drop(logs.remove(name)),
        _ => log.clear(),
    }
}

/// Bytes that one of the decoders may take for something special.
fn odd_byte(random: &mut Random) -> u8 {
    [0, 1, 4, b'\n', b'0', 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(9)]
}

/// Changes an index page, whose checksum is right afterwards; its version stays.
fn forge_page(random: &mut Random, logs: &mut BTreeMap<String, Vec<u8>>) {
    let index = random.below(logs.len());
    let log = logs.values_mut().nth(index).unwrap();
    let mut pages: Vec<_> =
        log.chunks_exact_mut(512).enumerate().filter(|(_, page)| page[4..8] == *b"HOLX").collect();
    let index = random.below(pages.len());
    let (number, page) = &mut pages[index];
    for _ in 0..=random.below(3) {
        let reach = [120, 500][random.below(2)];
        let start = 10 + random.below(reach);
        let end = (start + [1, 2, 4, 8][random.below(4)]).min(512);
        page[start..end].fill(odd_byte(random));
    }
    let offset = *number as u64 * 512;
    let sum = crc32(&[b"I", &offset.to_le_bytes(), &page[4..]]);
    page[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Changes what cells of a record hold; their checksums are right afterwards.
fn forge_cells(random: &mut Random, logs: &mut BTreeMap<String, Vec<u8>>, shown: &Value) {
    let logs_shown = list(&shown["logs"]);
    let log_shown = &logs_shown[random.below(logs_shown.len())];
    let Some(log) = logs.get_mut(log_shown["name"].as_str().unwrap()) else { return };
    let records = list(&log_shown["records"]);
    let record = &records[random.below(records.len())];
    let number = |value: &Value| value.as_u64().unwrap();
    let token = u128::from_str_radix(record["token"].as_str().unwrap(), 16).unwrap().to_be_bytes();
    for extent in list(&record["extents"]) {
        let (mut start, extent_end) = (number(&extent[0]), number(&extent[0]) + number(&extent[1]));
        while start < extent_end {
            let end = extent_end.min(start + 512);
            let Some(cell) = log.get_mut(start as usize..end as usize) else { break };
            for _ in 0..random.below(4) {
                let at = 8 + random.below(cell.len() - 8);
                let odd_end = (at + [1, 1, 2, 12][random.below(4)]).min(cell.len());
                cell[at..odd_end].fill(odd_byte(random));
            }
            cell[4..8].copy_from_slice(&(number(&record["generation"]) as u32).to_le_bytes());
            let log_number = number(&log_shown["number"]).to_le_bytes();
            let sum = crc32(&[b"D", &log_number, &start.to_le_bytes(), &token, &cell[4..]]);
            cell[..4].copy_from_slice(&sum.to_le_bytes());
            start = end;
        }
    }
}

/// Copies of the golden logs, each changed; shown by both readers.
fn changed(
    bed: &Bed,
    rounds: usize,
    mut change: impl FnMut(&mut Random, &mut BTreeMap<String, Vec<u8>>, &Value),
) -> Vec<Value> {
    let mut random = Random(1);
    let mut directories = Vec::new();
    for name in golden_names() {
        bed.golden(&name, &name);
        let shown = bed.document(&name);
        for round in 0..rounds {
            let mut logs = golden_files(&name);
            (0..=random.below(3)).for_each(|_| change(&mut random, &mut logs, &shown));
            let directory = format!("{name}-{round}");
            for (log, bytes) in &logs {
                bed.write(&format!("{directory}/{log}"), bytes);
            }
            directories.push(bed.path(&directory).to_str().unwrap().to_owned());
        }
    }
    agreed(bed, &directories)
}

#[test]
fn made_up_logs_with_right_checksums_say_the_same_to_both_readers() {
    let is_damaged = |document: &&Value| sum(list(&document["logs"]), "damaged") > 0;
    let bed = Bed::new();
    let pages = changed(&bed, 5, |random, logs, _| forge_page(random, logs));
    let records = pages.iter().filter(is_damaged).count();
    let bed = Bed::new();
    let cells = changed(&bed, 5, forge_cells);
    let numbers = cells.iter().filter(is_damaged).count();
    let other = cells.iter().filter(|document| sum(list(&document["entries"]), "done_count") != 1381).count();
    assert!(
        records > 30 && numbers > 20 && other > 50,
        "too little was made up: {records} {numbers} {other}"
    );
}

#[test]
fn damaged_logs_say_the_same_to_both_readers() {
    let bed = Bed::new();
    let documents = changed(&bed, 17, |random, logs, _| damage(random, logs));
    let count = |is: &dyn Fn(&Value) -> bool| documents.iter().filter(|document| is(document)).count();
    let damaged = count(&|document| sum(list(&document["logs"]), "damaged") > 0);
    let unreadable = count(&|document| list(&document["logs"]).iter().any(|log| log["method"].is_null()));
    let fewer_entries = count(&|document| list(&document["entries"]).len() < 5);
    let fewer_objects = count(&|document| sum(list(&document["entries"]), "done_count") < 1381);
    assert!(
        damaged > 100 && unreadable > 20 && fewer_entries > 50 && fewer_objects > fewer_entries + 30,
        "the damage is too weak: {damaged} {unreadable} {fewer_entries} {fewer_objects}"
    );
}

/// The golden log of the file "moved" as an earlier process would have left it: the number is another, other objects
/// are durable, and it began in the log `origin` if that is another one.
fn earlier(number: u8, origin: Option<u8>, token_first: u8, objects: u64) -> Vec<u8> {
    let mut log = golden_files("file-bit64")["file-2.log"].clone();
    // Section 3: the number. Section 4: flags, origin, the token, and where the one cell is.
    log[16] = number;
    let origin_start = 28 + 80 + 16 + 16;
    match origin {
        Some(origin) => log[origin_start] = origin,
        None => {
            log.copy_within(origin_start + 12..512, origin_start);
            log[512 - 12..512].fill(0);
            log[28 + 2] = 2;
            log[26] -= 12;
            log[28] -= 12;
        }
    }
    log[28 + 64] = token_first;
    let token: [u8; 16] = log[28 + 64..28 + 80].try_into().unwrap();
    let cell_start = usize::from(log[28 + 80]) | usize::from(log[28 + 81]) << 8;
    let sum = crc32(&[b"I", &[0; 8], &log[4..512]]);
    log[..4].copy_from_slice(&sum.to_le_bytes());
    let cell = &mut log[cell_start..cell_start + 16];
    cell[8..].copy_from_slice(&objects.to_le_bytes());
    let sum = crc32(&[
        b"D",
        &u64::from(number).to_le_bytes(),
        &(cell_start as u64).to_le_bytes(),
        &token,
        &cell[4..],
    ]);
    cell[..4].copy_from_slice(&sum.to_le_bytes());
    log
}

#[test]
fn an_entry_that_was_continued_has_the_objects_of_its_older_logs_as_far_as_they_fit() {
    const TOKEN: u8 = 0x69;
    let bed = Bed::new();
    let write = |directory: &str, logs: [(u8, Option<u8>, u8, u64); 3]| {
        for (number, origin, token, objects) in logs {
            bed.write(&format!("{directory}/file-{number}.log"), &earlier(number, origin, token, objects));
        }
        bed.path(directory).to_str().unwrap().to_owned()
    };
    let chain = |second, first| {
        [(9, Some(1), TOKEN, 0b0001), (5, second, TOKEN, 0b0110), (1, None, first, 0b1 << 63)]
    };
    let directories = [
        write("all", chain(Some(1), TOKEN)),
        write("not the first", chain(None, TOKEN)),
        write("another file", chain(Some(1), TOKEN + 1)),
        write("a former life", chain(Some(2), TOKEN)),
        write("the newest alone", [(9, None, TOKEN, 1), (5, Some(1), TOKEN, 2), (1, None, TOKEN, 4)]),
    ];
    let documents = agreed(&bed, &directories);
    let entries: Vec<_> = documents.iter().map(|document| list(&document["entries"])).collect();
    let done: Vec<_> = entries.iter().map(|entries| entries[0]["done"].to_string()).collect();
    assert_eq!(done, ["[[0,2],[63,63]]", "[[0,2]]", "[[0,2]]", "[[0,2]]", "[[0,0]]"]);
    for (entries, continued) in entries.iter().zip([true, true, true, true, false]) {
        let [entry] = entries else { panic!("{entries:?}") };
        assert_eq!((&entry["log"], &entry["continued"]), (&"file-9.log".into(), &continued.into()));
    }
}

#[test]
fn people_are_shown_logs_records_and_what_counts() {
    let bed = Bed::new();
    bed.golden("universal-bit64", "logs");
    let text = bed.text("logs");
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    assert!(
        text.starts_with(
            "universal-2.log: universal x bit64, 2.5 KiB, 5 files in progress, 0 damaged parts\n"
        ),
        "{text}"
    );
    let (records, entries) = text.split_once("what counts: 5 files\n").expect(&text);
    let row = |name: &str| {
        let row =
            records.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>()
    };
    assert_eq!(row("moved"), ["33/64", "33.0 MiB of 64.0 MiB", "696c747c", "yes", "moved"]);
    // The last object is 17 bytes shorter.
    assert_eq!(row("grows"), ["999/1500", "999 MiB of 1.5 GiB", "3f74df7d", "no", "grows"]);
    assert_eq!(row("second")[4], r"dir/\xff\n second");
    assert!(entries.contains("grows\n        999/1500 objects, universal-2.log: 0-76, 78-999\n"), "{text}");
    assert!(
        entries.contains(
            "moved\n        33/64 objects, universal-2.log: 0, 2, 4, 6, 8, 10, 12, 14, and 24 more ranges\n"
        ),
        "{text}"
    );

    bed.golden("transaction-char", "two");
    let mut log = fs::read(bed.path("two/transaction-3.log")).unwrap();
    log[40] ^= 1;
    bed.write("two/transaction-3.log", &log);
    let text = bed.text("two");
    assert!(text.contains("transaction-2.log: transaction (K = 3) x char, "), "{text}");
    assert!(text.contains("transaction-3.log: no index page can be read, "), "{text}");
    assert!(text.contains("0 files in progress, 1 damaged part\nwhat counts: 2 files\n"), "{text}");
}

#[test]
fn where_there_is_no_log_nothing_is_in_progress() {
    let bed = Bed::new();
    bed.write("logs/no log", b"");
    assert_eq!(bed.text("logs"), "no log: nothing is in progress\n");
    let document = bed.document("./logs");
    assert_eq!((&document["logs"], &document["entries"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    // What only has a log's name does not hold it up.
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, bed.path("logs/file-1.log"), rustix::fs::FileType::Fifo, mode, 0)
        .unwrap();
    fs::create_dir(bed.path("logs/universal-2.log")).unwrap();
    assert_eq!(bed.text("logs"), "no log: nothing is in progress\n");
    bed.write("logs/universal-3.log", b"");
    let text = bed.text("logs");
    assert!(
        text.starts_with("universal-3.log: no index page can be read, 0 B, 0 files in progress, 0 damaged"),
        "{text}"
    );
    assert!(text.ends_with("what counts: nothing\n"), "{text}");
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line_and_nothing_is_made() {
    let bed = Bed::new();
    bed.write("file", b"x");
    says(&bed.show(&["abc"]), 2, &["abc: no such transfer", "haul status", "./name"]);
    says(&bed.show(&["no/such"]), 2, &["no/such: no such file or directory", "id"]);
    says(&bed.show(&["file/x"]), 2, &["file/x: no such file or directory"]);
    says(&bed.show(&["file"]), 2, &["file: not the name of an object log", "universal-N.log"]);
    symlink("file-1.log", bed.path("file-1.log")).unwrap();
    says(&bed.show(&["./file-1.log"]), 3, &["file-1.log: cannot be read", "symbolic links"]);
    says(&bed.show(&["."]), 3, &["./file-1.log: cannot be read"]);
    assert!(!bed.path("home").exists());

    bed.golden("file-enc", "newer");
    let mut log = fs::read(bed.path("newer/file-5.log")).unwrap();
    log[8] = 2;
    let sum = crc32(&[b"I", &[0; 8], &log[4..512]]);
    log[..4].copy_from_slice(&sum.to_le_bytes());
    bed.write("newer/file-5.log", &log);
    for what in ["newer", "newer/file-5.log"] {
        let output = bed.show(&["--json", what]);
        says(&output, 1, &["newer: ", "file-5.log has version 2", "newer version"]);
        assert!(output.stdout.is_empty());
        assert_eq!(independent(&[bed.path(what).to_str().unwrap().to_owned()]), [None]);
    }
    assert_eq!(
        list(&bed.document("newer/file-6.log")["entries"]).len(),
        1,
        "an older log beside it can be read"
    );
    // A run that logs nothing does not throw it away.
    assert!(bed.haul(&["cp", "file", "copy"]).status.success());
    let kept = bed.jobs()[0].join("log/file-5.log");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, &log).unwrap();
    fs::remove_file(bed.path("copy")).unwrap();
    says(&bed.haul(&["cp", "--log-mechanism", "none", "file", "copy"]), 1, &["newer version"]);
    assert!(fs::read(&kept).unwrap() == log);
}

const STATE: &str = "home/.local/state/haul";
const ID: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn a_transfer_is_found_by_its_id_with_the_logs_of_both_ends() {
    let bed = Bed::new();
    let job = format!("{STATE}/jobs/{ID}");
    let record = |source: &str| {
        format!(
            r#"{{"version": 1, "job": "{ID}", "instance": "{ID}", "sources": ["{source}"], "destination": "/d",
            "destination_here": null, "decision": null, "state": "running", "started": 1, "updated": 1, "sessions": 1}}"#
        )
    };
    bed.write(&format!("{job}/job.json"), record("/here").as_bytes());
    let text = bed.text("0123");
    assert!(text.ends_with(&format!("/jobs/{ID}/log\nno log: nothing is in progress\n")), "{text}");
    bed.write(&format!("{job}/job.json"), record("there:data").as_bytes());
    assert!(bed.text("0123").contains("where its source is: there:data\n"));
    assert_eq!(list(&bed.document("0123")["logs"]).len(), 0);
    assert_eq!(fs::read_dir(bed.path(&job)).unwrap().count(), 1, "nothing was made");

    bed.golden("file-bit8", &format!("{STATE}/far/{ID}-0011223344556677/log"));
    let document = bed.document(ID);
    assert!(document["directory"].as_str().unwrap().ends_with("-0011223344556677/log"));
    assert_eq!((list(&document["logs"]).len(), list(&document["entries"]).len()), (5, 5));
    bed.golden("universal-int", &format!("{job}/log"));
    let documents = bed.documents("0");
    let counts: Vec<_> = documents.iter().map(|document| list(&document["logs"]).len()).collect();
    assert_eq!(counts, [1, 5], "one document for each directory");
    let text = bed.text("0");
    let headings = text.lines().filter(|line| line.ends_with("/log")).count();
    assert_eq!((headings, text.matches("what counts: 5 files").count()), (2, 2));

    bed.golden("file-char", &format!("{STATE}/far/01ff-00/log"));
    says(&bed.show(&["01"]), 2, &["01: more than one transfer", "more of the id"]);
    assert_eq!(bed.documents("012").len(), 2);
    bed.write("012", b"a file of that name comes first");
    says(&bed.show(&["012"]), 2, &["012: not the name of an object log"]);
}

const COPY: [&str; 7] = ["cp", "--object-size", "64KiB", "--memory", "256KiB", "big", "out"];

impl Bed {
    fn write_big(&self) {
        let words = (0..48u32 << 18).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes());
        self.write("big", &words.collect::<Vec<_>>());
    }

    /// Starts a copy, and kills it once its log has changed a few times and `look` has seen enough; again, if it was
    /// too late. `look` is told which attempt it is.
    fn kill_midway(&self, mut look: impl FnMut(&Bed, u32) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        for attempt in 1.. {
            assert!(Instant::now() < deadline, "never killed midway");
            let copy = &mut self.command();
            let mut child = copy.args(COPY).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let (mut contents, mut changes, mut enough) = (Vec::new(), 0, false);
            while !enough && child.try_wait().unwrap().is_none() {
                let now = self.log_contents();
                changes += u32::from(now != contents);
                contents = now;
                enough = changes >= 4 && look(self, attempt);
            }
            child.kill().unwrap();
            if !child.wait().unwrap().success() && enough && !self.path("out").exists() {
                return;
            }
            // From scratch: the log of a copy that was killed after it had named the file tells of what is removed here.
            let _ = fs::remove_file(self.path("out"));
            let _ = fs::remove_dir_all(self.path("home"));
        }
    }

    /// Names, contents and times of all there is.
    fn everything(&self) -> Vec<(PathBuf, Option<Vec<u8>>, std::time::SystemTime)> {
        let mut found = Vec::new();
        let mut left = vec![self.path("home")];
        while let Some(path) = left.pop() {
            let data = fs::metadata(&path).unwrap();
            let bytes = data.is_file().then(|| fs::read(&path).unwrap());
            if data.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            found.push((path, bytes, data.modified().unwrap()));
        }
        found
    }
}

#[test]
fn what_is_shown_of_a_killed_copy_is_what_the_next_run_skips() {
    let bed = Bed::new();
    bed.write_big();
    bed.kill_midway(|bed, _| {
        let log = bed.jobs().remove(0).join("log");
        sum(list(&bed.document(log.to_str().unwrap())["entries"]), "done_count") > 0
    });
    let before = bed.everything();
    let job = bed.jobs().remove(0);
    let id = job.file_name().unwrap().to_str().unwrap();
    let log = job.join("log").to_str().unwrap().to_owned();
    let document = bed.document(&id[..8]);
    assert_eq!(document, bed.document(&log));
    agreed(&bed, std::slice::from_ref(&log));
    let [entry] = list(&document["entries"]) else { panic!("{document}") };
    assert_eq!(
        (&entry["path"], &entry["objects"], &entry["size"]),
        (&"0/".into(), &768.into(), &(48 << 20).into())
    );
    let ranges =
        list(&entry["done"]).iter().map(|range| (range[0].as_u64().unwrap(), range[1].as_u64().unwrap()));
    let in_ranges: u64 = ranges.map(|(first, last)| last - first + 1).sum();
    assert_eq!(entry["done_count"], in_ranges);
    let text = bed.text(id);
    assert!(text.starts_with(&format!("{log}\nuniversal-")), "{text}");
    assert!(text.contains("/big\n") && text.contains(&format!("{in_ranges}/768 objects, ")), "{text}");
    assert_eq!(bed.everything(), before, "it only reads");

    let output = bed.command().args(COPY).arg("--json").output().unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let events = String::from_utf8(output.stdout).unwrap();
    let summary: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    assert_eq!(summary["objects_skipped"], in_ranges, "{events}");
    assert_eq!(fs::read(bed.path("out")).unwrap(), fs::read(bed.path("big")).unwrap());
    assert!(bed.text(id).contains("no log: nothing is in progress"), "a finished transfer has no log");
}

#[test]
fn a_log_that_is_being_written_is_shown_undamaged_and_only_grows() {
    let bed = Bed::new();
    bed.write_big();
    let mut seen = (0, Vec::new());
    bed.kill_midway(|bed, attempt| {
        let job = bed.jobs().remove(0);
        let document = bed.document(job.file_name().unwrap().to_str().unwrap());
        assert_eq!(sum(list(&document["logs"]), "damaged"), 0, "{document}");
        if seen.0 != attempt {
            seen = (attempt, Vec::new());
        }
        // No entry: not begun, or finished.
        seen.1.extend(list(&document["entries"]).iter().map(|entry| entry["done_count"].as_u64().unwrap()));
        assert!(seen.1.is_sorted(), "{seen:?}");
        seen.1.dedup();
        seen.1.len() >= 3
    });
}
