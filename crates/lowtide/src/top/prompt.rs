//! A line that is being typed.

use super::action::Wish;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Longest line: a path and more.
const LONGEST: usize = 4096;

/// What a line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Limit,
    Reclaim,
    SwapOn,
}

/// A line that is being typed, and what it is for.
#[derive(Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What is asked for.
    pub question: &'static str,
    /// What has been typed.
    pub text: String,
    purpose: Purpose,
}

impl Prompt {
    /// For a limit.
    pub fn limit() -> Prompt {
        Prompt { question: "limit (512M, 2G, 40%)", text: String::new(), purpose: Purpose::Limit }
    }

    /// For how much is to be moved out.
    pub fn reclaim() -> Prompt {
        Prompt { question: "move out (64M, 1G)", text: String::new(), purpose: Purpose::Reclaim }
    }

    /// For another area.
    pub fn swapon() -> Prompt {
        Prompt { question: "add area (dir:DIR, file:PATH, auto)", text: String::new(), purpose: Purpose::SwapOn }
    }

    fn wish(&self, text: String) -> Wish {
        match self.purpose {
            Purpose::Limit => Wish::Limit(text),
            Purpose::Reclaim => Wish::Reclaim(text),
            Purpose::SwapOn => Wish::SwapOn(text),
        }
    }

    /// What a key makes of it. Some: it is over, with what is wished, or without.
    pub fn key(&mut self, key: KeyEvent) -> Option<Option<Wish>> {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Esc => return Some(None),
            KeyCode::Enter => {
                let text = self.text.trim();
                return Some((!text.is_empty()).then(|| self.wish(text.to_owned())));
            }
            KeyCode::Backspace => drop(self.text.pop()),
            KeyCode::Char('u') if control => self.text.clear(),
            KeyCode::Char(c) if !control && !c.is_control() && self.text.len() < LONGEST => self.text.push(c),
            _ => {}
        }
        None
    }
}
