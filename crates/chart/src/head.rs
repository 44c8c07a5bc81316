//! What stands above the data: title, subtitle, legend. It grows with them, so that they never cover anything.

use crate::page::{Anchor, Page, SIZE, Style};
use crate::palette::INK_SOFT;
use crate::text::{LINE, shorten, width, width_bold, wrap};

/// Between the edge of the figure and anything in it.
pub(crate) const EDGE: f64 = 16.0;
const TITLE_SIZE: f64 = 17.0;
const SUBTITLE_SIZE: f64 = 13.0;
const LEGEND_LINE: f64 = 20.0;

/// Draws title and subtitle; returns where what follows may begin.
pub(crate) fn draw(page: &mut Page, figure_width: f64, title: &str, subtitle: &str) -> f64 {
    let room = figure_width - 2.0 * EDGE;
    let mut y = 28.0;
    let bold = Style { size: TITLE_SIZE, is_bold: true, ..Style::default() };
    let lines = wrap(title, room, |line| width_bold(line, TITLE_SIZE));
    y = page.lines(EDGE, y, &lines, bold);
    let soft = Style { size: SUBTITLE_SIZE, color: INK_SOFT, ..Style::default() };
    let lines = wrap(subtitle, room, |line| width(line, SUBTITLE_SIZE));
    y = page.lines(EDGE, y, &lines, soft);
    // The next base line becomes the upper edge of what follows.
    y - SUBTITLE_SIZE * (LINE - 0.75)
}

/// Draws the named series in rows, each behind a sample that `swatch` draws in the middle of (x, y); returns where what
/// follows may begin.
pub(crate) fn legend(
    page: &mut Page,
    figure_width: f64,
    top: f64,
    names: &[&str],
    swatch_width: f64,
    swatch: impl Fn(&mut Page, usize, f64, f64),
) -> f64 {
    let (mut x, mut y) = (EDGE, top + LEGEND_LINE / 2.0);
    let mut is_empty = true;
    for (index, name) in names.iter().enumerate().filter(|(_, name)| !name.trim().is_empty()) {
        let name = shorten(name, figure_width - 2.0 * EDGE - swatch_width - 6.0, SIZE);
        let item_width = swatch_width + 6.0 + width(&name, SIZE);
        if x > EDGE && x + item_width > figure_width - EDGE {
            (x, y) = (EDGE, y + LEGEND_LINE);
        }
        swatch(page, index, x + swatch_width / 2.0, y);
        page.text(x + swatch_width + 6.0, y + 4.0, &name, Style::at(Anchor::Start));
        x += item_width + 18.0;
        is_empty = false;
    }
    if is_empty { top } else { y + LEGEND_LINE / 2.0 + 4.0 }
}
