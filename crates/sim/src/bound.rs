//! The work-conserving bound: the shortest time in which all bytes can be moved when every target works for as long as
//! it has work, with as many threads as that takes. What a scheduler reaches is given as a share of it.
//!
//! A target's bytes can be moved by no other target, so each ends on its own, and the bound is the last of those ends.
//! What both ends share (a link) is one more target that has all bytes; a target of the sink is one more with its bytes.

/// A target, what it has to move, and how fast it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// For the reader.
    pub name: String,
    /// To be moved.
    pub bytes: u64,
    /// Bytes a second from this time (nanoseconds) on, in order of time; 0 before the first.
    pub rates: Vec<(u64, u64)>,
}

const NANOS: u128 = 1_000_000_000;

impl Load {
    /// When it has moved everything, in nanoseconds, rounded up; `None` if it never has.
    pub fn ends_nanos(&self) -> Option<u64> {
        let mut left = u128::from(self.bytes) * NANOS;
        if left == 0 {
            return Some(0);
        }
        for (index, (from, rate)) in self.rates.iter().copied().enumerate() {
            let until = self.rates.get(index + 1).map_or(u64::MAX, |(next, _)| *next);
            let room = u128::from(rate) * u128::from(until - from);
            if room >= left {
                return u64::try_from(u128::from(from) + left.div_ceil(u128::from(rate))).ok();
            }
            left -= room;
        }
        None
    }
}

/// When all have, in nanoseconds; `None` if one never has.
pub fn bound_nanos(loads: &[Load]) -> Option<u64> {
    loads.iter().try_fold(0, |latest, load| Some(load.ends_nanos()?.max(latest)))
}

/// Reads a load a line: name, bytes, and `SECONDS:BYTES_PER_SECOND` for each change of its rate. Lines that begin with #
/// are for the reader.
pub fn parse(text: &str) -> Result<Vec<Load>, String> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines.map(|(index, line)| parse_line(line).ok_or_else(|| format!("line {}: {line}", index + 1))).collect()
}

fn parse_line(line: &str) -> Option<Load> {
    let mut words = line.split_whitespace();
    let name = words.next()?.to_string();
    let bytes = words.next()?.parse().ok()?;
    let rate = |word: &str| {
        let (seconds, rate) = word.split_once(':')?;
        let seconds: f64 = seconds.parse().ok().filter(|seconds| (0.0..1e9).contains(seconds))?;
        Some(((seconds * 1e9).round() as u64, rate.parse().ok()?))
    };
    let rates = words.map(rate).collect::<Option<Vec<(u64, u64)>>>()?;
    let in_order = rates.windows(2).all(|pair| pair[0].0 < pair[1].0);
    (in_order && !rates.is_empty()).then_some(Load { name, bytes, rates })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn load(bytes: u64, rates: &[(u64, u64)]) -> Load {
        Load { name: "t".into(), bytes, rates: rates.to_vec() }
    }

    #[test]
    fn a_target_ends_when_its_rates_have_moved_its_bytes() {
        assert_eq!(load(0, &[(0, 0)]).ends_nanos(), Some(0));
        assert_eq!(load(100, &[(0, 10)]).ends_nanos(), Some(10 * SECOND));
        assert_eq!(
            load(100, &[(3 * SECOND, 10)]).ends_nanos(),
            Some(13 * SECOND),
            "nothing before the first"
        );
        // A tenth of the speed from 2 s to 5 s: 20 + 3, and 77 more at 10 a second.
        let moving = load(100, &[(0, 10), (2 * SECOND, 1), (5 * SECOND, 10)]);
        assert_eq!(moving.ends_nanos(), Some(5 * SECOND + 7_700_000_000));
        assert_eq!(load(20, &[(0, 10), (2 * SECOND, 0)]).ends_nanos(), Some(2 * SECOND), "just in time");
        assert_eq!(load(21, &[(0, 10), (2 * SECOND, 0)]).ends_nanos(), None);
        assert_eq!(load(1, &[(0, 3)]).ends_nanos(), Some(333_333_334), "rounded up");
        assert_eq!(load(u64::MAX, &[(0, 1)]).ends_nanos(), None, "beyond the clock");
    }

    #[test]
    fn the_bound_is_the_last_end() {
        let loads = [load(100, &[(0, 10)]), load(100, &[(0, 1)]), load(0, &[(0, 0)])];
        assert_eq!(bound_nanos(&loads), Some(100 * SECOND));
        assert_eq!(bound_nanos(&loads[..1]), Some(10 * SECOND));
        assert_eq!(bound_nanos(&[load(1, &[])]), None);
        assert_eq!(bound_nanos(&[]), Some(0));
    }

    #[test]
    fn loads_are_read_from_lines() {
        let text = "# name bytes rates\nOST0 1000 0:100 2.5:10\n\nlink 5 0:1\n";
        let loads = parse(text).unwrap();
        let first = Load { name: "OST0".into(), ..load(1000, &[(0, 100), (2_500_000_000, 10)]) };
        assert_eq!((loads.len(), &loads[0]), (2, &first));
        for wrong in ["x", "x y 0:1", "x 1", "x 1 0", "x 1 0:1 0:2", "x 1 -1:2", "x 1 0:1.5", "x 1 1e99:1"] {
            assert_eq!(parse(wrong), Err(format!("line 1: {wrong}")));
        }
    }
}
