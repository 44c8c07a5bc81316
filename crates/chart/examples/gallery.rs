//! Every kind of figure with made-up values, to look at: `cargo run -p haul-chart --example gallery DIRECTORY`.

use std::io;
use std::path::Path;

use haul_chart::{Axis, Bar, Bars, Group, Lines, Range, Reference, Rows, Scale, Series, Value, X, write};

const METHODS: [&str; 6] = ["bitmap", "counter", "list", "range", "delta", "runs"];
const MECHANISMS: [&str; 3] = ["a log per file", "a log per transaction", "one log for all"];
const SUBTITLE: &str = "10,000 files of 1 MiB, 30 runs each; bars: mean with 99 % confidence interval";

fn value(seed: usize, base: f64, spread: f64) -> Value {
    let wave = ((seed * 7919 % 101) as f64 / 101.0 - 0.5) * 2.0;
    Value::new(base + spread * wave, spread * (0.2 + (seed * 31 % 17) as f64 / 40.0))
}

fn series(base: f64, spread: f64) -> Vec<Series> {
    let values = |method| (0..3).map(|mechanism| Some(value(method * 3 + mechanism, base, spread))).collect();
    METHODS.iter().enumerate().map(|(method, name)| Series::new(*name, values(method))).collect()
}

fn bars() -> Bars {
    Bars {
        title: "No log costs more than two seconds of a minute".into(),
        subtitle: SUBTITLE.into(),
        y: Axis::new("time (s)"),
        categories: MECHANISMS.map(Into::into).to_vec(),
        series: series(61.0, 1.5),
        references: vec![Reference::new("no log", Value::new(59.6, 0.9))],
        ..Bars::default()
    }
}

fn overhead() -> Bars {
    let mut series = series(0.6, 1.4);
    series[2].values[1] = None;
    series[4].values[0] = Some(Value::new(9.0, 0.5));
    Bars {
        title: "Overhead stays below the bar, but for one".into(),
        y: Axis::new("overhead over no log (%)").between(-2.0, 5.0),
        x_label: "mechanism".into(),
        references: vec![Reference::new("bar: 2 %", 2.0)],
        series,
        ..bars()
    }
}

fn nineteen(y: Axis, label: impl Fn(&str, &str) -> String) -> Bars {
    let mut categories = vec!["no log".to_owned()];
    categories.extend(MECHANISMS.iter().flat_map(|one| METHODS.iter().map(|other| label(one, other))));
    let values = (0..19).map(|index| Some(value(index, 40.0 + index as f64 * 900.0, 25.0))).collect();
    Bars {
        title:
            "Space grows with the number of objects that a method names one by one, and with nothing else, \
                whatever the mechanism"
                .into(),
        subtitle: SUBTITLE.into(),
        y,
        categories,
        series: vec![Series::new("", values)],
        ..Bars::default()
    }
}

fn lines() -> Lines {
    let series = ["source", "sink", "network"].iter().enumerate().map(|(index, name)| {
        let values =
            (0..4).map(|point| Some(value(index * 5 + point, 1.0 + 0.2 * index as f64, 0.3))).collect();
        Series::new(*name, values)
    });
    Lines {
        title: "Recovery costs less than 2 % wherever the fault comes".into(),
        subtitle: SUBTITLE.into(),
        x: X::numbers("fault after this share of the bytes (%)", [20.0, 40.0, 60.0, 80.0]),
        y: Axis::new("recovery time over a run without fault (%)"),
        series: series.collect(),
        references: vec![Reference::new("bar: 2 %", 2.0)],
    }
}

fn sweep() -> Lines {
    let at: Vec<f64> = (0..9).map(|power| 4096.0 * 4f64.powi(power)).collect();
    let values = |factor: f64| {
        let speed = |x: &f64| {
            Some(Value::new(factor * x / (x / 2.4e9 + 30e-6), factor * x / (x / 2.4e9 + 30e-6) / 9.0))
        };
        at.iter().map(speed).collect::<Vec<_>>()
    };
    let mut broken = values(0.6);
    broken[4] = None;
    Lines {
        title: "Speed follows the object's size up to 1 MiB".into(),
        subtitle: "synthetic storage, one stream".into(),
        x: X::Numbers { label: "object (bytes)".into(), scale: Scale::Log, at: at.clone() },
        y: Axis::new("speed (bytes/s)").log(),
        series: vec![Series::new("plain", values(1.0)), Series::new("sealed", broken)],
        references: vec![
            Reference::new("memory copy", 4e9),
            Reference::new("disk, as its maker says", 3.6e9),
        ],
    }
}

fn many() -> Lines {
    let series = (0..9).map(|index| {
        let values =
            (0..12).map(|point| Some(value(index * 3 + point, 100.0 + 3.0 * index as f64, 1.0))).collect();
        Series::new(format!("series {index}"), values)
    });
    Lines {
        title: "Nine lines on an axis that does not begin at 0".into(),
        subtitle: String::new(),
        x: X::categories("month", (1..=12).map(|month| format!("2031-{month:02} long"))),
        y: Axis { range: Range::Data, ..Axis::new("count") },
        series: series.collect(),
        references: Vec::new(),
    }
}

fn rows() -> Rows {
    let bar = |label: &str, value: Value, accent| Bar {
        label: label.into(),
        value,
        text: format!("{:.2} GB/s", value.mean),
        accent,
    };
    Rows {
        title: "Speed in GB/s (longer is faster)".into(),
        subtitle: "loopback, two cores; error bars: 99 % confidence interval".into(),
        groups: vec![
            Group {
                title: "one file of 4.0 GiB".into(),
                bars: vec![
                    bar("this program", Value::new(0.99, 0.1), true),
                    bar("another with a long name & <options>", 0.26.into(), false),
                    bar("nothing", 0.0.into(), false),
                    bar("failed", f64::NAN.into(), false),
                ],
            },
            Group { title: "2000 files of 1 MiB".into(), bars: vec![bar("this program", 1.06.into(), true)] },
        ],
    }
}

fn main() -> io::Result<()> {
    let directory = std::env::args().nth(1).ok_or_else(|| io::Error::other("which directory?"))?;
    let short = nineteen(Axis::new("space (bytes)"), |_, method| method.into());
    let long =
        nineteen(Axis::new("space (bytes)").log(), |mechanism, method| format!("{mechanism}, {method}"));
    let mut crowd = Bars { title: "Many bars widen the figure".into(), references: Vec::new(), ..bars() };
    crowd.categories = (0..19).map(|index| format!("case {index}")).collect();
    for (index, series) in crowd.series.iter_mut().enumerate() {
        series.values = (0..19).map(|category| Some(value(category + index * 19, 2e-7, 1e-7))).collect();
    }
    let figures = [
        ("bars", bars().svg()),
        ("bars-range", overhead().svg()),
        ("bars-19", short.svg()),
        ("bars-19-log", long.svg()),
        ("bars-114", crowd.svg()),
        (
            "bars-empty",
            Bars { title: "Nothing yet".into(), y: Axis::new("time (s)"), ..Bars::default() }.svg(),
        ),
        ("lines", lines().svg()),
        ("lines-log", sweep().svg()),
        ("lines-many", many().svg()),
        ("rows", rows().svg()),
    ];
    for (name, svg) in figures {
        println!("{:?}", write(Path::new(&directory), name, &svg)?);
    }
    Ok(())
}
