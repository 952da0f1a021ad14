//! A page of results (`bench/results`): the command, the machine, and the command's output, as
//! Markdown.

use crate::report::Report;

pub fn of(command: &str, machine: &str, reports: &[Report]) -> String {
    let parts: String = reports.iter().map(Report::page).collect();
    format!("# `{command}`\n\nMachine: {machine}\n\n{}\n", parts.trim_end())
}

/// As typed, without the program's directory.
pub fn command() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("lowtide-lab".to_owned()).chain(words).collect::<Vec<String>>().join(" ")
}

pub fn machine() -> String {
    let first = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split([' ', '-', '\n']).next().unwrap_or_default().to_owned()
    };
    let cpus: usize = std::thread::available_parallelism().map_or(1, Into::into);
    let (release, load) = (first("/proc/sys/kernel/osrelease"), first("/proc/loadavg"));
    format!("{cpus} CPUs, Linux {release}, {}; load average before: {load}", std::env::consts::ARCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Finding, Table};

    #[test]
    fn a_page_has_the_command_the_machine_and_all_figures() {
        let mut table = Table::new("seconds\n", &["", "a | b"]);
        table.row(["x".to_owned(), "1".to_owned()]);
        let tables = vec![table, Table::new("", &[])];
        let report = Report::new("zero", "how many?", true, tables, vec![Finding::new("share", "", 0.5)]);
        let page = of("lowtide-lab zero", "2 CPUs", &[report]);
        let head = "# `lowtide-lab zero`\n\nMachine: 2 CPUs\n\n## zero\n\nhow many?\n\nseconds\n\n";
        assert!(page.starts_with(&format!("{head}|  | a \\| b |\n| --- | --- |\n| x | 1 |\n\nfindings\n\n")), "{page}");
        assert!(page.contains("| share |  |  | 0.500 |") && page.ends_with("|\n"), "{page}");
    }

    #[test]
    fn a_machine_has_cpus_a_kernel_and_a_load() {
        let words = machine();
        assert!(words.contains(" CPUs, Linux ") && !words.ends_with(' '), "{words}");
    }
}
