//! Where values lie on an axis, and which of them have a tick.
//!
//! Ticks are round: 1, 2 or 5 times a power of ten apart on a linear axis, 1, 2 and 5 times powers of ten or powers of
//! ten alone on a logarithmic one. A range that follows from values begins and ends at a tick.

use crate::number::{self, TINY, decimal, exponent};
use crate::{Range, Scale};

/// One axis.
#[derive(Clone, Debug)]
pub(crate) struct Ruler {
    low: f64,
    high: f64,
    scale: Scale,
    pub(crate) ticks: Vec<Tick>,
    /// Between the ticks of a logarithmic axis, to show that it is one.
    pub(crate) minor: Vec<f64>,
}

/// A value with a name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    pub(crate) label: String,
}

impl Tick {
    /// With as few digits as its value has, and three at most.
    pub(crate) fn of(value: f64) -> Tick {
        Tick { value, label: number::short(value) }
    }

    /// Whether three digits are all that its value has.
    pub(crate) fn is_exact(&self) -> bool {
        let rounded: f64 = format!("{:.2e}", self.value).parse().unwrap_or(f64::NAN);
        (rounded - self.value).abs() <= self.value.abs() * CLOSE
    }
}

/// What an axis must show.
pub(crate) struct Wanted {
    pub(crate) scale: Scale,
    pub(crate) range: Range,
    /// From the lowest to the highest value; `None` if there is none.
    pub(crate) extent: Option<(f64, f64)>,
    /// A value that must not lie on the lower edge of a logarithmic axis: its bar would have no height.
    pub(crate) lowest_bar: Option<f64>,
    /// Intervals between ticks.
    pub(crate) steps_max: f64,
}

impl Wanted {
    pub(crate) fn ruler(self) -> Ruler {
        match self.scale {
            Scale::Linear => self.linear(),
            Scale::Log => self.log(),
        }
    }

    fn linear(&self) -> Ruler {
        if let Range::Between(low, high) = self.range
            && let Some((low, high)) = ordered(low, high)
        {
            return Ruler::new(
                Scale::Linear,
                low,
                high,
                Step::of((high - low) / self.steps_max).within(low, high),
            );
        }
        let (mut low, mut high) = self.extent.unwrap_or((0.0, 1.0));
        if self.range != Range::Data {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if ordered(low, high).is_none() {
            let room = if low.abs() < TINY { 1.0 } else { low.abs() * 0.1 };
            (low, high) = (low - room, high + room);
            if self.range != Range::Data {
                // Only 0: nothing is below it.
                low = 0.0;
            }
        }
        let ticks = Step::of((high - low) / self.steps_max).around(low, high);
        let (low, high) = (ticks[0].value, ticks[ticks.len() - 1].value);
        Ruler::new(Scale::Linear, low, high, ticks)
    }

    fn log(&self) -> Ruler {
        if let Range::Between(low, high) = self.range
            && let Some((low, high)) = ordered(low, high)
            && low >= TINY
        {
            return Ruler::new(Scale::Log, low, high, self.log_ticks(low, high));
        }
        let (low, high) = self.extent.unwrap_or((1.0, 10.0));
        let (low, high) = (low.max(TINY), high.max(TINY));
        // 1, 2 and 5 of each power of ten up to a little more than two decades, above that powers of ten alone.
        let snap: fn(f64, Way) -> f64 = if high / low <= 200.0 { one_two_five } else { power_of_ten };
        let (mut bottom, mut top) = (snap(low, Way::Down), snap(high, Way::Up));
        let is_on_the_edge = |bar: f64| (bar / bottom).ln() < 0.04 * (top / bottom).ln();
        if top <= bottom || self.lowest_bar.is_some_and(is_on_the_edge) {
            bottom = snap(bottom * 0.999, Way::Down);
        }
        if top <= low {
            top = snap(top * 1.001, Way::Up);
        }
        Ruler::new(Scale::Log, bottom, top, self.log_ticks(bottom, top))
    }

    fn log_ticks(&self, low: f64, high: f64) -> Vec<Tick> {
        let decades: Vec<f64> = (exponent(low)..=exponent(high)).map(|power| decimal(1, power)).collect();
        let inside = |value: &f64| *value >= low * (1.0 - CLOSE) && *value <= high * (1.0 + CLOSE);
        let fine: Vec<f64> =
            decades.iter().flat_map(|decade| [*decade, decade * 2.0, decade * 5.0]).filter(inside).collect();
        if fine.len() < 3 {
            return Step::of((high - low) / self.steps_max).within(low, high);
        }
        if fine.len() as f64 <= self.steps_max + 1.0 {
            return fine.into_iter().map(Tick::of).collect();
        }
        let decades: Vec<f64> = decades.into_iter().filter(inside).collect();
        let every = (decades.len() as f64 / (self.steps_max + 1.0)).ceil().max(1.0) as usize;
        let mut ticks: Vec<Tick> = decades.iter().step_by(every).copied().map(Tick::of).collect();
        if let (Some(last), Some(end)) = (decades.last(), ticks.last_mut())
            && end.value < *last
        {
            // The last decade is named too; its neighbour gives way if there is no room for both.
            if decades.len() % every < every.div_ceil(2) + 1 {
                *end = Tick::of(*last);
            } else {
                ticks.push(Tick::of(*last));
            }
        }
        ticks
    }
}

/// More would be a grey area.
const MINOR_DECADES_MAX: i32 = 6;
/// What rounding can do to a tick.
const CLOSE: f64 = 1e-9;

/// Two ends with something between them.
pub(crate) fn ordered(low: f64, high: f64) -> Option<(f64, f64)> {
    let (low, high) = (low.min(high), low.max(high));
    let size = low.abs().max(high.abs());
    (size <= 1e300 && high - low > (size * CLOSE).max(TINY)).then_some((low, high))
}

/// The distance of ticks: `mantissa` x 10^`exponent`.
#[derive(Clone, Copy)]
struct Step {
    mantissa: i64,
    exponent: i32,
}

impl Step {
    /// The smallest round one that is not below `least`.
    fn of(least: f64) -> Step {
        let exponent = exponent(least);
        let times = least / decimal(1, exponent);
        match [1, 2, 5].into_iter().find(|mantissa| times <= *mantissa as f64 * (1.0 + CLOSE)) {
            Some(mantissa) => Step { mantissa, exponent },
            None => Step { mantissa: 1, exponent: exponent + 1 },
        }
    }

    fn size(self) -> f64 {
        decimal(self.mantissa, self.exponent)
    }

    /// From the last tick not above `low` to the first not below `high`.
    fn around(self, low: f64, high: f64) -> Vec<Tick> {
        let first = (low / self.size() + CLOSE).floor() as i64;
        let last = (high / self.size() - CLOSE).ceil() as i64;
        self.ticks(first, last)
    }

    fn within(self, low: f64, high: f64) -> Vec<Tick> {
        let first = (low / self.size() - CLOSE).ceil() as i64;
        let last = (high / self.size() + CLOSE).floor() as i64;
        self.ticks(first, last)
    }

    fn ticks(self, first: i64, last: i64) -> Vec<Tick> {
        let units: Vec<i64> = (first..=last).collect();
        let labels = number::steps(&units, self.mantissa, self.exponent);
        let value = |unit: i64| decimal(unit * self.mantissa, self.exponent);
        units.iter().zip(labels).map(|(unit, label)| Tick { value: value(*unit), label }).collect()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Down,
    Up,
}

fn power_of_ten(value: f64, way: Way) -> f64 {
    let power = exponent(value);
    let below = decimal(1, power);
    if way == Way::Down || value <= below * (1.0 + CLOSE) { below } else { decimal(1, power + 1) }
}

fn one_two_five(value: f64, way: Way) -> f64 {
    let power = exponent(value);
    let all = [1, 2, 5, 10].map(|mantissa| decimal(mantissa, power));
    let found = match way {
        Way::Down => all.into_iter().rfind(|tick| *tick <= value * (1.0 + CLOSE)),
        Way::Up => all.into_iter().find(|tick| *tick >= value * (1.0 - CLOSE)),
    };
    found.unwrap_or(value)
}

impl Ruler {
    /// From `low` to `high`, which is above it, and for a logarithmic scale both above 0.
    pub(crate) fn new(scale: Scale, low: f64, high: f64, ticks: Vec<Tick>) -> Ruler {
        let mut minor = Vec::new();
        if scale == Scale::Log && exponent(high) - exponent(low) < MINOR_DECADES_MAX {
            let decades = exponent(low)..=exponent(high);
            minor.extend(decades.flat_map(|power| (2..10).map(move |times| decimal(times, power))));
            minor.retain(|value| (low..=high).contains(value));
        }
        Ruler { low, high, scale, ticks, minor }
    }

    /// 0 at the lower end, 1 at the upper, beyond them outside; `None` for what a logarithmic axis has no place for.
    pub(crate) fn position(&self, value: f64) -> Option<f64> {
        let position = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log if value > 0.0 => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Log => return None,
        };
        position.is_finite().then_some(position)
    }

    /// Where bars start: at 0 if it is on the axis, else at the edge next to it.
    pub(crate) fn origin(&self) -> f64 {
        match self.scale {
            Scale::Linear => self.position(0.0).unwrap_or(0.0).clamp(0.0, 1.0),
            Scale::Log => 0.0,
        }
    }

    /// Whether 0 has a line of its own inside the plot.
    pub(crate) fn has_zero_inside(&self) -> bool {
        self.scale == Scale::Linear && self.low < 0.0 && self.high > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(scale: Scale, range: Range, extent: Option<(f64, f64)>) -> Wanted {
        Wanted { scale, range, extent, lowest_bar: None, steps_max: 8.0 }
    }

    fn values(ruler: &Ruler) -> Vec<f64> {
        ruler.ticks.iter().map(|tick| tick.value).collect()
    }

    fn is_round(value: f64) -> bool {
        let digits = format!("{:.9e}", value.abs());
        ["1", "2", "5"].iter().any(|digit| digits.starts_with(&format!("{digit}.000000000e")))
    }

    #[test]
    fn linear_ticks_are_round_and_cover_the_values() {
        let sizes = [1e-250, 3e-9, 0.00123, 0.3, 0.7, 1.0, 9.99, 10.0, 12345.0, 7e8, 1.7e100, 9e299];
        for high in sizes {
            for low in [0.0, -high, -high / 3.0, high * 0.4, high * 0.999] {
                for range in [Range::FromZero, Range::Data] {
                    let ruler = wanted(Scale::Linear, range, Some((low, high))).ruler();
                    let ticks = values(&ruler);
                    let step = ticks[1] - ticks[0];
                    assert!(is_round(format!("{step:.5e}").parse().unwrap()), "{low:e}..{high:e}: {ticks:?}");
                    assert!((2..=11).contains(&ticks.len()), "{low:e}..{high:e}: {ticks:?}");
                    let slack = step * 1e-6;
                    assert!(ticks[0] <= low + slack && *ticks.last().unwrap() >= high - slack, "{ticks:?}");
                    // No empty interval at an end either.
                    let reached = if range == Range::FromZero { low.min(0.0) } else { low };
                    assert!(
                        ticks[1] > reached && ticks[ticks.len() - 2] < high,
                        "{low:e}..{high:e}: {ticks:?}"
                    );
                    assert!(range == Range::Data || ticks.contains(&0.0), "{ticks:?}");
                    let mut labels: Vec<_> = ruler.ticks.iter().map(|tick| &tick.label).collect();
                    labels.dedup();
                    assert_eq!(labels.len(), ticks.len(), "{labels:?}");
                    assert!(labels.iter().all(|label| label.chars().count() <= 15), "{labels:?}");
                }
            }
        }
    }

    #[test]
    fn nothing_and_all_the_same_have_an_axis_too() {
        assert_eq!(
            values(&wanted(Scale::Linear, Range::FromZero, None).ruler()),
            [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        );
        let zero = wanted(Scale::Linear, Range::FromZero, Some((0.0, 0.0))).ruler();
        assert_eq!((zero.low, zero.high), (0.0, 1.0));
        let same = wanted(Scale::Linear, Range::Data, Some((50.0, 50.0))).ruler();
        assert_eq!((same.low, same.high), (44.0, 56.0));
        let negative = wanted(Scale::Linear, Range::Data, Some((-5.0, -5.0))).ruler();
        assert!(negative.low < -5.0 && negative.high > -5.0);
        for extent in [None, Some((5.0, 5.0)), Some((1.0, 1.0)), Some((1e300, 1e300)), Some((1e-280, 1e-280))]
        {
            let ruler = wanted(Scale::Log, Range::FromZero, extent).ruler();
            let value = extent.map_or(1.0, |(low, _)| low);
            let position = ruler.position(value).unwrap();
            assert!(ruler.low < ruler.high && (-1e-9..=1.0).contains(&position), "{extent:?}: {ruler:?}");
            assert!(ruler.ticks.len() >= 2, "{ruler:?}");
        }
    }

    #[test]
    fn a_given_range_is_kept_and_ticks_lie_inside() {
        let ruler = wanted(Scale::Linear, Range::Between(-3.0, 11.0), Some((0.0, 900.0))).ruler();
        assert_eq!((ruler.low, ruler.high), (-3.0, 11.0));
        assert_eq!(values(&ruler), [-2.0, 0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ruler.position(4.0), Some(0.5));
        assert!((ruler.origin() - 3.0 / 14.0).abs() < 1e-12);
        let turned = wanted(Scale::Linear, Range::Between(11.0, -3.0), None).ruler();
        assert_eq!((turned.low, turned.high), (-3.0, 11.0));
        for useless in [(1.0, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (1e9, 1e9 + 0.1)] {
            let ruler = wanted(Scale::Linear, Range::Between(useless.0, useless.1), Some((0.0, 6.0))).ruler();
            assert_eq!((ruler.low, ruler.high), (0.0, 6.0), "{useless:?}");
        }
        let ruler = wanted(Scale::Log, Range::Between(0.0, 10.0), Some((3.0, 40.0))).ruler();
        assert_eq!((ruler.low, ruler.high), (2.0, 50.0));
    }

    #[test]
    fn on_a_log_axis_equal_ratios_are_equally_far_apart() {
        let ruler = wanted(Scale::Log, Range::FromZero, Some((1.0, 10_000.0))).ruler();
        assert_eq!(values(&ruler), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        for (value, position) in [(1.0, 0.0), (10.0, 0.25), (100.0, 0.5), (10f64.sqrt(), 0.125), (0.1, -0.25)]
        {
            assert!((ruler.position(value).unwrap() - position).abs() < 1e-12, "{value}");
        }
        assert_eq!((ruler.position(0.0), ruler.position(-1.0)), (None, None));
        assert!(ruler.minor.contains(&20.0) && ruler.minor.contains(&9000.0));
    }

    #[test]
    fn log_ticks_are_round_cover_the_values_and_stay_few() {
        for low in [1e-200, 3e-7, 0.02, 1.0, 7.3, 999.0] {
            for ratio in [1.0, 1.3, 4.0, 60.0, 199.0, 5e3, 1e7, 1e20, 1e90] {
                let ruler = wanted(Scale::Log, Range::FromZero, Some((low, low * ratio))).ruler();
                let ticks = values(&ruler);
                assert!(
                    ruler.low <= low * 1.001 && ruler.high >= low * ratio * 0.999,
                    "{low:e} x {ratio}: {ticks:?}"
                );
                assert!((2..=11).contains(&ticks.len()), "{low:e} x {ratio}: {ticks:?}");
                assert!(ticks.is_sorted_by(|one, next| one < next), "{ticks:?}");
                assert!(
                    ticks.iter().all(|tick| is_round(*tick)) || ratio < 5.0,
                    "{low:e} x {ratio}: {ticks:?}"
                );
            }
        }
    }

    #[test]
    fn the_lowest_bar_of_a_log_axis_has_a_height() {
        for (low, high) in [(1.0, 1.0), (1.0, 10_000.0), (2.0, 50.0), (5.05, 9.0)] {
            let ruler =
                Wanted { lowest_bar: Some(low), ..wanted(Scale::Log, Range::FromZero, Some((low, high))) }
                    .ruler();
            assert!(ruler.position(low).unwrap() > 0.04, "{low}..{high}: {ruler:?}");
        }
    }
}
