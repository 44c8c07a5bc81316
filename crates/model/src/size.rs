//! Sizes as people write them.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;

/// `4MiB`, `4M`, `4m` are 4 x 2^20; `4MB` is 4 x 10^6; a bare number is bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 =
        text[..digits].parse().map_err(|_| "a size is a number with a unit, e.g. 4MiB".to_owned())?;
    let unit = match text[digits..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        other => return Err(format!("no such unit: {other}")),
    };
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
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
        for wrong in ["", "x", "-1", "1XB", "99999999999999999999", "18446744073709551615K"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
