//! A document's table of published figures beside ours. A run replaces the rows of its own
//! experiments; other rows stay.

use crate::report::{Report, markdown_row};

const HEADER: &str = "| what | published | ours | command | verdict |";
const RULE: &str = "|---|---|---|---|---|";

/// A published figure that no experiment gives, or one that takes more than `all`: what, published,
/// verdict. A run of the named experiment replaces it.
type Apart = (&'static str, &'static str, &'static str, &'static str);
const NONE: &str = "";
const NO_BUILD: &str = "not run: 20 minutes of the whole machine";
const FEW: &str = "not reproduced ([build](build.md)): each process has an area of its own, and few threads";
const APART: [Apart; 12] = [
    ("build", "build, 48 threads: system time by cluster locks", "-47.7 %", FEW),
    ("build", "build, 64 KiB folios: split, by cluster locks", "19.9 % -> 7.8 %", NO_BUILD),
    ("build", "build, 64 KiB folios: system time, one cluster searched, not all", "-52 % to -72 %", FEW),
    ("build", "build, 64 KiB folios: split, one cluster searched, not all", "about 1, once 1.9", NO_BUILD),
    ("build", "build, 4 KiB only: time, one cluster searched, not all", "4432 s -> 4430 s", NO_BUILD),
    ("database", "database, 16 workers: throughput by cluster locks", "higher", "not run: ten minutes of the whole machine"),
    (
        NONE,
        "folios split: without slot caches, and with them",
        "240,875 -> 158,330",
        "not applicable: caches here hold no folios",
    ),
    (NONE, "stack of an allocation", "240 -> 216 bytes", "not compared: `slots-locks --only counts` counts ours"),
    (NONE, "a CPU's list is shorter while memory is short", "the high mark falls", "not reproduced: lists keep their lengths"),
    (
        NONE,
        "dictionary of 16 KiB, LZ4",
        "664 -> 620 of 1750 MB",
        "not reproduced: 0.997 of the bytes ([deleted](../../docs/design/decisions.md#tried-not-built))",
    ),
    (NONE, "dictionary, zstd", "505 -> 466 of 1750 MB", "not measured: with LZ4 no dictionary pays"),
    (NONE, "swapoff: pages in a run", "18", "better: up to 128 pages a read"),
];

/// One row of the document, without its newline.
#[derive(Debug, Clone, PartialEq)]
struct Row(String);

impl Row {
    fn new<'a>(cells: impl IntoIterator<Item = &'a str>) -> Row {
        Row(markdown_row(cells))
    }

    /// The experiment in the last column but one.
    fn experiment(&self) -> Option<&str> {
        let command = self.0.rsplit(" | ").nth(1)?.strip_prefix("`lowtide-lab ")?;
        command.split([' ', '`']).next()
    }
}

/// The document with the rows of these reports, all rows in the `order` of experiments.
///
/// # Errors
/// A line: it has no such table.
pub fn update(document: &str, reports: &[Report], order: &[&str]) -> Result<String, String> {
    let no_table = || format!("no line `{HEADER}`");
    let (before, rest) = document.split_once(&format!("{HEADER}\n")).ok_or_else(no_table)?;
    let mut lines = rest.lines();
    let old: Vec<Row> = lines.by_ref().take_while(|line| line.starts_with('|')).skip(1).map(|l| Row(l.to_owned())).collect();
    let after = rest.lines().skip(old.len() + 1);
    let ran = |row: &Row| reports.iter().any(|report| Some(report.experiment()) == row.experiment());
    let mut rows: Vec<Row> = old.into_iter().filter(|row| row.experiment().is_some() && !ran(row)).collect();
    for report in reports {
        let command = format!("`{}`", report.command());
        let row = |[what, published, ours, verdict]: [String; 4]| Row::new([&what[..], &published, &ours, &command, &verdict]);
        rows.extend(report.rows().map(row));
    }
    let place = |row: &Row| order.iter().position(|name| Some(*name) == row.experiment());
    rows.sort_by_key(|row| place(row).unwrap_or(order.len()));
    let has = |name: &str| rows.iter().any(|row| row.experiment() == Some(name));
    let apart = APART.iter().filter(|(experiment, ..)| !has(experiment));
    let apart: Vec<Row> = apart.map(|(_, what, published, verdict)| Row::new([*what, published, "-", "-", verdict])).collect();
    let table = rows.iter().chain(&apart).map(|row| row.0.as_str());
    let lines: Vec<&str> = [HEADER, RULE].into_iter().chain(table).chain(after).collect();
    Ok(before.to_owned() + &lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Target};

    fn report(experiment: &'static str, ours: &str) -> Report {
        let finding = Finding::new("time | more", ours, 0.5).published("-10 %").reproduced_if(Target::AtMost(0.9));
        Report::new(experiment, "?", true, vec![], vec![finding, Finding::new("told", "x", 1.0)])
    }

    #[test]
    fn a_run_replaces_its_own_rows_and_leaves_others() {
        let order = ["zero", "build"];
        let empty = format!("text\n\n{HEADER}\n{RULE}\n\nend\n");
        let first = update(&empty, &[report("zero", "stale"), report("build", "b")], &order).unwrap();
        let second = update(&first, &[report("zero", "new")], &order).unwrap();
        let row = "| time \\| more | -10 % | new (0.500) | `lowtide-lab zero --quick` | reproduced |";
        assert!(second.contains(row) && !second.contains("stale"), "{second}");
        assert!(second.find("lab zero") < second.find("lab build"), "{second}");
        assert!(second.starts_with("text\n\n") && second.ends_with("|\n\nend\n"), "{second}");
        assert!(!second.contains(NO_BUILD) && second.contains("240 -> 216"), "what was not run is said: {second}");
        assert_eq!(update(&second, &[report("zero", "new")], &order).unwrap(), second);
        assert!(update(&empty, &[], &order).unwrap().contains(NO_BUILD));
        assert!(update("nothing", &[], &order).is_err());
    }
}
