//! Does a fault cost lowtide more on a larger machine, or in a larger run? Counts instructions,
//! locks and system calls on simulated machines and runs: hundreds of CPUs show here without such a
//! machine.
//!
//! Nothing on a fault's way may grow; other growth is reported. Invisible: the kernel's work in a
//! system call, and the cost of contended cache lines.

use lowtide_core::lock::rank::{self, RANKS};

use crate::experiment::{Experiment, Outcome, Scale};
use crate::report::{Finding, Table, Target};
use crate::scale::{Counts, ON_A_FAULTS_WAY, STEPS, Size, Step};

pub const EXPERIMENT: Experiment =
    Experiment { name: "scale", question: "does what lowtide does grow with CPUs, NUMA nodes and processes?", run };

/// CPUs and NUMA nodes. Machines with one node are compared with each other, and those with
/// several: several cost a few instructions more, a number that must not grow with CPUs and nodes.
const ONE_NODE: [(usize, usize); 2] = [(2, 1), (64, 1)];
const SEVERAL: [(usize, usize); 2] = [(2, 2), (256, 8)];
const PROCESSES: [usize; 3] = [1, 100, 1000];
/// Tolerated factor: a search that begins elsewhere takes some instructions more or fewer.
const MOST: f64 = 1.05;

/// From the smallest size to the largest.
type Counted = Vec<(Size, Vec<Counts>)>;

fn run(scale: &Scale) -> Result<Outcome, String> {
    let processes: &[usize] = scale.pick(&[PROCESSES[0], PROCESSES[2]], &PROCESSES);
    let of = |size: Size| Ok((size, size.count().map_err(|line| format!("scale: {line}"))?));
    let machines = |machines: &[(usize, usize)]| {
        let sizes = machines.iter().map(|&(cpus, nodes)| Size { cpus, nodes, processes: processes[0] });
        sizes.map(of).collect::<Result<Counted, String>>()
    };
    // Only in full runs: a count takes seconds.
    let of_one: &[(usize, usize)] = scale.pick(&[], &ONE_NODE);
    let one_node = machines(of_one)?;
    let several = machines(&SEVERAL)?;
    let (cpus, nodes) = SEVERAL[0];
    let larger = processes[1..].iter().map(|&processes| of(Size { cpus, nodes, processes }));
    let by_processes = [Ok(several[0].clone())].into_iter().chain(larger).collect::<Result<Counted, String>>()?;
    let machine = |size: Size| match size.nodes {
        1 => format!("{} CPUs", size.cpus),
        nodes => format!("{} CPUs, {nodes} nodes", size.cpus),
    };
    let processes = |size: Size| match size.processes {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    let by_machine = [&one_node[..], &several].concat();
    let tables = vec![
        executed("instructions / of them locked / system calls, one process", &by_machine, machine),
        executed("the same by processes of the run, 2 CPUs, 2 nodes", &by_processes, processes),
        taken(&one_node, machine),
        taken(&several, machine),
        taken(&by_processes, processes),
    ];
    let mut findings = findings("CPUs and nodes", &several, |size| size.cpus)?;
    findings.extend(self::findings("processes", &by_processes, |size| size.processes)?);
    if !one_node.is_empty() {
        findings.extend(self::findings("CPUs", &one_node, |size| size.cpus)?);
    }
    Ok(Outcome { tables, findings, charts: Vec::new() })
}

fn table(title: String, columns: &[String], cell: impl Fn(usize, usize) -> String) -> Table {
    let names: Vec<&str> = ["step"].into_iter().chain(columns.iter().map(String::as_str)).collect();
    let mut table = Table::new(title + "\n", &names).markdown();
    for (step, name) in STEPS.iter().enumerate() {
        let cells: Vec<String> = (0..columns.len()).map(|column| cell(step, column)).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            table.row([(*name).to_owned()].into_iter().chain(cells));
        }
    }
    table
}

fn executed(title: &str, counted: &Counted, name: impl Fn(Size) -> String) -> Table {
    let names: Vec<String> = counted.iter().map(|(size, _)| name(*size)).collect();
    table(title.to_owned(), &names, |step, size| counted[size].1[step].to_string())
}

/// Locks by rank and visited places, on the smallest size and, if different, on the largest.
fn taken(counted: &Counted, name: impl Fn(Size) -> String) -> Table {
    let [(small, least), .., (large, most)] = counted.as_slice() else { return Table::new("", &[]) };
    let is_taken = |rank: &usize| least.iter().chain(most).any(|counts| counts.taken[*rank] > 0);
    let ranks: Vec<usize> = (0..RANKS).filter(is_taken).collect();
    let mut columns: Vec<String> = ranks.iter().map(|rank| rank::name(*rank as u8).to_owned()).collect();
    columns.push("places of processes".to_owned());
    let title = format!("locks by rank, and places of processes looked at: {} -> {}", name(*small), name(*large));
    table(title, &columns, |step, column| {
        let of = |counts: &Counts| ranks.get(column).map_or(counts.places, |rank| counts.taken[*rank]);
        match (of(&least[step]), of(&most[step])) {
            (0, 0) => String::new(),
            (before, now) if before == now => before.to_string(),
            (before, now) => format!("{before} -> {now}"),
        }
    })
}

/// Each step's growth from the smallest to the largest. The control must grow, by an instruction at
/// least for each additional thing; steps that a fault may wait for must not.
fn findings(of: &str, counted: &Counted, number: impl Fn(Size) -> usize) -> Result<Vec<Finding>, String> {
    let [(small, least), .., (large, most)] = counted.as_slice() else {
        return Err("one size is nothing to compare".to_owned());
    };
    let more = (number(*large) - number(*small)) as f64;
    let mut findings = Vec::new();
    for (step, ((name, least), most)) in STEPS.iter().zip(least).zip(most).enumerate() {
        let each = |of: fn(&Counts) -> u64| (of(most) as f64 - of(least) as f64) / more;
        let (instructions, growth) = (each(|counts| counts.instructions), most.over(least));
        let ours = match most.instructions {
            0 => format!("{:+.1} locks for each", each(|counts| counts.taken.iter().sum())),
            _ => format!("{instructions:+.1} instructions for each"),
        };
        let finding = |ratio| Finding::new(format!("{name} (with {of})"), ours, ratio);
        if step == Step::Control as usize {
            findings.push(finding(instructions).target(Target::AtLeast(1.0)));
        } else if ON_A_FAULTS_WAY.contains(&step) {
            findings.push(finding(growth).target(Target::AtMost(MOST)));
        } else if growth > MOST {
            findings.push(finding(growth));
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;

    /// The finding for steps that take an instruction more for each CPU.
    fn missed(grows: &[Step]) -> Vec<String> {
        let counts = |step, cpus| 1000 + if grows.iter().any(|s| *s as usize == step) { cpus as u64 } else { 0 };
        let machine = |cpus| {
            let all = (0..STEPS.len()).map(|step| Counts {
                instructions: counts(step, cpus),
                locked: 3,
                calls: 1,
                ..Counts::default()
            });
            (Size { cpus, nodes: 1, processes: 1 }, all.collect())
        };
        let said = findings("CPUs", &vec![machine(2), machine(256)], |size| size.cpus).unwrap();
        let reports = said.into_iter().map(|finding| Report::new("x", "?", true, vec![], vec![finding]));
        reports.filter(|report| !report.met()).map(|report| report.to_string()).collect()
    }

    #[test]
    fn what_grows_on_a_faults_way_fails_and_so_does_a_control_that_does_not() {
        assert!(missed(&[Step::Control]).is_empty());
        assert!(missed(&[Step::Control, Step::RamNow]).is_empty(), "no fault waits for that");
        let grown = missed(&[Step::Control, Step::Load]);
        assert!(grown.len() == 1 && grown[0].contains(STEPS[Step::Load as usize]), "{grown:?}");
        assert_eq!(missed(&[]).len(), 1, "nothing would be seen");
    }
}
