//! A bar chart as SVG: no library, no fonts of its own, readable on light and dark pages.

use std::fmt::Write;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Its name.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// What stands behind it.
    pub text: String,
    /// Drawn in the accent colour.
    pub accent: bool,
}

/// Bars under one title.
#[derive(Clone, Debug)]
pub struct Group {
    /// Above the bars.
    pub title: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

const WIDTH: u32 = 760;
const LABEL_WIDTH: u32 = 170;
const BAR_WIDTH: u32 = 430;
const BAR_HEIGHT: u32 = 18;
const GAP: u32 = 6;
const TITLE_HEIGHT: u32 = 34;

/// Draws the groups below each other; each has a scale of its own, as their values are not comparable.
pub fn draw(title: &str, groups: &[Group]) -> String {
    let bars: usize = groups.iter().map(|group| group.bars.len()).sum();
    let height = 50 + groups.len() as u32 * (TITLE_HEIGHT + 8) + bars as u32 * (BAR_HEIGHT + GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"28\" font-size=\"17\" font-weight=\"bold\" fill=\"#1f2933\">{}</text>\n",
        escape(title)
    );
    let mut y = 50;
    for group in groups {
        let longest = group.bars.iter().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
        let _ = writeln!(
            svg,
            "<text x=\"16\" y=\"{}\" font-weight=\"bold\" fill=\"#3e4c59\">{}</text>",
            y + 20,
            escape(&group.title)
        );
        y += TITLE_HEIGHT;
        for bar in &group.bars {
            let length = (bar.value / longest * f64::from(BAR_WIDTH)).max(1.0);
            let color = if bar.accent { "#2f6fde" } else { "#9fb3c8" };
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#1f2933\">{}</text>\
                 <rect x=\"{}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#1f2933\">{}</text>",
                LABEL_WIDTH - 8,
                y + 14,
                escape(&bar.label),
                LABEL_WIDTH,
                f64::from(LABEL_WIDTH) + length + 6.0,
                y + 14,
                escape(&bar.text)
            );
            y += BAR_HEIGHT + GAP;
        }
        y += 8;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width_and_names_are_escaped() {
        let bar = |label: &str, value| Bar { label: label.into(), value, text: String::new(), accent: false };
        let svg = draw("a <b>", &[Group { title: "t".into(), bars: vec![bar("x", 1.0), bar("y", 4.0)] }]);
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"));
        assert!(svg.contains("width=\"430.0\"") && svg.contains("width=\"107.5\""));
    }
}
