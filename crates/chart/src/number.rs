//! Numbers as they stand at an axis: short, without noise, with a prefix where they are large or small.

/// Prefixes by power of 1000; beyond them powers of ten are written out.
const LARGE: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const SMALL: [&str; 5] = ["", "m", "µ", "n", "p"];

/// Below this, digits drown in the smallest floats.
pub(crate) const TINY: f64 = 1e-290;

/// One number by itself, with three digits that count at most.
pub(crate) fn short(value: f64) -> String {
    if value.abs() < TINY {
        return "0".into();
    }
    // Rounded first: 9999.9 is 10 k.
    let value: f64 = format!("{value:.2e}").parse().unwrap_or(value);
    let (power, prefix) = prefix(value.abs());
    match prefix {
        Some(prefix) => {
            let scaled = scale(value, power);
            let decimals = (2.0 - scaled.abs().log10().floor()).clamp(0.0, 6.0) as usize;
            with_prefix(&plain(scaled, decimals), prefix)
        }
        None => {
            let exponent = exponent(value.abs());
            power_of_ten(&plain(value / 10f64.powi(exponent), 2), exponent)
        }
    }
}

/// The ticks `units` x `mantissa` x 10^`exponent`, all with the same prefix and as many decimals as the steps need.
pub(crate) fn steps(units: &[i64], mantissa: i64, exponent: i32) -> Vec<String> {
    let unit_max = units.iter().map(|unit| (unit * mantissa).unsigned_abs()).max().unwrap_or(0);
    let largest = decimal(unit_max as i64, exponent);
    let (power, prefix) = prefix(largest);
    let name = |unit: &i64| {
        let unit = unit * mantissa;
        let Some(prefix) = prefix else {
            return if unit == 0 { "0".into() } else { power_of_ten(&unit.to_string(), exponent) };
        };
        let decimals = (3 * power - exponent).max(0) as usize;
        // A step far below the prefix: only all digits tell neighbours apart.
        if power > 0 && decimals > 2 {
            return grouped(&plain(decimal(unit, exponent), (-exponent).max(0) as usize));
        }
        let text = format!("{:.decimals$}", decimal(unit, exponent - 3 * power));
        if unit == 0 { "0".into() } else { with_prefix(&minus(&text), prefix) }
    };
    units.iter().map(name).collect()
}

/// `unit` x 10^`exponent` as the float nearest to it, so that 3 x 10^-1 is 0.3.
pub(crate) fn decimal(unit: i64, exponent: i32) -> f64 {
    let power = 10f64.powi(exponent.abs());
    if exponent < 0 { unit as f64 / power } else { unit as f64 * power }
}

/// The power of ten at or below a number above 0.
pub(crate) fn exponent(value: f64) -> i32 {
    let guess = value.log10().floor() as i32;
    // The logarithm of a power of ten may lie a little below its whole number.
    if decimal(1, guess + 1) <= value { guess + 1 } else { guess }
}

/// The power of 1000 and its letter for numbers of this size.
fn prefix(largest: f64) -> (i32, Option<&'static str>) {
    if largest == 0.0 || (1e-3..1e4).contains(&largest) {
        return (0, Some(""));
    }
    let power = exponent(largest).div_euclid(3);
    let names: &[&str] = if power < 0 { &SMALL } else { &LARGE };
    (power, names.get(power.unsigned_abs() as usize).copied())
}

fn scale(value: f64, power: i32) -> f64 {
    let factor = 10f64.powi(3 * power.abs());
    if power < 0 { value * factor } else { value / factor }
}

/// With no 0 at the end of the decimals.
fn plain(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    minus(text)
}

fn minus(text: &str) -> String {
    text.replace('-', "−")
}

fn with_prefix(number: &str, prefix: &str) -> String {
    if prefix.is_empty() { number.to_owned() } else { format!("{number} {prefix}") }
}

/// `2×10²¹`, and `10²¹` for one of it.
fn power_of_ten(mantissa: &str, exponent: i32) -> String {
    let raised: String = exponent
        .to_string()
        .chars()
        .map(|digit| match digit {
            '-' => '⁻',
            digit => {
                ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][digit.to_digit(10).unwrap_or(0) as usize]
            }
        })
        .collect();
    match mantissa {
        "1" => format!("10{raised}"),
        "−1" | "-1" => format!("−10{raised}"),
        _ => format!("{}×10{raised}", minus(mantissa)),
    }
}

/// A thin space between thousands.
fn grouped(text: &str) -> String {
    let whole = text.split('.').next().unwrap_or(text);
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        let left = whole.chars().count().saturating_sub(index);
        if index > 0
            && left > 0
            && left.is_multiple_of(3)
            && grouped.ends_with(|last: char| last.is_ascii_digit())
        {
            grouped.push('\u{2009}');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_alone_has_three_digits_at_most() {
        let cases = [
            (0.0, "0"),
            (-5e-324, "0"),
            (1.0, "1"),
            (-2.5, "−2.5"),
            (0.001, "0.001"),
            (9999.0, "10 k"),
            (1000.0, "1000"),
            (65536.0, "65.5 k"),
            (1e6, "1 M"),
            (-1.5e9, "−1.5 G"),
            (1e-7, "100 n"),
            (2.5e-4, "250 µ"),
            (0.1 + 0.2, "0.3"),
            (1e21, "10²¹"),
            (-2e-20, "−2×10⁻²⁰"),
            (1e300, "10³⁰⁰"),
            (1.23456, "1.23"),
            (0.012345, "0.0123"),
            (1e-12, "1 p"),
            (1e18, "1 E"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value:e}");
        }
    }

    #[test]
    fn steps_share_prefix_and_decimals() {
        assert_eq!(steps(&[0, 1, 2, 3], 5, -1), ["0", "0.5", "1.0", "1.5"]);
        assert_eq!(steps(&[-1, 0, 1], 2, 0), ["−2", "0", "2"]);
        assert_eq!(steps(&[0, 1, 2], 5, 3), ["0", "5 k", "10 k"]);
        assert_eq!(steps(&[0, 1, 2, 3], 5, 5), ["0", "0.5 M", "1.0 M", "1.5 M"]);
        assert_eq!(steps(&[0, 1, 2], 1, -7), ["0", "100 n", "200 n"]);
        assert_eq!(steps(&[0, 1, 2], 2, -4), ["0", "200 µ", "400 µ"]);
        assert_eq!(steps(&[0, 1, 2], 2, 30), ["0", "2×10³⁰", "4×10³⁰"]);
        assert_eq!(steps(&[0, 1], 1, -30), ["0", "10⁻³⁰"]);
    }

    #[test]
    fn neighbours_far_from_zero_differ() {
        assert_eq!(
            steps(&[500_000_000, 500_000_001], 2, 0),
            ["1\u{2009}000\u{2009}000\u{2009}000", "1\u{2009}000\u{2009}000\u{2009}002"]
        );
        assert_eq!(steps(&[123_456], 1, -1), ["12\u{2009}345.6"]);
        assert_eq!(steps(&[-123_456], 1, 0), ["−123\u{2009}456"]);
    }

    #[test]
    fn exponents_of_powers_of_ten_are_exact() {
        for power in -290..=290 {
            assert_eq!(exponent(decimal(1, power)), power);
            assert_eq!(exponent(decimal(9, power)), power);
        }
    }
}
