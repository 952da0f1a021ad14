//! Draws the state on the screen.

mod activity;
mod charts;
mod footer;
mod header;
mod help;
mod layout;
mod memory;
mod tables;

#[cfg(test)]
mod tests;

use super::app::{App, Mode};
use super::theme::Theme;
use super::tree::{self, Branch};
use layout::{Heights, Section};
use ratatui::Frame;
use ratatui::layout::Rect;

/// Least width for charts beside the numbers.
const WIDE: u16 = 100;
/// Least lines for charts, which also need dots.
const CHARTS: u16 = 10;

/// The state, its theme, and the tree of the selected run's processes.
pub struct View<'a> {
    app: &'a App,
    theme: Theme,
    branches: Vec<Branch>,
}

impl<'a> View<'a> {
    pub fn new(app: &'a App, theme: Theme) -> View<'a> {
        let sample = app.run().and_then(|run| run.sample.as_ref());
        let branches = sample.map_or(Vec::new(), |sample| tree::order(&sample.processes, tree::kin));
        View { app, theme, branches }
    }

    pub fn draw(&self, frame: &mut Frame<'_>) {
        let screen = frame.area();
        let given = self.wants(screen).share(screen.height);
        let mut top = screen.y;
        let mut next = |section: Section| {
            let place = Rect { y: top, height: given.of(section), ..screen };
            top += place.height;
            place
        };
        header::draw(self, frame, next(Section::Header));
        tables::runs(self, frame, next(Section::Runs));
        if let Some(run) = self.app.run()
            && let Some(sample) = &run.sample
        {
            memory::draw(sample, self.theme, frame, next(Section::Memory));
            self.activity(frame, next(Section::Activity));
            tables::areas(self, sample, run.now(), frame, next(Section::Areas));
            tables::processes(self, sample, frame, next(Section::Processes));
        }
        let [status, keys] = [Section::Status, Section::Keys].map(|section| given.of(section));
        let bottom = screen.bottom();
        footer::status(self, frame, Rect { y: bottom - keys - status, height: status, ..screen });
        footer::keys(self, frame, Rect { y: bottom - keys, height: keys, ..screen });
        if self.app.mode == Mode::Help {
            help::draw(self.theme, frame);
        }
    }

    fn wants(&self, screen: Rect) -> Heights {
        let lines = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        // With its heading.
        let table = |count: usize| if count == 0 { 0 } else { lines(count + 1) };
        let runs = self.app.watch.runs.len();
        let sample = self.app.run().and_then(|run| run.sample.as_ref());
        let areas = sample.map_or(0, tables::area_lines);
        let rows = lines(activity::ROWS);
        // Charts may be taller than the numbers beside them.
        let activity = if screen.width >= WIDE { rows.max(screen.height / 2) } else { rows };
        Heights::default()
            .want(Section::Header, 1)
            .want(Section::Runs, if runs > 1 { table(runs) } else { 0 })
            .want(Section::Memory, 3)
            .want(Section::Activity, activity)
            .want(Section::Areas, table(areas))
            .want(Section::Processes, table(self.branches.len()))
            .want(Section::Status, footer::lines(self, screen.width))
            .want(Section::Keys, 1)
    }

    fn activity(&self, frame: &mut Frame<'_>, place: Rect) {
        let Some(run) = self.app.run() else { return };
        if place.width < WIDE || place.height < CHARTS || !self.theme.has_signs {
            activity::draw(run, self.theme, frame, place);
            return;
        }
        let left = place.width / 2;
        activity::draw(run, self.theme, frame, Rect { width: left - 1, ..place });
        charts::draw(run, self.theme, frame, Rect { x: place.x + left, width: place.width - left, ..place });
    }
}
