//! Colours and signs, or substitutes on terminals without them.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::bar;
use std::ffi::OsStr;
use termini::{NumberCapability, TermInfo};

const PLAIN_BARS: bar::Set<'static> = bar::Set {
    full: "#",
    seven_eighths: "#",
    three_quarters: "*",
    five_eighths: "*",
    half: "+",
    three_eighths: "=",
    one_quarter: "-",
    one_eighth: ".",
    empty: " ",
};

/// Parts distinguished by a colour and a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Resident,
    Staging,
    Pool,
    Tables,
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    /// Supported and wanted.
    pub has_colour: bool,
    /// More than ASCII.
    pub has_signs: bool,
}

impl Theme {
    /// From the environment: `NO_COLOR`, `TERM` and its terminfo entry, the locale.
    pub fn new() -> Theme {
        let wants = std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
        // Most unknown terminals have colours.
        let colours = TermInfo::from_env().map_or(8, |info| info.number_cap(NumberCapability::MaxColors).unwrap_or(0));
        let locale =
            ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| std::env::var_os(name).filter(|text| !text.is_empty()));
        Theme { has_colour: wants && colours >= 8, has_signs: locale.is_none_or(|name| is_utf8(&name)) }
    }

    /// The sign that fills a part of a bar.
    pub fn fill(&self, part: Part) -> &'static str {
        match (part, self.has_signs, self.has_colour) {
            (_, true, true) => "█",
            (Part::Resident, true, _) => "█",
            (Part::Staging, true, _) => "▓",
            (Part::Pool, true, _) => "▒",
            (Part::Tables, true, _) => "░",
            (Part::Device, true, _) => "▪",
            (Part::Resident, ..) => "#",
            (Part::Staging, ..) => "+",
            (Part::Pool, ..) => "=",
            (Part::Tables, ..) => "-",
            (Part::Device, ..) => "o",
        }
    }

    pub fn part(&self, part: Part) -> Style {
        self.colour(match part {
            Part::Resident => Color::Green,
            Part::Staging => Color::Yellow,
            Part::Pool => Color::Blue,
            Part::Tables => Color::Magenta,
            Part::Device => Color::Red,
        })
    }

    pub fn colour(&self, colour: Color) -> Style {
        if self.has_colour { Style::new().fg(colour) } else { Style::new() }
    }

    pub fn dim(&self) -> Style {
        if self.has_colour { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    pub fn heading(&self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn selected(&self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub fn error(&self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub fn bars(&self) -> bar::Set<'static> {
        if self.has_signs { bar::NINE_LEVELS } else { PLAIN_BARS }
    }

    /// The four signs of a tree: a child, the last one, beside a child, beside nothing.
    pub fn tree(&self) -> [&'static str; 4] {
        if self.has_signs { ["├─ ", "└─ ", "│  ", "   "] } else { ["|- ", "`- ", "|  ", "   "] }
    }
}

fn is_utf8(locale: &OsStr) -> bool {
    let name = locale.to_string_lossy().to_ascii_lowercase();
    name.contains("utf-8") || name.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_colours_parts_are_told_apart_by_their_signs() {
        let parts = [Part::Resident, Part::Staging, Part::Pool, Part::Tables, Part::Device];
        for has_signs in [true, false] {
            let theme = Theme { has_colour: false, has_signs };
            let signs: std::collections::HashSet<_> = parts.iter().map(|part| theme.fill(*part)).collect();
            assert_eq!(signs.len(), parts.len());
            assert!(parts.iter().all(|part| theme.part(*part) == Style::new()));
        }
        let colours = Theme { has_colour: true, has_signs: true };
        let styles: Vec<_> = parts.iter().map(|part| colours.part(*part)).collect();
        assert!((1..styles.len()).all(|i| !styles[..i].contains(&styles[i])));
    }

    #[test]
    fn locales() {
        assert!(is_utf8(OsStr::new("en_US.UTF-8")) && is_utf8(OsStr::new("C.utf8")) && !is_utf8(OsStr::new("C")));
    }
}
