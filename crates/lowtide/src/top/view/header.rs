//! The headline of the shown run.

use super::View;
use crate::client::ps::time;
use crate::top::words::base;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// `lowtide top  python3 (4242)  12:04  3 processes`.
pub fn draw(view: &View<'_>, frame: &mut Frame<'_>, place: Rect) {
    let Some(run) = view.app.run() else { return };
    let mut spans = vec![Span::styled("lowtide top  ", view.theme.dim())];
    match &run.sample {
        Some(sample) => {
            spans.push(Span::styled(format!("{} ({})", base(&sample.program), run.pid), view.theme.heading()));
            let processes = sample.processes.len();
            let plural = if processes == 1 { "" } else { "es" };
            spans.push(Span::raw(format!("  {}  {processes} process{plural}", time(sample.elapsed))));
        }
        None => spans.push(Span::raw(format!("{}", run.pid))),
    }
    let runs = view.app.watch.runs.len();
    if runs > 1 {
        spans.push(Span::styled(format!("  run {} of {runs}", view.app.place() + 1), view.theme.dim()));
    }
    if let Some(trouble) = &run.trouble {
        spans.push(Span::styled(format!("  {}", crate::top::words::escaped(trouble)), view.theme.error()));
    }
    frame.render_widget(Line::from(spans), place);
}
