//! What came out, drawn: a picture for each case, and two of what haul costs at any size.

use std::io;
use std::path::Path;

use haul_chart::{Axis, Bar, Group, Lines, Reference, Rows, Scale, Series, Value, X};

use super::bars::FLAT;
use super::case::Case;
use super::csv::Measured;
use super::figures::{CostAt, Figures, Medians};
use super::tool::{Class, TOOLS, Tool};
use crate::evaluation::page::{Picture, draw};

/// Speed and processor time of all tools in one case, the fastest first.
pub fn case(directory: &Path, medians: &Medians, measured: &Measured) -> io::Result<Picture> {
    let Measured { dataset, storage, .. } = measured;
    let gigabytes = dataset.bytes as f64 / 1e9;
    let mut found: Vec<(&Tool, Figures)> =
        TOOLS.iter().filter_map(|tool| Some((tool, medians.of(dataset.case, tool)?))).collect();
    found.sort_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds));
    let bars = |of: &dyn Fn(&Figures) -> (f64, String)| -> Vec<Bar> {
        found
            .iter()
            .map(|(tool, figures)| {
                let (value, text) = of(figures);
                let label = tool.name.into();
                Bar { label, value: value.into(), text, accent: tool.class == Class::Haul }
            })
            .collect()
    };
    let is_tree = matches!(dataset.case, Case::Tree | Case::TreeDisk);
    let speed = |figures: &Figures| {
        let (rate, files) = (gigabytes / figures.seconds, dataset.files as f64 / figures.seconds);
        match is_tree {
            true => (files, format!("{files:.0} files/s, {:.2} s", figures.seconds)),
            false => (rate, format!("{rate:.2} GB/s, {:.2} s", figures.seconds)),
        }
    };
    let cost = |figures: &Figures| (figures.cost, format!("{:.2} s/GB", figures.cost));
    let unit = if is_tree { "files/s" } else { "GB/s" };
    let figure = Rows {
        title: format!("{}: speed, and what it costs", dataset.title),
        subtitle: format!("{storage}, both ends on one machine, loopback; medians"),
        groups: vec![
            Group { title: format!("Speed, {unit} (longer is faster)"), bars: bars(&speed) },
            Group {
                title: "Processor time of both ends, s/GB (shorter is cheaper)".into(),
                bars: bars(&cost),
            },
        ],
    };
    draw(directory, format!("peers-{}", dataset.case.name()), &figure.title, &figure.svg())
}

/// Something that should not grow.
fn flat(
    directory: &Path,
    name: &str,
    title: &str,
    (x, at): (&str, Vec<f64>),
    (y, values): (&str, Vec<f64>),
) -> io::Result<Picture> {
    let first = values.first().copied().unwrap_or(0.0);
    let figure = Lines {
        title: title.into(),
        subtitle: "computed files, nothing kept at the sink; medians".into(),
        x: X::Numbers { label: x.into(), scale: Scale::Log, at },
        y: Axis::new(y),
        series: vec![Series::new("haul", values.into_iter().map(|value| Some(Value::from(value))).collect())],
        references: vec![Reference::new(format!("{FLAT} x the first"), FLAT * first)],
    };
    draw(directory, format!("peers-cost-{name}"), title, &figure.svg())
}

/// Processor time for each GB.
pub fn per_gigabyte(directory: &Path, costs: &[CostAt]) -> io::Result<Picture> {
    flat(
        directory,
        "bytes",
        "Processor time for each GB, whatever the size of a file",
        ("size of the file, GB", costs.iter().map(|cost| cost.bytes as f64 / 1e9).collect()),
        ("processor time of both ends, s/GB", costs.iter().map(CostAt::per_gigabyte).collect()),
    )
}

/// Time for each file.
pub fn per_file(directory: &Path, costs: &[CostAt]) -> io::Result<Picture> {
    flat(
        directory,
        "files",
        "Time for each file, however many there are",
        ("files", costs.iter().map(|cost| cost.files as f64).collect()),
        ("time for a file, µs", costs.iter().map(CostAt::per_file).collect()),
    )
}
