//! The status line and the keys.

use super::View;
use crate::top::app::Mode;
use crate::top::words::escaped;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

const MOST: u16 = 4;
/// Keys and their effects, the most important first.
const KEYS: [(&str, &str); 8] = [
    ("q", "quit"),
    ("?", "help"),
    ("+ - l", "limit"),
    ("r", "reclaim"),
    ("a", "area on"),
    ("s", "area off"),
    ("c", "cancel"),
    ("tab", "other run"),
];

/// The prompt, or the running request, its outcome, or the latest warning.
pub fn line(view: &View<'_>, width: u16) -> Line<'static> {
    let theme = view.theme;
    match (&view.app.mode, &view.app.action, &view.app.outcome) {
        (Mode::Typing(prompt), ..) => {
            let (question, hint) = (format!("{}: ", prompt.question), "_  (Enter, or Esc)");
            // Shows the end of the typed text.
            let room = usize::from(width).saturating_sub(question.len() + hint.len());
            let typed: Vec<char> = prompt.text.chars().collect();
            let shown: String = typed[typed.len().saturating_sub(room.max(8))..].iter().collect();
            let hint = Span::styled(hint, theme.dim());
            Line::from(vec![Span::styled(question, theme.heading()), Span::raw(escaped(&shown)), hint])
        }
        (Mode::Choosing, ..) => {
            let last = view.app.areas().len();
            let which = if last == 1 { "1".to_owned() } else { format!("1 to {last}") };
            Line::styled(format!("take which area off? {which} (any other key: none)"), theme.heading())
        }
        (_, Some(action), _) => Line::raw(escaped(&action.line())),
        (_, None, Some(outcome)) if outcome.is_error => Line::styled(escaped(&outcome.line), theme.error()),
        (_, None, Some(outcome)) => Line::raw(escaped(&outcome.line)),
        (_, None, None) => {
            let warnings = view.app.run().and_then(|run| run.sample.as_ref()).map(|sample| &sample.warnings);
            let latest = warnings.and_then(|all| all.last());
            Line::styled(latest.map_or(String::new(), |text| format!("warning: {}", escaped(text))), theme.dim())
        }
    }
}

/// Lines of the status: errors must be readable to their end.
pub fn lines(view: &View<'_>, width: u16) -> u16 {
    let length = line(view, width).width();
    // Word wrap wastes some room.
    let room = usize::from(width).saturating_sub(8).max(1);
    if length <= usize::from(width) { 1 } else { u16::try_from(length.div_ceil(room)).unwrap_or(u16::MAX).min(MOST) }
}

pub fn status(view: &View<'_>, frame: &mut Frame<'_>, place: Rect) {
    frame.render_widget(Paragraph::new(line(view, place.width)).wrap(Wrap { trim: true }), place);
}

/// As many as there is room for.
pub fn keys(view: &View<'_>, frame: &mut Frame<'_>, place: Rect) {
    let mut spans = Vec::new();
    let mut left = usize::from(place.width);
    let is_alone = view.app.watch.runs.len() < 2;
    for (key, what) in KEYS.into_iter().filter(|(key, _)| !is_alone || *key != "tab") {
        let length = key.len() + what.len() + 3;
        if length > left + 2 {
            break;
        }
        left = left.saturating_sub(length);
        spans.push(Span::styled(key, view.theme.heading()));
        spans.push(Span::styled(format!(" {what}  "), view.theme.dim()));
    }
    frame.render_widget(Line::from(spans), place);
}
