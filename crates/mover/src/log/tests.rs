//! Logs that hang, that cannot be read, and that cannot be written.

use rustix::io::Errno;

use super::*;

/// A log whose thread is at something that does not end while `_storage` is held.
fn hanging() -> (Logger, QueueSender<()>) {
    let (operations, queue) = unbounded();
    let (storage, answers) = bounded::<()>(0);
    let run = move || {
        let _queue: crossbeam_channel::Receiver<LogOp> = queue;
        let _ = answers.recv();
    };
    let thread = std::thread::spawn(run);
    let summary = LogSummary {
        mechanism: String::new(),
        method: String::new(),
        writer: String::new(),
        bytes_peak: 0,
        files_peak: 0,
        location: PathBuf::new(),
        lost: None,
        closing: Duration::ZERO,
    };
    let shared = Arc::new(Mutex::new(summary));
    (
        Logger {
            required: false,
            shared,
            work: Work::Thread { operations, thread, progress: Progress::default() },
            left: None,
            is_lost: false,
        },
        storage,
    )
}

/// Of a log in this directory.
fn keeper(directory: &Path) -> Keeper {
    Keeper {
        log: open_log(directory, Config::default()).unwrap().0,
        hash: HashKind::default(),
        handles: HashMap::new(),
        inputs: bounded(1).0,
        shared: hanging().0.shared,
        unsynced_since: None,
        lost: false,
        ended: Arc::default(),
    }
}

/// A log in this directory that the comm thread writes.
pub(crate) fn written_by_comm(directory: &Path) -> (Logger, CommLog) {
    let keeper = keeper(directory);
    let (shared, work) = (Arc::clone(&keeper.shared), Work::comm(keeper));
    let logger = Logger { required: false, shared, work, left: None, is_lost: false };
    let comm = logger.comm().expect("there is one");
    (logger, comm)
}

impl CommLog {
    /// As long as its storage does not answer.
    pub(crate) fn held(&self) -> impl Sized + '_ {
        lock(&self.0)
    }
}

#[test]
fn a_log_that_is_never_idle_is_durable_every_second_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = keeper(directory.path());
    keeper.write_all([LogOp::Clear]);
    assert!(keeper.unsynced_since.is_some(), "not yet");
    keeper.unsynced_since = Instant::now().checked_sub(SYNC_EVERY);
    keeper.write_all([LogOp::Clear]);
    assert!(keeper.unsynced_since.is_none());
}

#[test]
fn a_log_that_does_not_answer_is_lost_and_neither_fills_memory_nor_is_waited_for() {
    let (mut logger, _storage) = hanging();
    let told: Vec<String> = (0..2 * WAITING_MAX).filter_map(|_| logger.run(LogOp::Clear)).collect();
    assert_eq!(told, [NO_ANSWER], "it is told once");
    assert!(is_given_up(logger.finish()));

    // Few wait, but long. A pause of the whole process is none of its.
    let (mut logger, _storage) = hanging();
    assert_eq!(logger.run(LogOp::Clear), None);
    for _ in 0..2 {
        assert_eq!(logger.run(LogOp::Clear), None);
        std::thread::sleep(SERVE_MAX + Duration::from_millis(50));
    }
    let began = Instant::now();
    while logger.run(LogOp::Clear).is_none() {
        assert!(began.elapsed() < SERVE_MAX * 10 && matches!(logger.work, Work::Thread { .. }));
        std::thread::sleep(SERVE_MAX / 50);
    }
    assert!(began.elapsed() > SERVE_MAX / 2, "{:?}", began.elapsed());

    // It takes long, and goes on.
    let (mut logger, _storage) = hanging();
    for _ in 0..90 {
        assert_eq!(logger.run(LogOp::Clear), None);
        std::thread::sleep(SERVE_MAX / 60);
        let Work::Thread { operations, progress, .. } = &logger.work else { panic!("it is lost") };
        assert!(operations.len() < WAITING_MAX);
        progress.ended.fetch_add(1, Ordering::Relaxed);
    }

    let (mut logger, _storage) = hanging();
    assert_eq!(logger.run(LogOp::Clear), None);
    let began = Instant::now();
    assert!(is_given_up(logger.finish()));
    assert!((FINISH_MAX..FINISH_MAX * 10).contains(&began.elapsed()));

    let (logger, storage) = hanging();
    drop(storage);
    let (summary, is_left) = logger.finish();
    assert_eq!((summary.lost, is_left), (None, false));

    // One that the comm thread writes.
    let directory = tempfile::tempdir().unwrap();
    let keeper = keeper(directory.path());
    let (shared, work) = (Arc::clone(&keeper.shared), Work::comm(keeper));
    let mut logger = Logger { required: false, shared, work, left: None, is_lost: false };
    let (begins, begun) = bounded(0);
    let (storage, answers) = bounded::<()>(0);
    let comm = logger.comm().unwrap();
    let writes = std::thread::spawn(move || {
        let _keeper = lock(&comm.0);
        begins.send(()).unwrap();
        let _ = answers.recv();
    });
    begun.recv().unwrap();
    let (ended, ends) = bounded(1);
    assert!(logger.comm_stands() == CommStands::Busy);
    std::thread::spawn(move || ended.send(is_given_up(logger.finish())));
    let is_given_up = ends.recv_timeout(FINISH_MAX * 10);
    drop(storage);
    writes.join().unwrap();
    assert_eq!(is_given_up, Ok(true));
}

#[test]
fn a_log_that_was_lost_for_a_while_has_all_of_it_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let (mut logger, hung) = hanging();
    let (operations, queue) = unbounded();
    let (storage, answers) = bounded::<()>(0);
    let writer = Keeper { shared: Arc::clone(&logger.shared), ..keeper(directory.path()) };
    let progress = Progress { ended: Arc::clone(&writer.ended), seen: None };
    let run = move || {
        let _ = answers.recv();
        writer.run(&queue);
    };
    logger.work = Work::Thread { operations, thread: std::thread::spawn(run), progress };
    drop(hung);
    let (identity, token) = (haul_model::Identity::default(), haul_model::Token([7; 16]));
    let id = EntryId(1);
    let begin = LogOp::Begin { id, path: b"file".to_vec(), identity, object_bytes: 4096, objects: 3, token };
    assert_eq!(logger.run(begin), None);
    let began = Instant::now();
    while logger.run(LogOp::Record { id, index: 0 }).is_none() {
        assert!(began.elapsed() < SERVE_MAX * 10);
        std::thread::sleep(SERVE_MAX / 50);
    }
    // Later the server is back.
    assert_eq!(logger.run(LogOp::Record { id, index: 2 }), None, "it is told once");
    drop(storage);
    let Work::Thread { operations, .. } = &logger.work else { panic!("it is given up") };
    let began = Instant::now();
    while !operations.is_empty() && began.elapsed() < FINISH_MAX * 10 {
        std::thread::sleep(LOOK_AGAIN);
    }
    let (summary, is_left) = logger.finish();
    assert_eq!((summary.lost.as_deref(), is_left), (Some(NO_ANSWER), false));
    let log = open_log(directory.path(), Config::default()).unwrap().0;
    let durable: Vec<_> = log.iter().map(|(path, logged)| (path.to_vec(), logged.done.count())).collect();
    assert_eq!(durable, [(b"file".to_vec(), 2)]);
}

/// Its thread is still there, and whoever goes may not say that nothing writes any more.
fn is_given_up((summary, is_left): (LogSummary, bool)) -> bool {
    summary.lost.as_deref() == Some(NO_ANSWER) && is_left
}

/// At the end, too, what counts is how long nothing comes of it.
#[test]
fn a_log_that_is_slow_to_end_and_gets_on_is_waited_for() {
    let (logger, storage) = hanging();
    let Work::Thread { progress, .. } = &logger.work else { panic!("it is lost") };
    let ended = Arc::clone(&progress.ended);
    let works = std::thread::spawn(move || {
        for _ in 0..30 {
            std::thread::sleep(FINISH_MAX / 15);
            ended.fetch_add(1, Ordering::Relaxed);
        }
        drop(storage);
    });
    let began = Instant::now();
    let (summary, is_left) = logger.finish();
    assert_eq!((summary.lost, is_left), (None, false));
    assert!(began.elapsed() > FINISH_MAX);
    works.join().unwrap();
}

/// Files that have ended before the thread came for them are not written down, however many there are.
#[test]
fn a_log_that_falls_behind_does_not_write_what_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { mechanism: haul_objectlog::Mechanism::File, ..Config::default() };
    let keeper = Keeper { log: open_log(directory.path(), config).unwrap().0, ..keeper(directory.path()) };
    let (operations, queue) = unbounded();
    for number in 0..10_000 {
        let (id, path) = (EntryId(number), number.to_string().into_bytes());
        let (identity, token) = (haul_model::Identity::default(), haul_model::Token([7; 16]));
        operations.send(LogOp::Begin { id, path, identity, object_bytes: 4096, objects: 3, token }).unwrap();
        operations.send(LogOp::Record { id, index: 0 }).unwrap();
    }
    (0..10_000).for_each(|number| operations.send(LogOp::Remove { id: EntryId(number) }).unwrap());
    drop(operations);
    let shared = Arc::clone(&keeper.shared);
    keeper.run(&queue);
    assert_eq!(lock(&shared).files_peak, 0);
}

#[test]
fn what_a_log_holds_counts_though_another_cannot_be_read_and_nothing_can_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let (id, path, token) = (EntryId(1), b"file".to_vec(), haul_model::Token([7; 16]));
    let begin = LogOp::Begin {
        id,
        path: path.clone(),
        identity: haul_model::Identity::default(),
        object_bytes: 4096,
        objects: 3,
        token,
    };
    let mut keeper = keeper(directory.path());
    keeper.write_all([begin, LogOp::Record { id, index: 1 }]);
    keeper.close();
    drop(keeper);
    let names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    // Neither is a file that can be read, or written.
    for name in ["file-7.log", "probe"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    let log = SourceLog::open(directory.path(), settings(false)).unwrap();
    assert!(log.summary.lost.is_some());
    let kept = log.kept.unwrap();
    let found: Vec<_> = kept.iter().map(|(path, logged)| (path.to_vec(), logged.done.count())).collect();
    assert_eq!(found, [(path, 1)]);
    let refused = SourceLog::open(directory.path(), settings(true)).err().unwrap();
    assert_eq!(refused.failure.code, Code::LogUnwritable);
}

/// As a directory in which somebody replaces files while it is read may do.
#[test]
fn a_name_that_is_listed_twice_is_no_log_that_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let begin = |id, token| LogOp::Begin {
        id: EntryId(id),
        path: b"latest".to_vec(),
        identity: haul_model::Identity::default(),
        object_bytes: 4096,
        objects: 3,
        token: haul_model::Token([token; 16]),
    };
    let record = |id, index| LogOp::Record { id: EntryId(id), index };
    let mut keeper = keeper(directory.path());
    keeper.write_all([begin(1, 7), record(1, 0), begin(2, 8), record(1, 1), record(2, 2)]);
    keeper.write_all([LogOp::Remove { id: EntryId(1) }]);
    assert_eq!(lock(&keeper.shared).lost, None);
    keeper.close();
    drop(keeper);
    let (log, trouble) = open_log(directory.path(), Config::default()).unwrap();
    assert!(trouble.is_none());
    let found: Vec<_> =
        log.iter().map(|(_, logged)| (logged.binding.token.0[0], logged.done.count())).collect();
    assert_eq!(found, [(8, 1)]);
}

fn settings(required: bool) -> Settings {
    let (config, hash) = (Some(Config::default()), HashKind::default());
    Settings { config, writer: Writer::default(), required, hash }
}

/// To begin anew without it would be to throw away what is durable.
#[test]
fn a_log_that_cannot_be_read_now_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    // It cannot be opened, as on a disk that does not answer (ENXIO).
    let _socket = std::os::unix::net::UnixListener::bind(directory.path().join("file-7.log")).unwrap();
    for required in [false, true] {
        let refused = SourceLog::open(directory.path(), settings(required)).err().unwrap();
        assert_eq!(refused.failure.code, Code::LogDamaged, "{refused}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("--discard")));
        // What stands beside it and was never a log says nothing of it.
        let _ = std::fs::create_dir(directory.path().join("file-8.log"));
    }
    if !rustix::process::geteuid().is_root() {
        return haul_testkit::lacks("root");
    }
    // Nor its directory.
    let nobody = Some(65534);
    let inside = directory.path().join("log");
    std::fs::create_dir(&inside).unwrap();
    std::fs::set_permissions(&inside, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    [directory.path(), &inside].iter().for_each(|path| std::os::unix::fs::chown(path, nobody, None).unwrap());
    let refused = std::thread::scope(|scope| {
        let as_nobody = || {
            // This thread alone, which ends as such.
            let [real, effective, saved] = [0, 65534, 0].map(rustix::process::Uid::from_raw);
            rustix::thread::set_thread_res_uid(real, effective, saved).unwrap();
            SourceLog::open(&inside, settings(false)).err().unwrap()
        };
        scope.spawn(as_nobody).join().unwrap()
    });
    assert_eq!(refused.failure.code, Code::LogDamaged, "{refused}");
    let damage = [Errno::IO, Errno::TIMEDOUT, Errno::STALE, Errno::ACCESS].map(std::io::Error::from);
    assert!(damage.iter().all(may_be_read_later));
}
