//! A line that is being typed.

use super::action::Wish;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A path and more.
const LONGEST: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Limit,
    Reclaim,
    SwapOn,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Prompt {
    pub question: &'static str,
    pub text: String,
    purpose: Purpose,
}

impl Prompt {
    pub fn limit() -> Prompt {
        Prompt { question: "limit (512M, 2G, 40%)", text: String::new(), purpose: Purpose::Limit }
    }

    pub fn reclaim() -> Prompt {
        Prompt { question: "move out (64M, 1G)", text: String::new(), purpose: Purpose::Reclaim }
    }

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

    /// Some: it is over, with a wish or without.
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
