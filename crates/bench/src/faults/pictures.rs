//! The figures of the paper, drawn with what haul did: one claim each.

use std::io;
use std::path::Path;

use super::overhead::Overhead;
use super::recovery::{Case, Recovery};
use super::report::{QUANTITIES, case, points};
use super::transfer::Fault;
use super::variant::{MECHANISMS, METHODS, Variant, Workload};
use crate::chart::{self, Figure, Kind, Series};
use crate::statistics::Estimate;

/// One that was written.
pub struct Picture {
    /// Of its files, without the extension.
    pub name: String,
    /// What it shows.
    pub title: String,
}

fn draw(directory: &Path, name: String, figure: &Figure) -> io::Result<Picture> {
    chart::write(directory, &name, &figure.svg())?;
    Ok(Picture { name, title: figure.title.clone() })
}

/// A bar for each log: methods from left to right, mechanisms in colours.
fn logs(value: impl Fn(Variant) -> Option<Estimate>) -> (Vec<String>, Vec<Series>) {
    let series = MECHANISMS.map(|mechanism| Series {
        name: mechanism.into(),
        values: METHODS.map(|method| value(Variant::Log(mechanism, method))).to_vec(),
    });
    (METHODS.map(String::from).to_vec(), series.to_vec())
}

fn subtitle(workload: &Workload) -> String {
    format!(
        "{} workload: {} files of {} kB; means with 99 % confidence intervals",
        workload.name,
        workload.files,
        workload.file_bytes / 1000
    )
}

/// Figures 5 and 6, and the overhead that they show.
pub fn overhead(directory: &Path, workload: &Workload, overhead: &Overhead) -> io::Result<Vec<Picture>> {
    let name = |short: &str| format!("ft-lads-{}-{short}", workload.name);
    let mut pictures = Vec::new();
    let (categories, series) = logs(|variant| overhead.overhead_percent(variant, QUANTITIES[0].of));
    let figure = Figure {
        title: "What an object log adds to the transfer time".into(),
        subtitle: subtitle(workload),
        x_label: "method".into(),
        y_label: "above no log, %".into(),
        kind: Kind::Bars,
        categories,
        series,
        reference: Some(("the paper's bar: 1 %".into(), 1.0)),
    };
    pictures.push(draw(directory, name("overhead"), &figure)?);
    for quantity in &QUANTITIES {
        let (categories, series) = logs(|variant| overhead.estimate(variant, quantity.of));
        let without = overhead.estimate(Variant::NoLog, quantity.of);
        let figure = Figure {
            title: format!("With and without an object log: {}", quantity.label),
            subtitle: subtitle(workload),
            x_label: "method".into(),
            y_label: quantity.label.into(),
            kind: Kind::Bars,
            categories,
            series,
            reference: without.map(|without| ("no log".into(), without.mean)),
        };
        pictures.push(draw(directory, name(quantity.short), &figure)?);
    }
    Ok(pictures)
}

/// Figure 7.
pub fn space(directory: &Path, workload: &Workload, rooms: &[(Variant, (u64, u64))]) -> io::Result<Picture> {
    let (categories, series) = logs(|variant| {
        let (_, (bytes, _)) = rooms.iter().find(|(other, _)| *other == variant)?;
        Some(Estimate { mean: *bytes as f64 / 1000.0, half_width: f64::INFINITY, count: 1 })
    });
    let figure = Figure {
        title: "Room that the object logs take at most".into(),
        subtitle: format!(
            "{} workload: {} files of {} kB",
            workload.name,
            workload.files,
            workload.file_bytes / 1000
        ),
        x_label: "method".into(),
        y_label: "peak of all logs, kB".into(),
        kind: Kind::Bars,
        categories,
        series,
        reference: (workload.name == "big").then(|| ("the paper: 60 kB".into(), 60.0)),
    };
    draw(directory, format!("ft-lads-{}-space", workload.name), &figure)
}

/// Figures 8 and 9: by fault point, for what comes by default, no log, and the other movers.
pub fn recovery_lines(
    directory: &Path,
    workload: &Workload,
    recovery: &Recovery,
) -> io::Result<Vec<Picture>> {
    let points = points(recovery);
    let categories: Vec<String> = points.iter().map(|percent| format!("{percent} %")).collect();
    let line = |name: String, value: &dyn Fn(u32) -> Option<Estimate>| Series {
        name,
        values: points.iter().map(|percent| value(*percent)).collect(),
    };
    let figure = |title: &str, y_label: &str, series, reference| Figure {
        title: title.into(),
        subtitle: format!("{}; paced to {:.1} MB/s", subtitle(workload), recovery.bandwidth as f64 / 1e6),
        x_label: "fault after this share of the bytes".into(),
        y_label: y_label.into(),
        kind: Kind::Lines,
        categories: categories.clone(),
        series,
        reference,
    };
    let name = |short: &str| format!("ft-lads-{}-{short}", workload.name);
    let by_fault = |value: &dyn Fn(Case) -> Option<Estimate>| -> Vec<Series> {
        let of = |fault: Fault| {
            line(fault.name().into(), &|percent| value(case(Variant::DEFAULT_LOG, fault, percent)))
        };
        Fault::ALL.map(of).to_vec()
    };
    let movers = [Variant::DEFAULT_LOG, Variant::Default, Variant::NoLog, Variant::Rsync, Variant::Bbcp];
    let by_mover: Vec<Series> = movers
        .into_iter()
        .filter(|variant| recovery.undisturbed.contains_key(variant))
        .map(|variant| {
            line(variant.to_string(), &|percent| {
                recovery.recovery_seconds(case(variant, Fault::Source, percent))
            })
        })
        .collect();
    Ok(vec![
        draw(
            directory,
            name("recovery"),
            &figure(
                "A fault costs the same wherever and whenever it hits (universal+bit64)",
                "recovery time ER, s",
                by_fault(&|case| recovery.recovery_seconds(case)),
                None,
            ),
        )?,
        draw(
            directory,
            name("recovery-movers"),
            &figure("Recovery after a kill of the source, by mover", "recovery time ER, s", by_mover, None),
        )?,
        draw(
            directory,
            name("again"),
            &figure(
                "Bytes sent again are the work in flight (universal+bit64)",
                "sent again, MB",
                by_fault(&|case| recovery.bytes_again(case).map(|bytes| bytes.times(1e-6))),
                None,
            ),
        )?,
        draw(
            directory,
            name("first-object"),
            &figure(
                "The first new object moves soon after a fault (universal+bit64)",
                "time to the first new object, s",
                by_fault(&|case| recovery.first_object_seconds(case)),
                Some(("bar: 1 s".into(), 1.0)),
            ),
        )?,
    ])
}

/// Figure 10: all logs at the last fault point.
pub fn recovery_bars(directory: &Path, workload: &Workload, recovery: &Recovery) -> io::Result<Vec<Picture>> {
    let Some(&last) = points(recovery).last() else { return Ok(Vec::new()) };
    let bar = if workload.name == "big" { 2.0 } else { 3.0 };
    let mut pictures = Vec::new();
    for fault in Fault::ALL {
        let (categories, series) = logs(|variant| recovery.overhead_percent(case(variant, fault, last)));
        let figure = Figure {
            title: format!(
                "Recovery beyond the work in flight and the new start, fault at the {}",
                fault.name()
            ),
            subtitle: format!("{}; fault after {last} % of the bytes", subtitle(workload)),
            x_label: "method".into(),
            y_label: "of the transfer time, %".into(),
            kind: Kind::Bars,
            categories,
            series,
            reference: Some((format!("bar: {bar} %"), bar)),
        };
        let name = format!("ft-lads-{}-rest-{}", workload.name, fault.name());
        pictures.push(draw(directory, name, &figure)?);
    }
    Ok(pictures)
}
