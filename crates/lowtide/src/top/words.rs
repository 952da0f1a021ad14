//! Short numbers, and names without control sequences.

use lowtide_config::size;

/// Writes out whatever a terminal might obey, or that would reverse the text.
pub fn escaped(name: &str) -> String {
    let is_odd = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
    };
    let mut text = String::with_capacity(name.len());
    for c in name.chars() {
        if is_odd(c) { text.extend(c.escape_default()) } else { text.push(c) }
    }
    text
}

pub fn base(program: &str) -> String {
    let name = program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program);
    escaped(name)
}

/// `12,345`; from ten millions on `12.3 M`.
pub fn count(value: f64) -> String {
    if value >= 1e7 {
        return format!("{:.1} M", value / 1e6);
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12.3 us`, `812 us`, `1.2 ms`, `3.1 s`.
pub fn latency(us: f64) -> String {
    match us {
        us if us < 99.95 => format!("{us:.1} us"),
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 999_950.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// `12.3 MiB`.
pub fn bytes(value: f64) -> String {
    size::show(value.max(0.0) as u64)
}

/// `34 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_do_nothing_to_a_terminal() {
        for (name, shown) in [
            ("sort", "sort"),
            ("a\u{1b}[2Jb\n", "a\\u{1b}[2Jb\\n"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("a\u{202e}cod.exe", "a\\u{202e}cod.exe"),
            ("naïve 数", "naïve 数"),
        ] {
            assert_eq!(escaped(name), shown);
        }
        assert_eq!([base("/usr/bin/sort"), base("/"), base("x\u{7}/y\u{7}")], ["sort", "/", "y\\u{7}"]);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([0.0, 999.4, 1234.0, 1_234_567.0, 12_345_678.0].map(count), ["0", "999", "1,234", "1,234,567", "12.3 M"]);
        assert_eq!(
            [0.3, 99.9, 99.96, 812.0, 1234.0, 3.1e6].map(latency),
            ["0.3 us", "99.9 us", "100 us", "812 us", "1.2 ms", "3.1 s"]
        );
    }
}
