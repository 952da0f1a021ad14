//! Python: numpy on large arrays, millions of small objects.

use crate::check::{Data, Growth, compare, ends_well};
use crate::machine::{python, turn};
use crate::measure::Job;
use crate::programs::source;

fn script(label: &str, file: &str, arguments: &str, growth: Growth, data: Data) {
    let Some(_turn) = turn() else { return };
    let Some(python) = python() else { return };
    let job = Job::new(label, python).args([source(file)]).words(arguments).env("PYTHONHASHSEED", "0");
    compare(&job, growth, data, ends_well);
}

#[test]
fn numpy_rows() {
    script("numpy, rows", "numpy_arrays.py", "rows 256", Growth::Existing, Data::Compressible);
}

#[test]
fn numpy_random() {
    script("numpy, random", "numpy_arrays.py", "random 192", Growth::Existing, Data::Any);
}

#[test]
fn millions_of_small_objects() {
    script("small objects", "small_objects.py", "400000", Growth::Existing, Data::Compressible);
}
