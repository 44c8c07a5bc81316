//! Who is asked for a layout, and how often.

use std::os::fd::AsFd;
use std::sync::atomic::AtomicUsize;

use super::*;

/// Answers from a list, the last one for ever; counts the questions.
struct Scripted {
    kind: Kind,
    answers: Vec<Answer>,
    asked: Arc<AtomicUsize>,
}

impl LayoutSource for Scripted {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn layout(&self, _file: &Subject<'_>, _targets: &Targets) -> Answer {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        self.answers[asked.min(self.answers.len() - 1)].clone()
    }
}

/// Answers about listings only: that of one directory lacks names.
struct Lists {
    lacks: u64,
    asked: Arc<AtomicUsize>,
    knows: bool,
}

impl LayoutSource for Lists {
    fn kind(&self) -> Kind {
        Kind::Gluster
    }

    fn layout(&self, _file: &Subject<'_>, _targets: &Targets) -> Answer {
        Answer::Unknown
    }

    fn hides_names(&self, directory: &Subject<'_>) -> Option<bool> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.knows.then(|| directory.attributes.status().is_some_and(|status| status.inode == self.lacks))
    }
}

/// Layouts for which the device of a directory is a FUSE file system whose listing of it lacks names, if anybody knows;
/// and how often that was asked.
pub(crate) fn listing_lacks(directory: &std::fs::File, knows: bool) -> (Layouts, Arc<AtomicUsize>) {
    let found = rustix::fs::fstat(directory).unwrap();
    let (number, lacks) = (found.st_dev, found.st_ino);
    let mut layouts = Layouts::new(Options::default());
    let asked = Arc::new(AtomicUsize::new(0));
    layouts.asked[1] = Box::new(Lists { lacks, asked: Arc::clone(&asked), knows });
    let mount = Mount { source: "made".into(), point: "/made".into() };
    let file_system = FileSystem { device: number, magic: FUSE_MAGIC, mount, btrfs: None };
    let device = layouts.remembered(directory.as_fd(), file_system);
    layouts.devices.lock().unwrap().insert(number, Arc::new(device));
    (layouts, asked)
}

struct Bed {
    layouts: Layouts,
    asked: [Arc<AtomicUsize>; 3],
    file: std::fs::File,
}

const DEVICE: u64 = 77;

impl Bed {
    fn new(magic: u64, answers: [Vec<Answer>; 3]) -> Bed {
        let mut layouts = Layouts::new(Options::default());
        let asked: [Arc<AtomicUsize>; 3] = std::array::from_fn(|_| Arc::default());
        let kinds = [Kind::Lustre, Kind::Gluster, Kind::Ceph];
        let mut answers = answers.into_iter();
        layouts.asked = std::array::from_fn(|place| {
            let (kind, asked) = (kinds[place], Arc::clone(&asked[place]));
            Box::new(Scripted { kind, answers: answers.next().unwrap(), asked }) as Box<dyn LayoutSource>
        });
        let mount = Mount { source: "made".into(), point: "/made".into() };
        let file_system = FileSystem { device: DEVICE, magic, mount, btrfs: None };
        let file = std::fs::File::open(".").unwrap();
        let device = layouts.remembered(file.as_fd(), file_system);
        layouts.devices.lock().unwrap().insert(DEVICE, Arc::new(device));
        Bed { layouts, asked, file }
    }

    fn kind(&self) -> Kind {
        self.layouts.find(self.file.as_fd(), DEVICE).kind
    }

    fn asked(&self) -> [usize; 3] {
        self.asked.each_ref().map(|asked| asked.load(Ordering::Relaxed))
    }
}

fn found() -> Answer {
    Answer::Found(Layout::none())
}

#[test]
fn a_fuse_mount_is_asked_until_one_answers_and_then_that_one_only() {
    let answers =
        [vec![Answer::Unknown], vec![Answer::Unknown, found(), Answer::Unknown], vec![Answer::Unknown]];
    let bed = Bed::new(FUSE_MAGIC, answers);
    assert_eq!((bed.kind(), bed.asked()), (Kind::Mount, [1, 1, 1]));
    assert_eq!((bed.kind(), bed.asked()), (Kind::Gluster, [2, 2, 1]));
    for more in 1..2000 {
        assert_eq!((bed.kind(), bed.asked()), (Kind::Mount, [2, 2 + more, 1]));
    }
}

#[test]
fn a_mount_that_never_answers_is_not_asked_for_ever() {
    let bed = Bed::new(FUSE_MAGIC, [vec![Answer::Never], vec![Answer::Unknown], vec![Answer::Unknown]]);
    for _ in 0..1000 {
        assert_eq!(bed.kind(), Kind::Mount);
    }
    assert_eq!(bed.asked(), [1, QUESTIONS_MAX as usize, QUESTIONS_MAX as usize]);
}

#[test]
fn listings_of_a_file_system_that_never_knows_are_not_asked_for_for_ever() {
    let here = std::fs::File::open(".").unwrap();
    let device = rustix::fs::fstat(&here).unwrap().st_dev;
    let (layouts, asked) = listing_lacks(&here, false);
    for _ in 0..1000 {
        assert!(!layouts.hides_names(here.as_fd(), device));
    }
    assert_eq!(asked.load(Ordering::Relaxed), QUESTIONS_MAX as usize);
    let (layouts, asked) = listing_lacks(&here, true);
    for _ in 0..1000 {
        assert!(layouts.hides_names(here.as_fd(), device));
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1000);
}

#[test]
fn known_file_systems_are_asked_for_their_own_attribute_and_others_for_none() {
    let answers = || [vec![found()], vec![found()], vec![found()]];
    for (magic, kind, asked) in [
        (LUSTRE_MAGIC, Kind::Lustre, [1, 0, 0]),
        (CEPH_MAGIC, Kind::Ceph, [0, 0, 1]),
        (FUSE_MAGIC, Kind::Lustre, [1, 0, 0]),
        (0x6969, Kind::Mount, [0, 0, 0]),
    ] {
        let bed = Bed::new(magic, answers());
        assert_eq!((bed.kind(), bed.asked()), (kind, asked), "{magic:x}");
    }
}

#[test]
fn a_layout_file_goes_before_the_file_system() {
    let mut bed = Bed::new(LUSTRE_MAGIC, [vec![found()], vec![found()], vec![found()]]);
    let here = std::env::current_dir().unwrap();
    let rules = [here.as_os_str().as_encoded_bytes(), b" 1MiB a b"].concat();
    bed.layouts.rules = Some(LayoutFile::parse(&rules).unwrap());
    let layout = bed.layouts.find(bed.file.as_fd(), DEVICE);
    assert_eq!((layout.kind, bed.asked()), (Kind::File, [0, 0, 0]));
    let names = bed.layouts.targets().into_iter().map(|target| target.name.to_string());
    assert_eq!(names.filter(|name| name.len() == 1).collect::<String>(), "ab");
    bed.layouts.rules = Some(LayoutFile::parse(b"/no/where - x").unwrap());
    assert_eq!((bed.kind(), bed.asked()), (Kind::Lustre, [1, 0, 0]));
}

#[test]
fn this_machine_has_targets() {
    let layouts = Layouts::new(Options::default());
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let device = rustix::fs::fstat(&file).unwrap().st_dev;
    let found = layouts.find(file.as_fd(), device);
    assert_eq!(found.layout, layouts.of(file.as_fd(), device));
    let target = found.layout.target_at(0).unwrap();
    assert!(!layouts.describe(target).is_empty());
    assert_eq!(layouts.targets().len(), 1);
    let proc = std::fs::File::open("/proc/self/status").unwrap();
    let device = rustix::fs::fstat(&proc).unwrap().st_dev;
    let found = layouts.find(proc.as_fd(), device);
    assert_eq!(found.kind, Kind::Mount);
    assert_eq!(&*layouts.describe(found.layout.target_at(0).unwrap()), "proc");
    let of_proc = layouts.targets().pop().unwrap();
    assert_eq!(layouts.mount_of(&of_proc).unwrap().point, "/proc");
}
