//! Runs, swap areas and processes, one a line.

use super::View;
use crate::client::ps::time;
use crate::top::rates::Rates;
use crate::top::sample::{Area, Process, Sample};
use crate::top::tree::Branch;
use crate::top::words::{base, bytes, count, escaped, latency};
use lowtide_config::size;
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Text;
use ratatui::widgets::{Row, Table};

/// Below this width some columns are dropped.
const NARROW: u16 = 64;

/// Heading, width, right alignment, and presence on a narrow screen.
type Column = (&'static str, Constraint, bool, bool);

const SIZE: Constraint = Constraint::Length(10);

const RUNS: [Column; 7] = [
    ("PID", Constraint::Length(8), true, true),
    ("RAM", SIZE, true, true),
    ("LIMIT", SIZE, true, true),
    ("OUT", SIZE, true, false),
    ("FAULTS/S", SIZE, true, false),
    ("TIME", Constraint::Length(9), true, false),
    ("PROGRAM", Constraint::Fill(1), false, true),
];
const AREAS: [Column; 8] = [
    ("#", Constraint::Length(1), true, true),
    ("AREA", Constraint::Fill(1), false, true),
    ("PRIO", Constraint::Length(5), true, false),
    ("USED", SIZE, true, true),
    ("SIZE", SIZE, true, false),
    ("STATE", Constraint::Length(8), false, false),
    ("READ/S", SIZE, true, true),
    ("WRITE/S", SIZE, true, true),
];
const PROCESSES: [Column; 6] = [
    ("PID", Constraint::Length(8), true, true),
    ("RAM", SIZE, true, true),
    ("OUT", SIZE, true, true),
    ("ON DEVICE", SIZE, true, false),
    ("STATE", Constraint::Length(8), false, false),
    ("PROCESS", Constraint::Fill(1), false, true),
];

fn table<const N: usize>(
    columns: &[Column; N],
    rows: Vec<([String; N], Style)>,
    view: &View<'_>,
    frame: &mut Frame<'_>,
    place: Rect,
) {
    if place.height == 0 {
        return;
    }
    let is_wide = place.width >= NARROW;
    let is_shown: Vec<bool> = columns.iter().map(|(.., always)| is_wide || *always).collect();
    let row = |cells: [String; N], style: Style| {
        let cells = cells.into_iter().zip(columns).zip(&is_shown).filter(|(_, shown)| **shown);
        let text = |(text, (_, _, right, _)): (String, &Column)| {
            if *right { Text::from(text).right_aligned() } else { Text::from(text) }
        };
        Row::new(cells.map(|(cell, _)| text(cell)).collect::<Vec<_>>()).style(style)
    };
    let heading = row(columns.each_ref().map(|(name, ..)| (*name).to_owned()), view.theme.heading());
    let widths = columns.iter().zip(&is_shown).filter(|(_, shown)| **shown).map(|((_, width, ..), _)| *width);
    let rows: Vec<Row<'_>> = rows.into_iter().map(|(cells, style)| row(cells, style)).collect();
    frame.render_widget(Table::new(rows, widths.collect::<Vec<_>>()).header(heading), place);
}

/// The selected run is always among the lines.
pub fn runs(view: &View<'_>, frame: &mut Frame<'_>, place: Rect) {
    let room = usize::from(place.height.saturating_sub(1));
    let above = (view.app.place() + 1).saturating_sub(room);
    let rows = view.app.watch.runs.iter().skip(above).take(room).map(|run| {
        let style = if run.pid == view.app.selected { view.theme.selected() } else { Style::new() };
        let faults = run.now().map_or("-".to_owned(), |rates| count(rates.all_faults()));
        let cells = match &run.sample {
            Some(sample) => {
                let [now, limit, out] = [sample.memory.now, sample.memory.limit, sample.memory.out].map(size::show);
                [run.pid.to_string(), now, limit, out, faults, time(sample.elapsed), base(&sample.program)]
            }
            None => [run.pid.to_string(), String::new(), String::new(), String::new(), faults, String::new(), String::new()],
        };
        (cells, style)
    });
    table(&RUNS, rows.collect(), view, frame, place);
}

/// Swap areas that are not off, numbered for the key `s`.
pub fn areas(view: &View<'_>, sample: &Sample, now: Option<&Rates>, frame: &mut Frame<'_>, place: Rect) {
    let on = sample.areas.iter().enumerate().filter(|(_, area)| area.is_on());
    let rows = (1..).zip(on).flat_map(|(number, (i, area))| {
        let (read, written) = now.and_then(|rates| rates.areas.get(i)).copied().unwrap_or_default();
        let style = if area.state == "failing" { view.theme.error() } else { Style::new() };
        let [used, size] = [area.used, area.size].map(size::show);
        let (number, prio, state) = (format!("{number}"), area.prio.to_string(), escaped(&area.state));
        let itself = ([number, escaped(&area.spec), prio, used, size, state, bytes(read), bytes(written)], style);
        let below = on_servers(area).into_iter().map(|text| {
            let mut cells: [String; AREAS.len()] = Default::default();
            cells[1] = text;
            (cells, Style::new())
        });
        std::iter::once(itself).chain(below)
    });
    table(&AREAS, rows.collect(), view, frame, place);
}

pub fn area_lines(sample: &Sample) -> usize {
    sample.areas.iter().filter(|area| area.is_on()).map(|area| 1 + on_servers(area).len()).sum()
}

/// Further figures of an area on servers.
fn on_servers(area: &Area) -> Vec<String> {
    let Some(remote) = &area.remote else { return Vec::new() };
    let mut lines = vec![format!("  reads p50 {}, p99 {}", latency(remote.p50_us), latency(remote.p99_us))];
    if remote.reconnects + remote.failovers > 0 {
        lines.push(format!("  {} reconnects, {} failovers", remote.reconnects, remote.failovers));
    }
    if remote.copies_lost + remote.copies_wrong > 0 {
        lines.push(format!("  {} copies lost, {} wrong", remote.copies_lost, remote.copies_wrong));
    }
    lines
}

pub fn processes(view: &View<'_>, sample: &Sample, frame: &mut Frame<'_>, place: Rect) {
    let room = usize::from(place.height.saturating_sub(1));
    let above = view.app.scroll.min(view.branches.len().saturating_sub(room));
    let rows = view.branches.iter().skip(above).take(room).filter_map(|branch| {
        let process = sample.processes.get(branch.process)?;
        Some((cells(view, branch, process), Style::new()))
    });
    table(&PROCESSES, rows.collect(), view, frame, place);
}

fn cells(view: &View<'_>, branch: &Branch, process: &Process) -> [String; 6] {
    let [child, last, beside, nothing] = view.theme.tree();
    let (itself, above) = branch.more.split_last().unwrap_or((&false, &[]));
    // Roots stand side by side, without lines.
    let mut name: String = above.iter().skip(1).map(|more| if *more { beside } else { nothing }).collect();
    if !above.is_empty() {
        name += if *itself { child } else { last };
    }
    name += &if branch.name.is_empty() { "(gone)".to_owned() } else { escaped(&branch.name) };
    let [ram, out, on_device] = [process.ram, process.out, process.on_device].map(size::show);
    [process.pid.to_string(), ram, out, on_device, escaped(&process.state), name]
}
