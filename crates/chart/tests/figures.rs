//! Figures as a reader gets them: parsed back, whatever was drawn.

mod support;

use haul_chart::{
    Axis, Bar, Bars, Group, Lane, Lanes, Lines, Range, Reference, Rows, Scale, Series, Value, X,
};
use support::{Element, check, read};

const BLUE: &str = "#0072b2";
const ORANGE: &str = "#e69f00";

fn exact(values: &[f64]) -> Vec<Option<Value>> {
    values.iter().map(|value| Some((*value).into())).collect()
}

fn names(count: usize, name: &str) -> Vec<String> {
    (0..count).map(|index| format!("{name} {index}")).collect()
}

fn bars(y: Axis, values: &[f64]) -> Bars {
    let categories = names(values.len(), "case");
    Bars {
        title: "claim".into(),
        y,
        categories,
        series: vec![Series::new("", exact(values))],
        ..Bars::default()
    }
}

fn lines(y: Axis, values: &[f64]) -> Lines {
    let at: Vec<f64> = (1..=values.len()).map(|index| index as f64 * 20.0).collect();
    let series = vec![Series::new("", exact(values))];
    Lines { title: "claim".into(), x: X::numbers("point (%)", at), y, series, ..Lines::default() }
}

fn filled<'a>(elements: &'a [Element], name: &str, color: &str) -> Vec<&'a Element> {
    elements.iter().filter(|element| element.name == name && element.is("fill", color)).collect()
}

/// Dashed across the plot.
fn references(elements: &[Element]) -> Vec<&Element> {
    elements
        .iter()
        .filter(|element| element.name == "line" && element.is("stroke-dasharray", "6 4"))
        .collect()
}

/// Upper and lower edge of the plot: the ends of its left edge.
fn plot(elements: &[Element]) -> (f64, f64) {
    let upright = |element: &&Element| element.name == "line" && element.number("x1") == element.number("x2");
    let edge = elements.iter().find(upright).expect("a y axis");
    (edge.number("y1"), edge.number("y2"))
}

/// Where a y tick with this label is.
fn tick(elements: &[Element], label: &str) -> f64 {
    let found = elements.iter().find(|element| element.text == label && element.is("text-anchor", "end"));
    found.unwrap_or_else(|| panic!("no tick {label}")).number("y") - 4.0
}

fn texts(elements: &[Element]) -> Vec<&str> {
    elements.iter().filter(|element| element.name == "text").map(|element| element.text.as_str()).collect()
}

#[test]
fn the_reader_of_these_tests_refuses_what_is_not_well_formed() {
    for bad in [
        "<a>",
        "<a></b>",
        "<a b=\"1\" b=\"2\"/>",
        "<a>&</a>",
        "<a>&no;</a>",
        "<a/><b/>",
        "x",
        "",
        "<a b=\"<\"/>",
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
    assert_eq!(read("<a b=\"&lt;\">x &amp; y<c/></a>").unwrap()[0].text, "x & y");
}

#[test]
fn all_text_is_escaped_wherever_it_comes_from() {
    let nasty = |place: &str| format!("{place} <b> & \"q\" 'a' </svg>\u{1}");
    let plain = |place: &str| format!("{place} <b> & \"q\" 'a' </svg>\u{fffd}");
    let y = Axis::new(nasty("y"));
    let series = vec![Series::new(nasty("series"), exact(&[1.0]))];
    let reference = vec![Reference::new("<&>", 1.0)];
    let bars = Bars {
        title: nasty("title"),
        subtitle: nasty("subtitle"),
        x_label: nasty("x"),
        y: y.clone(),
        categories: vec![nasty("name")],
        series: series.clone(),
        references: reference.clone(),
    };
    let lines = Lines {
        title: nasty("title"),
        subtitle: nasty("subtitle"),
        x: X::categories(nasty("x"), [nasty("name")]),
        y,
        series,
        references: reference,
    };
    for svg in [bars.svg(), lines.svg()] {
        let elements = check(&svg);
        assert_eq!(elements[0].attributes["aria-label"], plain("title"));
        for place in ["title", "subtitle", "x", "y", "series", "name"] {
            assert!(texts(&elements).contains(&plain(place).as_str()), "{place}: {:?}", texts(&elements));
        }
        assert!(texts(&elements).contains(&"<&>"));
    }
    let bar = Bar { label: nasty("label"), text: nasty("text"), value: 1.0.into(), accent: true };
    let groups = vec![Group { title: nasty("group"), bars: vec![bar] }];
    let elements = check(&Rows { title: nasty("title"), subtitle: nasty("subtitle"), groups }.svg());
    for place in ["title", "subtitle", "group", "label", "text"] {
        assert!(texts(&elements).contains(&plain(place).as_str()), "{place}: {:?}", texts(&elements));
    }
}

#[test]
fn bars_reach_from_zero_to_their_value() {
    let elements = check(&bars(Axis::new("s"), &[10.0, 5.0, 0.0]).svg());
    let (top, bottom) = plot(&elements);
    assert_eq!((tick(&elements, "10"), tick(&elements, "0")), (top, bottom));
    let bars = filled(&elements, "rect", BLUE);
    assert_eq!(bars.len(), 2, "no bar for 0");
    for (bar, height) in bars.iter().zip([bottom - top, (bottom - top) / 2.0]) {
        assert!((bar.number("height") - height).abs() < 0.2, "{bar:?}");
        assert!((bar.number("y") + bar.number("height") - bottom).abs() < 0.2, "{bar:?}");
    }
}

#[test]
fn in_a_given_range_bars_hang_from_zero_and_what_is_cut_off_is_marked() {
    let elements = check(&bars(Axis::new("%").between(-4.0, 4.0), &[2.0, -2.0, 9.0, -9.0]).svg());
    let (top, bottom) = plot(&elements);
    let zero = tick(&elements, "0");
    assert!((zero - f64::midpoint(top, bottom)).abs() < 0.2);
    let ends: Vec<_> = filled(&elements, "rect", BLUE)
        .iter()
        .map(|bar| (bar.number("y"), bar.number("y") + bar.number("height")))
        .collect();
    let quarter = (bottom - top) / 4.0;
    for (end, expected) in
        ends.iter().zip([(zero - quarter, zero), (zero, zero + quarter), (top, zero), (zero, bottom)])
    {
        assert!((end.0 - expected.0).abs() < 0.2 && (end.1 - expected.1).abs() < 0.2, "{end:?} {expected:?}");
    }
    let marks: Vec<_> = elements.iter().filter(|element| element.name == "path").collect();
    assert_eq!(marks.len(), 2, "{marks:?}");
}

#[test]
fn what_was_not_measured_draws_nothing() {
    let all = [Some(Value::new(3.0, 1.0)), Some(Value::new(4.0, 1.0)), Some(Value::new(5.0, 1.0))];
    let missing =
        [None, Some(Value::new(f64::NAN, 1.0)), Some(f64::INFINITY.into()), Some(Value::new(-1e305, 1.0))];
    for gap in missing {
        let values = vec![all[0], gap, all[2], all[1]];
        let series = |values: &[Option<Value>]| vec![Series::new("a", values.to_vec())];
        let bars = Bars { series: series(&values), ..bars(Axis::new("s"), &[0.0; 4]) };
        let elements = check(&bars.svg());
        // One more is the sample in the legend.
        assert_eq!(filled(&elements, "rect", BLUE).len(), 3 + 1, "{gap:?}");
        let error_bars = |elements: &[Element], color: &str| {
            elements
                .iter()
                .filter(|element| element.is("stroke-width", "1.4") && element.is("stroke", color))
                .count()
        };
        assert_eq!(error_bars(&elements, "#1f2933"), 3 * 3);
        let lines = Lines { series: series(&values), ..lines(Axis::new("s"), &[0.0; 4]) };
        let elements = check(&lines.svg());
        assert_eq!(filled(&elements, "path", BLUE).len(), 3 + 1, "{gap:?}");
        assert_eq!(error_bars(&elements, BLUE), 3 * 3);
        let strokes: Vec<_> =
            elements.iter().filter(|element| element.is("stroke-linejoin", "round")).collect();
        let parts = &strokes[1].attributes["d"];
        assert_eq!(
            (parts.matches('M').count(), parts.matches('L').count()),
            (1, 1),
            "a gap behind the first: {parts}"
        );
    }
    // A series that is too short, and one with more values than there are categories.
    let short = Series::new("a", exact(&[1.0]));
    let long = Series::new("b", exact(&[1.0; 9]));
    let elements = check(&Bars { series: vec![short, long], ..bars(Axis::new("s"), &[0.0; 3]) }.svg());
    assert_eq!(
        (filled(&elements, "rect", BLUE).len(), filled(&elements, "rect", ORANGE).len()),
        (1 + 1, 3 + 1)
    );
}

#[test]
fn an_interval_that_is_none_has_no_error_bar() {
    for half_width in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let series = vec![Series::new("", vec![Some(Value::new(5.0, half_width))])];
        let elements = check(&Bars { series, ..bars(Axis::new("s"), &[5.0]) }.svg());
        assert_eq!(filled(&elements, "rect", BLUE).len(), 1);
        assert!(!elements.iter().any(|element| element.is("stroke-width", "1.4")), "{half_width}");
        assert!(tick(&elements, "5").is_finite());
    }
}

#[test]
fn on_a_log_axis_a_decade_is_a_decade_and_zero_is_missing() {
    let y = Axis::new("bytes").log();
    let elements = check(&bars(y.clone(), &[20.0, 200.0, 20_000.0, 0.0, -5.0]).svg());
    let bars = filled(&elements, "rect", BLUE);
    assert_eq!(bars.len(), 3);
    let decade = tick(&elements, "10") - tick(&elements, "100");
    assert!((tick(&elements, "100") - tick(&elements, "10 k") - 2.0 * decade).abs() < 0.2);
    assert!((bars[0].number("y") - bars[1].number("y") - decade).abs() < 0.2);
    assert!((bars[1].number("y") - bars[2].number("y") - 2.0 * decade).abs() < 0.2);
    // An interval that includes 0 ends at the lower edge and leaves the axis as it is.
    let wide =
        Lines { series: vec![Series::new("", vec![Some(Value::new(20.0, 30.0))])], ..lines(y, &[1.0]) };
    let elements = check(&wide.svg());
    let (top, bottom) = plot(&elements);
    let error_bars: Vec<_> = elements.iter().filter(|element| element.is("stroke-width", "1.4")).collect();
    assert_eq!(error_bars.len(), 2, "the line and its upper end");
    assert!(tick(&elements, "2") - tick(&elements, "50") > (bottom - top) * 0.9);
    assert!((error_bars[0].number("y1") - bottom).abs() < 0.2);
}

#[test]
fn a_reference_lies_in_the_plot_with_its_band_and_label() {
    for value in [0.5, 3.0, 80.0, -20.0] {
        let value = Value::new(value, 0.25);
        let reference = vec![Reference::new("no log", value)];
        let figures = [
            Bars { references: reference.clone(), ..bars(Axis::new("s"), &[3.0, 4.0]) }.svg(),
            Lines { references: reference, ..lines(Axis::new("s"), &[3.0, 4.0]) }.svg(),
        ];
        for svg in figures {
            let elements = check(&svg);
            let (top, bottom) = plot(&elements);
            let lines = references(&elements);
            assert_eq!(lines.len(), 1);
            let y = lines[0].number("y1");
            assert!((top..=bottom).contains(&y), "{value:?}: {y} in {top}..{bottom}");
            let band = elements.iter().find(|element| element.is("fill-opacity", "0.14")).expect("a band");
            let middle = band.number("y") + band.number("height") / 2.0;
            assert!((middle - y).abs() < 0.2 && band.number("y") >= top - 0.1, "{band:?}");
            assert!(band.number("y") + band.number("height") <= bottom + 0.1, "{band:?}");
            let label = elements.iter().find(|element| element.text == "no log").expect("a label");
            assert!(label.number("x") > lines[0].number("x2"), "outside the plot");
            assert!((label.number("y") - y).abs() < 12.0, "beside its line");
        }
    }
}

#[test]
fn a_reference_outside_a_given_range_is_named_with_its_direction() {
    let outside = vec![Reference::new("high", 90.0), Reference::new("low", Value::new(-90.0, 1.0))];
    let elements =
        check(&Bars { references: outside, ..bars(Axis::new("s").between(0.0, 5.0), &[3.0]) }.svg());
    assert!(references(&elements).is_empty());
    assert!(!elements.iter().any(|element| element.is("fill-opacity", "0.14")));
    assert!(texts(&elements).contains(&"↑ high") && texts(&elements).contains(&"↓ low"));
}

#[test]
fn labels_of_references_at_one_place_keep_their_order_and_do_not_touch() {
    let close = ["highest, with a long label of its own", "middle", "lowest"];
    let references = [1, 2, 0].map(|index| Reference::new(close[index], 4.0 - index as f64 * 0.01)).to_vec();
    let elements = check(&Lines { references, ..lines(Axis::new("s"), &[1.0, 4.0]) }.svg());
    let y = |label: &str| {
        elements
            .iter()
            .find(|element| element.text.starts_with(label))
            .map(|element| element.number("y"))
            .unwrap()
    };
    assert!(y("highest") < y("middle") && y("middle") < y("lowest"));
}

#[test]
fn the_legend_names_each_series_above_the_plot() {
    let series: Vec<_> = names(12, "a series with quite a long name")
        .into_iter()
        .map(|name| Series::new(name, exact(&[1.0, 2.0])))
        .collect();
    let figures = [
        Bars { series: series.clone(), ..bars(Axis::new("s"), &[1.0, 2.0]) }.svg(),
        Lines { series, ..lines(Axis::new("s"), &[1.0, 2.0]) }.svg(),
    ];
    for svg in figures {
        let elements = check(&svg);
        let (top, _) = plot(&elements);
        let names: Vec<_> = elements.iter().filter(|element| element.text.starts_with("a series")).collect();
        assert_eq!(names.len(), 12);
        assert!(names.iter().all(|name| name.number("y") < top - 12.0));
    }
}

#[test]
fn numbers_on_the_x_axis_are_placed_by_value_and_joined_in_order() {
    let x = X::numbers("point (%)", [80.0, 20.0, 40.0, f64::NAN]);
    let series = vec![Series::new("", exact(&[4.0, 1.0, 2.0, 3.0]))];
    let elements = check(&Lines { x, series, ..lines(Axis::new("s"), &[]) }.svg());
    let place = |label: &str| {
        let found =
            elements.iter().find(|element| element.text == label && element.is("text-anchor", "middle"));
        found.unwrap_or_else(|| panic!("no x tick {label}")).number("x")
    };
    assert!((place("80") - place("40") - 2.0 * (place("40") - place("20"))).abs() < 0.3);
    let line = elements.iter().find(|element| element.is("stroke-linejoin", "round")).unwrap();
    let path = &line.attributes["d"];
    let xs: Vec<f64> =
        path.split(['M', 'L']).skip(1).map(|at| at.split(' ').next().unwrap().parse().unwrap()).collect();
    assert_eq!(xs, [place("20"), place("40"), place("80")]);
}

#[test]
fn series_at_one_x_do_not_hide_the_error_bars_of_each_other() {
    let same = || vec![Some(Value::new(2.0, 0.5)), Some(Value::new(3.0, 0.5))];
    let series = vec![Series::new("a", same()), Series::new("b", same())];
    let elements = check(&Lines { series, ..lines(Axis::new("s"), &[0.0, 0.0]) }.svg());
    let upright = |color: &str| {
        let is_it = |element: &&Element| element.is("stroke", color) && element.is("stroke-width", "1.4");
        elements.iter().find(is_it).expect("an error bar").number("x1")
    };
    assert!((upright(ORANGE) - upright(BLUE) - 8.0).abs() < 0.2);
}

#[test]
fn figures_hold_whatever_they_are_given() {
    let sizes: [&[f64]; 12] = [
        &[],
        &[0.0],
        &[0.0, 0.0, 0.0],
        &[7.0, 7.0],
        &[-3.0, -3.0],
        &[f64::NAN, f64::NEG_INFINITY],
        &[1e-300, 5e-324],
        &[1e300, -1e300],
        &[1e-9, 2e-9, 3.3e-9],
        &[1.5e18, 9e21],
        &[1e9, 1e9 + 1.0],
        &[1e-12, 1.0, 1e12],
    ];
    let given = Range::Between(-1.0, 1.0);
    for values in sizes {
        for scale in [Scale::Linear, Scale::Log] {
            for range in [Range::FromZero, Range::Data, given, Range::Between(f64::NAN, 0.0)] {
                let y = Axis { label: "y".into(), scale, range };
                let svg = bars(y.clone(), values).svg();
                assert!(!check(&svg).is_empty());
                let mut figure = lines(y, values);
                check(&figure.svg());
                figure.x = X::Numbers { label: "x".into(), scale, at: values.to_vec() };
                check(&figure.svg());
            }
        }
        let bar = |value: &f64| Bar {
            label: "a".into(),
            value: Value::new(*value, *value),
            text: "b".into(),
            accent: false,
        };
        check(
            &Rows {
                groups: vec![Group { title: "g".into(), bars: values.iter().map(bar).collect() }],
                ..Rows::default()
            }
            .svg(),
        );
    }
    for empty in [Bars::default().svg(), Lines::default().svg(), Rows::default().svg()] {
        assert!(texts(&check(&empty)).contains(&"no data"));
    }
}

#[test]
fn labels_of_any_length_and_number_lie_beside_each_other() {
    let word = "transaction ".repeat(3);
    let label = ["m", "a log per file", word.as_str(), &"x".repeat(90)];
    for label in label {
        for count in [1, 2, 6, 19, 60] {
            for series in [1, 6] {
                let values = vec![1.0; count];
                let mut figure = bars(Axis::new("time that a label of some length says (s)"), &values);
                figure.title = format!("The claim of {label}");
                figure.subtitle = label.repeat(3);
                figure.categories = names(count, label);
                figure.x_label = label.into();
                figure.series =
                    names(series, label).into_iter().map(|name| Series::new(name, exact(&values))).collect();
                figure.references = vec![Reference::new(label, 0.7)];
                let elements = check(&figure.svg());
                let drawn = filled(&elements, "rect", BLUE).len();
                assert_eq!(drawn, count + 1, "{label} {count} {series}");
                let lines = Lines {
                    x: X::categories(label, names(count, label)),
                    series: figure.series,
                    ..lines(Axis::new(label), &[])
                };
                check(&lines.svg());
            }
        }
    }
}

#[test]
fn rows_have_the_length_of_their_value_and_room_for_the_text() {
    let bar = |label: &str, value: f64, accent| Bar {
        label: label.into(),
        value: value.into(),
        text: format!("{value} GB/s"),
        accent,
    };
    let group = |values: &[f64]| Group {
        title: "group".into(),
        bars: values.iter().map(|value| bar("name", *value, true)).collect(),
    };
    let rows = Rows {
        title: "claim".into(),
        groups: vec![group(&[1.0, 4.0, 0.0]), group(&[20.0])],
        ..Rows::default()
    };
    let elements = check(&rows.svg());
    let lengths: Vec<f64> = filled(&elements, "rect", BLUE).iter().map(|bar| bar.number("width")).collect();
    assert_eq!(lengths.len(), 3, "none for 0");
    assert!((lengths[0] * 4.0 - lengths[1]).abs() < 0.5, "{lengths:?}");
    assert_eq!(lengths[1], lengths[2], "a scale for each group");
    assert!(lengths[1] > 400.0);
    let quiet = Rows { groups: vec![Group { title: "g".into(), bars: vec![bar("a", 1.0, false)] }], ..rows };
    assert!(filled(&check(&quiet.svg()), "rect", BLUE).is_empty(), "the accent is not for all");
    let long = "a label that is longer than the figure is wide ".repeat(5);
    let text = Bar { text: long.clone(), ..bar(&long, 1.0, true) };
    let wide = Rows {
        groups: vec![Group { title: long, bars: vec![text, bar("b", 0.5, false)] }],
        ..Rows::default()
    };
    check(&wide.svg());
}

#[test]
fn lanes_show_spans_where_they_are_and_marks_below_them() {
    let lane = |name: &str, spans: &[(f64, f64, usize)], marks: &[(f64, f64)]| Lane {
        name: name.into(),
        spans: spans.to_vec(),
        marks: marks.to_vec(),
    };
    let figure = Lanes {
        title: "claim".into(),
        subtitle: "conditions".into(),
        x_label: "time (s)".into(),
        until: 10.0,
        // Beyond the end, and without a length: cut off, and left out.
        lanes: vec![
            lane("target 0", &[(0.0, 5.0, 0), (5.0, 10.0, 1)], &[(2.0, 3.0)]),
            lane("target 1", &[(8.0, 30.0, 0), (4.0, 4.0, 1)], &[(3.0, 3.0)]),
        ],
        kinds: 2,
        mark: "slow".into(),
    };
    let elements = check(&figure.svg());
    let spans: Vec<&Element> =
        elements.iter().filter(|element| element.name == "rect" && element.is("height", "15.0")).collect();
    assert_eq!(spans.len(), 3);
    let (first, second, cut) = (spans[0], spans[1], spans[2]);
    assert!((first.number("width") - second.number("width")).abs() < 0.2);
    assert!((first.number("x") + first.number("width") - second.number("x")).abs() < 0.2);
    assert_eq!(first.attributes["fill"], cut.attributes["fill"], "a colour is a kind");
    assert_ne!(first.attributes["fill"], second.attributes["fill"]);
    assert!((cut.number("width") - 0.2 * 2.0 * first.number("width")).abs() < 0.2);
    assert!(cut.number("y") > first.number("y"));
    // One in the legend, one in the lane.
    let marks = filled(&elements, "rect", "#c81e1e");
    assert_eq!(marks.len(), 2);
    assert!((marks[1].number("width") - 0.1 * 2.0 * first.number("width")).abs() < 0.2);
    check(&Lanes::default().svg());
}
