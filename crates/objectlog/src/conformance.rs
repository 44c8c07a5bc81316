//! What every [`LogStore`] must do, whatever is below it. Each implementation has a test that runs [`check`].
//!
//! Durability cannot be seen from here; it is tested where the power can be cut.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::store::LogStore;

/// Panics if a store made by `make` (empty each time) does not do what the trait says.
pub fn check<S: LogStore>(mut make: impl FnMut() -> S) {
    names(&mut make());
    contents(&mut make());
    reading(&mut make());
}

fn sorted_names<S: LogStore>(store: &mut S) -> Vec<String> {
    let mut names = store.list().unwrap();
    names.sort();
    names
}

fn read_all<S: LogStore>(store: &mut S, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; store.length(name).unwrap().unwrap() as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        let read = store.read_at(name, filled as u64, &mut bytes[filled..]).unwrap();
        assert!(read > 0, "the end came before the length that was told");
        filled += read;
    }
    bytes
}

fn names<S: LogStore>(store: &mut S) {
    assert!(store.list().unwrap().is_empty());
    assert_eq!(store.length("universal-1.log").unwrap(), None);
    store.remove("universal-1.log").unwrap();
    store.write_at("universal-1.log", 0, b"x").unwrap();
    store.write_at("file-2.log", 0, b"y").unwrap();
    assert_eq!(sorted_names(store), ["file-2.log", "universal-1.log"]);
    store.sync(&["file-2.log", "universal-1.log"]).unwrap();
    store.sync_names().unwrap();
    store.remove("file-2.log").unwrap();
    assert_eq!(sorted_names(store), ["universal-1.log"]);
    assert_eq!(store.length("file-2.log").unwrap(), None);
    store.write_at("file-2.log", 3, b"z").unwrap();
    assert_eq!(read_all(store, "file-2.log"), b"\0\0\0z", "nothing is left of the file that was removed");
    store.sync(&[]).unwrap();
    store.sync_names().unwrap();
}

fn contents<S: LogStore>(store: &mut S) {
    let name = "transaction-3.log";
    store.write_at(name, 1000, &[7; 600]).unwrap();
    assert_eq!(store.length(name).unwrap(), Some(1600));
    store.write_at(name, 0, &[1; 100]).unwrap();
    store.write_at(name, 50, &[2; 100]).unwrap();
    store.sync(&[name]).unwrap();
    let mut expected = vec![0; 1600];
    expected[..50].fill(1);
    expected[50..150].fill(2);
    expected[1000..].fill(7);
    assert_eq!(read_all(store, name), expected);
}

fn reading<S: LogStore>(store: &mut S) {
    let name = "universal-4.log";
    let bytes: Vec<u8> = (0..200_000u32).map(|index| (index % 251) as u8).collect();
    store.write_at(name, 0, &bytes).unwrap();
    assert_eq!(read_all(store, name), bytes);
    let mut buffer = [0; 64];
    assert_eq!(store.read_at(name, 200_000, &mut buffer).unwrap(), 0);
    assert_eq!(store.read_at(name, u64::from(u32::MAX), &mut buffer).unwrap(), 0);
    let read = store.read_at(name, 199_990, &mut buffer).unwrap();
    assert!((1..=10).contains(&read));
    assert_eq!(buffer[..read], bytes[199_990..199_990 + read]);
}
