//! How a new file is to be striped: what the user asks for, what the source had, or what its size suggests.

use std::fmt;
use std::str::FromStr;

pub use haul_model::limits::STRIPES_MAX;
use haul_model::size;
pub use haul_model::stripe::{Count, Part, Plan, Pool, Unlike, Where};

/// Stripe sizes of Lustre are multiples of this (`LOV_MIN_STRIPE_SIZE`).
pub const STRIPE_UNIT: u32 = 64 << 10;
/// Without a wish a file gets a stripe for each of so many bytes, as Shift gives it.
pub const BYTES_PER_STRIPE: u64 = 1 << 30;

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
/// What the user asks for; else what somebody chose for the file at the source; else a stripe for each GiB, `count_max` at
/// most, and nothing for a file of one.
pub fn choose(wish: Option<&StripeSpec>, source: Option<&Plan>, size: u64, count_max: u16) -> Option<Plan> {
    if let Some(wish) = wish {
        return Some(wish.plan());
    }
    if let Some(source) = source {
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
        let narrow = Plan::plain(Count::Exactly(1), 4 << 20, None);
        let chosen = |wish: Option<&str>, source: Option<&Plan>, size| {
            choose(wish.map(spec).as_ref(), source, size, 16)
        };
        let by_size = |count| Some(Plan::plain(Count::Exactly(count), 0, None));
        assert_eq!(chosen(Some("2"), Some(&wide), 1 << 40), by_size(2));
        assert_eq!(chosen(None, Some(&wide), 1), Some(wide.clone()));
        assert_eq!(chosen(None, Some(&narrow), 1 << 40), Some(narrow.clone()), "somebody chose one stripe");
        assert_eq!(chosen(None, None, 0), None);
        assert_eq!(chosen(None, None, (1 << 30) + 1), by_size(2));
        assert_eq!(chosen(None, None, 5 << 30), by_size(5));
        assert_eq!(chosen(None, None, u64::MAX), by_size(16));
        assert_eq!(choose(None, None, u64::MAX, u16::MAX), by_size(STRIPES_MAX));
    }
}
