//! The examples run, each with its own small limit.

use std::process::Command;

#[test]
fn examples_run() {
    // Beside this program's directory, where cargo puts them before it runs tests.
    let own = std::env::current_exe().unwrap();
    for name in ["allocator", "cache", "shared_bytes"] {
        let path = own.ancestors().nth(2).unwrap().join("examples").join(name);
        let output = Command::new(&path).output().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("MiB"),
            "{name}: {}\n{}",
            said,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
