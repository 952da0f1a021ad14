//! `--report`: the page of a run, read as text. How it looks is for eyes (`make pictures`), whether its predictions come true
//! takes time (`make report`).

mod live;

use live::{LOWTIDE, Scene, program, turn};
use serde_json::Value;
use std::process::Command;

/// What a tag's text is, without tags in it.
fn texts(page: &str, tag: &str) -> Vec<String> {
    let (open, close) = (format!("<{tag}"), format!("</{tag}>"));
    let parts = page.split(&open).skip(1).filter_map(|part| part.split(&close).next()?.split_once('>').map(|part| part.1));
    parts.map(plain).collect()
}

fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut inside = true;
    for c in html.chars() {
        match c {
            '<' => inside = false,
            '>' => inside = true,
            c if inside => text.push(c),
            _ => {}
        }
    }
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Each element that is opened is closed, in order.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1).map(|part| part.split('>').next().expect("a tag")) {
        let name = tag.split_whitespace().next().expect("a name");
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if ["!DOCTYPE", "meta"].contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

// (Over 70 lines: one run of some seconds, and every statement about it.)
#[test]
fn a_run_that_thrashes() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (page, stats) = (scene.path("r.html"), scene.path("s.json"));
    let output = scene
        .lowtide()
        .args(["run", "--ram", "48M", "--swap", "ram", "--report"])
        .arg(&page)
        .arg("--stats")
        .arg(&stats)
        .arg("--")
        .arg(program("touches"))
        .args(["96", "60000", "random", "t"])
        .output()
        .expect("lowtide starts");
    assert!(output.status.success(), "{output:?}");
    let native = Command::new(program("touches")).args(["96", "60000", "random", "t"]).output().expect("it starts");
    assert_eq!(output.stdout, native.stdout);
    let summary = String::from_utf8_lossy(&output.stderr);
    assert!(summary.lines().last().is_some_and(|line| line.starts_with("lowtide: ram peak")), "{summary}");

    let page = std::fs::read_to_string(page).expect("written");
    let stats: Value = serde_json::from_slice(&std::fs::read(stats).expect("written")).expect("JSON");
    assert_balanced(&page);
    assert!(
        !page.contains("<script") && !page.contains("http://") && !page.contains("https://") && !page.contains("src="),
        "self-contained"
    );
    for heading in [
        "In words",
        "Over time",
        "What more RAM would bring",
        "How long faults took",
        "Where pages were",
        "What the pages held",
        "The run",
    ] {
        assert!(texts(&page, "h2").iter().any(|text| text == heading), "{heading}");
    }
    assert!(page.matches("<svg").count() >= 7);
    // Without the command line, which names a directory that is called anything.
    let (_, figures) = page.split_once("</pre>").expect("the command line");
    for broken in ["NaN", "inf ", "-0.0 "] {
        assert!(!figures.contains(broken), "{broken}");
    }
    // The same figures as the statistics have.
    let evicted = stats["evictions"]["pages"].as_u64().expect("a number");
    let shown = if evicted < 10_000 { format!("{evicted}") } else { format!("{:.1} k", evicted as f64 / 1e3) };
    assert!(evicted > 10_000 && texts(&page, "dd").contains(&format!("{shown} pages")), "{shown}: {:?}", texts(&page, "dd"));
    let distances: u64 = ["pool", "device"]
        .iter()
        .flat_map(|place| stats["refault_distances"][place].as_array().expect("a list"))
        .filter_map(Value::as_u64)
        .sum();
    let [pool, device] = ["pool", "device"].map(|kind| stats["faults"][kind].as_u64().expect("a number"));
    assert!(pool > 1000 && distances.abs_diff(pool + device) * 50 <= pool + device, "{distances} of {}", pool + device);
    assert_eq!(distances, stats["refaults"].as_array().expect("a list").iter().filter_map(Value::as_u64).sum::<u64>());

    // Said to be faster with more RAM, and not below what the program takes by itself.
    let rows: Vec<(f64, f64, f64)> = page
        .split("data-ram=\"")
        .skip(1)
        .map(|row| {
            let mut fields = row.split('"').step_by(2).map(|field| field.parse().expect("a number"));
            let mut next = || fields.next().expect("three");
            (next(), next(), next())
        })
        .collect();
    assert!(rows.len() > 3 && rows.is_sorted_by(|a, b| a.0 < b.0 && a.1 >= b.1 && a.2 >= b.2), "{rows:?}");
    let elapsed = stats["elapsed_seconds"].as_f64().expect("a number");
    assert!((rows[0].1 - elapsed).abs() < 0.002 && rows.iter().all(|row| row.1 > 0.0), "{elapsed}: {rows:?}");
    let last = rows.last().expect("rows");
    assert!(last.0 <= f64::from(160 << 20) && last.2 < 0.01 * rows[0].2, "nothing comes back once all of it fits: {rows:?}");
    let advice = texts(&page, "li");
    assert!(advice.iter().any(|text| text.contains("too small") && text.contains("times as fast")), "{advice:?}");
}

#[test]
fn a_run_that_fits_and_words_with_teeth() {
    let Some(_turn) = turn() else { return };
    let scene = Scene::new();
    let (evil, page) = ("</pre><script>alert('x')</script>&amp;\"", scene.path("r.html"));
    let named = scene.path("<b>program");
    std::os::unix::fs::symlink("/bin/sh", &named).expect("a link");
    let output = scene
        .lowtide()
        .args(["run", "--quiet", "--ram", "64M", "--report"])
        .arg(&page)
        .arg("--")
        .arg(&named)
        .args(["-c", "exit 7", evil])
        .output()
        .expect("lowtide starts");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(7), &b""[..]));
    let page = std::fs::read_to_string(page).expect("written");
    assert_balanced(&page);
    assert!(!page.contains("<script") && !page.contains("<b>program"));
    let command = &texts(&page, "pre")[0];
    assert!(
        command.contains("--ram 64M") && command.contains(r#"'</pre><script>alert('\''x'\'')</script>&amp;"'"#),
        "{command}"
    );
    assert!(texts(&page, "dd").contains(&"7".to_owned()), "the exit status");
    assert!(texts(&page, "li").iter().any(|text| text.contains("never reached")), "{:?}", texts(&page, "li"));
}

#[test]
fn the_page_goes_where_it_is_to_go() {
    let Some(_turn) = turn() else { return };
    let output = Command::new(LOWTIDE)
        .args(["run", "--quiet", "--ram", "64M", "--report", "/dev/stdout", "--", "echo", "hello"])
        .output();
    let text = String::from_utf8(output.expect("lowtide starts").stdout).expect("text");
    assert!(text.starts_with("hello\n<!DOCTYPE html>") && text.ends_with("</html>"), "{text}");
}
