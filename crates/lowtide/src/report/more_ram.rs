//! The effect of more RAM: curves, a table, and a sentence.

use super::chart::{Chart, Layer};
use super::working_set::{Observed, Prediction};
use super::{Report, units};
use maud::{Markup, html};

/// Limits of the table, in sixteenths of the run's.
const SHOWN: [u32; 10] = [16, 18, 20, 22, 24, 28, 32, 40, 48, 64];
/// Least gain worth a sentence.
pub const WORTH: f64 = 1.1;
/// Share of the possible gain that suffices.
const ENOUGH: f64 = 0.8;

/// The least RAM that brings most of the possible gain; None: the gain is small.
pub fn enough(observed: &Observed, curve: &[Prediction]) -> Option<Prediction> {
    let best = curve.iter().map(|there| there.seconds).fold(observed.seconds, f64::min);
    if observed.refaults() < 1.0 || observed.seconds / best < WORTH {
        return None;
    }
    let wanted = observed.seconds - ENOUGH * (observed.seconds - best);
    curve.iter().find(|there| there.seconds <= wanted).copied()
}

/// `3.1 times as fast`.
pub fn gain(observed: &Observed, there: &Prediction) -> String {
    format!("{:.1} times as fast", observed.seconds / there.seconds.max(1e-9))
}

/// Some limits, up to the first without refaults.
fn rows(observed: &Observed) -> Vec<Prediction> {
    let mut all = Vec::new();
    for sixteenths in SHOWN {
        all.push(observed.at(observed.limit * f64::from(sixteenths) / 16.0));
        if all.last().is_some_and(|there| there.refaults() < 0.01 * observed.refaults()) {
            break;
        }
    }
    all
}

/// The section. (Over 70 lines: the text of the page.)
pub fn section(report: &Report<'_>) -> Markup {
    let observed = &report.observed;
    let curve = observed.curve();
    if observed.refaults() < 1.0 {
        return html! {
            section {
                h2 { "What more RAM would bring" }
                p { "Nothing: no page had to be brought back from the pool or a device." }
            }
        };
    }
    let xs: Vec<f64> = curve.iter().map(|there| there.limit).collect();
    let chart = |title, y_name, y_show| Chart {
        title,
        x_name: "--ram",
        y_name,
        xs: &xs,
        x_show: units::about_bytes,
        y_show,
        y_binary: false,
        x_binary: true,
    };
    let of = |get: &dyn Fn(&Prediction) -> f64| curve.iter().map(get).collect::<Vec<f64>>();
    let layer = |name, class, values| Layer { name, class, values };
    let faults = [
        layer("from the pool", "c2", of(&|there| there.pool_faults)),
        layer("from a device", "c4", of(&|there| there.device_faults)),
    ];
    let program = observed.seconds - super::over_time::KINDS.iter().map(|(.., kind)| observed.waited_at(*kind)).sum::<f64>();
    let times = [
        layer("predicted time", "line1", of(&|there| there.seconds)),
        layer("without any fault", "limit", vec![program; xs.len()]),
    ];
    html! {
        section {
            h2 { "What more RAM would bring" }
            p.big {
                @match enough(observed, &curve) {
                    Some(there) => {
                        "With " b { "--ram " (units::about_bytes(there.limit)) } " it would have run about "
                        b { (gain(observed, &there)) }
                        ": " (units::seconds(there.seconds)) " instead of " (units::seconds(observed.seconds)) "."
                    },
                    None => {
                        "Little: with any amount it would have run less than " (units::percent(WORTH - 1.0, 1.0)) " faster."
                    },
                }
            }
            p {
                "Predicted from this run: by how many other pages had been evicted since each page that came back had, and by "
                "what faults took. It holds for the same work again, for random touches mostly within a third; where memory is "
                "passed over in order, or differently at different times, the gain can be larger than said. Nothing is said of "
                "less RAM, of which this run knows nothing."
            }
            h3 { "Time of the run" }
            (chart("Predicted time of the run by RAM", "seconds", |y| format!("{} s", units::plain(y))).stacked(&[], &times))
            h3 { "Faults on pages that had been stored" }
            (chart("Predicted faults by RAM", "faults in the run", units::count).stacked(&faults, &[]))
            table id="predictions" {
                tr {
                    @for name in ["--ram", "from the pool", "from a device", "time of the run"] { th.n { (name) } }
                    th { "speed" }
                }
                @for there in rows(observed) {
                    tr data-ram=(format!("{:.0}", there.limit)) data-seconds=(format!("{:.3}", there.seconds))
                        data-faults=(format!("{:.0}", there.refaults())) {
                        td.n { (units::about_bytes(there.limit)) }
                        td.n { (units::count(there.pool_faults)) " faults" }
                        td.n { (units::count(there.device_faults)) " faults" }
                        td.n { (units::seconds(there.seconds)) }
                        td { @if there.limit == observed.limit { "this run" } @else { (gain(observed, &there)) } }
                    }
                }
            }
        }
    }
}
