//! What an experiment prints: tables of figures, and findings, which are held against targets.

use std::fmt;

use serde::Serialize;

/// What a ratio must be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Exactly this: for counts.
    Exactly(f64),
}

/// Most of the run-to-run spread of a timing that a target forgives: noise must not excuse everything.
const MOST_SPREAD: f64 = 0.05;

impl Target {
    /// Whether `ratio` meets the target, given that it was measured with a relative `spread`. Not a number meets nothing;
    /// a count has no spread.
    pub fn met(self, ratio: f64, spread: f64) -> bool {
        let spread = spread.clamp(0.0, MOST_SPREAD);
        match self {
            Target::AtLeast(least) => ratio >= least * (1.0 - spread),
            Target::AtMost(most) => ratio <= most * (1.0 + spread),
            Target::Exactly(value) => ratio == value,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::AtLeast(v) => write!(f, ">= {}", Ratio(*v)),
            Target::AtMost(v) => write!(f, "<= {}", Ratio(*v)),
            Target::Exactly(v) => write!(f, "= {}", Ratio(*v)),
        }
    }
}

/// A ratio with three digits that matter.
struct Ratio(f64);

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            v if v == v.trunc() && v.abs() < 1e6 => write!(f, "{v:.0}"),
            v if v.abs() >= 100.0 => write!(f, "{v:.0}"),
            v if v.abs() >= 10.0 => write!(f, "{v:.1}"),
            v => write!(f, "{v:.3}"),
        }
    }
}

/// One thing that an experiment shows.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    what: String,
    /// What was published about it elsewhere; empty if nothing was.
    published: String,
    ours: String,
    ratio: f64,
    /// Half the spread of the ratio from run to run, relative to it.
    spread: f64,
    /// `None`: said for information.
    target: Option<Target>,
    met: bool,
}

impl Finding {
    /// A finding without a target.
    pub fn new(what: impl Into<String>, ours: impl Into<String>, ratio: f64) -> Finding {
        let (what, ours) = (what.into(), ours.into());
        Finding { what, published: String::new(), ours, ratio, spread: 0.0, target: None, met: true }
    }

    /// What was published.
    pub fn published(self, published: impl Into<String>) -> Finding {
        Finding { published: published.into(), ..self }
    }

    /// The relative half-spread of the ratio. To be said before [`Finding::target`].
    pub fn spread(self, spread: f64) -> Finding {
        Finding { spread, ..self }
    }

    /// Holds the ratio against a target.
    pub fn target(self, target: Target) -> Finding {
        Finding { met: target.met(self.ratio, self.spread), target: Some(target), ..self }
    }

    fn verdict(&self) -> &'static str {
        match (self.target, self.met) {
            (None, _) => "",
            (_, true) => "ok",
            (_, false) => "MISSED",
        }
    }
}

/// Figures in rows and columns.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    #[serde(skip)]
    markdown: bool,
}

impl Table {
    /// A table without rows.
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|c| (*c).to_owned()).collect();
        Table { title: title.into(), columns, rows: Vec::new(), markdown: false }
    }

    /// Printed as Markdown, for documents.
    pub fn markdown(self) -> Table {
        Table { markdown: true, ..self }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.columns.len()), "{}", self.title);
    }
}

impl fmt::Display for Table {
    /// The first column to the left, all others to the right, as figures are.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |i: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(i));
            cells.chain([&self.columns[i]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        writeln!(f, "{}", self.title)?;
        if self.markdown {
            let rule = vec!["---".to_owned(); self.columns.len()];
            for row in [&self.columns, &rule].into_iter().chain(&self.rows) {
                writeln!(f, "| {} |", row.join(" | "))?;
            }
            return writeln!(f);
        }
        for row in [&self.columns].into_iter().chain(&self.rows) {
            let cells: Vec<String> = row
                .iter()
                .zip(&widths)
                .enumerate()
                .map(|(i, (cell, width))| if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
                .collect();
            writeln!(f, "  {}", cells.join("  ").trim_end())?;
        }
        writeln!(f)
    }
}

/// All that one experiment reports.
#[derive(Debug, Serialize)]
pub struct Report {
    experiment: &'static str,
    question: &'static str,
    quick: bool,
    cpus: usize,
    tables: Vec<Table>,
    findings: Vec<Finding>,
}

impl Report {
    /// Puts a report together.
    pub fn new(
        experiment: &'static str,
        question: &'static str,
        quick: bool,
        tables: Vec<Table>,
        findings: Vec<Finding>,
    ) -> Report {
        let cpus = std::thread::available_parallelism().map_or(1, Into::into);
        Report { experiment, question, quick, cpus, tables, findings }
    }

    /// Whether no target was missed.
    pub fn met(&self) -> bool {
        self.findings.iter().all(|f| f.met)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quick = if self.quick { ", quick" } else { "" };
        writeln!(f, "== {} ({} CPUs{quick}): {}\n", self.experiment, self.cpus, self.question)?;
        for table in &self.tables {
            write!(f, "{table}")?;
        }
        let mut table = Table::new("findings", &["what", "published", "ours", "ratio", "spread", "target", ""]);
        for x in &self.findings {
            let spread = if x.spread > 0.0 { format!("+-{:.1} %", x.spread * 100.0) } else { String::new() };
            let target = x.target.map_or(String::new(), |t| t.to_string());
            let (what, published, ours) = (x.what.clone(), x.published.clone(), x.ours.clone());
            table.row([what, published, ours, Ratio(x.ratio).to_string(), spread, target, x.verdict().to_owned()]);
        }
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: Vec<Finding>) -> Report {
        Report::new("x", "?", true, vec![], findings)
    }

    #[test]
    fn a_target_is_met_on_its_side_only() {
        assert!(Target::AtLeast(2.0).met(2.0, 0.0) && !Target::AtLeast(2.0).met(1.999, 0.0));
        assert!(Target::AtMost(2.0).met(2.0, 0.0) && !Target::AtMost(2.0).met(2.001, 0.0));
        assert!(Target::Exactly(0.0).met(0.0, 0.0) && !Target::Exactly(0.0).met(1e-9, 0.5));
    }

    #[test]
    fn spread_is_forgiven_up_to_a_limit() {
        assert!(Target::AtLeast(1.0).met(0.98, 0.03) && !Target::AtLeast(1.0).met(0.96, 0.03));
        assert!(Target::AtMost(1.0).met(1.02, 0.03) && !Target::AtMost(1.0).met(1.04, 0.03));
        assert!(!Target::AtLeast(1.0).met(0.9, 0.5), "a noisy measurement excuses nothing big");
        assert!(!Target::AtLeast(1.0).met(0.99, -1.0) && !Target::AtLeast(1.0).met(0.99, 0.0));
    }

    #[test]
    fn what_is_not_a_number_meets_nothing() {
        for target in [Target::AtLeast(0.0), Target::AtMost(1.0), Target::Exactly(0.0)] {
            assert!(!target.met(f64::NAN, 0.0));
        }
        assert!(Target::AtLeast(100.0).met(f64::INFINITY, 0.0), "no waits at all is infinitely better");
    }

    #[test]
    fn one_missed_target_fails_the_report() {
        let good = Finding::new("good", "2", 2.0).target(Target::AtLeast(1.0));
        let bad = Finding::new("bad", "0.5", 0.5).target(Target::AtLeast(1.0));
        let told = Finding::new("told", "0", 0.0);
        assert!(report(vec![good.clone(), told]).met());
        let missed = report(vec![good, bad]);
        assert!(!missed.met());
        let text = missed.to_string();
        assert!(text.lines().any(|l| l.contains("bad") && l.ends_with("MISSED")), "{text}");
        assert!(text.lines().any(|l| l.contains("good") && l.ends_with("ok")), "{text}");
    }
}
