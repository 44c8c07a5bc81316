//! The x axis: names below slots of the same width, or numbers.
//!
//! Names are wrapped where they fit, turned where not. Numbers have ticks where something was measured, if these are
//! few, short and far enough apart, else at round numbers as on any axis.

use crate::number::TINY;
use crate::page::{Anchor, Page, SIZE, Style};
use crate::ruler::{Ruler, Tick, Wanted, ordered};
use crate::text::{LINE, shorten, width, wrap};
use crate::{Range, Scale};

const NAME_LINES_MAX: usize = 3;
/// Of a name that is turned; more of it is cut off.
const NAME_WIDTH_MAX: f64 = 200.0;
/// Names at 45 degrees do not touch from here on.
const SLANTED_SLOT_MIN: f64 = 20.0;
const MEASURED_TICKS_MAX: usize = 12;

/// How names stand below their slots.
pub(crate) enum Names {
    /// In lines.
    Straight(Vec<Vec<String>>),
    /// By an angle.
    Turned(Vec<String>, f64),
}

impl Names {
    pub(crate) fn fit(names: &[String], slot_width: f64) -> Names {
        let room = slot_width - 8.0;
        let mut words = names.iter().flat_map(|name| name.split_whitespace());
        if words.all(|word| width(word, SIZE) <= room) {
            let lines: Vec<_> = names.iter().map(|name| wrap(name, room, |line| width(line, SIZE))).collect();
            if lines.iter().all(|lines| lines.len() <= NAME_LINES_MAX) {
                return Names::Straight(lines);
            }
        }
        let names = names.iter().map(|name| shorten(name, NAME_WIDTH_MAX, SIZE)).collect();
        Names::Turned(names, if slot_width < SLANTED_SLOT_MIN { -90.0 } else { -45.0 })
    }

    /// From the axis to the lowest end of a name.
    pub(crate) fn height(&self) -> f64 {
        match self {
            Names::Straight(names) => {
                8.0 + names.iter().map(Vec::len).max().unwrap_or(0) as f64 * SIZE * LINE
            }
            Names::Turned(names, angle) => {
                let longest = names.iter().map(|name| width(name, SIZE)).fold(0.0, f64::max);
                longest * angle.to_radians().sin().abs() + SIZE + 8.0
            }
        }
    }

    /// How far names reach beyond the left end of the axis.
    pub(crate) fn overhang(&self, slot_width: f64) -> f64 {
        let Names::Turned(names, angle) = self else { return 0.0 };
        let reach = |(index, name): (usize, &String)| {
            width(name, SIZE) * angle.to_radians().cos() + SIZE - slot_width * (index as f64 + 0.5)
        };
        names.iter().enumerate().map(reach).fold(0.0, f64::max)
    }

    /// Draws them below an axis; `x` gives the middle of a slot.
    pub(crate) fn draw(&self, page: &mut Page, axis: f64, x: impl Fn(usize) -> f64) {
        match self {
            Names::Straight(names) => {
                for (index, lines) in names.iter().enumerate() {
                    page.lines(x(index), axis + 8.0 + SIZE, lines, Style::at(Anchor::Middle));
                }
            }
            Names::Turned(names, angle) => {
                // Held by the end of the base line, which lies beside the middle of the letters.
                let aside = SIZE * 0.35;
                for (index, name) in names.iter().enumerate() {
                    let style = Style { angle: *angle, ..Style::at(Anchor::End) };
                    page.text(x(index) + aside, axis + 10.0, name, style);
                }
            }
        }
    }
}

/// The axis of numbers: from the least to the greatest of `at`, over `room` pixels.
pub(crate) fn numbers(scale: Scale, at: &[f64], room: f64) -> Ruler {
    let mut at: Vec<f64> = at.iter().copied().filter(|x| is_on(scale, *x)).collect();
    at.sort_by(f64::total_cmp);
    at.dedup();
    let (low, high) = ends(scale, &at);
    let measured = Ruler::new(scale, low, high, at.iter().map(|x| Tick::of(*x)).collect());
    if (1..=MEASURED_TICKS_MAX).contains(&at.len())
        && measured.ticks.iter().all(Tick::is_exact)
        && fits(&measured, room)
    {
        return measured;
    }
    let ruler = |steps_max: f64| {
        let range = Range::Between(low, high);
        Wanted { scale, range, extent: Some((low, high)), lowest_bar: None, steps_max }.ruler()
    };
    let fewer = [8.0, 6.0, 4.0].into_iter().map(ruler).find(|ruler| fits(ruler, room));
    fewer.unwrap_or_else(|| ruler(3.0))
}

/// Whether a number has a place on an axis.
pub(crate) fn is_on(scale: Scale, x: f64) -> bool {
    x.abs() <= 1e300 && (scale == Scale::Linear || x > TINY)
}

/// Two ends with room between them.
fn ends(scale: Scale, sorted: &[f64]) -> (f64, f64) {
    let (Some(low), Some(high)) = (sorted.first().copied(), sorted.last().copied()) else {
        return (1.0, 10.0);
    };
    ordered(low, high).unwrap_or_else(|| match scale {
        Scale::Log => (low / 2.0, high * 2.0),
        Scale::Linear => {
            let room = low.abs().max(1.0) * 0.1;
            (low - room, high + room)
        }
    })
}

/// Whether the labels leave room between each other.
fn fits(ruler: &Ruler, room: f64) -> bool {
    let mut free = f64::NEG_INFINITY;
    ruler.ticks.iter().all(|tick| {
        let middle = ruler.position(tick.value).unwrap_or(0.0) * room;
        let half = width(&tick.label, SIZE) / 2.0;
        let is_clear = middle - half >= free;
        free = middle + half + 10.0;
        is_clear
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, at: &[f64]) -> Vec<String> {
        numbers(scale, at, 600.0).ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_where_something_was_measured_if_that_can_be_read() {
        assert_eq!(labels(Scale::Linear, &[20.0, 80.0, 40.0, 60.0, 20.0]), ["20", "40", "60", "80"]);
        assert_eq!(labels(Scale::Log, &[1.0, 2.0, 4.0, 8.0, 16.0]), ["1", "2", "4", "8", "16"]);
        // Too close, not short, too many.
        assert_eq!(labels(Scale::Linear, &[0.0, 1.0, 100.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(labels(Scale::Linear, &[0.12345, 9.87654]), ["2", "4", "6", "8"]);
        let many: Vec<f64> = (0..40).map(f64::from).collect();
        assert_eq!(labels(Scale::Linear, &many), ["0", "5", "10", "15", "20", "25", "30", "35"]);
    }

    #[test]
    fn one_number_and_none_have_an_axis() {
        assert_eq!(labels(Scale::Linear, &[7.0]), ["7"]);
        assert_eq!(labels(Scale::Log, &[7.0]), ["7"]);
        assert!(labels(Scale::Linear, &[f64::NAN, f64::INFINITY]).len() >= 2);
        assert!(labels(Scale::Log, &[0.0, -1.0]).len() >= 2);
        assert_eq!(numbers(Scale::Log, &[7.0], 600.0).position(7.0), Some(0.5));
    }

    #[test]
    fn names_are_wrapped_then_slanted_then_upright() {
        let names = ["no log".to_owned(), "bitmap, per file".to_owned()];
        assert!(
            matches!(&Names::fit(&names, 90.0), Names::Straight(lines) if lines[1] == ["bitmap, per", "file"])
        );
        assert!(matches!(&Names::fit(&names, 40.0), Names::Turned(_, -45.0)));
        assert!(matches!(&Names::fit(&names, 16.0), Names::Turned(_, -90.0)));
        let word = ["counters".to_owned()];
        assert!(matches!(&Names::fit(&word, 45.0), Names::Turned(..)), "words are not broken");
        let long = ["a ".repeat(300)];
        assert!(Names::fit(&long, 300.0).height() < 200.0);
    }
}
