//! How a new file is to be striped: what the user asks for, what the source had, or what its size suggests.

use std::fmt;
use std::str::FromStr;

use haul_model::size;

use super::lov::Lov;

/// Stripe sizes of Lustre are multiples of this (`LOV_MIN_STRIPE_SIZE`).
pub const STRIPE_UNIT: u32 = 64 << 10;
/// `LOV_MAX_STRIPE_COUNT`.
pub const STRIPES_MAX: u16 = 2000;
/// Without a wish a file gets a stripe for each of so many bytes, as Shift gives it.
pub const BYTES_PER_STRIPE: u64 = 1 << 30;

/// How many stripes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// As the file system does without being told.
    Default,
    /// So many, if there are so many targets.
    Exactly(u16),
    /// One on each target.
    All,
}

/// On what a part of a file lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// On targets, one stripe each.
    Targets,
    /// On targets, several stripes each where there are more stripes than targets.
    TargetsRepeated,
    /// With the file's metadata.
    Metadata,
}

/// The name of a pool of targets: 1 to 15 letters, digits, `_`, `-` and `.`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool(Box<str>);

impl Pool {
    /// `None` for what can be no name.
    pub fn new(name: &str) -> Option<Pool> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        let valid = (1..=15).contains(&name.len()) && name.bytes().all(valid);
        valid.then(|| Pool(name.into()))
    }

    /// From a field of 16 bytes that is filled up with NUL: `Some(None)` if it is empty, `None` if it is no text.
    pub(super) fn from_field(field: &[u8]) -> Option<Option<Pool>> {
        let name = &field[..field.iter().position(|byte| *byte == 0)?];
        match std::str::from_utf8(name).ok()? {
            "" => Some(None),
            name => Pool::new(name).map(Some),
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How one part of a file is to be striped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The byte after its last; `u64::MAX`: end of file.
    pub end: u64,
    /// On what it lies.
    pub place: Where,
    /// Stripes.
    pub count: Count,
    /// Bytes of a stripe; 0: as the file system does without being told.
    pub stripe_size: u32,
    /// The pool that targets are taken from.
    pub pool: Option<Pool>,
}

/// How a file is to be striped, part after part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    parts: Vec<Part>,
}

impl Plan {
    /// Each part begins where the one before ends, so the ends must go up. `None` otherwise, and for no parts.
    pub fn new(parts: Vec<Part>) -> Option<Plan> {
        let upwards = parts.windows(2).all(|pair| pair[0].end < pair[1].end);
        let valid = upwards && parts.first().is_some_and(|part| part.end > 0);
        valid.then_some(Plan { parts })
    }

    /// The whole file alike.
    pub fn plain(count: Count, stripe_size: u32, pool: Option<Pool>) -> Plan {
        Plan { parts: vec![Part { end: u64::MAX, place: Where::Targets, count, stripe_size, pool }] }
    }

    /// What a file of this layout was striped as. Room for extension counts as part of what it extends. `None` where a
    /// part of the file has no layout at all.
    pub fn of(lov: &Lov) -> Option<Plan> {
        let mut parts: Vec<Part> = Vec::with_capacity(lov.components.len());
        let mut start = 0;
        for component in &lov.components {
            if component.start != start {
                return None;
            }
            start = component.end;
            match parts.last_mut() {
                Some(before) if component.extension => before.end = component.end,
                _ => parts.push(Part {
                    end: component.end,
                    place: component.place,
                    count: component.count,
                    stripe_size: component.stripe_size,
                    pool: component.pool.clone(),
                }),
            }
        }
        Plan::new(parts)
    }

    /// In the order of the file.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What everybody gets who asks for nothing: at most one stripe, no pool, no parts.
    pub fn is_usual(&self) -> bool {
        let [part] = &*self.parts else { return false };
        part.place == Where::Targets
            && part.pool.is_none()
            && matches!(part.count, Count::Default | Count::Exactly(1))
    }

    /// Whether a file that is striped like this one is striped as `wanted`.
    pub fn fulfils(&self, wanted: &Plan) -> bool {
        let fulfils = |(is, wanted): (&Part, &Part)| {
            let count = match (wanted.place, wanted.count) {
                (Where::Metadata, _) | (_, Count::Default | Count::All) => true,
                (_, Count::Exactly(_)) => is.count == wanted.count,
            };
            let size = wanted.place == Where::Metadata
                || wanted.stripe_size == 0
                || is.stripe_size == wanted.stripe_size;
            let pool = wanted.pool.is_none() || is.pool == wanted.pool;
            count && size && pool && is.end == wanted.end && is.place == wanted.place
        };
        self.parts.len() == wanted.parts.len() && self.parts.iter().zip(&wanted.parts).all(fulfils)
    }
}

/// `COUNT[:SIZE[:POOL]]`, as the user types it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StripeSpec {
    count: Count,
    stripe_size: u32,
    pool: Option<Pool>,
}

impl StripeSpec {
    /// What it asks for.
    pub fn plan(&self) -> Plan {
        Plan::plain(self.count, self.stripe_size, self.pool.clone())
    }
}

impl FromStr for StripeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<StripeSpec, String> {
        let mut fields = text.splitn(3, ':');
        let count = match fields.next().unwrap_or_default() {
            "" => Count::Default,
            "-1" => Count::All,
            number => match number.parse() {
                Ok(count @ 1..=STRIPES_MAX) => Count::Exactly(count),
                _ => return Err(format!("a stripe count is 1 to {STRIPES_MAX}, or -1 for all targets")),
            },
        };
        let stripe_size = match fields.next().unwrap_or_default() {
            "" => 0,
            text => {
                let bytes = size::parse(text)?;
                let valid =
                    u32::try_from(bytes).ok().filter(|bytes| *bytes > 0 && bytes.is_multiple_of(STRIPE_UNIT));
                valid.ok_or("a stripe size is a multiple of 64KiB, below 4GiB")?
            }
        };
        let pool = match fields.next() {
            None | Some("") => None,
            Some(name) => Some(
                Pool::new(name)
                    .ok_or("a pool name is 1 to 15 letters, digits, dots, dashes and underscores")?,
            ),
        };
        match (count, stripe_size, &pool) {
            (Count::Default, 0, None) => Err("stripes are COUNT[:SIZE[:POOL]], e.g. 4:1MiB".into()),
            _ => Ok(StripeSpec { count, stripe_size, pool }),
        }
    }
}

impl fmt::Display for StripeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            Count::Default => {}
            Count::Exactly(count) => write!(f, "{count}")?,
            Count::All => f.write_str("-1")?,
        }
        match (self.stripe_size, &self.pool) {
            (0, None) => Ok(()),
            (0, Some(pool)) => write!(f, "::{}", pool.as_str()),
            (size, None) => write!(f, ":{size}"),
            (size, Some(pool)) => write!(f, ":{size}:{}", pool.as_str()),
        }
    }
}

/// How a file of `size` bytes is to be striped; `None`: as its directory does without being told.
///
/// What the user asks for; else what the source had, if that was not the usual; else a stripe for each GiB, `count_max` at
/// most, and nothing for a file of one.
pub fn choose(wish: Option<&StripeSpec>, source: Option<&Plan>, size: u64, count_max: u16) -> Option<Plan> {
    if let Some(wish) = wish {
        return Some(wish.plan());
    }
    if let Some(source) = source
        && !source.is_usual()
    {
        return Some(source.clone());
    }
    let stripes = size.div_ceil(BYTES_PER_STRIPE).min(u64::from(count_max.min(STRIPES_MAX)));
    (stripes > 1).then(|| Plan::plain(Count::Exactly(stripes as u16), 0, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> StripeSpec {
        text.parse().unwrap()
    }

    #[test]
    fn stripes_are_read_as_typed() {
        let pool = |name| Pool::new(name).unwrap();
        for (text, plan) in [
            ("4", Plan::plain(Count::Exactly(4), 0, None)),
            ("-1", Plan::plain(Count::All, 0, None)),
            ("2000:64KiB", Plan::plain(Count::Exactly(2000), 64 << 10, None)),
            ("4:1MiB:flash", Plan::plain(Count::Exactly(4), 1 << 20, Some(pool("flash")))),
            ("4::flash-1", Plan::plain(Count::Exactly(4), 0, Some(pool("flash-1")))),
            (":4m", Plan::plain(Count::Default, 4 << 20, None)),
            ("::flash", Plan::plain(Count::Default, 0, Some(pool("flash")))),
            ("-1:4294901760", Plan::plain(Count::All, 0xffff_0000, None)),
        ] {
            assert_eq!(spec(text).plan(), plan, "{text}");
            assert_eq!(spec(&spec(text).to_string()), spec(text), "{text}");
        }
        for wrong in [
            "",
            ":",
            "::",
            "0",
            "-2",
            "2001",
            "x",
            "4:x",
            "4:0",
            "4:1",
            "4:65537",
            "4:4GiB",
            "4:1MiB:a b",
            "4:1MiB:a:b",
            "4:1MiB:sixteen-letters-",
            "4 ",
            "4:64KiB:ü",
            "99999999999",
        ] {
            let result = wrong.parse::<StripeSpec>();
            assert!(result.is_err(), "{wrong}: {result:?}");
        }
    }

    #[test]
    fn a_wish_goes_before_the_source_and_the_source_before_size() {
        let wide = Plan::plain(Count::Exactly(8), 1 << 20, None);
        let usual = Plan::plain(Count::Exactly(1), 4 << 20, None);
        let chosen = |wish: Option<&str>, source: Option<&Plan>, size| {
            choose(wish.map(spec).as_ref(), source, size, 16)
        };
        let by_size = |count| Some(Plan::plain(Count::Exactly(count), 0, None));
        assert_eq!(chosen(Some("2"), Some(&wide), 1 << 40), by_size(2));
        assert_eq!(chosen(None, Some(&wide), 1), Some(wide.clone()));
        assert_eq!(chosen(None, Some(&usual), 1 << 30), None);
        assert_eq!(chosen(None, None, 0), None);
        assert_eq!(chosen(None, Some(&usual), (1 << 30) + 1), by_size(2));
        assert_eq!(chosen(None, None, 5 << 30), by_size(5));
        assert_eq!(chosen(None, None, u64::MAX), by_size(16));
        assert_eq!(choose(None, None, u64::MAX, u16::MAX), by_size(STRIPES_MAX));
    }

    #[test]
    fn what_a_file_system_made_is_compared_with_what_was_wanted() {
        let made = Plan::plain(Count::Exactly(4), 1 << 20, Pool::new("p"));
        for (wanted, fulfilled) in [
            (Plan::plain(Count::Exactly(4), 1 << 20, Pool::new("p")), true),
            (Plan::plain(Count::Exactly(4), 0, None), true),
            (Plan::plain(Count::All, 0, None), true),
            (Plan::plain(Count::Exactly(5), 0, None), false),
            (Plan::plain(Count::Exactly(4), 2 << 20, None), false),
            (Plan::plain(Count::Exactly(4), 0, Pool::new("q")), false),
        ] {
            assert_eq!(made.fulfils(&wanted), fulfilled, "{wanted:?}");
        }
        let part =
            |end| Part { end, place: Where::Targets, count: Count::Default, stripe_size: 0, pool: None };
        let parted = Plan::new(vec![part(1 << 20), part(u64::MAX)]).unwrap();
        assert!(!made.fulfils(&parted) && !parted.fulfils(&made));
        assert_eq!(Plan::new(vec![part(2), part(2)]), None);
        assert_eq!(Plan::new(vec![]), None);
        assert!(!parted.is_usual());
    }
}
