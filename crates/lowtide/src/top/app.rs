//! The state behind the screen, and the effects of keys.

use super::action::{Action, Outcome, Wish};
use super::prompt::Prompt;
use super::watch::{Watch, Watched};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use lowtide_config::size;

/// `+` and `-` change a limit by this part of it.
const STEP: u64 = 8;
/// Steps are multiples of this.
const UNIT: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    Watching,
    Typing(Prompt),
    /// Waits for the number of an area to remove.
    Choosing,
    Help,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    Stay,
    Quit,
    /// ^Z.
    Suspend,
    Ask(Wish),
    Cancel,
}

pub struct App {
    pub watch: Watch,
    /// The pid of the run shown in full.
    pub selected: u32,
    pub mode: Mode,
    pub action: Option<Action>,
    pub outcome: Option<Outcome>,
    /// Processes above the first one shown.
    pub scroll: usize,
}

impl App {
    /// `watch` has at least one run.
    pub fn new(watch: Watch) -> App {
        let selected = watch.runs.first().map_or(0, |run| run.pid);
        App { watch, selected, mode: Mode::Watching, action: None, outcome: None, scroll: 0 }
    }

    /// The run shown in full; None only without any run.
    pub fn run(&self) -> Option<&Watched> {
        self.watch.runs.get(self.place())
    }

    pub fn place(&self) -> usize {
        self.watch.runs.iter().position(|run| run.pid == self.selected).unwrap_or(0)
    }

    /// Reports runs that are over, and shows another one.
    pub fn forget(&mut self, over: &[Watched]) {
        let Some(last) = over.last() else { return };
        self.outcome = Some(Outcome::good(farewell(last)));
        if over.iter().any(|run| run.pid == self.selected) {
            (self.mode, self.scroll) = (Mode::Watching, 0);
            self.selected = self.watch.runs.first().map_or(0, |run| run.pid);
        }
    }

    /// Sends a request to the selected run; cancels the running one, but for a limit, which stays.
    pub fn ask(&mut self, wish: Wish) {
        if let Some(action) = &self.action
            && !matches!(action.wish, Wish::Limit(_))
        {
            self.outcome = Some(Outcome::bad(format!("{} goes on: c cancels it", action.wish.name())));
            return;
        }
        self.outcome = None;
        self.action = None;
        match Action::start(self.selected, wish) {
            Ok(action) => self.action = Some(action),
            Err(line) => self.outcome = Some(Outcome::bad(line)),
        }
    }

    pub fn hear(&mut self) {
        if let Some(outcome) = self.action.as_mut().and_then(Action::hear) {
            (self.action, self.outcome) = (None, Some(outcome));
        }
    }

    pub fn cancel(&mut self) {
        match &mut self.action {
            Some(action) => action.cancel(),
            None => self.outcome = Some(Outcome::bad("there is nothing to cancel".to_owned())),
        }
    }

    pub fn key(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            match key.code {
                KeyCode::Char('c') => return Next::Quit,
                KeyCode::Char('z') => return Next::Suspend,
                _ => {}
            }
        }
        match &mut self.mode {
            Mode::Watching => self.command(key),
            Mode::Help => {
                self.mode = Mode::Watching;
                Next::Stay
            }
            Mode::Choosing => {
                let number = match key.code {
                    KeyCode::Char(digit) => digit.to_digit(10).map(|n| n as usize),
                    _ => None,
                };
                self.mode = Mode::Watching;
                self.off(number)
            }
            Mode::Typing(prompt) => match prompt.key(key) {
                None => Next::Stay,
                Some(wish) => {
                    self.mode = Mode::Watching;
                    wish.map_or(Next::Stay, Next::Ask)
                }
            },
        }
    }

    fn command(&mut self, key: KeyEvent) -> Next {
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('?' | 'h') => self.mode = Mode::Help,
            KeyCode::Char('c') | KeyCode::Esc if self.action.is_some() => return Next::Cancel,
            KeyCode::Char('c') => return Next::Cancel,
            KeyCode::Esc => self.outcome = None,
            KeyCode::Char('+' | '=') => return self.step(true),
            KeyCode::Char('-' | '_') => return self.step(false),
            KeyCode::Char('l') => self.mode = Mode::Typing(Prompt::limit()),
            KeyCode::Char('r') => self.mode = Mode::Typing(Prompt::reclaim()),
            KeyCode::Char('a') => self.mode = Mode::Typing(Prompt::swapon()),
            KeyCode::Char('s') if self.areas().is_empty() => {
                self.outcome = Some(Outcome::bad("the run has no swap area: a adds one".to_owned()));
            }
            KeyCode::Char('s') => self.mode = Mode::Choosing,
            KeyCode::Up | KeyCode::Char('k') => self.select(false),
            KeyCode::Down | KeyCode::Tab | KeyCode::Char('j') => self.select(true),
            KeyCode::PageDown | KeyCode::Char(']') => {
                let last = self.run().and_then(|run| run.sample.as_ref()).map_or(0, |sample| sample.processes.len());
                self.scroll = (self.scroll + 1).min(last.saturating_sub(1));
            }
            KeyCode::PageUp | KeyCode::Char('[') => self.scroll = self.scroll.saturating_sub(1),
            _ => {}
        }
        Next::Stay
    }

    fn select(&mut self, next: bool) {
        let (place, runs) = (self.place(), &self.watch.runs);
        if runs.is_empty() {
            return;
        }
        let other = if next { (place + 1) % runs.len() } else { (place + runs.len() - 1) % runs.len() };
        (self.selected, self.scroll) = (runs[other].pid, 0);
    }

    /// Steps from the last requested limit.
    fn step(&mut self, more: bool) -> Next {
        let asked = match self.action.as_ref().map(|action| &action.wish) {
            Some(Wish::Limit(text)) => size::parse(text, 0).ok().filter(|bytes| *bytes > 0),
            _ => None,
        };
        let Some(now) = asked.or_else(|| Some(self.run()?.sample.as_ref()?.memory.limit)) else { return Next::Stay };
        Next::Ask(Wish::Limit(stepped(now, more)))
    }

    /// Areas that are on, as the screen numbers them.
    pub fn areas(&self) -> Vec<&str> {
        let areas = self.run().and_then(|run| run.sample.as_ref()).map(|sample| &sample.areas);
        areas.into_iter().flatten().filter(|area| area.is_on()).map(|area| area.spec.as_str()).collect()
    }

    fn off(&mut self, number: Option<usize>) -> Next {
        let spec = number.and_then(|n| self.areas().get(n.checked_sub(1)?).map(|spec| (*spec).to_owned()));
        match spec {
            Some(spec) => Next::Ask(Wish::SwapOff(spec)),
            None => {
                self.outcome = Some(Outcome::good("no area is taken off".to_owned()));
                Next::Stay
            }
        }
    }
}

/// A limit that is an eighth more or less, in whole MiB.
fn stepped(limit: u64, more: bool) -> String {
    let step = (limit / STEP).next_multiple_of(UNIT).max(UNIT);
    let other = if more { limit.saturating_add(step) } else { limit.saturating_sub(step) };
    format!("{}M", other / UNIT)
}

/// A run is over: `python3 (4242) has ended after 12:04`.
pub fn farewell(run: &Watched) -> String {
    let Some(sample) = &run.sample else { return format!("the run of `lowtide run` {} has ended", run.pid) };
    let after = crate::client::ps::time(sample.elapsed + run.seen.elapsed().as_secs_f64());
    format!("{} ({}) has ended after {after}", super::words::base(&sample.program), run.pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::fixture::{app, runs, typed};

    fn press(app: &mut App, code: KeyCode) -> Next {
        app.key(KeyEvent::from(code))
    }

    #[test]
    fn sizes_and_specs_are_typed_and_keys_are_letters_then() {
        let mut app = app(&["sort"]);
        for (key, text, wish) in [
            ('l', "64M", Wish::Limit("64M".to_owned())),
            ('r', "q+-", Wish::Reclaim("q+-".to_owned())),
            ('a', "dir:/x", Wish::SwapOn("dir:/x".to_owned())),
        ] {
            assert_eq!(press(&mut app, KeyCode::Char(key)), Next::Stay);
            assert_eq!(typed(&mut app, text), Next::Stay);
            assert_eq!(press(&mut app, KeyCode::Enter), Next::Ask(wish));
            assert_eq!(app.mode, Mode::Watching);
        }
        press(&mut app, KeyCode::Char('l'));
        typed(&mut app, "1G");
        assert_eq!((press(&mut app, KeyCode::Esc), &app.mode), (Next::Stay, &Mode::Watching), "nothing is asked");
        press(&mut app, KeyCode::Char('l'));
        assert_eq!((press(&mut app, KeyCode::Enter), &app.mode), (Next::Stay, &Mode::Watching), "nothing is nothing");
    }

    #[test]
    fn the_limit_goes_by_eighths_in_whole_mib() {
        assert_eq!([stepped(512 << 20, true), stepped(512 << 20, false)], ["576M", "448M"]);
        assert_eq!(
            [stepped(17 << 20, true), stepped(1 << 20, false), stepped(u64::MAX, true)],
            ["20M", "0M", "17592186044415M"]
        );
        let mut app = app(&["sort"]);
        let limit = app.run().unwrap().sample.as_ref().unwrap().memory.limit;
        assert_eq!(press(&mut app, KeyCode::Char('+')), Next::Ask(Wish::Limit(stepped(limit, true))));
    }

    #[test]
    fn areas_are_taken_off_by_their_numbers() {
        let mut app = app(&["sort"]);
        assert_eq!(app.areas(), ["dir:/var/tmp", "file:/swap"], "the third is off");
        press(&mut app, KeyCode::Char('s'));
        assert_eq!(press(&mut app, KeyCode::Char('2')), Next::Ask(Wish::SwapOff("file:/swap".to_owned())));
        for other in [KeyCode::Char('0'), KeyCode::Char('3'), KeyCode::Char('x'), KeyCode::Esc] {
            press(&mut app, KeyCode::Char('s'));
            assert_eq!((press(&mut app, other), &app.mode), (Next::Stay, &Mode::Watching));
        }
    }

    #[test]
    fn another_run_is_selected_when_one_is_over() {
        let mut app = app(&["sort", "gcc", "redis"]);
        let pids: Vec<u32> = app.watch.runs.iter().map(|run| run.pid).collect();
        press(&mut app, KeyCode::Up);
        assert_eq!(app.selected, pids[2], "round and round");
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.selected, pids[0]);
        app.watch.runs.remove(0);
        let over = runs(&["sort"]);
        app.forget(&over);
        assert_eq!(app.selected, pids[1]);
        assert!(app.outcome.as_ref().is_some_and(|o| o.line.starts_with("sort (") && o.line.contains("has ended")));
    }

    #[test]
    fn quitting_works_everywhere() {
        let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
        let mut app = app(&["sort"]);
        for key in ['l', 's', '?', 'j'] {
            press(&mut app, KeyCode::Char(key));
            assert_eq!((app.key(control('c')), app.key(control('z'))), (Next::Quit, Next::Suspend));
            app.mode = Mode::Watching;
        }
        assert_eq!(press(&mut app, KeyCode::Char('q')), Next::Quit);
        assert_eq!(press(&mut app, KeyCode::Char('c')), Next::Cancel);
    }
}
