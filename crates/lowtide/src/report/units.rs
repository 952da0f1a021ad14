//! Figures with their units, for people.

use lowtide_config::size;

/// `512 MiB`.
pub fn bytes(bytes: u64) -> String {
    size::show(bytes)
}

/// `512 MiB`, of a calculated figure.
pub fn about_bytes(bytes: f64) -> String {
    let mib = bytes / 1048576.0;
    match mib {
        0.0 => "0".to_owned(),
        ..10.0 => format!("{mib:.1} MiB"),
        ..10240.0 => format!("{mib:.0} MiB"),
        _ => format!("{:.1} GiB", mib / 1024.0),
    }
}

/// `0.6`, without rounding errors.
pub fn plain(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `1.5 s`, `20 ms`, `3 µs`.
pub fn seconds(seconds: f64) -> String {
    let (value, unit) = match seconds {
        ..1e-3 => (seconds * 1e6, "µs"),
        ..1.0 => (seconds * 1e3, "ms"),
        ..600.0 => (seconds, "s"),
        _ => (seconds / 60.0, "min"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// `12`, `3.4 k`, `5.6 M`.
pub fn count(count: f64) -> String {
    match count {
        ..10_000.0 => format!("{count:.0}"),
        ..1e6 => format!("{:.1} k", count / 1e3),
        ..1e9 => format!("{:.2} M", count / 1e6),
        _ => format!("{:.2} G", count / 1e9),
    }
}

/// `1 page`, `3.4 k pages`.
pub fn pages(pages: u64) -> String {
    if pages == 1 { "1 page".to_owned() } else { format!("{} pages", count(pages as f64)) }
}

/// `12 %`, `0.3 %`.
pub fn percent(part: f64, whole: f64) -> String {
    let percent = if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    if percent > 0.0 && percent < 10.0 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_have_units() {
        assert_eq!([0.0000034, 0.02, 1.5, 75.0, 7200.0].map(seconds), ["3.4 µs", "20 ms", "1.5 s", "75 s", "120 min"]);
        assert_eq!([0.0, 0.1 + 0.2, 40.0].map(plain), ["0", "0.3", "40"]);
        assert_eq!([0.0, 9999.0, 12345.0, 5.6e6].map(count), ["0", "9999", "12.3 k", "5.60 M"]);
        assert_eq!(
            (percent(1.0, 3.0), percent(0.5, 100.0), percent(1.0, 0.0)),
            ("33 %".to_owned(), "0.5 %".to_owned(), "0 %".to_owned())
        );
        assert_eq!([5e6, 640.0 * 1048576.0, 2e11].map(about_bytes), ["4.8 MiB", "640 MiB", "186.3 GiB"]);
    }
}
