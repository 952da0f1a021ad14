//! All of it as a user without any privilege.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use lowtide_region::{Delivery, Error, Region, Swap};

use crate::content::{MIB, check_all, fill};

/// Nobody's user and group.
const NOBODY: u32 = 65534;

#[test]
fn regions_and_a_refusal() {
    for delivery in [Delivery::InThread, Delivery::UserMonitor] {
        let mut region = Region::builder(32 * MIB).ram(16 << 20).swap(Swap::Auto).delivery(delivery).build().unwrap();
        fill(&mut region, 0);
        check_all(&region, 0);
        assert!(region.stats().unwrap().pages_out > 0);
    }
    // SAFETY: asks who this is.
    if unsafe { libc::geteuid() } == NOBODY && !device_is_open() && sysctl() != "1" {
        let refused = Region::builder(MIB).ram(16 << 20).delivery(Delivery::Monitor).build().unwrap_err();
        assert!(matches!(refused, Error::Userfaultfd { full: true, .. }), "{refused:?}");
        assert!(refused.to_string().contains("in-thread"), "{refused}");
    }
}

fn device_is_open() -> bool {
    std::fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok()
}

fn sysctl() -> String {
    std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default().trim().to_owned()
}

#[test]
fn as_nobody() {
    // SAFETY: asks who this is.
    if unsafe { libc::geteuid() } != 0 {
        // Then the test above, and all others, run without privilege already.
        return;
    }
    // Where nobody may execute it.
    let program = std::env::temp_dir().join(format!("lowtide-test-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.args(["plain_user::regions_and_a_refusal", "--exact", "--nocapture"]).uid(NOBODY).gid(NOBODY);
    let output = command.output();
    std::fs::remove_file(&program).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", crate::child::text(&output));
}
