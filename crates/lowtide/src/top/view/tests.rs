//! The screen's content.

use super::View;
use crate::top::action::Outcome;
use crate::top::app::{App, Mode};
use crate::top::fixture::{app, stat};
use crate::top::prompt::Prompt;
use crate::top::sample::Sample;
use crate::top::theme::Theme;
use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;
use serde_json::json;

const COLOURS: Theme = Theme { has_colour: true, has_signs: true };
const MONO: Theme = Theme { has_colour: false, has_signs: true };
const PLAIN: Theme = Theme { has_colour: false, has_signs: false };

fn drawn(app: &App, theme: Theme, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    let view = View::new(app, theme);
    terminal.draw(|frame| view.draw(frame)).expect("drawn");
    terminal.backend().buffer().clone()
}

fn lines(app: &App, theme: Theme, (width, height): (u16, u16)) -> Vec<String> {
    let buffer = drawn(app, theme, (width, height));
    (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()).collect()
}

fn text(app: &App, size: (u16, u16)) -> String {
    lines(app, COLOURS, size).join("\n")
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "`{word}` is not in:\n{text}"));
}

const NUMBERS: [&str; 12] = [
    "sort (4000000)",
    "2 processes",
    "480 MiB of 512 MiB",
    "4,380",
    "8.7 us",
    "1.1 ms",
    "25 %",
    "50 % used",
    "dir:/var/tmp",
    "1 MiB",
    "3 MiB",
    "q quit",
];

#[test]
fn all_that_matters_is_on_80_by_24() {
    let text = text(&app(&["/usr/bin/sort"]), (80, 24));
    has(&text, &NUMBERS);
    has(
        &text,
        &[
            "peak 511 MiB",
            "pool 150 MiB",
            "device 40 MiB",
            "2.6:1",
            "first touch",
            "refaults/s",
            "near 67",
            "4100002",
            "4100001",
            "file:/swap",
        ],
    );
    assert!(!text.contains("PROGRAM"), "one run needs no list");
}

#[test]
fn a_large_screen_has_charts_and_all_rows() {
    let text = text(&app(&["sort"]), (120, 40));
    has(&text, &NUMBERS);
    has(&text, &["lowtide's CPU", "faults/s: staged pool device", "waits: p99 p50", "1 ms"]);
    assert!(!text.contains("dir:/gone"), "it is off");
    assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "no dots:\n{text}");
}

#[test]
fn an_area_on_servers_says_how_they_do() {
    let mut app = app(&["sort"]);
    let mut stat = stat("sort", 31);
    let latency = json!({ "p50": 110.2, "p99": 4200.0 });
    stat["areas"][1]["remote"] = json!({ "read_latency_us": latency, "reconnects": 2, "failovers": 1 });
    app.watch.runs[0].take(Sample::read(&stat));
    let text = text(&app, (100, 40));
    has(&text, &["file:/swap", "  reads p50 110 us, p99 4.2 ms", "  2 reconnects, 1 failovers", "4100001"]);
}

#[test]
fn a_small_screen_has_what_fits() {
    let text = text(&app(&["sort"]), (40, 10));
    has(&text, &["sort (4000000)", "480 MiB of 512 MiB", "faults/s", "4,380", "p99", "1.1 ms", "q quit"]);
}

#[test]
fn no_size_is_too_small() {
    let mut app = app(&["sort", "gcc", "redis"]);
    for mode in [Mode::Watching, Mode::Help, Mode::Choosing, Mode::Typing(Prompt::swapon())] {
        app.mode = mode;
        for (width, height) in
            (0..45).flat_map(|w| (0..14).map(move |h| (w, h))).chain([(1, 80), (300, 2), (200, 100), (99, 30), (100, 12)])
        {
            drawn(&app, COLOURS, (width, height));
        }
    }
}

#[test]
fn several_runs_are_listed_and_one_is_shown() {
    let names: Vec<String> = (0..30).map(|i| format!("program{i}")).collect();
    let mut app = app(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let first = text(&app, (80, 24));
    has(&first, &["run 1 of 30", "PROGRAM", "program0 (4000000)", "program1"]);
    app.key(KeyEvent::from(KeyCode::Up));
    let last = text(&app, (80, 24));
    has(&last, &["run 30 of 30", "program29 (4000029)", "4000028"]);
    assert!(!last.contains("program1\n"), "the list goes along");
}

#[test]
fn without_colours_there_are_none_and_nothing_is_lost() {
    for theme in [MONO, PLAIN] {
        for size in [(80, 24), (120, 40), (40, 10)] {
            let buffer = drawn(&app(&["sort"]), theme, size);
            assert!(buffer.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
        }
        has(&lines(&app(&["sort"]), theme, (80, 24)).join("\n"), &NUMBERS);
    }
    let plain = lines(&app(&["sort"]), PLAIN, (120, 40)).join("\n");
    assert!(plain.is_ascii(), "{plain}");
    has(&plain, &["####", "===="]);
}

#[test]
fn bars_are_as_long_as_what_they_show() {
    let mut app = app(&["sort"]);
    let count = |app: &App, c: &str| lines(app, MONO, (80, 24))[1].matches(c).count() as f64;
    let bar = ["█", "▓", "▒", "░", "·"].map(|c| count(&app, c)).iter().sum::<f64>();
    for (sign, mib) in [("█", 300.0), ("▓", 24.0), ("▒", 150.0), ("·", 32.0)] {
        assert!((count(&app, sign) / bar - mib / 512.0).abs() <= 1.5 / bar, "{sign}");
    }
    // Over the limit, as after it was lowered: the bar is full.
    let mut sample = Sample::read(&stat("sort", 31));
    sample.memory.limit = 100 << 20;
    app.watch.runs[0].take(sample);
    assert_eq!(count(&app, "·"), 0.0);
}

#[test]
fn names_can_do_nothing_to_the_terminal() {
    let mut app = app(&["ev\u{1b}[2Jil\u{7}\u{9b}31m\n"]);
    let mut sample = Sample::read(&stat("ev\u{1b}[2Jil\u{7}\u{9b}31m\n", 31));
    sample.areas[0].spec = "dir:/\u{1b}]0;x\u{7}".to_owned();
    sample.warnings = vec!["odd\u{1b}c".to_owned()];
    app.watch.runs[0].take(sample);
    app.watch.runs[0].trouble = Some("bad\u{1b}".to_owned());
    let text = text(&app, (120, 40));
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    has(&text, &["ev\\u{1b}[2Jil", "dir:/\\u{1b}]0;x", "odd\\u{1b}c", "bad\\u{1b}"]);
}

#[test]
fn what_is_asked_done_and_wrong_is_said() {
    let mut app = app(&["sort"]);
    app.outcome = Some(Outcome::bad("limit 1M: too small".to_owned()));
    has(&text(&app, (80, 24)), &["limit 1M: too small"]);
    app.outcome = Some(Outcome::bad("refused: ".to_owned() + &"words that explain ".repeat(9) + "END"));
    has(&text(&app, (80, 24)), &["refused", "END", "q quit"]);
    app.key(KeyEvent::from(KeyCode::Char('l')));
    app.key(KeyEvent::from(KeyCode::Char('7')));
    has(&text(&app, (80, 24)), &["limit (512M, 2G, 40%): 7_"]);
    app.mode = Mode::Choosing;
    has(&text(&app, (80, 24)), &["1 to 2"]);
    app.mode = Mode::Help;
    has(&text(&app, (80, 24)), &["an eighth more or less", "any key"]);
    let Mode::Help = app.mode else { panic!() };
    app.key(KeyEvent::from(KeyCode::Char('q')));
    assert_eq!(app.mode, Mode::Watching, "any key");
    app.watch.runs[0].trouble = Some("has not answered for 4 s".to_owned());
    has(&text(&app, (80, 24)), &["has not answered"]);
}

#[test]
fn a_long_line_is_seen_at_its_end() {
    let mut app = app(&["sort"]);
    app.key(KeyEvent::from(KeyCode::Char('a')));
    ("dir:/".to_owned() + &"x".repeat(200) + "END").chars().for_each(|c| drop(app.key(KeyEvent::from(KeyCode::Char(c)))));
    has(&text(&app, (80, 24)), &["xxxEND_"]);
}
