//! An experiment's output: tables of figures, and findings with targets.

use std::fmt;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    Exactly(f64),
}

/// Most run-to-run spread of a timing that a target forgives: noise must not excuse everything.
const MOST_SPREAD: f64 = 0.05;

impl Target {
    /// Whether `ratio`, measured with a relative `spread`, meets the target. NaN meets nothing; a
    /// count has no spread.
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

/// Shown with three significant digits.
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

#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    what: String,
    /// The published result, or empty.
    published: String,
    ours: String,
    ratio: f64,
    /// Half the run-to-run spread of the ratio, relative to it.
    spread: f64,
    /// `None`: for information.
    target: Option<Target>,
    met: bool,
    /// The bound that confirms the published result; `None`: the target's.
    reproduced: Option<Target>,
    /// The bound of a better result.
    better: Option<Target>,
    /// Why it does not, or can't be compared.
    because: String,
    /// Why the target is known to be missed, or empty.
    known_miss: String,
}

impl Finding {
    pub fn new(what: impl Into<String>, ours: impl Into<String>, ratio: f64) -> Finding {
        let (what, ours) = (what.into(), ours.into());
        let empty = String::new;
        Finding {
            what,
            published: empty(),
            ours,
            ratio,
            spread: 0.0,
            target: None,
            met: true,
            reproduced: None,
            better: None,
            because: empty(),
            known_miss: empty(),
        }
    }

    pub fn published(self, published: impl Into<String>) -> Finding {
        Finding { published: published.into(), ..self }
    }

    /// The relative half-spread of the ratio. Call it before [`Finding::target`].
    pub fn spread(self, spread: f64) -> Finding {
        Finding { spread, ..self }
    }

    pub fn target(self, target: Target) -> Finding {
        Finding { met: target.met(self.ratio, self.spread), target: Some(target), ..self }
    }

    /// The ratio confirms the published result if it meets this; without it, if it meets
    /// [`Finding::target`].
    pub fn reproduced_if(self, target: Target) -> Finding {
        Finding { reproduced: Some(target), ..self }
    }

    /// The ratio beats the published result if it meets this.
    pub fn better_if(self, target: Target) -> Finding {
        Finding { better: Some(target), ..self }
    }

    /// Why the ratio does not confirm the published result, or, with neither
    /// [`Finding::reproduced_if`] nor a target, why the two can't be compared.
    pub fn because(self, reason: impl Into<String>) -> Finding {
        Finding { because: reason.into(), ..self }
    }

    /// The target is known to be missed, for this reason: a miss is reported, and does not fail the
    /// report.
    pub fn known_miss(self, reason: impl Into<String>) -> Finding {
        Finding { known_miss: reason.into(), ..self }
    }

    /// Met, or known to be missed.
    fn as_claimed(&self) -> bool {
        self.met || !self.known_miss.is_empty()
    }

    fn verdict(&self) -> String {
        match (self.target, self.met) {
            (None, _) => String::new(),
            (_, true) => "ok".to_owned(),
            (_, false) if self.as_claimed() => format!("known miss: {}", self.known_miss),
            (_, false) => "MISSED".to_owned(),
        }
    }

    /// Our figure, with its ratio and spread.
    fn measured(&self) -> String {
        let spread = if self.spread > 0.0 { format!(" ±{:.0} %", self.spread * 100.0) } else { String::new() };
        let ratio = format!("{}{spread}", Ratio(self.ratio));
        match self.ours.as_str() {
            "" => ratio,
            ours if ours.contains(&ratio) => ours.to_owned(),
            ours => format!("{ours} ({ratio})"),
        }
    }

    /// The comparison with the published result that holds at both ends of our spread.
    fn compared(&self) -> String {
        let spread = if self.spread.is_finite() { self.spread } else { 0.0 };
        let ends = [1.0 - spread, 1.0 + spread].map(|share| self.ratio * share);
        let meets = |target: Option<Target>| target.map(|target| ends.map(|ratio| target.met(ratio, 0.0)));
        let reason = if self.because.is_empty() { &self.known_miss } else { &self.because };
        let with_reason = |what: &str| if reason.is_empty() { what.to_owned() } else { format!("{what}: {reason}") };
        match (meets(self.better), meets(self.reproduced.or(self.target))) {
            (Some([true, true]), _) => "better".to_owned(),
            (_, Some([true, true])) => "reproduced".to_owned(),
            (_, Some([false, false])) => with_reason("not reproduced"),
            (_, Some(_)) => "not decided: within its spread".to_owned(),
            (_, None) => with_reason("not applicable"),
        }
    }

    /// A row for each published figure: what, published, ours, verdict.
    pub fn row(&self) -> Option<[String; 4]> {
        let cells = || [self.what.clone(), self.published.clone(), self.measured(), self.compared()];
        (!self.published.is_empty()).then(cells)
    }
}

/// A row of a Markdown table, without its newline.
pub fn markdown_row<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.into_iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |", cells.join(" | "))
}

#[derive(Debug, Clone, Serialize)]
pub struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    #[serde(skip)]
    markdown: bool,
}

impl Table {
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|c| (*c).to_owned()).collect();
        Table { title: title.into(), columns, rows: Vec::new(), markdown: false }
    }

    /// Prints it as Markdown, for documents.
    pub fn markdown(self) -> Table {
        Table { markdown: true, ..self }
    }

    /// As Markdown, for a page; empty without columns.
    fn page(&self) -> String {
        if self.columns.is_empty() {
            return String::new();
        }
        format!("{}\n\n{}\n", self.title.trim_end(), self.markdown_rows())
    }

    fn markdown_rows(&self) -> String {
        let rule = vec!["---".to_owned(); self.columns.len()];
        let line = |row: &Vec<String>| markdown_row(row.iter().map(String::as_str)) + "\n";
        [&self.columns, &rule].into_iter().chain(&self.rows).map(line).collect()
    }

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
            return writeln!(f, "{}", self.markdown_rows());
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

    /// Whether no target was missed but known ones.
    pub fn met(&self) -> bool {
        self.findings.iter().all(Finding::as_claimed)
    }

    pub fn experiment(&self) -> &'static str {
        self.experiment
    }

    pub fn command(&self) -> String {
        format!("lowtide-lab {}{}", self.experiment, if self.quick { " --quick" } else { "" })
    }

    pub fn rows(&self) -> impl Iterator<Item = [String; 4]> {
        self.findings.iter().filter_map(Finding::row)
    }

    /// All of it as a part of a page.
    pub fn page(&self) -> String {
        let tables: String = self.tables.iter().chain([&self.found()]).map(Table::page).collect();
        format!("## {}\n\n{}\n\n{tables}", self.experiment, self.question)
    }

    fn found(&self) -> Table {
        let mut table = Table::new("findings", &["what", "published", "ours", "ratio", "spread", "target", ""]);
        for x in &self.findings {
            let spread = if x.spread > 0.0 { format!("+-{:.1} %", x.spread * 100.0) } else { String::new() };
            let target = x.target.map_or(String::new(), |t| t.to_string());
            let (what, published, ours) = (x.what.clone(), x.published.clone(), x.ours.clone());
            table.row([what, published, ours, Ratio(x.ratio).to_string(), spread, target, x.verdict()]);
        }
        table
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quick = if self.quick { ", quick" } else { "" };
        writeln!(f, "== {} ({} CPUs{quick}): {}\n", self.experiment, self.cpus, self.question)?;
        for table in &self.tables {
            write!(f, "{table}")?;
        }
        write!(f, "{}", self.found())
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

    #[test]
    fn a_known_miss_is_said_and_fails_nothing() {
        let miss = Finding::new("slow", "0.5", 0.5).target(Target::AtLeast(1.0)).known_miss("one CPU");
        let report = report(vec![miss.clone()]);
        assert!(report.met() && report.to_string().contains("known miss: one CPU"));
        let met = Finding { met: true, ..miss };
        assert_eq!(met.verdict(), "ok", "the reason is said only where there is a miss");
    }

    #[test]
    fn a_published_figure_is_reproduced_better_or_not_with_the_reason() {
        let of = |ratio| Finding::new("x", "", ratio).published("-10 %").because("no disk");
        let judged = |ratio| of(ratio).reproduced_if(Target::AtMost(0.95)).better_if(Target::AtMost(0.8)).compared();
        assert_eq!([0.7, 0.9, 1.0].map(judged), ["better", "reproduced", "not reproduced: no disk"]);
        assert_eq!(of(1.0).compared(), "not applicable: no disk");
        let noisy = |ratio| of(ratio).spread(0.14).reproduced_if(Target::AtMost(0.95)).compared();
        assert_eq!([0.7, 0.9].map(noisy), ["reproduced", "not decided: within its spread"]);
        assert_eq!(of(1.0).target(Target::AtMost(1.0)).compared(), "reproduced");
        assert_eq!(Finding::new("x", "", 1.0).row(), None, "nothing was published");
    }
}
