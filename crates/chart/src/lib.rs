//! Figures of measurements as SVG text, and as PNG where `rsvg-convert` is installed.
//!
//! One figure makes one claim, its title; the subtitle says under which conditions. There are four kinds: [`Rows`],
//! horizontal bars in groups, each with its value written behind it; [`Bars`], vertical bars side by side with error
//! bars; [`Lines`], points with error bars over numbers or categories; [`Lanes`], what happened where and when. Each gives its SVG as a string, and [`write()`]
//! puts it into files.
//!
//! Called by the programs that make the pages of the evaluation. It knows nothing of haul.
//!
//! What must stay true of every figure, whatever it is given: well-formed XML, text of at least 11 px that lies on
//! the page and on no other text, a legend outside the plot, nothing drawn for what was not measured. Widths of text
//! are estimated for wide fonts, as the viewer's font is not known.

#![warn(missing_docs)]

mod across;
mod bars;
mod head;
mod lanes;
mod lines;
mod number;
mod output;
mod page;
mod palette;
mod plot;
mod rows;
mod ruler;
mod text;

pub use bars::Bars;
pub use lanes::{Lane, Lanes};
pub use lines::{Lines, X};
pub use output::{Written, write};
pub use rows::{Bar, Group, Rows};

/// What was measured: a mean and half of its confidence interval.
///
/// A mean that is not finite, or beyond ±1e300, counts as not measured. A half width that is not finite, as of a
/// single sample, or not above 0 draws no error bar.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Value {
    /// The height of the bar or point.
    pub mean: f64,
    /// From the mean to each end of the error bar.
    pub half_width: f64,
}

impl Value {
    /// `mean` ± `half_width`.
    pub fn new(mean: f64, half_width: f64) -> Value {
        Value { mean, half_width }
    }

    /// The same, if something of it can be drawn.
    pub(crate) fn checked(self) -> Option<Value> {
        let usable = |number: f64| number.abs() <= 1e300;
        let half_width = if usable(self.half_width) { self.half_width.max(0.0) } else { 0.0 };
        usable(self.mean).then_some(Value { half_width, ..self })
    }

    pub(crate) fn low(self) -> f64 {
        self.mean - self.half_width
    }

    pub(crate) fn high(self) -> f64 {
        self.mean + self.half_width
    }
}

impl From<f64> for Value {
    /// A count or anything else without an interval.
    fn from(mean: f64) -> Value {
        Value { mean, half_width: 0.0 }
    }
}

/// One colour of a figure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// In the legend; a series without a name is not in it.
    pub name: String,
    /// One for each category or x, in their order. `None`, and what is beyond the end: not measured, nothing is drawn.
    pub values: Vec<Option<Value>>,
}

impl Series {
    /// A series.
    pub fn new(name: impl Into<String>, values: Vec<Option<Value>>) -> Series {
        Series { name: name.into(), values }
    }

    /// What was measured at a category or x.
    pub(crate) fn value(&self, index: usize) -> Option<Value> {
        self.values.get(index).copied().flatten().and_then(Value::checked)
    }
}

/// A horizontal line across the plot, with a band around it where its value has a half width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reference {
    /// At the end of the line, beside the plot.
    pub label: String,
    /// Where it is. The y axis reaches there unless its range is given.
    pub value: Value,
}

impl Reference {
    /// A line at `value`.
    pub fn new(label: impl Into<String>, value: impl Into<Value>) -> Reference {
        Reference { label: label.into(), value: value.into() }
    }
}

/// The y axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axis {
    /// What it counts, with the unit: `time (s)`.
    pub label: String,
    /// How values become heights.
    pub scale: Scale,
    /// Which values are on it.
    pub range: Range,
}

impl Axis {
    /// A linear axis from 0.
    pub fn new(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), ..Axis::default() }
    }

    /// The same with a logarithmic scale.
    #[must_use]
    pub fn log(self) -> Axis {
        Axis { scale: Scale::Log, ..self }
    }

    /// The same from `low` to `high`.
    #[must_use]
    pub fn between(self, low: f64, high: f64) -> Axis {
        Axis { range: Range::Between(low, high), ..self }
    }
}

/// How values become places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally far apart.
    #[default]
    Linear,
    /// Equal ratios are equally far apart. What is not above 0 counts as not measured; there is no 0, so bars start at
    /// the lower edge.
    Log,
}

/// Which values are on an axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Range {
    /// 0 and all values with their error bars.
    #[default]
    FromZero,
    /// All values with their error bars. Bars whose lengths are to be compared need 0.
    Data,
    /// Exactly these. What is outside gets a mark at the edge. Ends that make no range (equal, not finite, or not
    /// above 0 on a logarithmic axis) count as not given.
    Between(f64, f64),
}
