//! What [`Bars`](crate::Bars) and [`Lines`](crate::Lines) have in common: the page around the data, both axes, the
//! grid, references, error bars, and marks for what a given range cuts off.
//!
//! [`Frame::begin`] measures every label first and gives each its room: the figure grows, the plot does not shrink.

use crate::across::{self, Names};
use crate::head::{self, EDGE};
use crate::page::{Anchor, Page, SIZE, Style};
use crate::palette::{AXIS, GRID, GRID_MINOR, INK, INK_SOFT};
use crate::ruler::{Ruler, Wanted};
use crate::text::{LINE, width, wrap};
use crate::{Axis, Range, Reference, Scale, Series, Value};

const WIDTH_MIN: f64 = 760.0;
const HEIGHT: f64 = 320.0;
/// Intervals of the y axis.
const STEPS_MAX: f64 = 8.0;
const NOTE_WIDTH_MAX: f64 = 110.0;
/// From the edges of the plot to the first and last number of an x axis.
const NUMBERS_MARGIN: f64 = 26.0;
/// Half the width of the end of an error bar.
pub(crate) const CAP: f64 = 4.0;
/// From the end of a reference to its label.
const LEADER: f64 = 12.0;

/// What the page is made of, but for the marks of the data.
pub(crate) struct Frame<'a> {
    pub(crate) title: &'a str,
    pub(crate) subtitle: &'a str,
    pub(crate) y: &'a Axis,
    pub(crate) x_label: &'a str,
    pub(crate) across: Across<'a>,
    pub(crate) series: &'a [Series],
    pub(crate) references: &'a [Reference],
    /// Even the lowest value needs a height.
    pub(crate) has_bars: bool,
}

/// What the x axis is.
pub(crate) enum Across<'a> {
    Names { names: &'a [String], slot_width_min: f64 },
    Numbers { scale: Scale, at: &'a [f64] },
}

/// The page with everything on it but the data.
pub(crate) struct Plot {
    pub(crate) page: Page,
    title: String,
    width: f64,
    height: f64,
    ruler: Ruler,
    /// Of an x axis of numbers.
    numbers: Option<Ruler>,
    slot_width: f64,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// The label of a reference; its places are from the upper edge of the plot.
struct Note {
    lines: Vec<String>,
    height: f64,
    /// Where the reference is.
    line: f64,
    /// Where the middle of the label is.
    middle: f64,
}

impl Frame<'_> {
    /// Draws all that lies behind the data and around it. `swatch` draws the sample of a series in the legend.
    pub(crate) fn begin(&self, swatch: impl Fn(&mut Page, usize, f64, f64)) -> Plot {
        let ruler = self.ruler();
        let widest = |labels: &mut dyn Iterator<Item = &String>| {
            labels.map(|label| width(label, SIZE)).fold(0.0, f64::max)
        };
        let notes = self.notes(&ruler);
        let notes_width = widest(&mut notes.iter().flat_map(|note| &note.lines));
        let right_margin = if notes.is_empty() { EDGE + 4.0 } else { notes_width + LEADER + EDGE };
        let mut left = (EDGE + widest(&mut ruler.ticks.iter().map(|tick| &tick.label)) + 10.0).max(56.0);
        let (mut figure_width, mut slot_width) = (WIDTH_MIN, 0.0);
        let mut names = None;
        if let Across::Names { names: all, slot_width_min } = self.across
            && !all.is_empty()
        {
            let count = all.len() as f64;
            figure_width = figure_width.max(left + right_margin + count * slot_width_min);
            slot_width = (figure_width - left - right_margin) / count;
            let fitted = Names::fit(all, slot_width);
            let missing = (fitted.overhang(slot_width) + EDGE - left).max(0.0);
            (left, figure_width) = (left + missing, figure_width + missing);
            names = Some(fitted);
        }
        let right = figure_width - right_margin;
        let numbers = match self.across {
            Across::Names { .. } => None,
            Across::Numbers { scale, at } => {
                Some(across::numbers(scale, at, right - left - 2.0 * NUMBERS_MARGIN))
            }
        };

        let mut page = Page::default();
        let top = head::draw(&mut page, figure_width, self.title, self.subtitle);
        let series: Vec<&str> = self.series.iter().map(|series| series.name.as_str()).collect();
        let swatch_width = if self.has_bars { 14.0 } else { 26.0 };
        let top = head::legend(&mut page, figure_width, top, &series, swatch_width, swatch);
        let label = wrap(&self.y.label, figure_width - 2.0 * EDGE, |line| width(line, SIZE));
        let soft = Style { color: INK_SOFT, ..Style::default() };
        // Room for half a tick label, or for a mark of what is above the range.
        let top = page.lines(EDGE, top + 18.0, &label, soft);
        let bottom = top + HEIGHT;

        let (title, height) = (self.title.to_owned(), bottom);
        let mut plot = Plot {
            page,
            title,
            width: figure_width,
            height,
            ruler,
            numbers,
            slot_width,
            left,
            right,
            top,
            bottom,
        };
        plot.draw_grid();
        plot.draw_below(names.as_ref(), self.x_label);
        plot.draw_notes(&notes);
        if self.values().next().is_none() {
            let soft = Style { color: INK_SOFT, ..Style::at(Anchor::Middle) };
            plot.page.text(f64::midpoint(left, right), top + HEIGHT * 0.45, "no data", soft);
        }
        plot
    }

    /// The y axis.
    fn ruler(&self) -> Ruler {
        let references = self.references.iter().filter_map(|reference| reference.value.checked());
        let extent = extent(self.values().chain(references), self.y.scale);
        let lowest_bar =
            self.values().map(|value| value.mean).filter(|_| self.has_bars).min_by(f64::total_cmp);
        let (scale, range) = (self.y.scale, self.y.range);
        let mut ruler = Wanted { scale, range, extent, lowest_bar, steps_max: STEPS_MAX }.ruler();
        if extent.is_none() && !matches!(range, Range::Between(..)) {
            // Nobody has said what the axis is to show.
            ruler.ticks.clear();
            ruler.minor.clear();
        }
        ruler
    }

    /// All that has a place on both axes.
    fn values(&self) -> impl Iterator<Item = Value> {
        let has_place = |index: &usize| match self.across {
            Across::Names { names, .. } => *index < names.len(),
            Across::Numbers { scale, at } => at.get(*index).is_some_and(|x| across::is_on(scale, *x)),
        };
        let indices = move |series: &Series| (0..series.values.len()).filter(has_place);
        let values =
            self.series.iter().flat_map(move |series| indices(series).filter_map(|at| series.value(at)));
        values.filter(|value| self.y.scale == Scale::Linear || value.mean > 0.0)
    }

    /// The labels of the references from top to bottom, each as near to its line as the others allow.
    fn notes(&self, ruler: &Ruler) -> Vec<Note> {
        let mut notes: Vec<Note> = Vec::new();
        for reference in self.references {
            let Some(value) = reference.value.checked() else { continue };
            let Some(position) = ruler.position(value.mean) else { continue };
            let label = match position {
                above if above > INSIDE.1 => format!("↑ {}", reference.label),
                below if below < INSIDE.0 => format!("↓ {}", reference.label),
                _ => reference.label.clone(),
            };
            let lines = wrap(&label, NOTE_WIDTH_MAX, |line| width(line, SIZE));
            let line = (1.0 - position.clamp(0.0, 1.0)) * HEIGHT;
            notes.push(Note { height: lines.len() as f64 * SIZE * LINE, lines, line, middle: line });
        }
        notes.sort_by(|one, other| one.line.total_cmp(&other.line));
        spread(&mut notes);
        notes
    }
}

/// Moves labels apart until none covers another: those that touch become a block around the middle of their lines.
fn spread(notes: &mut [Note]) {
    // Of each block: the notes in it, their height, where its upper edge is.
    let mut blocks: Vec<(usize, f64, f64)> = Vec::new();
    for note in notes.iter() {
        let mut block = (1, note.height, note.line - note.height / 2.0);
        while let Some((count, height, top)) = blocks.pop_if(|(_, height, top)| *top + *height > block.2) {
            let share = count as f64 / (count + block.0) as f64;
            let top = top * share + (block.2 - height) * (1.0 - share);
            block = (count + block.0, height + block.1, top);
        }
        blocks.push(block);
    }
    let mut rest = notes.iter_mut();
    for (count, height, top) in blocks {
        let mut top = top.clamp(-SIZE, (HEIGHT + SIZE - height).max(-SIZE));
        for note in rest.by_ref().take(count) {
            note.middle = top + note.height / 2.0;
            top += note.height;
        }
    }
}

/// Positions on the axis, with what rounding does to its ends.
const INSIDE: (f64, f64) = (-1e-9, 1.0 + 1e-9);

/// From the lowest end of an error bar to the highest.
fn extent(values: impl Iterator<Item = Value>, scale: Scale) -> Option<(f64, f64)> {
    let ends = values.filter_map(|value| match scale {
        Scale::Linear => Some((value.low(), value.high())),
        // An interval that reaches almost to 0 would take the axis with it.
        Scale::Log => (value.mean > 0.0).then(|| (value.low().max(value.mean / 10.0), value.high())),
    });
    ends.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
}

impl Plot {
    /// The middle of a slot.
    pub(crate) fn slot(&self, index: usize) -> f64 {
        self.left + (index as f64 + 0.5) * self.slot_width
    }

    pub(crate) fn slot_width(&self) -> f64 {
        self.slot_width
    }

    /// Where a number is on the x axis.
    pub(crate) fn across(&self, x: f64) -> Option<f64> {
        let position = self.numbers.as_ref()?.position(x)?;
        let (left, right) = (self.left + NUMBERS_MARGIN, self.right - NUMBERS_MARGIN);
        Some(left + position * (right - left))
    }

    /// How high a value is: 0 at the lower edge, 1 at the upper, beyond them outside.
    pub(crate) fn position(&self, value: f64) -> Option<f64> {
        self.ruler.position(value)
    }

    /// Where bars start, as a position.
    pub(crate) fn origin(&self) -> f64 {
        self.ruler.origin()
    }

    /// The y of a position, at the edge if it is outside.
    pub(crate) fn y(&self, position: f64) -> f64 {
        self.bottom - position.clamp(0.0, 1.0) * (self.bottom - self.top)
    }

    fn draw_grid(&mut self) {
        let (left, right) = (self.left, self.right);
        let height = |plot: &Plot, value| plot.position(value).map(|position| plot.y(position));
        for value in self.ruler.minor.clone() {
            let Some(y) = height(self, value) else { continue };
            self.page.line((left, y), (right, y), GRID_MINOR, "");
        }
        for tick in self.ruler.ticks.clone() {
            let Some(y) = height(self, tick.value) else { continue };
            self.page.line((left, y), (right, y), GRID, "");
            self.page.text(left - 8.0, y + 4.0, &tick.label, Style::at(Anchor::End));
        }
        let (top, bottom) = (self.top, self.bottom);
        self.page.line((left, top), (left, bottom), AXIS, "");
        self.page.line((left, bottom), (right, bottom), AXIS, "");
        if self.ruler.has_zero_inside()
            && let Some(zero) = height(self, 0.0)
        {
            self.page.line((left, zero), (right, zero), AXIS, "");
        }
    }

    /// Everything below the x axis, which gives the figure its height.
    fn draw_below(&mut self, names: Option<&Names>, label: &str) {
        let (left, right, axis) = (self.left, self.right, self.bottom);
        let mut y = axis + 8.0;
        if let Some(names) = names {
            let slot_width = self.slot_width;
            names.draw(&mut self.page, axis, |index| left + (index as f64 + 0.5) * slot_width);
            y = axis + names.height();
        }
        let ticks = self.numbers.as_ref().map(|numbers| numbers.ticks.clone()).unwrap_or_default();
        for tick in &ticks {
            let Some(x) = self.across(tick.value) else { continue };
            self.page.line((x, axis), (x, axis + 4.0), AXIS, "");
            self.page.text(x, axis + 8.0 + SIZE, &tick.label, Style::at(Anchor::Middle));
            y = axis + 8.0 + SIZE * LINE;
        }
        let lines = wrap(label, right - left, |line| width(line, SIZE));
        if !lines.is_empty() {
            let style = Style { color: INK_SOFT, ..Style::at(Anchor::Middle) };
            y = self.page.lines(f64::midpoint(left, right), y + 6.0 + SIZE, &lines, style) - SIZE;
        }
        self.height = y + EDGE;
    }

    fn draw_notes(&mut self, notes: &[Note]) {
        for note in notes {
            let middle = self.top + note.middle;
            let base = middle - note.height / 2.0 + SIZE;
            self.page.lines(self.right + LEADER, base, &note.lines, Style::default());
            if (note.middle - note.line).abs() > SIZE / 4.0 {
                let from = (self.right + 1.0, self.top + note.line);
                self.page.line(from, (self.right + LEADER - 2.0, middle), INK_SOFT, "");
            }
        }
    }

    /// Draws the lines and bands of references across what is there so far.
    pub(crate) fn draw_references(&mut self, references: &[Reference]) {
        let (left, right) = (self.left, self.right);
        for value in references.iter().filter_map(|reference| reference.value.checked()) {
            let Some(position) = self.position(value.mean) else { continue };
            let low = self.position(value.low()).unwrap_or(f64::NEG_INFINITY);
            let high = self.position(value.high()).unwrap_or(position);
            if value.half_width > 0.0 && high > 0.0 && low < 1.0 {
                let (low, high) = (self.y(low), self.y(high));
                self.page.rect((left, high), (right, low), &format!("fill=\"{INK}\" fill-opacity=\"0.14\""));
            }
            if is_inside(position) {
                let y = self.y(position);
                self.page.line((left, y), (right, y), INK, "stroke-width=\"1.5\" stroke-dasharray=\"6 4\"");
            }
        }
    }

    /// Draws the error bar of a value, as far as it is on the axis. `cap` is half the width of its ends.
    pub(crate) fn draw_error_bar(&mut self, x: f64, value: Value, cap: f64, color: &str) {
        let Some(high) = self.position(value.high()).filter(|high| *high > 0.0) else { return };
        let low = self.position(value.low()).unwrap_or(f64::NEG_INFINITY);
        if value.half_width <= 0.0 || low > 1.0 {
            return;
        }
        let (foot, top) = (self.y(low), self.y(high));
        let caps: Vec<f64> =
            [low, high].into_iter().filter(|end| is_inside(*end)).map(|end| self.y(end)).collect();
        // White below it: it is read on bars of any colour.
        for (color, look) in
            [("#ffffff", "stroke-width=\"3.4\" stroke-opacity=\"0.6\""), (color, "stroke-width=\"1.4\"")]
        {
            self.page.line((x, foot), (x, top), color, look);
            for y in &caps {
                self.page.line((x - cap, *y), (x + cap, *y), color, look);
            }
        }
    }

    /// Draws a mark outside the plot if a position is beyond it.
    pub(crate) fn mark_outside(&mut self, x: f64, position: f64, color: &str) {
        let (edge, way) = match position {
            above if above > INSIDE.1 => (self.top - 1.0, -1.0),
            below if below < INSIDE.0 => (self.bottom + 1.0, 1.0),
            _ => return,
        };
        let (base, tip) = (edge, edge + 6.0 * way);
        let path = format!("M{:.1} {base:.1}L{:.1} {base:.1}L{x:.1} {tip:.1}Z", x - 4.0, x + 4.0);
        self.page.path(&path, &format!("fill=\"{color}\""));
    }

    pub(crate) fn svg(self) -> String {
        self.page.svg(self.width, self.height, &self.title)
    }
}

pub(crate) fn is_inside(position: f64) -> bool {
    (INSIDE.0..=INSIDE.1).contains(&position)
}
