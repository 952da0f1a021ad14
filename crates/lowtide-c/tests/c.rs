//! The C interface, installed into a directory of the test's own and used from there: by pkg-config, with the shared and the
//! static library, and with the address sanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HERE: &str = env!("CARGO_MANIFEST_DIR");

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn well(command: &mut Command) -> String {
    let output = output(command);
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// Builds the libraries as they are to be installed (for tests cargo does not), beside the directory of this program; where
/// that is. (`make test` has built all.)
fn built() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = own.ancestors().nth(2).unwrap();
    if std::env::var_os("LOWTIDE_BUILT").is_some() {
        return built.to_owned();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--package", "lowtide-c", "--manifest-path"]).arg(Path::new(HERE).join("Cargo.toml"));
    cargo.arg("--target-dir").arg(built.parent().unwrap());
    // By the profile of this program, whose directory has its name.
    match built.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(profile) => {
            cargo.args(["--profile", profile]);
        }
    }
    well(&mut cargo);
    built.to_owned()
}

fn installed() -> tempfile::TempDir {
    let prefix = tempfile::tempdir().unwrap();
    let to = prefix.path().to_str().unwrap();
    well(Command::new("sh").arg(Path::new(HERE).join("install.sh")).args([built().to_str().unwrap(), to]));
    prefix
}

/// Compiles an example with the options that pkg-config gives, and more.
fn compiled(prefix: &Path, example: &str, static_too: bool, more: &[&str]) -> PathBuf {
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--cflags", "--libs", "lowtide"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    if static_too {
        pkg_config.arg("--static");
    }
    let mut flags = well(&mut pkg_config);
    if static_too {
        flags = flags.replace("-llowtide", "-l:liblowtide.a");
    }
    let program = prefix.join(example);
    let source = Path::new(HERE).join("examples").join(example).with_extension("c");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    well(cc.args(flags.split_whitespace()).args(more));
    program
}

fn run(prefix: &Path, program: &Path) -> String {
    well(Command::new(program).env("LD_LIBRARY_PATH", prefix.join("lib")))
}

#[test]
fn the_header_is_that_of_the_code() {
    let config = cbindgen::Config::from_file(Path::new(HERE).join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::generate_with_config(HERE, config).unwrap().write(&mut made);
    let path = Path::new(HERE).join("include/lowtide.h");
    if std::env::var_os("LOWTIDE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let there = std::fs::read(&path).unwrap_or_default();
    assert!(there == made, "include/lowtide.h is not what the code says: `make header`");
}

#[test]
fn examples_run_with_both_libraries() {
    let prefix = installed();
    for static_too in [false, true] {
        for example in ["larger", "refusals"] {
            let program = compiled(prefix.path(), example, static_too, &[]);
            let said = run(prefix.path(), &program);
            assert_eq!(said.contains("sorted 64 MiB in 16 MiB"), example == "larger", "{said}");
        }
    }
}

#[test]
fn examples_run_with_the_address_sanitizer() {
    let prefix = installed();
    for example in ["larger", "refusals"] {
        let program = compiled(prefix.path(), example, false, &["-fsanitize=address", "-g"]);
        run(prefix.path(), &program);
    }
}

#[test]
fn the_header_is_good_c_plus_plus() {
    let header = Path::new(HERE).join("include/lowtide.h");
    well(Command::new("c++").args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]).arg(header));
}

#[test]
fn the_manual_page_names_every_function() {
    let page = std::fs::read_to_string(Path::new(HERE).join("man/lowtide.3")).unwrap();
    let code = std::fs::read_to_string(Path::new(HERE).join("src/lib.rs")).unwrap();
    let names = code.split("extern \"C\" fn ").skip(1).map(|rest| rest.split('(').next().unwrap());
    let missing: Vec<&str> = names.filter(|name| !page.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
