//! Statements survive their bytes; any bytes give a statement or an error; version 1 is pinned byte for byte.

use haul_model::limits::STATEMENT_TARGETS_MAX;
use haul_wire::{STATEMENT_BYTES_MAX, Statement, TargetStatement};
use proptest::prelude::*;

fn target() -> impl Strategy<Value = TargetStatement> {
    any::<(u64, u16, bool, bool, bool)>().prop_map(|(identity, under_way, wants, congested, hangs)| {
        TargetStatement { identity, under_way, wants, congested, hangs }
    })
}

fn statement() -> impl Strategy<Value = Statement> {
    (any::<(u64, u16)>(), prop::collection::vec(target(), 0..20))
        .prop_map(|((transfer, period_millis), targets)| Statement { transfer, period_millis, targets })
}

proptest! {
    #[test]
    fn statements_survive_their_bytes(statement in statement()) {
        prop_assert_eq!(Statement::decode(&statement.encode()), Ok(statement));
    }

    #[test]
    fn no_part_and_no_more_than_a_statement_is_one(statement in statement(), cut in any::<prop::sample::Index>()) {
        let mut bytes = statement.encode();
        prop_assert!(Statement::decode(&bytes[..cut.index(bytes.len())]).is_err());
        bytes.push(0);
        prop_assert!(Statement::decode(&bytes).is_err());
    }

    #[test]
    fn any_bytes_give_a_statement_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..100),
        begins in any::<bool>(),
    ) {
        if begins {
            let header = Statement::default().encode();
            let length = header.len().min(bytes.len()).min(8);
            bytes[..length].copy_from_slice(&header[..length]);
        }
        if let Ok(statement) = Statement::decode(&bytes) {
            prop_assert_eq!(statement.encode(), bytes);
        }
    }
}

#[test]
fn a_count_asks_for_no_more_than_its_bytes() {
    let mut bytes = Statement::default().encode();
    bytes[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Statement::decode(&bytes).is_err());
    let many = Statement {
        targets: vec![TargetStatement::default(); 2 * STATEMENT_TARGETS_MAX],
        ..Statement::default()
    };
    let bytes = many.encode();
    assert_eq!(bytes.len(), STATEMENT_BYTES_MAX);
    assert_eq!(Statement::decode(&bytes).map(|read| read.targets.len()), Ok(STATEMENT_TARGETS_MAX));
}

#[test]
fn version_1_is_pinned() {
    let target = |identity, under_way, [wants, congested, hangs]: [bool; 3]| TargetStatement {
        identity,
        under_way,
        wants,
        congested,
        hangs,
    };
    let statement = Statement {
        transfer: 0x0807_0605_0403_0201,
        period_millis: 250,
        targets: vec![
            target(0x1817_1615_1413_1211, 3, [true, false, false]),
            target(0x2827_2625_2423_2221, 0x201, [false, true, true]),
        ],
    };
    let golden = "686c6e62 0100 fa00 0102030405060708 02000000 \
                  1112131415161718 0300 0100 2122232425262728 0102 0600";
    let hex: String = statement.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden.replace([' ', '\n'], ""));
}
