//! Colours and marks. The hues are those of Okabe and Ito (Color Universal Design, 2008), which stay apart for eyes
//! that lack a cone; their yellow is left out, as it is too light for a white page.

pub(crate) const INK: &str = "#1f2933";
pub(crate) const INK_SOFT: &str = "#52606d";
pub(crate) const AXIS: &str = "#7b8794";
pub(crate) const GRID: &str = "#e4e7eb";
pub(crate) const GRID_MINOR: &str = "#f3f4f6";
pub(crate) const QUIET: &str = "#9fb3c8";

const HUES: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#4d4d4d"];

/// The colour of bars that the claim is about, and of the first series.
pub(crate) const ACCENT: &str = HUES[0];

/// The colour of a series.
pub(crate) fn hue(series: usize) -> &'static str {
    HUES[series % HUES.len()]
}

/// Whether the hue of a series is that of an earlier one: it is then drawn hollow or dashed.
pub(crate) fn is_again(series: usize) -> bool {
    (series / HUES.len()) % 2 == 1
}

/// The mark of a series at (`x`, `y`), as an SVG path. Five shapes against seven hues: only series 35 repeats both.
pub(crate) fn mark(series: usize, x: f64, y: f64) -> String {
    let at = |dx: f64, dy: f64| format!("{:.1} {:.1}", x + dx, y + dy);
    let path = |points: &[(f64, f64)]| {
        let points: Vec<String> = points.iter().map(|(dx, dy)| at(*dx, *dy)).collect();
        format!("M{}Z", points.join("L"))
    };
    match series % 5 {
        0 => format!("M{}a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z", at(-4.5, 0.0)),
        1 => path(&[(-4.0, -4.0), (4.0, -4.0), (4.0, 4.0), (-4.0, 4.0)]),
        2 => path(&[(0.0, -5.5), (5.0, 3.5), (-5.0, 3.5)]),
        3 => path(&[(0.0, -6.0), (5.0, 0.0), (0.0, 6.0), (-5.0, 0.0)]),
        _ => path(&[(0.0, 5.5), (5.0, -3.5), (-5.0, -3.5)]),
    }
}
