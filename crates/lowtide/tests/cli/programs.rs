//! Programs that are not there, or can't be managed.

use crate::{Spoilt, assert_refused, find, is_root, lowtide, refused, with, works};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn programs_that_are_not_there() {
    refused("run --ram 64M -- no-such-program-here", 127, &["no-such-program-here", "PATH"]);
    refused("run --ram 64M -- /no/such/program", 127, &["/no/such/program", "path"]);
    refused("run --ram 64M -- /", 126, &["/", "directory"]);
    refused("run --ram 64M -- /dev/null", 126, &["/dev/null", "regular file"]);
    let file = Spoilt::new(|_| ());
    file.mode(0o644);
    file.refused(126, &["not executable", "chmod +x"]);
    // As a shell: a file in PATH that can't be executed is better than nothing to name.
    let output = lowtide().args(["run", "--ram", "64M", "--", "program"]).env("PATH", file.dir.path()).output();
    assert_refused(&output.expect("lowtide starts"), 126, &["not executable"]);
    let output = lowtide().args(["run", "--ram", "64M", "--", ""]).output().expect("lowtide starts");
    assert_refused(&output, 127, &["empty"]);
}

#[test]
fn programs_that_cannot_be_managed() {
    assert_refused(
        &with("run --ram 64M -- {} /bin/true", Path::new("/lib64/ld-linux-x86-64.so.2")),
        126,
        &["loader", "the program itself"],
    );
    Spoilt::new(|bytes| {
        let at = find(bytes, b"/ld-linux");
        bytes[at + 1] = b'L';
    })
    .refused(127, &["loader", "Ld-linux", "install"]);
    Spoilt::new(|bytes| bytes[18] = 243).refused(126, &["RISC-V", "without lowtide"]);
    Spoilt::new(|bytes| {
        bytes[4] = 1;
        bytes[18] = 3;
    })
    .refused(126, &["32-bit", "i386", "64-bit"]);
    Spoilt::new(|bytes| bytes.truncate(100)).refused(126, &["cut off"]);
    Spoilt::new(|bytes| bytes[16] = 1).refused(126, &["not a program"]);
}

/// Compiles the smallest program with these options of gcc. None, and a word about it: there is no compiler, or it can't do
/// that.
fn compiled(dir: &Path, options: &[&str]) -> Option<PathBuf> {
    let (source, program) = (dir.join("program.c"), dir.join("program"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"it ran\"); return 0; }\n").expect("written");
    let done = Command::new("gcc").args(options).arg("-o").args([&program, &source]).output();
    if done.as_ref().is_ok_and(|output| output.status.success()) {
        return Some(program);
    }
    crate::skipped::skipped(format_args!("gcc {options:?}: {done:?}"));
    assert!(std::env::var_os("CI").is_none(), "can't be skipped here");
    None
}

#[test]
fn programs_with_sanitizers() {
    let dir = tempfile::tempdir().expect("directory");
    for (option, name) in [("-fsanitize=address", "AddressSanitizer"), ("-fsanitize=thread", "ThreadSanitizer")] {
        let Some(program) = compiled(dir.path(), &[option]) else { return };
        let output = with("run --ram 64M -- {}", &program);
        assert_refused(&output, 126, &[name, option, "use a build without"]);
        if works() {
            // As a child it runs as it would without lowtide, and one line says that no limit holds for it.
            let output = with("run --ram 64M --quiet -- timeout 20 {}", &program);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it ran\n", "{output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("not limited") && said.contains(name) && said.matches('\n').count() == 1, "{said}");
            assert_eq!(output.status.code(), Some(0));
        }
    }
    // These only check: they leave the memory as it is.
    for option in ["-fsanitize=undefined", "-fno-sanitize=all"] {
        let Some(program) = compiled(dir.path(), &[option]) else { return };
        if works() {
            let output = with("run --ram 64M -- {}", &program);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "it ran\n", "{output:?}");
        }
    }
}

#[test]
fn privileged_programs() {
    let program = Spoilt::new(|_| ());
    program.mode(0o4755);
    program.refused(126, &["setuid", "copy"]);
    program.mode(0o2755);
    program.refused(126, &["setgid", "copy"]);
    program.mode(0o755);
    if is_root() {
        // VFS_CAP_REVISION_2, cap_net_bind_service permitted.
        let mut caps = [0u8; 20];
        caps[3] = 2;
        caps[5] = 4;
        rustix::fs::setxattr(&program.path, c"security.capability", &caps, rustix::fs::XattrFlags::empty())
            .expect("capability");
        program.refused(126, &["file capabilities", "copy"]);
    } else {
        std::fs::set_permissions(&program.path, std::fs::Permissions::from_mode(0o111)).expect("mode");
        program.refused(126, &["can't be read", "chmod +r"]);
    }
}

#[test]
fn scripts_are_judged_by_their_interpreter() {
    let target = Spoilt::new(|bytes| bytes[18] = 243);
    let shown = target.path.display();
    Spoilt::script(&format!("#!{shown}\n")).refused(126, &["RISC-V", &shown.to_string()]);
    Spoilt::script(&format!("#! {shown} -x\n")).refused(126, &["RISC-V"]);
    Spoilt::script("#!/no/such/interpreter\n").refused(127, &["/no/such/interpreter", "first line"]);
    Spoilt::script("#!/usr/bin/env no-such-program-here\n").refused(127, &["no-such-program-here", "env"]);
    Spoilt::script("#!/usr/bin/env -S no-such-program-here -u\n").refused(127, &["no-such-program-here"]);
    // A script by a script by a foreign program.
    let middle = Spoilt::script(&format!("#!{shown}\n"));
    Spoilt::script(&format!("#!{}\n", middle.path.display())).refused(126, &["RISC-V"]);
    let own = Spoilt::script("");
    std::fs::write(&own.path, format!("#!{}\n", own.path.display())).expect("written");
    own.refused(126, &["too many scripts"]);
    if works() {
        for text in ["#!/bin/sh\nexit 5\n", "#!/usr/bin/env sh\nexit 5\n", "exit 5\n"] {
            let script = Spoilt::script(text);
            assert_eq!(with("run --ram 64M -- {}", &script.path).status.code(), Some(5), "{text}");
        }
    }
}
