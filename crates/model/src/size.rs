//! Sizes as people write them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// `4MiB`, `4M`, `4m` are 4 x 2^20; `4MB` is 4 x 10^6; `1.5MiB` is 3 x 2^19; a bare number is bytes. What is less than a byte
/// is left out.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other if !number.is_empty() => return Err(format!("no such unit: {other}")),
        _ => 1,
    };
    let wrong = || "a size is a number with a unit, e.g. 4MiB".to_owned();
    let (whole, part) = match number.split_once('.') {
        // There are no parts of a byte.
        Some((whole, part)) if unit > 1 => (whole, part),
        Some(_) => return Err(wrong()),
        None => (number, "0"),
    };
    let places = part.len() as u32;
    let [whole, part] = [whole, part].map(|digits| digits.parse::<u64>());
    let (whole, part) = (whole.map_err(|_| wrong())?, part.map_err(|_| wrong())?);
    let part = u128::from(part) * u128::from(unit) / 10u128.checked_pow(places).ok_or_else(wrong)?;
    // Less than one of the unit.
    let bytes = whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(part as u64));
    bytes.ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(parse("4MiB"), Ok(4 << 20));
        assert_eq!(parse("4m"), Ok(4 << 20));
        assert_eq!(parse("4MB"), Ok(4_000_000));
        assert_eq!(parse("17"), Ok(17));
        for (text, bytes) in
            [("1.5MiB", 3 << 19), ("0.5k", 512), ("2.25GB", 2_250_000_000), ("1.0001kB", 1_000)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse("1.5xib").unwrap_err(), "no such unit: xib");
        for wrong in ["1.5", "1.5B", ".5M", "1.M", "1.2.3M", ".", "1.99999999999999999999M", "M", "1,5M"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "x", "-1", "1XB", "99999999999999999999", "18446744073709551615K"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
