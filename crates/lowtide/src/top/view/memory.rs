//! The memory, as stacked bars.

use crate::top::sample::{Memory, Sample};
use crate::top::theme::{Part, Theme};
use lowtide_config::size;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Below this width texts are shortened.
const NARROW: u16 = 70;
const LABEL: usize = 4;

/// Two bars and a legend: the RAM against the limit, and the program's memory wherever it is.
pub fn draw(sample: &Sample, theme: Theme, frame: &mut Frame<'_>, place: Rect) {
    let memory = &sample.memory;
    let show = size::show;
    let in_pool = memory.out.saturating_sub(memory.on_device);
    let all = memory.resident + memory.staged + memory.out;
    let mut ram = format!("{} of {}", show(memory.now), show(memory.limit));
    let mut whole = format!("{} in all", show(all));
    if place.width >= NARROW {
        ram += &format!(", peak {}", show(memory.peak));
        whole += &format!(", {} out", show(memory.out));
    }
    let text = ram.len().max(whole.len());
    let parts = in_ram(memory);
    let is_over = memory.now > memory.limit;
    let ram_bar = bar(&parts, memory.limit.max(memory.now), place.width, text, theme);
    let everything = [
        (Part::Resident, memory.resident),
        (Part::Staging, memory.staged),
        (Part::Pool, in_pool),
        (Part::Device, memory.on_device),
    ];
    let whole_bar = bar(&everything, all, place.width, text, theme);
    let mut ram = Span::raw(ram);
    if is_over {
        ram = ram.style(theme.error());
    }
    let lines = [line("RAM", ram_bar, ram), line("all", whole_bar, Span::raw(whole)), legend(memory, place.width, theme)];
    for (y, line) in (0..place.height).zip(lines) {
        frame.render_widget(line, Rect { y: place.y + y, height: 1, ..place });
    }
}

fn in_ram(memory: &Memory) -> [(Part, u64); 4] {
    let tables = memory.own.saturating_sub(memory.staged).saturating_sub(memory.pool);
    [(Part::Resident, memory.resident), (Part::Staging, memory.staged), (Part::Pool, memory.pool), (Part::Tables, tables)]
}

fn line<'a>(label: &'a str, bar: Vec<Span<'a>>, text: Span<'a>) -> Line<'a> {
    let mut spans = vec![Span::raw(format!("{label:<LABEL$}"))];
    spans.extend(bar);
    spans.push(Span::raw(" "));
    spans.push(text);
    Line::from(spans)
}

fn bar(parts: &[(Part, u64)], whole: u64, width: u16, text: usize, theme: Theme) -> Vec<Span<'static>> {
    let width = usize::from(width).saturating_sub(LABEL + 1 + text);
    let cells = cells(&parts.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), whole, width);
    let mut spans: Vec<Span<'_>> = parts
        .iter()
        .zip(&cells)
        .map(|((part, _), cells)| Span::styled(theme.fill(*part).repeat(*cells), theme.part(*part)))
        .collect();
    let rest = width - cells.iter().sum::<usize>();
    spans.push(Span::styled(if theme.has_signs { "·" } else { "." }.repeat(rest), theme.dim()));
    spans
}

/// Cells of each part of the whole, rounded together: the sum is right to a cell.
fn cells(parts: &[u64], whole: u64, width: usize) -> Vec<usize> {
    let (mut sum, mut used) = (0u64, 0);
    let at = |bytes: u64| (bytes as f64 / whole.max(1) as f64 * width as f64).round() as usize;
    let share = |bytes: &u64| {
        sum = sum.saturating_add(*bytes);
        let to = at(sum).min(width).max(used);
        let cells = to - used;
        used = to;
        cells
    };
    parts.iter().map(share).collect()
}

/// `█ program 300 MiB  █ staging 24 MiB  █ pool 150 MiB  ...`.
fn legend(memory: &Memory, width: u16, theme: Theme) -> Line<'static> {
    let [resident, staged, pool, tables] = in_ram(memory).map(|(_, bytes)| bytes);
    let names = [
        (Part::Resident, "program", resident),
        (Part::Staging, "staging", staged),
        (Part::Pool, "pool", pool),
        (Part::Tables, "tables", tables),
        (Part::Device, "device", memory.on_device),
    ];
    let mut spans = Vec::new();
    for (part, name, bytes) in names {
        // The smallest goes first if room is short.
        let room = if width >= NARROW { 96 } else { 50 };
        if width < room && part == Part::Tables {
            continue;
        }
        spans.push(Span::styled(theme.fill(part), theme.part(part)));
        let text = if width >= NARROW { format!("{name} {}", size::show(bytes)) } else { name.to_owned() };
        spans.push(Span::raw(format!(" {text}  ")));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_add_up() {
        assert_eq!(cells(&[50, 25, 25], 100, 8), [4, 2, 2]);
        assert_eq!(cells(&[1, 1, 1], 3, 100), [33, 34, 33], "rounded together");
        assert_eq!(cells(&[90, 30], 100, 10), [9, 1], "more than the whole ends at the end");
        assert_eq!(cells(&[0, 0], 0, 10), [0, 0]);
        assert_eq!(cells(&[u64::MAX, u64::MAX], u64::MAX, 10), [10, 0]);
        assert_eq!(cells(&[5], 10, 0), [0]);
    }
}
