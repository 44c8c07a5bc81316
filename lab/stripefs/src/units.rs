//! Sizes, rates and durations as people type them.

use std::time::Duration;

/// Bytes: a number with nothing, `k`, `M`, `G`, `KiB`, `MiB`, `GiB` (powers of 1024) or `kB`, `MB`, `GB` (of 1000).
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let scale: u64 = match unit {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(format!("{text:?} is no size, like 4MiB or 400MB")),
    };
    let number: f64 = number.parse().map_err(|_| format!("{text:?} is no size, like 4MiB or 400MB"))?;
    let bytes = number * scale as f64;
    // Within what f64 counts exactly.
    if (0.0..9e15).contains(&bytes) { Ok(bytes as u64) } else { Err(format!("{text:?} is too much")) }
}

/// A time: a number with `us`, `ms` or `s`; `0` needs none.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time, like 20ms");
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "" if number == 0.0 => 0.0,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|time| time.as_secs() < 1_000_000).ok_or_else(wrong)
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter: char| letter.is_ascii_alphabetic()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_units() {
        assert_eq!(bytes("65536"), Ok(65536));
        assert_eq!(bytes("4MB"), Ok(4_000_000));
        assert_eq!(bytes("4MiB"), Ok(4 << 20));
        assert_eq!(bytes("1.5k"), Ok(1536));
        assert_eq!(duration("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "MB", "-1", "4XB", "1e300GB", "nan"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "5", "ms", "-1ms", "5h", "1e12s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
