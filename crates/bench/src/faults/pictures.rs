//! The figures of the paper, drawn with what haul did: one claim each.

use std::io;
use std::path::Path;

use haul_chart::{Axis, Bars, Lines, Reference, Series, X};

use super::overhead::Overhead;
use super::recovery::{Case, Recovery};
use super::report::{QUANTITIES, case, points};
use super::transfer::Fault;
use super::variant::{MECHANISMS, METHODS, Variant, Workload};
use crate::evaluation::page::{self, Picture, draw, value};
use crate::statistics::Estimate;

fn draw_bars(directory: &Path, name: String, bars: &Bars) -> io::Result<Picture> {
    draw(directory, name, &bars.title, &bars.svg())
}

/// A bar for each log: methods from left to right, mechanisms in colours.
fn logs(value: impl Fn(Variant) -> Option<Estimate>) -> (Vec<String>, Vec<Series>) {
    let series = MECHANISMS.map(|mechanism| {
        let values = METHODS.map(|method| page::value(value(Variant::Log(mechanism, method))));
        Series::new(mechanism, values.to_vec())
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
    let figure = Bars {
        title: "What an object log adds to the transfer time".into(),
        subtitle: subtitle(workload),
        x_label: "method".into(),
        y: Axis::new("above no log, %"),
        categories,
        series,
        references: vec![Reference::new("bar: 1 %", 1.0)],
    };
    pictures.push(draw_bars(directory, name("overhead"), &figure)?);
    for quantity in &QUANTITIES {
        let (categories, series) = logs(|variant| overhead.estimate(variant, quantity.of));
        let without = overhead.estimate(Variant::NoLog, quantity.of);
        let figure = Bars {
            title: format!("With and without an object log: {}", quantity.label),
            subtitle: subtitle(workload),
            x_label: "method".into(),
            y: Axis::new(quantity.label),
            categories,
            series,
            references: value(without).map(|without| Reference::new("no log", without)).into_iter().collect(),
        };
        pictures.push(draw_bars(directory, name(quantity.short), &figure)?);
    }
    Ok(pictures)
}

/// What a log adds where the processor does not decide.
pub fn paced(directory: &Path, workload: &Workload, recovery: &Recovery) -> io::Result<Picture> {
    let (categories, series) = logs(|variant| recovery.log_percent(variant));
    let figure = Bars {
        title: "What an object log adds to the time of a paced transfer".into(),
        subtitle: format!("{}; paced to {:.1} MB/s", subtitle(workload), recovery.bandwidth as f64 / 1e6),
        x_label: "method".into(),
        y: Axis::new("above no log, %"),
        categories,
        series,
        references: vec![Reference::new("bar: 1 %", 1.0)],
    };
    draw_bars(directory, format!("ft-lads-{}-overhead-paced", workload.name), &figure)
}

/// Figure 7.
pub fn space(directory: &Path, workload: &Workload, rooms: &[(Variant, (u64, u64))]) -> io::Result<Picture> {
    let (categories, series) = logs(|variant| {
        let (_, (bytes, _)) = rooms.iter().find(|(other, _)| *other == variant)?;
        Some(Estimate { mean: *bytes as f64 / 1000.0, half_width: f64::INFINITY, count: 1 })
    });
    let figure = Bars {
        title: "Room that the object logs take at most".into(),
        subtitle: format!(
            "{} workload: {} files of {} kB",
            workload.name,
            workload.files,
            workload.file_bytes / 1000
        ),
        x_label: "method".into(),
        y: Axis::new("peak of all logs, kB"),
        categories,
        series,
        references: match workload.name {
            "big" => vec![Reference::new("bar: 20 kB", 20.0)],
            _ => Vec::new(),
        },
    };
    draw_bars(directory, format!("ft-lads-{}-space", workload.name), &figure)
}

/// Figures 8 and 9: by fault point, for what comes by default, no log, and the other movers.
pub fn recovery_lines(
    directory: &Path,
    workload: &Workload,
    recovery: &Recovery,
) -> io::Result<Vec<Picture>> {
    let points = points(recovery);
    let line = |name: String, at: &dyn Fn(u32) -> Option<Estimate>| {
        Series::new(name, points.iter().map(|percent| value(at(*percent))).collect())
    };
    let write = |short: &str, title: &str, y: &str, series, references| {
        let figure = Lines {
            title: title.into(),
            subtitle: format!("{}; paced to {:.1} MB/s", subtitle(workload), recovery.bandwidth as f64 / 1e6),
            x: X::categories(
                "fault after this share of the bytes",
                points.iter().map(|percent| format!("{percent} %")),
            ),
            y: Axis::new(y),
            series,
            references,
        };
        draw(directory, format!("ft-lads-{}-{short}", workload.name), title, &figure.svg())
    };
    let by_fault = |of: &dyn Fn(Case) -> Option<Estimate>| -> Vec<Series> {
        Fault::ALL
            .map(|fault| line(fault.name().into(), &|percent| of(case(Variant::DEFAULT_LOG, fault, percent))))
            .to_vec()
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
        write(
            "recovery",
            "What a fault costs, by where and when it hits (universal+bit64)",
            "recovery time ER, s",
            by_fault(&|case| recovery.recovery_seconds(case)),
            Vec::new(),
        )?,
        write(
            "recovery-movers",
            "Recovery after a kill of the source, by mover",
            "recovery time ER, s",
            by_mover,
            Vec::new(),
        )?,
        write(
            "again",
            "Bytes sent again after a fault (universal+bit64)",
            "sent again, MB",
            by_fault(&|case| recovery.bytes_again(case).map(|bytes| bytes.times(1e-6))),
            Vec::new(),
        )?,
        write(
            "first-object",
            "When the first new object moves after a fault (universal+bit64)",
            "time to the first new object, s",
            by_fault(&|case| recovery.first_object_seconds(case)),
            vec![Reference::new("bar: 1 s", 1.0)],
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
        if series.iter().all(|series| series.values.iter().all(Option::is_none)) {
            continue;
        }
        let figure = Bars {
            title: format!(
                "Recovery beyond the work in flight and the new start, fault at the {}",
                fault.name()
            ),
            subtitle: format!("{}; fault after {last} % of the bytes", subtitle(workload)),
            x_label: "method".into(),
            y: Axis::new("of the transfer time, %"),
            categories,
            series,
            references: vec![Reference::new(format!("bar: {bar} %"), bar)],
        };
        let name = format!("ft-lads-{}-rest-{}", workload.name, fault.name());
        pictures.push(draw_bars(directory, name, &figure)?);
    }
    Ok(pictures)
}
