//! Help, manual pages and completions.

use crate::with;
use std::path::Path;

#[test]
fn help_and_version() {
    for (line, words) in [
        ("--help", &["Usage:", "Examples:", "doctor"][..]),
        (
            "run --help",
            &["--ram", "--swap", "--pool", "--codec", "--when-full", "--stats", "--quiet", "--verbose", "Examples:"],
        ),
        ("--version", &["lowtide 0."]),
        ("man", &[".TH", "doctor"]),
        ("man run", &[".TH", "ram"]),
        ("man swapoff", &[".TH", "cancels"]),
        ("completions bash", &["complete -F", "swapoff", "--when-full"]),
        ("completions zsh", &["#compdef lowtide", "swapoff", "--when-full"]),
        ("completions fish", &["complete -c lowtide", "swapoff", "when-full"]),
        ("stat --help", &["--json", "--watch"]),
        ("man run", &["report", "metrics"]),
    ] {
        let output = with(line, Path::new(""));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(words.iter().all(|word| text.contains(word)), "{line}: {text}");
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn each_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = with("man --all {}", dir.path());
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
    let help = with("--help", Path::new(""));
    let help = String::from_utf8_lossy(&help.stdout);
    let list = help.split("Commands:").nth(1).and_then(|rest| rest.split("Options:").next()).expect("a list");
    // A command's name is set in two spaces, what is said of it further in.
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    let pages: Vec<_> = names.map(|name| dir.path().join(format!("lowtide-{name}.1"))).collect();
    assert!(pages.len() >= 8, "{list}");
    for page in pages.iter().chain([&dir.path().join("lowtide.1")]) {
        let text = std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        assert!(text.contains(".SH SYNOPSIS"), "{}", page.display());
    }
}
