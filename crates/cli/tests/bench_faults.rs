//! `haul bench faults` from the command line, as small as it can be: everything is run, hit, counted and written.

mod evaluation;

use evaluation::Evaluation;

#[test]
fn the_evaluation_runs_and_writes_tables_numbers_and_pictures() {
    let evaluation = Evaluation::new();
    #[rustfmt::skip]
    evaluation.run(&[
        "faults", "--workload", "big", "--part", "overhead,space,recovery", "--scale", "0.002", "--recovery-scale", "0.002",
        "--log", "universal+bit64,file+char", "--runs", "2", "--rounds-max", "2", "--seconds", "3", "--parallel", "8",
        "--point", "50",
    ]);
    for log in ["universal+bit64", "file+char", "default"] {
        assert_eq!(evaluation.rows("ft-lads-big-overhead.csv", &format!("{log},")).len(), 2, "{log}");
        for fault in ["source", "sink", "network"] {
            let rows = evaluation.rows("ft-lads-big-recovery.csv", &format!("{log},{fault},50,"));
            assert_eq!(rows.len(), 2, "{log} {fault}");
        }
    }
    // A log has room, none has not; what is sent again is far below the 200 MB of the workload.
    for row in evaluation.rows("ft-lads-big-space.csv", "universal+bit64,") {
        let bytes: u64 = row.split(',').nth(1).unwrap().parse().unwrap();
        assert!((512..20_000).contains(&bytes), "{row}");
    }
    for row in evaluation.rows("ft-lads-big-recovery.csv", "universal+bit64,source") {
        let again: u64 = row.split(',').nth(5).unwrap().parse().unwrap();
        assert!(again < 120_000_000, "{row}");
        let first: f64 = row.split(',').nth(6).unwrap().parse().unwrap();
        assert!(first > 0.0 && first < 30.0, "{row}");
    }
    evaluation.check_page(
        "ft-lads.md",
        &[
            "Figure 5",
            "Figure 7",
            "Figure 8",
            "Figure 10",
            "| universal+bit64 | source | 50 |",
            "haul bench faults",
        ],
    );
    evaluation.check_nothing_left();
}
