//! Points with error bars, joined by lines.

use crate::page::Page;
use crate::palette::{hue, is_again, mark};
use crate::plot::{Across, CAP, Frame, Plot, is_inside};
use crate::{Axis, Reference, Scale, Series, Value};

/// A line for each series over numbers or categories; it has a gap where nothing was measured.
///
/// The error bars of series at one x stand side by side, a few pixels apart: one would hide another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lines {
    /// The claim.
    pub title: String,
    /// The conditions, and what the error bars are. May be empty.
    pub subtitle: String,
    /// What the values are measured over.
    pub x: X,
    /// The axis of the values.
    pub y: Axis,
    /// A line each.
    pub series: Vec<Series>,
    /// Horizontal lines.
    pub references: Vec<Reference>,
}

/// The x axis of [`Lines`].
#[derive(Clone, Debug, PartialEq)]
pub enum X {
    /// Numbers, in any order; the axis goes from the least to the greatest.
    Numbers {
        /// What they are, with the unit.
        label: String,
        /// How numbers become places.
        scale: Scale,
        /// The number of each value of a series.
        at: Vec<f64>,
    },
    /// Words in a given order.
    Categories {
        /// What they are. May be empty.
        label: String,
        /// From left to right.
        names: Vec<String>,
    },
}

impl Default for X {
    fn default() -> X {
        X::Categories { label: String::new(), names: Vec::new() }
    }
}

impl X {
    /// Numbers on a linear axis.
    pub fn numbers(label: impl Into<String>, at: impl Into<Vec<f64>>) -> X {
        X::Numbers { label: label.into(), scale: Scale::Linear, at: at.into() }
    }

    /// Words.
    pub fn categories<T: Into<String>>(label: impl Into<String>, names: impl IntoIterator<Item = T>) -> X {
        X::Categories { label: label.into(), names: names.into_iter().map(Into::into).collect() }
    }

    fn count(&self) -> usize {
        match self {
            X::Numbers { at, .. } => at.len(),
            X::Categories { names, .. } => names.len(),
        }
    }
}

const SLOT_WIDTH_MIN: f64 = 17.0;
/// Between error bars that stand side by side.
const ASIDE_MAX: f64 = 8.0;
/// Of the way to the next x, that the points of one may take: they must be seen to belong together.
const SPREAD_MAX: f64 = 0.3;

struct Point {
    x: f64,
    position: f64,
    value: Value,
}

impl Lines {
    /// Draws them.
    #[must_use]
    pub fn svg(&self) -> String {
        let (x_label, across) = match &self.x {
            X::Numbers { label, scale, at } => (label, Across::Numbers { scale: *scale, at }),
            X::Categories { label, names } => {
                (label, Across::Names { names, slot_width_min: SLOT_WIDTH_MIN })
            }
        };
        let frame = Frame {
            title: &self.title,
            subtitle: &self.subtitle,
            y: &self.y,
            x_label,
            across,
            series: &self.series,
            references: &self.references,
            has_bars: false,
        };
        let mut plot = frame.begin(|page, series, x, y| {
            page.path(&format!("M{:.1} {y:.1}L{:.1} {y:.1}", x - 13.0, x + 13.0), &stroke(series));
            draw_mark(page, series, x, y);
        });
        plot.draw_references(&self.references);
        let places = self.places(&plot);
        let aside = self.aside(&places);
        let middle = (self.series.len() as f64 - 1.0) / 2.0;
        let points = |index: usize, plot: &Plot| -> Vec<Option<Point>> {
            let shift = (index as f64 - middle) * aside;
            let point = |(place, x): &(usize, f64)| {
                let value = self.series[index].value(*place)?;
                Some(Point { x: x + shift, position: plot.position(value.mean)?, value })
            };
            places.iter().map(point).collect()
        };
        let all: Vec<_> = (0..self.series.len()).map(|index| points(index, &plot)).collect();
        for (series, points) in all.iter().enumerate() {
            draw_line(&mut plot, series, points);
        }
        for (series, points) in all.iter().enumerate() {
            for point in points.iter().flatten() {
                plot.draw_error_bar(point.x, point.value, CAP, hue(series));
                plot.mark_outside(point.x, point.position, hue(series));
                if is_inside(point.position) {
                    let y = plot.y(point.position);
                    draw_mark(&mut plot.page, series, point.x, y);
                }
            }
        }
        plot.svg()
    }

    /// The indices that have a place on the x axis and where it is, from left to right.
    fn places(&self, plot: &Plot) -> Vec<(usize, f64)> {
        let place = |index: usize| match &self.x {
            X::Numbers { at, .. } => plot.across(at[index]),
            X::Categories { .. } => Some(plot.slot(index)),
        };
        let mut places: Vec<_> =
            (0..self.x.count()).filter_map(|index| Some((index, place(index)?))).collect();
        places.sort_by(|one, other| one.1.total_cmp(&other.1));
        places
    }

    /// How far error bars at one x stand apart.
    fn aside(&self, places: &[(usize, f64)]) -> f64 {
        let has_error_bars = (self.series.iter().flat_map(|series| &series.values).flatten())
            .filter_map(|value| value.checked())
            .any(|value| value.half_width > 0.0);
        if !has_error_bars || self.series.len() < 2 {
            return 0.0;
        }
        let closest = places.windows(2).map(|pair| pair[1].1 - pair[0].1).fold(f64::INFINITY, f64::min);
        (closest * SPREAD_MAX / (self.series.len() - 1) as f64).min(ASIDE_MAX)
    }
}

/// The line through points, as far as it is on the axis.
fn draw_line(plot: &mut Plot, series: usize, points: &[Option<Point>]) {
    let mut path = String::new();
    for pair in points.windows(2) {
        let [Some(from), Some(to)] = pair else { continue };
        let Some((start, end)) = inside(from.position, to.position) else { continue };
        let at = |share: f64| {
            let position = from.position + (to.position - from.position) * share;
            format!("{:.1} {:.1}", from.x + (to.x - from.x) * share, plot.y(position))
        };
        if start > 0.0 || path.is_empty() || !path.ends_with(&at(0.0)) {
            path.push_str(&format!("M{}", at(start)));
        }
        path.push_str(&format!("L{}", at(end)));
    }
    if !path.is_empty() {
        plot.page.path(&path, &stroke(series));
    }
}

/// From which share to which a line between two positions lies between 0 and 1.
fn inside(from: f64, to: f64) -> Option<(f64, f64)> {
    let rise = to - from;
    if rise == 0.0 {
        return is_inside(from).then_some((0.0, 1.0));
    }
    let (one, other) = (-from / rise, (1.0 - from) / rise);
    let (start, end) = (one.min(other).max(0.0), one.max(other).min(1.0));
    (start < end).then_some((start, end))
}

fn stroke(series: usize) -> String {
    let dashes = if is_again(series) { " stroke-dasharray=\"5 3\"" } else { "" };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-linejoin=\"round\"{dashes}", hue(series))
}

fn draw_mark(page: &mut Page, series: usize, x: f64, y: f64) {
    page.path(
        &mark(series, x, y),
        &format!("fill=\"{}\" stroke=\"#ffffff\" stroke-width=\"1\"", hue(series)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_at_the_edges() {
        assert_eq!(inside(0.2, 0.8), Some((0.0, 1.0)));
        assert_eq!(inside(0.5, 1.5), Some((0.0, 0.5)));
        assert_eq!(inside(-1.0, 3.0), Some((0.25, 0.5)));
        assert_eq!(inside(3.0, -1.0), Some((0.5, 0.75)));
        assert_eq!(inside(1.5, 3.0), None);
        assert_eq!(inside(2.0, 2.0), None);
        assert_eq!(inside(0.0, 0.0), Some((0.0, 1.0)));
    }
}
