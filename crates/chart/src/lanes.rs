//! What happened where and when: a lane for each place, a coloured span for each thing that was done there.

use crate::Scale;
use crate::across;
use crate::head::{self, EDGE};
use crate::page::{Anchor, Page, SIZE, Style};
use crate::palette::{AXIS, GRID, INK_SOFT};
use crate::text::{shorten, width};

/// Lanes below each other over one axis of numbers, from 0 to [`Lanes::until`].
///
/// Colours go around the wheel with the kind of a span: neighbouring kinds look alike, so an order is seen as a gradient
/// and the lack of one as noise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lanes {
    /// The claim.
    pub title: String,
    /// The conditions, and what colours are. May be empty.
    pub subtitle: String,
    /// What the axis counts, with the unit.
    pub x_label: String,
    /// The end of the axis.
    pub until: f64,
    /// From top to bottom.
    pub lanes: Vec<Lane>,
    /// Kinds of spans: their numbers are below this.
    pub kinds: usize,
    /// What a mark of a lane means, for the legend.
    pub mark: String,
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lane {
    /// Before it.
    pub name: String,
    /// From, until, kind.
    pub spans: Vec<(f64, f64, usize)>,
    /// From, until: a bar below the spans.
    pub marks: Vec<(f64, f64)>,
}

const WIDTH: f64 = 760.0;
const LANE: f64 = 26.0;
const SPAN: f64 = 15.0;
const MARK: f64 = 4.0;
const MARK_COLOR: &str = "#c81e1e";
const NAME_WIDTH_MAX: f64 = 160.0;

impl Lanes {
    /// Draws them.
    #[must_use]
    pub fn svg(&self) -> String {
        let names = self.lanes.iter().map(|lane| width(&lane.name, SIZE));
        let left = EDGE + names.fold(40.0, f64::max).min(NAME_WIDTH_MAX) + 10.0;
        let right = WIDTH - EDGE - 14.0;
        let until = if self.until.is_finite() && self.until > 0.0 { self.until } else { 1.0 };
        let x = |at: f64| left + (at / until).clamp(0.0, 1.0) * (right - left);
        let mut page = Page::default();
        let top = head::draw(&mut page, WIDTH, &self.title, &self.subtitle);
        let top = head::legend(&mut page, WIDTH, top, &[&self.mark], 26.0, |page, _, x, y| {
            mark(page, x - 13.0, x + 13.0, y);
        });
        let top = top + 10.0;
        let bottom = top + LANE * self.lanes.len().max(1) as f64;
        let ruler = across::numbers(Scale::Linear, &[0.0, until], right - left);
        for tick in &ruler.ticks {
            let at = x(tick.value);
            page.line((at, top), (at, bottom), GRID, "stroke-width=\"1\"");
            page.text(at, bottom + 8.0 + SIZE, &tick.label, Style::at(Anchor::Middle));
        }
        for (index, lane) in self.lanes.iter().enumerate() {
            let upper = top + LANE * index as f64 + 2.0;
            let name = shorten(&lane.name, NAME_WIDTH_MAX, SIZE);
            page.text(left - 10.0, upper + SPAN - 3.0, &name, Style::at(Anchor::End));
            for (from, until, kind) in &lane.spans {
                if until > from {
                    let look = format!("fill=\"{}\"", self.color(*kind));
                    page.rect((x(*from), upper), (x(*until), upper + SPAN), &look);
                }
            }
            for (from, until) in lane.marks.iter().filter(|(from, until)| until > from) {
                mark(&mut page, x(*from), x(*until), upper + SPAN + 1.0 + MARK / 2.0);
            }
        }
        page.line((left, bottom), (right, bottom), AXIS, "stroke-width=\"1\"");
        if self.lanes.iter().all(|lane| lane.spans.is_empty()) {
            let soft = Style { color: INK_SOFT, ..Style::at(Anchor::Middle) };
            page.text(f64::midpoint(left, right), f64::midpoint(top, bottom) + 4.0, "no data", soft);
        }
        let soft = Style { color: INK_SOFT, ..Style::at(Anchor::Middle) };
        let label = shorten(&self.x_label, right - left, SIZE);
        page.text(f64::midpoint(left, right), bottom + 12.0 + 2.4 * SIZE, &label, soft);
        page.svg(WIDTH, bottom + 14.0 + 2.4 * SIZE + EDGE, &self.title)
    }

    /// Around the wheel, and light and dark in turns, so that two neighbours can still be told apart.
    fn color(&self, kind: usize) -> String {
        let hue = 320.0 * kind as f64 / self.kinds.max(1) as f64;
        let lightness = if kind.is_multiple_of(2) { 0.45 } else { 0.62 };
        rgb(hue.rem_euclid(360.0), 0.7, lightness)
    }
}

fn mark(page: &mut Page, from: f64, until: f64, middle: f64) {
    let look = format!("fill=\"{MARK_COLOR}\"");
    page.rect((from, middle - MARK / 2.0), (until, middle + MARK / 2.0), &look);
}

/// Converters to pixels do not all know `hsl()`.
fn rgb(hue: f64, saturation: f64, lightness: f64) -> String {
    let chroma = (1.0 - (2.0 * lightness - 1.0).abs()) * saturation;
    let second = chroma * (1.0 - ((hue / 60.0) % 2.0 - 1.0).abs());
    let (red, green, blue) = match hue as u32 / 60 {
        0 => (chroma, second, 0.0),
        1 => (second, chroma, 0.0),
        2 => (0.0, chroma, second),
        3 => (0.0, second, chroma),
        4 => (second, 0.0, chroma),
        _ => (chroma, 0.0, second),
    };
    let byte = |part: f64| ((part + lightness - chroma / 2.0) * 255.0).round().clamp(0.0, 255.0) as u8;
    format!("#{:02x}{:02x}{:02x}", byte(red), byte(green), byte(blue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_the_wheel() {
        assert_eq!(rgb(0.0, 1.0, 0.5), "#ff0000");
        assert_eq!(rgb(120.0, 1.0, 0.5), "#00ff00");
        assert_eq!(rgb(300.0, 1.0, 0.25), "#800080");
        assert_eq!(rgb(200.0, 0.0, 1.0), "#ffffff");
    }
}
