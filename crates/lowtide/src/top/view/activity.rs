//! Activity per second: a number and its sparkline in each row.

use crate::top::rates::{Rates, percentile_us};
use crate::top::sample::Sample;
use crate::top::theme::Theme;
use crate::top::watch::Watched;
use crate::top::words::{bytes, count, latency, percent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::text::{Line, Span};
use ratatui::widgets::{RenderDirection, Sparkline, SparklineBar};

pub const ROWS: usize = 14;
/// Values are scaled to this maximum, finer than the steps of a cell.
const STEPS: f64 = 8000.0;
const LABEL: u16 = 14;
const VALUE: u16 = 11;
const NOTE: u16 = 14;
const NARROW: u16 = 58;

/// The maximum of a row's sparkline.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    /// The most of all faults.
    Faults,
    /// The most of the row.
    Own,
    /// 1.
    Share,
}

struct Row {
    label: &'static str,
    /// Rows of a low rank stay when there is little room.
    rank: u8,
    colour: Color,
    scale: Scale,
    value: fn(&Rates) -> Option<f64>,
    show: fn(f64) -> String,
}

const fn row(
    label: &'static str,
    rank: u8,
    colour: Color,
    scale: Scale,
    value: fn(&Rates) -> Option<f64>,
    show: fn(f64) -> String,
) -> Row {
    Row { label, rank, colour, scale, value, show }
}

const TABLE: [Row; ROWS] = [
    row("faults/s", 0, Color::Reset, Scale::Faults, |r| Some(r.all_faults()), count),
    row("  first touch", 9, Color::Green, Scale::Faults, |r| Some(r.faults[0]), count),
    row("  zero", 10, Color::Cyan, Scale::Faults, |r| Some(r.faults[1]), count),
    row("  staged", 6, Color::Yellow, Scale::Faults, |r| Some(r.faults[2]), count),
    row("  pool", 4, Color::Blue, Scale::Faults, |r| Some(r.faults[3]), count),
    row("  device", 5, Color::Red, Scale::Faults, |r| Some(r.faults[4]), count),
    row("p50", 3, Color::Reset, Scale::Own, |r| r.p50_us, latency),
    row("p99", 1, Color::Reset, Scale::Own, |r| r.p99_us, latency),
    row("waiting", 2, Color::Reset, Scale::Share, |r| Some(r.stall), percent),
    row("refaults/s", 7, Color::Reset, Scale::Own, |r| Some(r.all_refaults()), count),
    row("read-ahead/s", 8, Color::Reset, Scale::Own, |r| Some(r.read_ahead), count),
    row("out/s", 11, Color::Reset, Scale::Own, |r| Some(r.out_bytes), bytes),
    row("in/s", 12, Color::Reset, Scale::Own, |r| Some(r.in_bytes), bytes),
    row("lowtide's CPU", 13, Color::Reset, Scale::Own, |r| Some(r.cpu), percent),
];

/// As many rows as there is room for.
pub fn draw(run: &Watched, theme: Theme, frame: &mut Frame<'_>, place: Rect) {
    let Some(sample) = &run.sample else { return };
    let mut ranks: Vec<u8> = TABLE.iter().map(|row| row.rank).collect();
    ranks.sort_unstable();
    let Some(highest) = usize::from(place.height).min(ROWS).checked_sub(1).map(|last| ranks[last]) else { return };
    for (y, row) in (0..).zip(TABLE.iter().filter(|row| row.rank <= highest)) {
        draw_row(row, run, sample, theme, frame, Rect { y: place.y + y, height: 1, ..place });
    }
}

fn draw_row(row: &Row, run: &Watched, sample: &Sample, theme: Theme, frame: &mut Frame<'_>, place: Rect) {
    let style = theme.colour(row.colour);
    let value = run.now().and_then(row.value).map_or("-".to_owned(), row.show);
    let (label, width) = (usize::from(LABEL), usize::from(VALUE));
    let mut spans = vec![Span::styled(format!("{:<label$}", row.label), style), Span::raw(format!("{value:>width$} "))];
    let mut used = LABEL + VALUE + 1;
    if place.width >= NARROW {
        let width = usize::from(NOTE);
        spans.push(Span::styled(format!("{:<width$}", note(row.label, run.now(), sample)), theme.dim()));
        used += NOTE;
    }
    frame.render_widget(Line::from(spans), place);
    let course = Rect { x: place.x.saturating_add(used), width: place.width.saturating_sub(used), ..place };
    let points = usize::from(course.width);
    let most = |value: fn(&Rates) -> Option<f64>| run.history.iter().rev().take(points).filter_map(value).fold(0.0, f64::max);
    let most = match row.scale {
        Scale::Faults => most(|rates| Some(rates.all_faults())),
        Scale::Own => most(row.value),
        Scale::Share => 1.0,
    };
    let bars = run.history.iter().rev().take(points).map(|rates| {
        let part = (row.value)(rates).filter(|_| most > 0.0).map(|value| (value / most * STEPS) as u64);
        SparklineBar::from(part)
    });
    let course_of = Sparkline::default()
        .data(bars.collect::<Vec<_>>())
        .max(STEPS as u64)
        .direction(RenderDirection::RightToLeft)
        .absent_value_symbol(" ")
        .bar_set(theme.bars())
        .style(style);
    frame.render_widget(course_of, course);
}

fn note(label: &str, now: Option<&Rates>, sample: &Sample) -> String {
    let memory = &sample.memory;
    match (label, now) {
        ("  pool", _) if memory.pool_stored > 0 => {
            let held = memory.out.saturating_sub(memory.on_device);
            format!("{:.1}:1", held as f64 / memory.pool_stored as f64)
        }
        ("refaults/s", Some(rates)) => format!("near {}", count(rates.refaults[0] + rates.refaults[1])),
        ("read-ahead/s", Some(Rates { read_ahead_used: Some(used), .. })) => format!("{} used", percent(*used)),
        ("p99", _) => percentile_us(&sample.latency, 0.99).map_or(String::new(), |us| format!("all {}", latency(us))),
        ("p50", _) => percentile_us(&sample.latency, 0.5).map_or(String::new(), |us| format!("all {}", latency(us))),
        _ => String::new(),
    }
}
