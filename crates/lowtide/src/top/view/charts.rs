//! Faults by kind and their latency over time, on wide terminals.

use crate::top::rates::Rates;
use crate::top::theme::Theme;
use crate::top::watch::Watched;
use crate::top::words::count;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, GraphType};

/// Bounds of drawn latencies: powers of ten, in microseconds.
const LATENCY: [f64; 2] = [0.0, 6.0];

/// Least span of the axis, in seconds.
const LEAST: usize = 30;

type Series = (&'static str, Color, fn(&Rates) -> Option<f64>);

const FAULTS: [Series; 3] = [
    ("staged", Color::Yellow, |r| Some(r.faults[2])),
    ("pool", Color::Blue, |r| Some(r.faults[3])),
    ("device", Color::Red, |r| Some(r.faults[4])),
];
/// Without colours, lines are indistinguishable.
const ALL_FAULTS: [Series; 1] = [("all kinds", Color::Reset, |r| Some(r.all_faults()))];
const TIMES: [Series; 2] = [("p99", Color::Red, |r| r.p99_us), ("p50", Color::Green, |r| r.p50_us)];

/// One above the other.
pub fn draw(run: &Watched, theme: Theme, frame: &mut Frame<'_>, place: Rect) {
    let above = Rect { height: place.height / 2, ..place };
    let below = Rect { y: place.y + above.height, height: place.height - above.height, ..place };
    let series: &[Series] = if theme.has_colour { &FAULTS } else { &ALL_FAULTS };
    let most = points(run, series, place.width).iter().flatten().map(|(_, y)| *y).fold(1.0, f64::max);
    let labels = vec!["0".to_owned(), count(most)];
    let faults = Panel { title: "faults/s: ", series, bounds: [0.0, most], labels, scale: |y| y };
    let labels = ["1 us", "1 ms", "1 s"].map(str::to_owned).to_vec();
    let scale = |us: f64| us.max(1.0).log10();
    let waits = Panel { title: "waits: ", series: &TIMES, bounds: LATENCY, labels, scale };
    faults.draw(run, theme, frame, above);
    waits.draw(run, theme, frame, below);
}

/// Seconds before now, and values, of each series.
fn points(run: &Watched, series: &[Series], width: u16) -> Vec<Vec<(f64, f64)>> {
    // Dots are half as wide as a cell.
    let most = usize::from(width) * 2;
    let of = |value: fn(&Rates) -> Option<f64>| {
        let recent = run.history.iter().rev().take(most).enumerate();
        recent.filter_map(|(i, rates)| Some((-(i as f64), value(rates)?))).collect()
    };
    series.iter().map(|(.., value)| of(*value)).collect()
}

struct Panel<'a> {
    title: &'static str,
    series: &'a [Series],
    /// Of the values after `scale`.
    bounds: [f64; 2],
    /// From the least to the most.
    labels: Vec<String>,
    scale: fn(f64) -> f64,
}

impl Panel<'_> {
    fn draw(self, run: &Watched, theme: Theme, frame: &mut Frame<'_>, place: Rect) {
        let mut all = points(run, self.series, place.width);
        all.iter_mut().flatten().for_each(|(_, y)| *y = (self.scale)(*y));
        let mut heading = vec![Span::raw(self.title)];
        let names = self.series.iter().map(|(name, colour, _)| Span::styled(format!("{name} "), theme.colour(*colour)));
        heading.extend(names);
        let lines = self.series.iter().zip(&all).map(|((_, colour, _), points)| {
            let line = Dataset::default().data(points).marker(Marker::Braille).graph_type(GraphType::Line);
            line.style(theme.colour(*colour))
        });
        let oldest = -(run.history.len().min(usize::from(place.width) * 2).max(LEAST) as f64);
        let x = Axis::default().bounds([oldest, 0.0]).style(theme.dim());
        let y = Axis::default().bounds(self.bounds).labels(self.labels).style(theme.dim());
        let block = Block::new().title(Line::from(heading));
        let chart = Chart::new(lines.collect()).block(block).x_axis(x).y_axis(y).legend_position(None);
        frame.render_widget(chart, place);
    }
}
