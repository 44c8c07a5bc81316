//! What makes a device slow or faulty, and how to say it.

use std::time::Duration;

use rustix::io::Errno;

use crate::pace::{Speed, Stalls};
use crate::units;

/// What a request does to a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// What was written becomes durable.
    Sync,
    /// Names, sizes, attributes; objects cut off and removed.
    Other,
}

/// What a device does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hang {
    /// It answers everything.
    #[default]
    Nothing,
    /// This kind of requests.
    Only(Kind),
    /// It answers nothing.
    Everything,
}

impl Hang {
    /// Does a request of this kind hang?
    pub fn holds(self, kind: Kind) -> bool {
        match self {
            Hang::Nothing => false,
            Hang::Only(held) => held == kind,
            Hang::Everything => true,
        }
    }
}

/// How a device behaves.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Knobs {
    /// How fast it serves.
    pub speed: Speed,
    /// What every request takes longer; requests overlap in it.
    pub latency: Duration,
    /// Up to so much more, evenly spread.
    pub jitter: Duration,
    /// Regular pauses.
    pub stalls: Option<Stalls>,
    /// One pause from now on; taken by the device when it is set.
    pub stall: Option<Duration>,
    /// What is not served.
    pub hang: Hang,
    /// Everything fails with it; `ENOSPC` and `EDQUOT` only what writes.
    pub error: Option<Errno>,
}

impl Knobs {
    /// As fast as it can, and without fault.
    pub fn is_plain(&self) -> bool {
        *self == Knobs::default()
    }

    /// What a request of this kind fails with.
    pub fn fault(&self, kind: Kind) -> Option<Errno> {
        self.error.filter(|errno| match *errno {
            Errno::NOSPC | Errno::DQUOT => kind == Kind::Write,
            _ => true,
        })
    }

    /// The knobs after one word of a command.
    pub fn turned(mut self, word: &str) -> Result<Knobs, String> {
        let (knob, value) = word.split_once('=').unwrap_or((word, ""));
        match (knob, value) {
            ("hang", value) => self.hang = hang(value)?,
            ("ok", "") => (self.hang, self.error, self.stall) = (Hang::Nothing, None, NO_STALL),
            ("reset", "") => self = Knobs { stall: NO_STALL, ..Knobs::default() },
            ("rate", value) => self.speed.bytes_per_second = rate(value)?,
            ("iops", value) => self.speed.requests_per_second = rate(value)?,
            ("latency", value) => self.latency = units::duration(value)?,
            ("jitter", value) => self.jitter = units::duration(value)?,
            ("stall", value) => self.stall = Some(units::duration(value)?),
            ("stalls", "0") => self.stalls = None,
            ("stalls", value) => self.stalls = Some(stalls(value)?),
            ("error", value) => self.error = Some(errno(value)?),
            _ => return Err(format!("{word:?} is none of {WORDS}")),
        }
        Ok(self)
    }
}

/// Ends one that is under way.
const NO_STALL: Option<Duration> = Some(Duration::ZERO);
const WORDS: &str = "rate= iops= latency= jitter= stall= stalls= error= hang hang= ok reset";

fn hang(value: &str) -> Result<Hang, String> {
    Ok(match value {
        "" => Hang::Everything,
        "read" => Hang::Only(Kind::Read),
        "write" => Hang::Only(Kind::Write),
        "sync" => Hang::Only(Kind::Sync),
        "other" => Hang::Only(Kind::Other),
        _ => return Err(format!("{value:?} is none of read write sync other")),
    })
}

fn rate(value: &str) -> Result<Option<f64>, String> {
    Ok(match units::bytes(value)? {
        0 => None,
        rate => Some(rate as f64),
    })
}

fn stalls(value: &str) -> Result<Stalls, String> {
    let (pause, period) = value.split_once('/').ok_or("stalls are PAUSE/PERIOD, like 200ms/5s")?;
    let stalls = Stalls { pause: units::duration(pause)?, period: units::duration(period)? };
    if stalls.pause < stalls.period {
        Ok(stalls)
    } else {
        Err("a pause must be shorter than its period".into())
    }
}

fn errno(value: &str) -> Result<Errno, String> {
    Ok(match value {
        "EIO" => Errno::IO,
        "ENOSPC" => Errno::NOSPC,
        "EDQUOT" => Errno::DQUOT,
        "EROFS" => Errno::ROFS,
        "ENODEV" => Errno::NODEV,
        "ETIMEDOUT" => Errno::TIMEDOUT,
        _ => return Err(format!("{value:?} is none of EIO ENOSPC EDQUOT EROFS ENODEV ETIMEDOUT")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turned(words: &str) -> Result<Knobs, String> {
        words.split_whitespace().try_fold(Knobs::default(), |knobs, word| knobs.turned(word))
    }

    #[test]
    fn every_word_is_understood_and_nothing_else() {
        let knobs =
            turned("rate=4MB latency=20ms jitter=5ms stalls=200ms/5s iops=100 hang error=EIO").unwrap();
        assert_eq!(knobs.speed.bytes_per_second, Some(4e6));
        assert!(knobs.hang == Hang::Everything && knobs.fault(Kind::Read) == Some(Errno::IO));
        for back in ["rate=4MB hang stall=1s error=EIO rate=0 ok stalls=0", "iops=5 stall=1s reset"] {
            let knobs = turned(back).unwrap();
            assert_eq!(knobs.stall, Some(Duration::ZERO));
            assert!(Knobs { stall: None, ..knobs }.is_plain());
        }
        for wrong in
            ["", "rate", "rate=fast", "stalls=5s/5s", "error=EWHAT", "latency=5", "sleep=1s", "hang=1"]
        {
            assert!(Knobs::default().turned(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_full_target_can_still_be_read() {
        let knobs = turned("error=ENOSPC").unwrap();
        assert_eq!(knobs.fault(Kind::Write), Some(Errno::NOSPC));
        assert_eq!((knobs.fault(Kind::Read), knobs.fault(Kind::Sync)), (None, None));
    }
}
