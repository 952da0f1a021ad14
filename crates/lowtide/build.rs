//! Builds the agent (crates/lowtide-agent) so that the binary can carry it inside: copying `lowtide` is installing it.
//!
//! The agent is a cdylib without `std` and always a release build, whatever the profile of the command line; a nested cargo
//! with its own target directory builds it, because the features of shared dependencies must not be unified with those of this
//! crate.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // A library has no agent.
    if env::var_os("CARGO_FEATURE_CLI").is_none() {
        return;
    }
    for name in ["LOWTIDE_AGENT_DEBUG", "CFLAGS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let here = PathBuf::from(var("CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(var("OUT_DIR"));
    let repository = here.join("../..");
    let manifest = if repository.join("crates/lowtide-agent").is_dir() {
        watch(&repository);
        repository.join("Cargo.toml")
    } else {
        package(&here, &out.join("agent-package"))
    };

    // A command line linked with musl still preloads its agent into glibc programs.
    let target = var("TARGET").replace("musl", "gnu");
    let out = out.join("agent-target");
    let mut cargo = Command::new(var("CARGO"));
    cargo.args(["build", "--package", "lowtide-agent", "--release"]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(&out).args(["--target", &target]);
    if outer_cargo_is_offline() {
        cargo.arg("--offline");
    }
    for (variable, feature) in [("CARGO_FEATURE_FAULTS", "faults"), ("CARGO_FEATURE_LAB", "lab")] {
        if env::var_os(variable).is_some() {
            cargo.args(["--features", feature]);
        }
    }
    // What is meant for the command line (instrumentation, sanitizers, lints) breaks a library without std.
    for name in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTFLAGS",
        "RUSTC_WORKSPACE_WRAPPER",
        "CLIPPY_ARGS",
        "CARGO_BUILD_TARGET",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_TARGET_DIR",
    ] {
        cargo.env_remove(name);
    }
    // The agent's file is held in RAM while a program runs: no symbols in it, unless they are asked for.
    if env::var_os("LOWTIDE_AGENT_DEBUG").is_none() {
        cargo.env("CARGO_PROFILE_RELEASE_DEBUG", "false").env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    }
    // libaegis asks the CPU what it can when it is loaded, by up to seven instructions of which each costs 5 to 10 microseconds
    // under a hypervisor: in each process of a run, most of which never encrypt a page. Whoever does asks again. So what is a
    // constructor in the C code (of our dependencies, no other has one) is none in the agent.
    let mut flags = env::var_os("CFLAGS").unwrap_or_default();
    flags.push(" -Dconstructor=unused");
    cargo.env("CFLAGS", flags);
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("the agent doesn't build: {status}")),
        Err(error) => fail(&format!("can't start cargo for the agent: {error}")),
    }
    let agent = out.join(target).join("release/liblowtide_agent.so");
    println!("cargo::rustc-env=LOWTIDE_AGENT_SO={}", agent.display());
}

/// In the repository: what the agent is built of.
fn watch(repository: &Path) {
    for path in ["Cargo.toml", "Cargo.lock", "crates/lowtide-agent/build.rs"] {
        println!("cargo::rerun-if-changed={}", repository.join(path).display());
    }
    for name in ["lowtide-agent", "lowtide-bpf", "lowtide-pager", "lowtide-wire", "lowtide-sys", "lowtide-core"] {
        for part in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", repository.join("crates").join(name).join(part).display());
        }
    }
}

/// Out of the repository (the sources come from a registry): makes a package in `dir` whose only dependency is the agent of
/// this version, and returns its manifest. Cargo can build a dependency by itself, and takes the profile from this manifest.
fn package(here: &Path, dir: &Path) -> PathBuf {
    let version = var("CARGO_PKG_VERSION");
    let text = format!(
        "[package]\nname = \"agent-package\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nlowtide-agent = \"={version}\"\n\n\
         [features]\nfaults = [\"lowtide-agent/faults\"]\nlab = [\"lowtide-agent/lab\"]\n\n\
         [workspace]\n\n\
         [profile.release]\npanic = \"abort\"\nlto = \"thin\"\ncodegen-units = 4\n"
    );
    let write = |name: &str, text: &str| {
        fs::write(dir.join(name), text)
            .unwrap_or_else(|error| fail(&format!("can't write {}: {error}", dir.join(name).display())));
    };
    fs::create_dir_all(dir.join("src")).unwrap_or_else(|error| fail(&format!("can't make {}: {error}", dir.display())));
    write("Cargo.toml", &text);
    write("src/lib.rs", "");
    // The versions that the two have in common are the command line's.
    if let Ok(lock) = fs::read_to_string(here.join("Cargo.lock")) {
        write("Cargo.lock", &lock);
    }
    dir.join("Cargo.toml")
}

fn var(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| fail(&format!("cargo doesn't set {name}")))
}

fn fail(message: &str) -> ! {
    eprintln!("{message}");
    std::process::exit(1)
}

/// Whether the cargo that runs this script was told to stay off the network on its command line (the environment variable and
/// the configuration reach the nested one by themselves).
fn outer_cargo_is_offline() -> bool {
    let parent = std::os::unix::process::parent_id();
    fs::read(format!("/proc/{parent}/cmdline"))
        .is_ok_and(|line| line.split(|&b| b == 0).any(|arg| arg == b"--offline" || arg == b"--frozen"))
}
