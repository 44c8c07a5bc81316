//! How objects were read and written, for people and as JSON.

use std::path::Path;

use haul_storage::engine::{Direction, Engine, Note, Told, Way, Wish, is_measured, rings_are_allowed};
use serde_json::{Value, json};

use crate::told::size;

/// A line for each device of this end that there was a choice for, and one for each thing that did not go as it should.
pub fn lines((told, notes): &(Vec<Told>, Vec<Note>)) -> Vec<String> {
    told.iter().map(line).chain(notes.iter().map(ToString::to_string)).collect()
}

fn line(told: &Told) -> String {
    let Told { device: (major, minor), direction, chosen, rates } = told;
    let chosen = chosen.map_or("measured too short to choose".into(), |way| way.to_string());
    let rates: Vec<String> =
        rates.iter().map(|(way, rate)| format!("{way} {}/s", size(*rate as u64))).collect();
    let rates = if rates.is_empty() { String::new() } else { format!(" ({})", rates.join("; ")) };
    format!("{} device {major}:{minor}: {chosen}{rates}", verb(*direction))
}

fn verb(direction: Direction) -> &'static str {
    match direction {
        Direction::Read => "read",
        Direction::Write => "write",
    }
}

/// For the summary.
pub fn values(told: &[Told]) -> Value {
    let names = |way: Way| json!({"engine": way.engine.name(), "io": way.io.name()});
    let value = |told: &Told| {
        let rates = told.rates.iter().map(|(way, rate)| {
            json!({"engine": way.engine.name(), "io": way.io.name(), "bytes_per_second": *rate as u64})
        });
        json!({
            "direction": verb(told.direction),
            "device": format!("{}:{}", told.device.0, told.device.1),
            "chosen": told.chosen.map(names),
            "measured": rates.collect::<Vec<_>>(),
        })
    };
    told.iter().map(value).collect()
}

/// What can be said of a path before anything is measured.
pub fn forecast(wish: Wish, path: &Path) -> String {
    // What is not there yet will be on the device of what it is made in.
    let there = path
        .ancestors()
        .find_map(|path| is_measured(if path.as_os_str().is_empty() { Path::new(".") } else { path }));
    match (wish == Wish::default(), there) {
        (true, Some(false)) => return format!("{}: in memory, or no local disk that is known", Way::USUAL),
        (true, None) => return "as the device there is".into(),
        _ => {}
    }
    let rings = rings_are_allowed();
    let can_be = |way: &Way| rings.is_ok() || way.engine != Engine::Uring;
    let mut ways: Vec<Way> = wish.ways().into_iter().filter(can_be).collect();
    if ways.is_empty() {
        ways.push(wish.instead().iter().copied().find(can_be).unwrap_or(Way::USUAL));
    }
    let rings = match rings {
        Err(errno) if wish.engine != Some(Engine::Posix) => format!("; io_uring is not available ({errno})"),
        _ => String::new(),
    };
    match &ways[..] {
        [only] => format!("{only}{rings}"),
        _ => {
            let ways: Vec<String> = ways.iter().map(ToString::to_string).collect();
            format!("the best of {}{rings}", ways.join(" / "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use haul_storage::engine::Io;

    #[test]
    fn the_user_is_told_what_was_chosen_and_what_was_measured() {
        let told = Told {
            device: (252, 0),
            direction: Direction::Write,
            chosen: Some(Way::URING_DIRECT),
            rates: vec![(Way::USUAL, (400 << 20) as f64), (Way::URING_DIRECT, (1 << 30) as f64)],
        };
        let lines = lines(&(vec![told.clone()], vec![Note::NoDirect(8, 1)]));
        assert_eq!(
            lines[0],
            "write device 252:0: io_uring, direct (posix, buffered 400 MiB/s; io_uring, direct 1.0 GiB/s)"
        );
        assert!(lines[1].contains("8:1 takes no direct I/O"), "{lines:?}");
        let value = values(&[told]);
        assert_eq!(value[0]["chosen"], json!({"engine": "uring", "io": "direct"}));
        assert_eq!(value[0]["measured"][1]["bytes_per_second"], 1 << 30);
    }

    #[test]
    fn a_path_says_what_will_be_tried() {
        let memory = Path::new("/dev/shm/not-there-yet");
        if Path::new("/dev/shm").is_dir() && is_measured(Path::new("/dev/shm")) == Some(false) {
            assert!(forecast(Wish::default(), memory).starts_with("posix, buffered: in memory"));
        }
        let wish = Wish { engine: Some(haul_storage::engine::Engine::Posix), io: Some(Io::Direct) };
        assert_eq!(forecast(wish, memory), "posix, direct");
        assert!(
            forecast(Wish { engine: None, ..wish }, memory)
                .starts_with("the best of posix, direct / io_uring")
        );
    }
}
