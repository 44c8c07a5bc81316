//! The elements of a figure, written one behind the other.

use std::fmt::Write;

use crate::palette::INK;
use crate::text::{LINE, escape};

/// The usual size of text, and the one of labels at an axis.
pub(crate) const SIZE: f64 = 12.0;

/// Where a text is held.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// How text looks.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) size: f64,
    pub(crate) anchor: Anchor,
    pub(crate) is_bold: bool,
    pub(crate) color: &'static str,
    /// Degrees, clockwise around where it is held.
    pub(crate) angle: f64,
}

impl Default for Style {
    fn default() -> Style {
        Style { size: SIZE, anchor: Anchor::Start, is_bold: false, color: INK, angle: 0.0 }
    }
}

impl Style {
    pub(crate) fn at(anchor: Anchor) -> Style {
        Style { anchor, ..Style::default() }
    }
}

/// Elements so far.
#[derive(Default)]
pub(crate) struct Page {
    body: String,
}

impl Page {
    /// Text on a base line at `y`.
    pub(crate) fn text(&mut self, x: f64, y: f64, text: &str, style: Style) {
        let anchor = match style.anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = if style.is_bold { " font-weight=\"bold\"" } else { "" };
        let turned = match style.angle {
            0.0 => String::new(),
            angle => format!(" transform=\"rotate({angle} {x:.1} {y:.1})\""),
        };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{}\"{anchor}{weight} fill=\"{}\"{turned}>{}</text>",
            style.size,
            style.color,
            escape(text)
        );
    }

    /// Lines of text below each other, the first on a base line at `y`. Returns where the next one would be.
    pub(crate) fn lines(&mut self, x: f64, y: f64, lines: &[String], style: Style) -> f64 {
        let mut y = y;
        for line in lines {
            self.text(x, y, line, style);
            y += style.size * LINE;
        }
        y
    }

    /// A line. `look` are further attributes: `stroke-width="2"`.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), color: &str, look: &str) {
        let _ = writeln!(
            self.body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\"{}{look}/>",
            from.0,
            from.1,
            to.0,
            to.1,
            if look.is_empty() { "" } else { " " }
        );
    }

    /// A rectangle between two corners. `look` are further attributes, `fill` among them.
    pub(crate) fn rect(&mut self, (x0, y0): (f64, f64), (x1, y1): (f64, f64), look: &str) {
        let (left, top) = (x0.min(x1), y0.min(y1));
        let (width, height) = ((x1 - x0).abs(), (y1 - y0).abs());
        let _ = writeln!(
            self.body,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {look}/>"
        );
    }

    /// A path.
    pub(crate) fn path(&mut self, path: &str, look: &str) {
        let _ = writeln!(self.body, "<path d=\"{path}\" {look}/>");
    }

    /// The figure. Its title is also its name for those who cannot see it.
    pub(crate) fn svg(self, width: f64, height: f64, title: &str) -> String {
        let (width, height) = (width.ceil(), height.ceil());
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"sans-serif\" role=\"img\" aria-label=\"{}\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escape(title),
            self.body
        )
    }
}
