//! Sizes as text: `512M`, `2G`, `1.5GiB`, plain bytes, `40%`.

/// Reads a size. `40%` is a share of `whole`. Units are binary, upper or lower case. The error says
/// what is wrong with the text.
pub fn parse(text: &str, whole: u64) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a size: write it like 512M, 2G, 1.5GiB or 40%");
    let text_trimmed = text.trim();
    let digits = text_trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text_trimmed.len());
    let (number, unit) = text_trimmed.split_at(digits);
    let value: f64 = number.parse().map_err(|_| bad())?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let bytes = if unit == "%" {
        value / 100.0 * whole as f64
    } else {
        let shift = match unit.as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            "p" | "pb" | "pib" => 50,
            _ => return Err(bad()),
        };
        // Keeps whole numbers exact; drops fractions of a byte.
        if let Ok(whole_number) = number.parse::<u64>() {
            let bytes = u128::from(whole_number) << shift;
            return u64::try_from(bytes).ok().filter(|&b| b <= MOST).ok_or_else(|| too_large(text));
        }
        if shift == 0 {
            return Err(bad());
        }
        value * (1u64 << shift) as f64
    };
    if bytes > MOST as f64 {
        return Err(too_large(text));
    }
    Ok(bytes as u64)
}

/// Reads a size in bytes, without shares. The error says what is wrong with the text.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    if text.trim_end().ends_with('%') {
        return Err(format!("`{text}` is a share of what? Write it like 512M, or bytes"));
    }
    parse(text, 0)
}

/// Larger sizes are typing errors: the largest address space of Linux.
const MOST: u64 = 1 << 56;

fn too_large(text: &str) -> String {
    format!("`{text}` is larger than any machine's memory")
}

/// `536870912` as `512 MiB`: one decimal unless whole.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    // Avoids `1024.0 KiB` for 1023.96 KiB.
    while unit + 1 < UNITS.len() && bytes as f64 / 1024f64.powi(unit as i32) >= 1023.95 {
        unit += 1;
    }
    let value = bytes as f64 / 1024f64.powi(unit as i32);
    if (value - value.round()).abs() < 0.05 {
        format!("{:.0} {}", value, UNITS[unit])
    } else {
        format!("{:.1} {}", value, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_sizes() {
        for (text, bytes) in [
            ("512M", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GiB", 3 << 29),
            ("16777216", 16 << 20),
            ("64k", 64 << 10),
            ("40%", 400),
            ("12.5%", 125),
            ("1 GiB", 1 << 30),
            ("0", 0),
        ] {
            assert_eq!(parse(text, 1000), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes() {
        for text in
            ["", "M", "12X", "-5", "1e9", "nan", "inf", "1.2.3G", "0.5", "99999999999999999999", "9999999P", "5%%", "M5", "."]
        {
            assert!(parse(text, 1000).is_err(), "{text}");
        }
    }

    #[test]
    fn a_share_of_nothing() {
        assert_eq!(parse_bytes("2M"), Ok(2 << 20));
        for text in ["5%", "5 % ", "x"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show(512 << 20), "512 MiB");
        assert_eq!(show((511 << 20) + (800 << 10)), "511.8 MiB");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show((1 << 30) - 1), "1 GiB");
        assert_eq!(show(100), "100 bytes");
    }
}
