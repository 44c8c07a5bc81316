//! Whatever bytes are found as logs: a bounded run of what `fuzz/` runs without bound.
//!
//! `HAUL_FUZZ_CASES=n` and `HAUL_FUZZ_SEED=s` make it longer or other; `HAUL_FUZZ_CASE=file` runs one case that was kept,
//! and `HAUL_FUZZ_CORPUS=folder` writes undamaged logs as a corpus for the fuzzer.

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use haul_objectlog::{Config, Mechanism, MemoryStore, ObjectLog};
use support::allocation::Counting;
use support::case::{Case, name_byte};
use support::mutate::{damage, forge};
use support::read_check::{Entries, Outcome, check};
use support::{Random, binding, combinations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// About ten seconds of one core.
const CASES: u64 = 6000;

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect(name))
}

fn golden() -> Vec<Case> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "golden"].iter().collect();
    let read = |folder: &Path| {
        let files: BTreeMap<String, Vec<u8>> = std::fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap())
            .map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap()))
            .collect();
        files.into_iter().map(|(name, log)| (name_byte(&name).unwrap(), log)).collect()
    };
    combinations()
        .enumerate()
        .map(|(index, config)| Case {
            flags: 0,
            config: index as u8,
            action: 0,
            logs: read(&folder.join(format!("{}-{}", config.mechanism.name(), config.method.name()))),
        })
        .collect()
}

/// Logs with what the golden ones have no room for: bits in several cells, a path in many, and cells of the former life
/// of a file that began again.
fn large(config: Config) -> Case {
    let mut store = MemoryStore::new();
    for run in 0..2 {
        let (mut log, _) = ObjectLog::open(&mut store, config).unwrap();
        let again = log.begin(b"again", binding(9, 4500)).unwrap();
        (0..4500).for_each(|object| assert!(log.record(again, object).unwrap()));
        log.flush().unwrap();
        let again = log.begin(b"again", binding(9, 4500)).unwrap();
        log.record(again, 5).unwrap();
        log.flush().unwrap();
        for version in 1..4u64 {
            let path = vec![b'a' + version as u8; [1, 30, 3000][version as usize - 1]];
            let objects = [1, 130, 4500][version as usize - 1];
            let handle =
                log.resume(&path).unwrap_or_else(|| log.begin(&path, binding(version, objects)).unwrap());
            for object in (0..objects).filter(|object| object % 9 == run || objects == 1) {
                log.record(handle, object).unwrap();
            }
            log.flush().unwrap();
        }
        log.sync().unwrap();
    }
    let files = store.files().into_iter();
    Case {
        flags: 0,
        config: 0,
        action: 0,
        logs: files.map(|(name, log)| (name_byte(&name).unwrap(), log)).collect(),
    }
}

fn corpus() -> Vec<Case> {
    let universal = combinations().filter(|config| config.mechanism == Mechanism::Universal);
    golden().into_iter().chain(universal.map(large)).collect()
}

/// Runs a case; one that fails is kept as a file, which is named.
fn run(bytes: &[u8], what: &str) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| check(bytes))).unwrap_or_else(|panic| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz_read.case");
        std::fs::write(&kept, bytes).unwrap();
        eprintln!("{what} fails; HAUL_FUZZ_CASE={} runs it alone", kept.display());
        resume_unwind(panic)
    })
}

fn is_part(found: &Entries, whole: &Entries) -> Result<(), String> {
    for (path, (binding, done)) in found {
        let Some((recorded, objects)) = whole.get(path) else {
            return Err(format!("{} was never there", path.escape_ascii()));
        };
        if recorded != binding {
            return Err(format!("{}: another binding", path.escape_ascii()));
        }
        if let Some(wrong) = done.difference(objects).next() {
            return Err(format!("{}: object {wrong} was never recorded", path.escape_ascii()));
        }
    }
    Ok(())
}

#[test]
fn any_bytes_are_read_without_harm_and_damage_shows_nothing_that_was_not_recorded() {
    if let Some(kept) = std::env::var_os("HAUL_FUZZ_CASE") {
        check(&std::fs::read(kept).unwrap());
        return;
    }
    let corpus = corpus();
    let whole: Vec<Outcome> = corpus.iter().map(|case| run(&case.encode(), "an undamaged log")).collect();
    assert!(whole.iter().all(|outcome| outcome.entries.len() >= 3 && outcome.peak_bytes > 64 << 10));
    assert!(whole.iter().all(|outcome| outcome.replay.pages_damaged == 0));
    let (seed, cases) = (variable("HAUL_FUZZ_SEED", 1), variable("HAUL_FUZZ_CASES", CASES));
    println!("seed {seed}, {cases} cases");
    let (mut refused, mut lost, mut other) = (0, 0, 0);
    for index in 0..cases {
        let mut random = Random(seed.wrapping_mul(0x1_0000_0001).wrapping_add(index));
        let from = index as usize % corpus.len();
        let mut case = corpus[from].clone();
        (case.config, case.action) = (random.next() as u8, random.next() as u8);
        let is_forged = random.chance(60);
        if is_forged && random.chance(20) {
            // Logs of another combination beside these.
            case.logs.extend(corpus[random.below(18) as usize].logs.iter().take(3).cloned());
        }
        for _ in 0..=random.below(4) {
            damage(&mut random, &mut case);
        }
        if is_forged {
            for _ in 0..=random.below(6) {
                forge(&mut random, &mut case);
            }
        }
        let outcome = run(&case.encode(), &format!("case {index} of seed {seed}"));
        refused += u64::from(outcome.refused);
        let part = is_part(&outcome.entries, &whole[from].entries);
        match (is_forged, part) {
            (false, Err(rule)) => panic!("case {index} of seed {seed}: {rule}"),
            (false, Ok(())) => lost += u64::from(outcome.entries != whole[from].entries),
            (true, part) => other += u64::from(part.is_err()),
        }
    }
    println!("{refused} refused, {lost} lost something, {other} forged something");
    let percent = |count: u64| count * 100 / cases.max(1);
    let is_tried = percent(refused) < 20 && percent(lost) > 20 && percent(other) > 10;
    assert!(cases < 1000 || is_tried, "the cases are too weak or too strong");
}

#[test]
fn cases_are_what_their_bytes_say() {
    for case in corpus() {
        assert_eq!(Case::decode(&case.encode()), case);
    }
    let mut random = Random(3);
    for length in 0..2000 {
        let bytes: Vec<u8> = (0..length % 40).map(|_| random.next() as u8).collect();
        let case = Case::decode(&bytes);
        if !case.logs.is_empty() {
            assert_eq!(Case::decode(&case.encode()), case);
        }
    }
}

#[test]
fn undamaged_logs_are_written_as_a_corpus_if_asked() {
    let Some(folder) = std::env::var_os("HAUL_FUZZ_CORPUS").map(PathBuf::from) else { return };
    std::fs::create_dir_all(&folder).unwrap();
    for (index, case) in corpus().iter().enumerate() {
        for flags in [0, 3] {
            let case = Case { flags, ..case.clone() };
            std::fs::write(folder.join(format!("log-{index}-{flags}")), case.encode()).unwrap();
        }
    }
}
