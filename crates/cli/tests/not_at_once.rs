//! Files that cannot be read or written at once are waited for.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use haul_stripefs::{Mount, Options, StripeFs, control};
use haul_testkit::alone;

struct Bed {
    // Unmounted first.
    _mount: Mount,
    filesystem: StripeFs,
    directory: tempfile::TempDir,
}

impl Bed {
    fn new() -> Bed {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let filesystem = StripeFs::open(&Options::new(vec![path("target")], path("mds"))).unwrap();
        fs::create_dir(path("striped")).unwrap();
        let _mount = Mount::new(&filesystem, &path("striped")).expect("FUSE can be mounted");
        Bed { _mount, filesystem, directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn copy(&self, options: &[&str], from: &str, to: &str, is_far: bool) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let to = self.path(to).display().to_string();
        alone("timeout", self.directory.path())
            .args(["60", haul, "cp", "-r", "--ssh", &format!("'{haul}' bench shell"), "--haul-path", haul])
            .args(options)
            .arg(self.path(from))
            .arg(if is_far { format!("localhost:{to}") } else { to })
            .output()
            .unwrap()
    }
}

#[test]
fn files_on_which_somebody_else_holds_a_lock() {
    let bed = Bed::new();
    let source = bed.path("striped/source");
    fs::create_dir(&source).unwrap();
    let sizes = [("tiny", 10), ("small", 300_000), ("big", 9 << 20)];
    let contents = |bytes: usize| (0..bytes).map(|at| (at / 7) as u8).collect::<Vec<u8>>();
    sizes.iter().for_each(|(name, bytes)| fs::write(source.join(name), contents(*bytes)).unwrap());
    control::execute(&bed.filesystem, "group_lock=held").unwrap();
    let options: [&[&str]; 3] = [&[], &["--plain"], &["--io", "direct"]];
    for (number, options) in options.into_iter().enumerate() {
        for is_far in [false, true] {
            let sink = format!("sink-{number}-{is_far}");
            let output = bed.copy(options, "striped/source", &sink, is_far);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{options:?}, far: {is_far}: {said}");
            for (name, bytes) in sizes {
                assert!(fs::read(bed.path(&sink).join(name)).unwrap() == contents(bytes), "{name} {said}");
            }
        }
    }
}
