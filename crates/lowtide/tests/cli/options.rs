//! Options and sizes that are refused, in one line.

use crate::{assert_refused, lowtide, refused, with};

#[test]
fn bad_usage() {
    refused("man dance", 2, &["dance", "lowtide --help"]);
    refused("man --all /nowhere", 2, &["/nowhere", "exists"]);
    refused("completions", 2, &["SHELL"]);
    refused("completions ksh", 2, &["ksh"]);
    refused("", 2, &["command", "lowtide run --ram"]);
    refused("dance", 2, &["dance", "lowtide run --ram"]);
    refused("top", 2, &["terminal", "lowtide stat"]);
    refused("top 12 13", 2, &["13", "--help"]);
    refused("top x", 2, &["invalid value", "x"]);
    refused("limit", 2, &["PID", "SIZE"]);
    refused("swapon x dir:/tmp", 2, &["invalid value", "x"]);
    refused("run --ram 64M", 2, &["no program", "lowtide run --ram"]);
    refused("run --ram 64M --", 2, &["no program", "lowtide run --ram"]);
    refused("run true --ram 64M", 2, &["--ram SIZE before the program"]);
    refused("run -- true", 2, &["--ram SIZE", "LOWTIDE_RAM"]);
    refused("run --ram", 2, &["--ram", "value"]);
    refused("run --ram 64M --frob -- true", 2, &["--frob", "--help"]);
    refused("run --ram 64M --frob true", 2, &["--frob", "--help"]);
    refused("run --ram 64M --ram 65M -- true", 2, &["--ram", "twice"]);
    refused("run --ram 64M --quiet --verbose -- true", 2, &["--quiet", "--verbose"]);
    refused("run --ram 64M --report /nonexistent/x.html -- true", 2, &["--report", "can't be written"]);
    refused("run --ram 64M --metrics 192.0.2.1:1 -- true", 2, &["--metrics", "--metrics-anywhere"]);
}

#[test]
fn bad_sizes() {
    for size in ["much", "12X", "", "1e9", "-5", "-5M", "5%%", "1.2.3G", "nan"] {
        let output = lowtide().args(["run", "--ram", size, "--", "true"]).output().expect("lowtide starts");
        assert_refused(&output, 2, &["--ram"]);
    }
    refused("run --ram 0 -- true", 2, &["--ram 0", "too small", "16 MiB"]);
    refused("run --ram 1M -- true", 2, &["--ram 1M", "too small", "16 MiB"]);
    refused("run --ram 16777215 -- true", 2, &["too small"]);
    refused("run --ram 0% -- true", 2, &["too small"]);
    refused("run --ram 99999999999G -- true", 2, &["99999999999G", "larger"]);
    refused("run --ram 99999999999999999999999999 -- true", 2, &["--ram"]);
    refused("run --ram 64M --pool 65M -- true", 2, &["--pool 65 MiB", "--ram 64 MiB", "smaller"]);
    refused("run --ram 64M --pool lots -- true", 2, &["--pool", "lots"]);
    refused("run --ram 64M --pool 0 --swap ram -- true", 2, &["--pool 0", "--swap dir:DIR"]);
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "3M").output().expect("lowtide starts");
    assert_refused(&output, 2, &["3M", "too small"]);
    let output = lowtide().args(["run", "--", "true"]).env("LOWTIDE_RAM", "").output().expect("lowtide starts");
    assert_refused(&output, 2, &["no limit", "LOWTIDE_RAM"]);
}

#[test]
fn bad_codecs_and_policies() {
    refused("run --ram 64M --codec lzo -- true", 2, &["lzo", "zstd"]);
    refused("run --ram 64M --codec zstd:99 -- true", 2, &["zstd:99", "22"]);
    refused("run --ram 64M --codec zstd: -- true", 2, &["zstd:", "22"]);
    refused("run --ram 64M --codec lz4:3 -- true", 2, &["lz4", "no levels"]);
    refused("run --ram 64M --when-full panic -- true", 2, &["panic", "exceed or stop"]);
    refused("run --ram 64M --exact-moves maybe -- true", 2, &["maybe", "on or off"]);
}

#[test]
fn bad_slot_settings() {
    let run =
        |name, value| lowtide().args(["run", "--ram", "64M", "--", "true"]).env(name, value).output().expect("lowtide starts");
    if !cfg!(feature = "lab") {
        for (name, value) in [("LOWTIDE_SLOTS", "scan-one"), ("LOWTIDE_SLOTS", "next-fit"), ("LOWTIDE_FOLIOS", "4")] {
            assert_refused(&run(name, value), 2, &[name, value, "not in this binary", "--features lab"]);
        }
        return;
    }
    let all = ["LOWTIDE_SLOTS=next-fit", "scan-all", "scan-one", "bucketed", "exact", "area-lock"];
    assert_refused(&run("LOWTIDE_SLOTS", "next-fit"), 2, &all);
    for order in ["10", "-1", "64K"] {
        assert_refused(&run("LOWTIDE_FOLIOS", order), 2, &["LOWTIDE_FOLIOS", order, "0 (4 KiB)", "9 (2 MiB)"]);
    }
}

#[test]
fn an_unwritable_stats_file_is_found_before_the_program_starts() {
    let dir = tempfile::tempdir().expect("a directory");
    let mark = dir.path().join("started");
    for stats in ["/no/such/dir/stats.json", "/", "/proc/stats.json"] {
        let output = with(&format!("run --ram 64M --stats {stats} -- touch {{}}"), &mark);
        assert_refused(&output, 2, &["--stats", stats, "can't be written"]);
        assert!(!mark.exists());
    }
}
