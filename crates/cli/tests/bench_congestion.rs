//! `haul bench congestion` from the command line, as small as it can be: file systems are made, one target is slow, files
//! are moved, and what came out is written. Needs root and FUSE, as the tests of the emulated file system do.

mod evaluation;

use std::os::unix::fs::PermissionsExt;

use evaluation::Evaluation;

#[test]
fn the_evaluation_makes_its_laboratory_moves_files_writes_and_leaves_nothing() {
    let stripefs = Evaluation::haul().with_file_name("stripefs");
    assert!(stripefs.is_file(), "cargo build --workspace makes stripefs beside haul");
    let evaluation = Evaluation::new();
    #[rustfmt::skip]
    evaluation.run(&[
        "congestion", "--throttle", "emulated", "--scale", "0.0001", "--rate", "220MB", "--part", "transfers", "--end",
        "source,sink", "--slow", "1", "--motion", "moving", "--step", "1", "--mover", "file-order,adaptive", "--runs", "1",
    ]);
    for end in ["source", "sink"] {
        for mover in ["file-order", "adaptive"] {
            let rows = evaluation.rows("lads-transfers.csv", &format!("{end},1,true,{mover},0,"));
            let row = rows.first().unwrap_or_else(|| panic!("no {end} {mover}"));
            let numbers: Vec<f64> = row.split(',').skip(5).map(|field| field.parse().unwrap()).collect();
            let (seconds, bound, at_slow, imbalance) = (numbers[0], numbers[1], numbers[4], numbers[7]);
            // 738 MB at 220 MB/s are 3.4 s, and nobody is faster than the bound; files are spread evenly.
            assert!(bound > 3.3 && seconds > bound * 0.98, "{row}");
            // Each target has four stripes of the eleven files; files beside them may take a turn of the file system's, and
            // then one has five.
            assert!(at_slow > 0.0 && imbalance < 0.3, "{row}");
        }
    }
    let pictures = evaluation.check_page(
        "lads.md",
        &["Share of the work-conserving bound", "haul bench congestion", "| source | 1 |", "| sink | 1 |"],
    );
    assert!(pictures.contains(&"lads-order-adaptive.svg".to_owned()), "{pictures:?}");
    evaluation.check_nothing_left();
}

/// It ends well and has copied nothing: that was its result for hours, or the end of all.
#[test]
fn a_mover_that_does_not_do_its_work_is_left_out_and_the_others_are_measured() {
    let evaluation = Evaluation::new();
    let programs = evaluation.path("programs");
    std::fs::create_dir(&programs).unwrap();
    std::fs::write(programs.join("rsync"), "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::set_permissions(programs.join("rsync"), std::fs::Permissions::from_mode(0o755)).unwrap();
    #[rustfmt::skip]
    let said = evaluation.run_with_programs(&programs, &[
        "congestion", "--throttle", "emulated", "--scale", "0.0001", "--rate", "220MB", "--part", "transfers", "--end",
        "sink", "--slow", "0", "--mover", "rsync,file-order", "--runs", "1",
    ]);
    assert!(said.contains("rsync is left out") && said.matches("; once more").count() == 1, "{said}");
    assert!(evaluation.rows("lads-transfers.csv", "sink,0,false,rsync,").is_empty());
    assert_eq!(evaluation.rows("lads-transfers.csv", "sink,0,false,file-order,").len(), 1);
    evaluation.check_nothing_left();
}
