//! Vertical bars side by side, a group for each category.

use crate::page::Page;
use crate::palette::{INK, hue, is_again};
use crate::plot::{Across, CAP, Frame, Plot};
use crate::{Axis, Reference, Series, Value};

/// A group of bars for each category, a bar for each series in it. A bar is a mean, with its error bar.
///
/// ```
/// use haul_chart::{Axis, Bars, Reference, Series, Value};
///
/// let figure = Bars {
///     title: "A log costs little".into(),
///     y: Axis::new("time (s)"),
///     categories: vec!["per file".into(), "per batch".into()],
///     series: vec![Series::new("bitmap", vec![Some(Value::new(9.1, 0.2)), None])],
///     references: vec![Reference::new("no log", Value::new(9.0, 0.1))],
///     ..Bars::default()
/// };
/// assert!(figure.svg().starts_with("<svg"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bars {
    /// The claim.
    pub title: String,
    /// The conditions, and what the error bars are. May be empty.
    pub subtitle: String,
    /// What the categories are. May be empty.
    pub x_label: String,
    /// The axis of the values.
    pub y: Axis,
    /// From left to right.
    pub categories: Vec<String>,
    /// The bars of each category, from left to right.
    pub series: Vec<Series>,
    /// Lines across all bars.
    pub references: Vec<Reference>,
}

/// Of a bar; the figure becomes wider instead.
const BAR_WIDTH_MIN: f64 = 7.0;
const BAR_WIDTH_MAX: f64 = 48.0;
/// Of a slot, that bars take.
const FILLED: f64 = 0.8;

impl Bars {
    /// Draws them.
    #[must_use]
    pub fn svg(&self) -> String {
        let slot_width_min = (self.series.len() as f64 * BAR_WIDTH_MIN / FILLED).max(17.0);
        let frame = Frame {
            title: &self.title,
            subtitle: &self.subtitle,
            y: &self.y,
            x_label: &self.x_label,
            across: Across::Names { names: &self.categories, slot_width_min },
            series: &self.series,
            references: &self.references,
            has_bars: true,
        };
        let mut plot =
            frame.begin(|page, series, x, y| bar(page, series, (x - 7.0, y - 6.0), (x + 7.0, y + 6.0)));
        let bar_width = (plot.slot_width() * FILLED / self.series.len().max(1) as f64).min(BAR_WIDTH_MAX);
        let bars = self.bars(&plot, bar_width);
        // A hair between neighbours, so that equal colours do not merge.
        let half = bar_width / 2.0 - 0.5;
        for Drawn { series, x, position, .. } in &bars {
            let (start, end) = (plot.y(plot.origin()), plot.y(*position));
            if (start - end).abs() >= 0.05 {
                bar(&mut plot.page, *series, (x - half, start), (x + half, end));
            }
        }
        plot.draw_references(&self.references);
        for Drawn { x, position, value, .. } in &bars {
            plot.draw_error_bar(*x, *value, half.min(CAP), INK);
            plot.mark_outside(*x, *position, INK);
        }
        plot.svg()
    }

    fn bars(&self, plot: &Plot, bar_width: f64) -> Vec<Drawn> {
        let middle = (self.series.len() as f64 - 1.0) / 2.0;
        let mut bars = Vec::new();
        for category in 0..self.categories.len() {
            for (index, series) in self.series.iter().enumerate() {
                let Some(value) = series.value(category) else { continue };
                let Some(position) = plot.position(value.mean) else { continue };
                let x = plot.slot(category) + (index as f64 - middle) * bar_width;
                bars.push(Drawn { series: index, x, position, value });
            }
        }
        bars
    }
}

struct Drawn {
    series: usize,
    x: f64,
    position: f64,
    value: Value,
}

fn bar(page: &mut Page, series: usize, from: (f64, f64), to: (f64, f64)) {
    let hue = hue(series);
    if is_again(series) {
        let inner = |(x, y): (f64, f64), sign: f64| (x + sign, y);
        let look = format!("fill=\"#ffffff\" stroke=\"{hue}\" stroke-width=\"2\"");
        page.rect(inner(from, 1.0), inner(to, -1.0), &look);
    } else {
        page.rect(from, to, &format!("fill=\"{hue}\""));
    }
}
