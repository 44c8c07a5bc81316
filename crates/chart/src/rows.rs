//! Horizontal bars in groups, each with what stands behind it in words, so that there is no axis to read.

use crate::Value;
use crate::head::{self, EDGE};
use crate::page::{Anchor, Page, SIZE, Style};
use crate::palette::{ACCENT, AXIS, INK, INK_SOFT, QUIET};
use crate::text::{LINE, shorten, width, width_bold, wrap};

/// Groups of bars below each other; each group has a scale of its own, as their values are not comparable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// The claim, or what is counted.
    pub title: String,
    /// The conditions. May be empty.
    pub subtitle: String,
    /// From top to bottom.
    pub groups: Vec<Group>,
}

/// Bars under one title.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Group {
    /// Above the bars.
    pub title: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bar {
    /// Its name.
    pub label: String,
    /// Its length, with an error bar if there is an interval. Below 0 or not finite: no bar, only the text.
    pub value: Value,
    /// What stands behind it: the value in words.
    pub text: String,
    /// Drawn in the accent colour.
    pub accent: bool,
}

const WIDTH: f64 = 760.0;
const LABEL_WIDTH_MAX: f64 = 300.0;
const TEXT_WIDTH_MAX: f64 = 280.0;
const ROW_SIZE: f64 = 13.0;
const BAR_HEIGHT: f64 = 18.0;
const GAP: f64 = 6.0;
const GROUP_GAP: f64 = 14.0;

impl Rows {
    /// Draws them.
    #[must_use]
    pub fn svg(&self) -> String {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let widest = |texts: &mut dyn Iterator<Item = &String>, width_max: f64| {
            texts.map(|text| width(text, ROW_SIZE)).fold(0.0, f64::max).min(width_max)
        };
        let label_width = widest(&mut bars().map(|bar| &bar.label), LABEL_WIDTH_MAX);
        let text_width = widest(&mut bars().map(|bar| &bar.text), TEXT_WIDTH_MAX);
        let left = (EDGE + label_width + 8.0).max(150.0);
        let columns =
            Columns { left, length: WIDTH - EDGE - text_width - 8.0 - left, label_width, text_width };
        let mut page = Page::default();
        let mut y = head::draw(&mut page, WIDTH, &self.title, &self.subtitle);
        for group in &self.groups {
            y = group.draw(&mut page, y + GROUP_GAP, &columns);
        }
        if bars().next().is_none() {
            page.text(EDGE, y + 14.0 + SIZE, "no data", Style { color: INK_SOFT, ..Style::default() });
            y += 14.0 + SIZE * LINE;
        }
        page.svg(WIDTH, y + EDGE, &self.title)
    }
}

/// Where the parts of a row are.
struct Columns {
    left: f64,
    length: f64,
    label_width: f64,
    text_width: f64,
}

impl Group {
    /// Returns where it ends.
    fn draw(&self, page: &mut Page, top: f64, columns: &Columns) -> f64 {
        let bold = Style { size: ROW_SIZE, is_bold: true, color: INK_SOFT, ..Style::default() };
        let title = wrap(&self.title, WIDTH - 2.0 * EDGE, |line| width_bold(line, ROW_SIZE));
        let mut y = page.lines(EDGE, top + ROW_SIZE, &title, bold) - 4.0;
        let values: Vec<_> =
            self.bars.iter().map(|bar| bar.value.checked().filter(|value| value.mean >= 0.0)).collect();
        let longest = values.iter().flatten().map(|value| value.high()).fold(0.0, f64::max);
        let start = y;
        let left = columns.left;
        let plain = Style { size: ROW_SIZE, ..Style::default() };
        for (bar, value) in self.bars.iter().zip(values) {
            let length =
                |number: f64| if longest > 0.0 { number.max(0.0) / longest * columns.length } else { 0.0 };
            let value = value.unwrap_or_default();
            let base = y + 14.0;
            let label = shorten(&bar.label, columns.label_width, ROW_SIZE);
            page.text(left - 8.0, base, &label, Style { anchor: Anchor::End, ..plain });
            if length(value.mean) >= 0.05 {
                let color = if bar.accent { ACCENT } else { QUIET };
                page.rect(
                    (left, y),
                    (left + length(value.mean), y + BAR_HEIGHT),
                    &format!("fill=\"{color}\""),
                );
            }
            if value.half_width > 0.0 {
                let (low, high) = (left + length(value.low()), left + length(value.high()));
                let middle = y + BAR_HEIGHT / 2.0;
                page.line((low, middle), (high, middle), INK, "stroke-width=\"1.4\"");
                for end in [low, high] {
                    page.line((end, middle - 3.5), (end, middle + 3.5), INK, "stroke-width=\"1.4\"");
                }
            }
            let text = shorten(&bar.text, columns.text_width, ROW_SIZE);
            page.text(left + length(value.high()) + 6.0, base, &text, plain);
            y += BAR_HEIGHT + GAP;
        }
        if !self.bars.is_empty() {
            page.line((left, start - 2.0), (left, y - GAP + 2.0), AXIS, "");
        }
        y
    }
}
