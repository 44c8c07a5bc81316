//! `docs/spec/wire.md` gives the numbers that are nothing but places in lists of the program.

use haul_model::Code;
use haul_model::profile::{Stage, Waiting};
use haul_model::report::Stats;
use haul_wire::Message;

const SPEC: &str = include_str!("../../../docs/spec/wire.md");

/// What is listed behind this title, up to the full stop.
fn listed(title: &str) -> Vec<String> {
    let (_, behind) = SPEC.split_once(&format!("**{title}.**")).unwrap();
    let (list, _) = behind.split_once('.').unwrap();
    list.split(',').map(|item| item.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.enumerate().map(|(number, name)| format!("{number} {name}")).collect()
}

#[test]
fn rows_stages_and_waits_have_the_numbers_that_are_specified() {
    let rows: Vec<_> = Code::ALL.iter().map(|code| format!("{} {}", *code as u16, code.name())).collect();
    assert_eq!(listed("Rows of the error table"), rows);
    assert_eq!(listed("Stages"), numbered(Stage::ALL.iter().map(|stage| stage.name())));
    assert_eq!(listed("Waited for"), numbered(Waiting::ALL.iter().map(|waiting| waiting.name())));
}

#[test]
fn counters_of_bye_come_in_the_order_that_is_specified() {
    let stats = Stats {
        files_total: 0,
        files_done: 1,
        files_skipped: 2,
        files_failed: 3,
        directories: 4,
        hard_links: 5,
        bytes_total: 6,
        bytes_sent: 7,
        bytes_skipped: 8,
        bytes_done: 9,
        objects_sent: 10,
        objects_skipped: 11,
        objects_repaired: 12,
        bytes_spilled: 13,
    };
    let mut bytes = Vec::new();
    Message::Bye(stats).encode(&mut bytes);
    assert_eq!(bytes, (0..14).collect::<Vec<u8>>(), "each varint below 128 is a byte");
    let fields = format!("{stats:?}");
    let named: Vec<_> = fields.split(['{', ',', '}']).filter_map(|part| part.split_once(':')).collect();
    let mut in_order = named.iter().map(|(name, value)| (value.trim().parse().unwrap(), name.trim()));
    let mut names = listed("BYE").into_iter().enumerate();
    assert!(
        names.by_ref().zip(in_order.by_ref()).all(|(own, (value, name))| own == (value, name.to_owned()))
    );
    assert_eq!((names.count(), in_order.count()), (0, 0));
}
