//! Figures as SVG, and as PNG where `rsvg-convert` is installed: grouped bars and lines, with error bars.
//!
//! One figure makes one claim. Colours are told apart by the colour-blind (Okabe and Ito).

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::statistics::Estimate;

const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#555555"];
const WIDTH: f64 = 880.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 96.0;
const BOTTOM: f64 = 62.0;

/// How values become marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A bar for each value, grouped by category.
    Bars,
    /// A line through each series.
    Lines,
}

/// Values of one colour.
#[derive(Clone, Debug)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// One for each category, where there is one.
    pub values: Vec<Option<Estimate>>,
}

/// A figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The claim.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// Below the categories.
    pub x_label: String,
    /// Quantity and unit.
    pub y_label: String,
    /// Bars or lines.
    pub kind: Kind,
    /// From left to right.
    pub categories: Vec<String>,
    /// What is compared.
    pub series: Vec<Series>,
    /// A level to compare with, and its name.
    pub reference: Option<(String, f64)>,
}

impl Figure {
    /// As SVG text.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        text(&mut svg, 16.0, 26.0, "font-size=\"17\" font-weight=\"bold\"", &self.title);
        text(&mut svg, 16.0, 46.0, "fill=\"#555555\"", &self.subtitle);
        self.legend(&mut svg);
        let axis = Axis::over(&self.values());
        self.grid(&mut svg, &axis);
        match self.kind {
            Kind::Bars => self.bars(&mut svg, &axis),
            Kind::Lines => self.lines(&mut svg, &axis),
        }
        if let Some((name, level)) = &self.reference {
            let y = axis.y(*level);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#b00020\" stroke-dasharray=\"7 4\"/>",
                WIDTH - RIGHT
            );
            let style = "text-anchor=\"end\" fill=\"#b00020\" font-size=\"12\" stroke=\"#ffffff\" stroke-width=\"3\" paint-order=\"stroke\"";
            text(&mut svg, WIDTH - RIGHT - 4.0, y - 5.0, style, name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Everything that has to be within the axis.
    fn values(&self) -> Vec<f64> {
        let estimates = self.series.iter().flat_map(|series| series.values.iter().flatten());
        let ends = estimates.flat_map(|estimate| {
            let half = if estimate.half_width.is_finite() { estimate.half_width } else { 0.0 };
            [estimate.mean - half, estimate.mean + half]
        });
        let reference = self.reference.iter().map(|(_, level)| *level);
        ends.chain(reference).filter(|value| value.is_finite()).collect()
    }

    fn legend(&self, svg: &mut String) {
        let mut x = LEFT;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let _ =
                writeln!(svg, "<rect x=\"{x:.1}\" y=\"62\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
            text(svg, x + 17.0, 73.0, "", &series.name);
            x += 17.0 + 8.0 * series.name.chars().count() as f64 + 18.0;
        }
    }

    fn grid(&self, svg: &mut String, axis: &Axis) {
        for tick in axis.ticks() {
            let y = axis.y(tick);
            let stroke = if tick == 0.0 { "#555555" } else { "#dddddd" };
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{stroke}\"/>",
                WIDTH - RIGHT
            );
            text(svg, LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &number(tick, axis.step));
        }
        for (index, category) in self.categories.iter().enumerate() {
            text(svg, self.x(index), HEIGHT - BOTTOM + 20.0, "text-anchor=\"middle\"", category);
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        text(svg, middle, HEIGHT - 16.0, "text-anchor=\"middle\" fill=\"#555555\"", &self.x_label);
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let turned =
            format!("text-anchor=\"middle\" fill=\"#555555\" transform=\"rotate(-90 20 {middle:.1})\"");
        text(svg, 20.0, middle, &turned, &self.y_label);
    }

    /// The middle of a category.
    fn x(&self, index: usize) -> f64 {
        let width = (WIDTH - LEFT - RIGHT) / self.categories.len().max(1) as f64;
        LEFT + width * (index as f64 + 0.5)
    }

    fn marks(&self) -> impl Iterator<Item = (usize, usize, Estimate)> + '_ {
        self.series.iter().enumerate().flat_map(|(series, values)| {
            let values = values.values.iter().enumerate();
            values.filter_map(move |(category, value)| Some((series, category, (*value)?)))
        })
    }

    fn bars(&self, svg: &mut String, axis: &Axis) {
        let group = (WIDTH - LEFT - RIGHT) / self.categories.len().max(1) as f64 * 0.8;
        let width = group / self.series.len().max(1) as f64;
        for (series, category, value) in self.marks().filter(|(.., value)| value.mean.is_finite()) {
            let x = self.x(category) - group / 2.0 + width * series as f64;
            let (y, zero) = (axis.y(value.mean), axis.y(0.0));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                y.min(zero),
                width * 0.9,
                (y - zero).abs().max(0.5),
                COLOURS[series % COLOURS.len()]
            );
            error_bar(svg, x + width * 0.45, &value, axis);
        }
    }

    fn lines(&self, svg: &mut String, axis: &Axis) {
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            // Error bars of several series at one category stand beside each other.
            let shift = (index as f64 - (self.series.len() as f64 - 1.0) / 2.0) * 7.0;
            let mut path = String::new();
            for (category, value) in series.values.iter().enumerate() {
                let Some(value) = value.filter(|value| value.mean.is_finite()) else { continue };
                let (x, y) = (self.x(category) + shift, axis.y(value.mean));
                let _ = write!(path, "{}{x:.1} {y:.1} ", if path.is_empty() { 'M' } else { 'L' });
                error_bar(svg, x, &value, axis);
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>");
            }
            if !path.is_empty() {
                let _ = writeln!(
                    svg,
                    "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                    path.trim_end()
                );
            }
        }
    }
}

fn error_bar(svg: &mut String, x: f64, value: &Estimate, axis: &Axis) {
    if !value.half_width.is_finite() {
        return;
    }
    let (top, bottom) = (axis.y(value.mean + value.half_width), axis.y(value.mean - value.half_width));
    let _ = writeln!(
        svg,
        "<path d=\"M{x:.1} {top:.1}V{bottom:.1}M{:.1} {top:.1}H{:.1}M{:.1} {bottom:.1}H{:.1}\" stroke=\"#222222\" fill=\"none\"/>",
        x - 3.0,
        x + 3.0,
        x - 3.0,
        x + 3.0
    );
}

/// A linear axis from a round number to a round number, zero included.
struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    fn over(values: &[f64]) -> Axis {
        let low = values.iter().copied().fold(0.0, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let span = if high - low > 0.0 { high - low } else { 1.0 };
        let step = round_step(span / 5.0);
        Axis { low: (low / step).floor() * step, high: ((low + span) / step).ceil() * step, step }
    }

    fn y(&self, value: f64) -> f64 {
        let room = HEIGHT - TOP - BOTTOM;
        TOP + room * (1.0 - (value - self.low) / (self.high - self.low))
    }

    fn ticks(&self) -> Vec<f64> {
        let count = ((self.high - self.low) / self.step).round() as i64;
        let first = (self.low / self.step).round() as i64;
        (0..=count).map(|index| (first + index) as f64 * self.step).collect()
    }
}

/// The smallest of 1, 2, 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|round| *round >= step * 0.999)
        .unwrap_or(step)
}

/// With as many digits as the step has.
fn number(value: f64, step: f64) -> String {
    let (value, step, unit) = match step {
        1e6.. => (value / 1e6, step / 1e6, " M"),
        1e4.. => (value / 1e3, step / 1e3, " k"),
        _ => (value, step, ""),
    };
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{value:.digits$}{}", if value == 0.0 { "" } else { unit })
}

fn text(svg: &mut String, x: f64, y: f64, style: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{content}</text>");
}

/// Writes `name.svg`, and `name.png` where `rsvg-convert` is installed.
pub fn write(directory: &Path, name: &str, svg: &str) -> io::Result<()> {
    let path = directory.join(format!("{name}.svg"));
    fs::write(&path, svg)?;
    let mut convert = Command::new("rsvg-convert");
    convert.args(["--zoom", "1.5", "-o"]).arg(directory.join(format!("{name}.png"))).arg(&path);
    let _ = convert.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(mean: f64, half_width: f64) -> Option<Estimate> {
        Some(Estimate { mean, half_width, count: 10 })
    }

    fn figure(kind: Kind, values: Vec<Option<Estimate>>) -> Figure {
        Figure {
            title: "a <b> & c".into(),
            subtitle: String::new(),
            x_label: "x".into(),
            y_label: "y, s".into(),
            kind,
            categories: values.iter().map(|_| "c".into()).collect(),
            series: vec![Series { name: "s".into(), values }],
            reference: Some(("bar: 1 %".into(), 1.0)),
        }
    }

    #[test]
    fn ticks_are_round_and_cover_all_values() {
        for values in
            [vec![0.0, 7.3], vec![-0.4, 0.9], vec![12_345.0], vec![1e-4, 3e-4], vec![], vec![5.0, 5.0]]
        {
            let axis = Axis::over(&values);
            let ticks = axis.ticks();
            assert!((3..=12).contains(&ticks.len()), "{values:?}: {ticks:?}");
            assert!(values.iter().all(|value| (axis.low..=axis.high).contains(value)), "{values:?}");
            assert!(ticks.iter().any(|tick| *tick == 0.0), "{values:?}: {ticks:?}");
        }
        assert_eq!((round_step(0.7), round_step(1.0), round_step(13.0)), (1.0, 1.0, 20.0));
        assert_eq!((number(0.25, 0.05).as_str(), number(40_000.0, 20_000.0).as_str()), ("0.25", "40 k"));
    }

    #[test]
    fn what_is_not_there_is_not_drawn_and_text_is_escaped() {
        for kind in [Kind::Bars, Kind::Lines] {
            let marks = |svg: &str| svg.matches("<rect").count() + svg.matches("<circle").count();
            let all = figure(kind, vec![value(1.0, 0.1), value(2.0, f64::INFINITY)]).svg();
            let some = figure(kind, vec![value(1.0, 0.1), None]).svg();
            assert_eq!(marks(&all), marks(&some) + 1);
            assert!(some.contains("a &lt;b&gt; &amp; c") && !some.contains("NaN") && !all.contains("inf"));
            let none = figure(kind, vec![value(f64::NAN, 1.0)]).svg();
            assert!(!none.contains("NaN"));
        }
    }

    #[test]
    fn bars_below_zero_hang_from_zero() {
        let svg = figure(Kind::Bars, vec![value(-2.0, 0.0), value(2.0, 0.0)]).svg();
        let axis = Axis::over(&[-2.0, 2.0, 1.0]);
        assert!(svg.contains(&format!("y=\"{:.1}\" width", axis.y(0.0))), "{svg}");
        assert!(svg.contains(&format!("y=\"{:.1}\" width", axis.y(2.0))), "{svg}");
    }
}
