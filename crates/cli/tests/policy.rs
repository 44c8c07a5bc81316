//! A host whose operator allows no data in clear sends none and takes none, whichever end it is.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use haul_testkit::{alone, lacks};

/// Other files of the system for one process and all that it starts; nobody else sees them.
const DENY: &str = "mount -t tmpfs none /etc && mkdir /etc/haul && echo 127.0.0.1 localhost > /etc/hosts && echo 'plain = \"deny\"' > /etc/haul/policy.toml && exec \"$@\"";

struct Bed(tempfile::TempDir);

impl Bed {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `denies`: the end here, the end there.
    fn run(&self, denies: [bool; 2], arguments: &[&str]) -> Output {
        let haul = env!("CARGO_BIN_EXE_haul");
        let denying = |denies: bool| {
            if denies { ["unshare", "--mount", "sh", "-c", DENY, "sh"].as_slice() } else { &["env"] }
        };
        let there: Vec<String> =
            denying(denies[1]).iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
        // `ssh -G` only asks for a name.
        let ssh = format!("exec {} '{haul}' bench shell \"$@\"\n", there.join(" "));
        fs::write(self.path("ssh"), ssh).unwrap();
        let [program, words @ ..] = denying(denies[0]) else { unreachable!() };
        let mut command = alone(program, self.0.path());
        command.args(words).args([haul, arguments[0], "--haul-path", haul, "--ssh"]);
        command.arg(format!("sh '{}'", self.path("ssh").display())).args(&arguments[1..]).output().unwrap()
    }
}

#[test]
fn data_in_clear_is_refused_by_the_end_that_may_not_have_it() {
    if !rustix::process::geteuid().is_root() {
        return lacks("root, for files of a system of its own");
    }
    let bed = Bed(tempfile::tempdir().unwrap());
    fs::write(bed.path("file"), b"content").unwrap();
    let far = format!("localhost:{}", bed.path("far").display());
    let from = format!("localhost:{}", bed.path("file").display());
    for [denies_here, denies_there] in [[false, false], [true, false], [false, true]] {
        let denied = denies_here || denies_there;
        for paths in [["file", &far], [&from, "near"]] {
            let output = bed.run([denies_here, denies_there], &["cp", "--plain", paths[0], paths[1]]);
            let said = String::from_utf8_lossy(&output.stderr);
            let case = format!("here {denies_here}, there {denies_there}, {paths:?}: {said}");
            assert_eq!(output.status.code(), Some(i32::from(denied)), "{case}");
            for copy in ["far", "near"].map(|name| bed.path(name)) {
                assert!(!(denied && copy.exists()), "{case}");
                let _ = fs::remove_file(copy);
            }
            assert!(!denied || said.contains("policy"), "{case}");
            // What is encrypted is nobody's business.
            let output = bed.run([denies_here, denies_there], &["cp", paths[0], paths[1]]);
            assert_eq!(output.status.code(), Some(0), "{case} {}", String::from_utf8_lossy(&output.stderr));
            ["far", "near"].iter().for_each(|name| drop(fs::remove_file(bed.path(name))));
        }
        let explained = bed.run([denies_here, false], &["explain", "--plain", "file", &far]);
        assert_eq!(explained.status.code(), Some(i32::from(denies_here)));
    }
}
