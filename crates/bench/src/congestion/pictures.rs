//! What came out, drawn: one claim each.

use std::io;
use std::path::Path;

use haul_chart::{Axis, Bars, Lane, Lanes, Reference, Series};

use super::mover::Mover;
use super::probe::{Beside, Latency};
use super::report::{Runs, WAITS_BAR, estimate, movers, waits};
use super::transfer::{self, Case, Outcome};
use super::{End, System, TARGETS};
use crate::evaluation::page::{Picture, draw, value};

/// A bar for each mover at each place.
fn by_place(
    runs: &Runs,
    places: &[(End, usize)],
    moving: bool,
    of: impl Fn(&Outcome) -> f64,
) -> (Vec<String>, Vec<Series>) {
    let names = places.iter().map(|(end, slow)| format!("{end}, {slow} slow")).collect();
    let series = movers(runs).into_iter().map(|mover| {
        let at = |(end, slow): &(End, usize)| {
            value(estimate(runs, Case { end: *end, slow: *slow, moving, mover }, &of))
        };
        Series::new(mover.name(), places.iter().map(at).collect())
    });
    (names, series.collect())
}

/// Throughput with slow targets that move.
pub fn share_of_bound(
    directory: &Path,
    system: System,
    runs: &Runs,
    places: &[(End, usize)],
    step_seconds: f64,
) -> io::Result<Picture> {
    let (categories, series) = by_place(runs, places, true, Outcome::share_of_bound);
    let figure = Bars {
        title: "What a transfer keeps of the speed that its targets have".into(),
        subtitle: format!(
            "{TARGETS} targets, some ten times slower, others every {step_seconds} s; means with 99 % confidence intervals"
        ),
        x_label: "where targets are slow, and how many".into(),
        y: Axis::new("share of the work-conserving bound").between(0.0, 1.05),
        categories,
        series,
        references: vec![Reference::new("bar: 0.9", 0.9)],
    };
    draw(directory, format!("{}-moving", system.prefix()), &figure.title, &figure.svg())
}

/// What is on targets that are not slow, while others are and stay so.
pub fn others(directory: &Path, system: System, runs: &Runs, places: &[(End, usize)]) -> io::Result<Picture> {
    let share = |outcome: &Outcome| outcome.others_bound_seconds / outcome.others_seconds;
    let (categories, series) = by_place(runs, places, false, share);
    let figure = Bars {
        title: "Whether everything waits for a target that stays slow".into(),
        subtitle: format!(
            "{TARGETS} targets, some ten times slower: what is on the others; means with 99 % confidence intervals"
        ),
        x_label: "where targets are slow, and how many".into(),
        y: Axis::new("share of the others' work-conserving bound").between(0.0, 1.05),
        categories,
        series,
        references: vec![Reference::new("bar: 0.9", 0.9)],
    };
    draw(directory, format!("{}-constant", system.prefix()), &figure.title, &figure.svg())
}

/// Requests under way at slow targets.
pub fn requests_at_slow(
    directory: &Path,
    runs: &Runs,
    places: &[(End, usize)],
    moving: bool,
) -> io::Result<Picture> {
    let (categories, series) = by_place(runs, places, moving, |outcome| outcome.at_slow.unwrap_or(0.0));
    let figure = Bars {
        title: "How much waits at a slow target".into(),
        subtitle: format!(
            "{TARGETS} targets, some ten times slower{}; means with 99 % confidence intervals",
            if moving { ", others every few seconds" } else { "" }
        ),
        x_label: "where targets are slow, and how many".into(),
        y: Axis::new("requests under way at a slow target, on average"),
        categories,
        series,
        references: Vec::new(),
    };
    draw(directory, "lads-requests".into(), &figure.title, &figure.svg())
}

/// The order of objects of one run.
pub fn order(directory: &Path, mover: Mover, picture: &transfer::Picture) -> io::Result<Picture> {
    let title = match mover {
        Mover::FileOrder => "In the order of files, all wait for the slow target",
        Mover::Layout => "Target by target, threads still gather at the slow one",
        Mover::Lads => "LADS skips the slow target, and comes back to it",
        _ => "Adaptive: one small request at a time for the slow target, the others go on",
    };
    let lane = |target: usize| Lane {
        name: format!("target {target}"),
        spans: picture
            .stretches
            .iter()
            .filter(|stretch| stretch.target == target)
            .map(|stretch| (stretch.from, stretch.until, stretch.file))
            .collect(),
        marks: picture.slow.get(target).cloned().unwrap_or_default(),
    };
    let files = picture.stretches.iter().map(|stretch| stretch.file + 1).max().unwrap_or(0);
    let figure = Lanes {
        title: title.into(),
        subtitle: format!(
            "{mover}: {files} files on four targets each; a colour is a file, in the order of their making"
        ),
        x_label: "time (s)".into(),
        until: picture.seconds,
        lanes: (0..TARGETS).map(lane).collect(),
        kinds: files,
        mark: "a tenth of its speed".into(),
    };
    draw(directory, format!("lads-order-{mover}"), title, &figure.svg())
}

/// What a neighbour on a slow target has to wait.
pub fn neighbour(directory: &Path, all: &[Latency], end: End, beside: &[Beside]) -> io::Result<Picture> {
    let times = |beside: &Beside| waits(all, end, *beside).map(|times| times.mean.into());
    let figure = Bars {
        title: format!("How long a neighbour waits at a slow target of the {end}"),
        subtitle: "one small request after the other, while something else uses the target too".into(),
        x_label: "beside".into(),
        y: Axis::new("times as long, on average, as beside one cp"),
        categories: beside.iter().map(|beside| beside.name().to_owned()).collect(),
        series: vec![Series::new("wait", beside.iter().map(times).collect())],
        references: vec![Reference::new(format!("bar: {WAITS_BAR}"), WAITS_BAR)],
    };
    draw(directory, format!("lads-neighbour-{end}"), &figure.title, &figure.svg())
}
