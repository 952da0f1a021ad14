//! The test programs of tests/programs: compiled when their source is newer.

#[allow(clippy::duplicate_mod)]
#[path = "../../../../tests/compiled.rs"]
mod compiled;

#[allow(unused_imports)] // the tests of failures copy none
pub(crate) use compiled::copy as copy_program;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::machine;
use crate::measure::Job;

/// Where the sources are.
pub fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(file)
}

fn compile(name: &str, output: &str, options: &[&str]) -> Option<PathBuf> {
    compile_with("cc", name, output, options)
}

fn compile_with(compiler: &str, name: &str, output: &str, options: &[&str]) -> Option<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    let sources = [source(&format!("{name}.c")), source("common.h"), source("call_filter.h")];
    let (output, compiler) = (directory.join(output), machine::tool(compiler)?);
    compiled::compiled(&output, &sources, |output| {
        let result = Command::new(compiler)
            .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", "-rdynamic", "-o"])
            .arg(output)
            .arg(&sources[0])
            .args(options)
            .output()
            .expect("cc starts");
        assert!(result.status.success(), "cc {name}.c: {}", String::from_utf8_lossy(&result.stderr));
    });
    Some(output)
}

/// The compiled program `name`, to run with these arguments.
pub fn job(label: &str, name: &str, arguments: &str) -> Option<Job> {
    Some(Job::new(label, compile(name, name, &[])?).words(arguments))
}

/// The compiled program `name`, by itself.
pub fn compiled(name: &str) -> Option<PathBuf> {
    compile(name, name, &[])
}

/// The compiled program `name`, by itself, statically linked.
pub fn compiled_statically(name: &str) -> Option<PathBuf> {
    compile(name, &format!("{name}.static"), &["-static"])
}

/// The same, with more options: a file of its own for each `kind`.
pub fn compiled_as(name: &str, kind: &str, options: &[&str]) -> Option<PathBuf> {
    compile(name, &format!("{name}.{kind}"), options)
}

/// The program `name`, linked with musl.
pub fn with_musl(name: &str, statically: bool) -> Option<PathBuf> {
    machine::tool("musl-gcc")?;
    let (kind, options) = if statically { ("musl-static", &["-static"][..]) } else { ("musl", &[][..]) };
    compile_with("musl-gcc", name, &format!("{name}.{kind}"), options)
}

/// The compiled shared library `name`.
pub fn library(name: &str) -> Option<PathBuf> {
    compile(name, &format!("{name}.so"), &["-shared", "-fPIC"])
}

/// The compiled shared library `name`, built with more options: for each set of them a file of its own.
pub fn library_as(name: &str, variant: &str, options: &[&str]) -> Option<PathBuf> {
    let all: Vec<&str> = ["-shared", "-fPIC"].into_iter().chain(options.iter().copied()).collect();
    compile(name, &format!("{name}-{variant}.so"), &all)
}

/// The compiled program `name`, linked with a library, to run with these arguments.
pub fn job_with(label: &str, name: &str, variant: &str, library: &Path, arguments: &str) -> Option<Job> {
    let program = compile(name, &format!("{name}-{variant}"), &[library.to_str()?])?;
    Some(Job::new(label, program).words(arguments))
}
