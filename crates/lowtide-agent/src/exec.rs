//! exec: the program that is started next belongs to the run too, even when its caller has changed LD_PRELOAD or cleared the
//! environment.
//!
//! Runs in forked and vforked children, on small stacks: it allocates nothing, and changes nothing but the new environment.

use core::ffi::{c_char, c_int};

use linux_raw_sys::general as sys;

use crate::hooks::result;
use crate::thread::syscall3;
use crate::{agent, start};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Most variables of an environment that can be mended; a larger one is passed as it is.
const MAX_VARIABLES: usize = 1000;
const MAX_PRELOAD: usize = 1024;

pub extern "C" fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int {
    let mut environment = [core::ptr::null::<c_char>(); MAX_VARIABLES + 3];
    let mut preload = [0u8; MAX_PRELOAD];
    let mended = agent::present() && !envp.is_null() && mend(envp, &mut environment, &mut preload);
    let envp = if mended { environment.as_ptr() } else { envp };
    // SAFETY: the caller's own call; the environment is NULL-terminated and lives until the call ends.
    result(unsafe { syscall3(sys::__NR_execve, path as usize, argv as usize, envp as usize) }) as c_int
}

/// Writes the environment as it should be. False: it is as it should be, or too large.
fn mend(envp: *const *const c_char, out: &mut [*const c_char; MAX_VARIABLES + 3], preload: &mut [u8; MAX_PRELOAD]) -> bool {
    let settings = agent::settings();
    let ours_len = settings.preload.iter().position(|&b| b == 0).unwrap_or(0);
    let ours = &settings.preload[..ours_len];
    let mut old: &[u8] = &[];
    let mut has_segment = false;
    let mut n = 0;
    // SAFETY: `envp` is a NULL-terminated array of C strings, as execve demands.
    unsafe {
        let mut p = envp;
        while !(*p).is_null() {
            if n == MAX_VARIABLES {
                return false;
            }
            let variable = core::ffi::CStr::from_ptr(*p).to_bytes();
            if let Some(value) = variable.strip_prefix(PRELOAD) {
                if value.starts_with(ours) {
                    out[n] = *p;
                    n += 1;
                    old = value;
                } else {
                    old = value;
                }
            } else {
                has_segment |= start::is_settings(variable);
                out[n] = *p;
                n += 1;
            }
            p = p.add(1);
        }
    }
    let has_ours = old.starts_with(ours);
    if has_ours && has_segment {
        return false;
    }
    if !has_ours {
        let parts = [PRELOAD, ours, if old.is_empty() { b"" } else { b":" }, old];
        let mut len = 0;
        for part in parts {
            let Some(room) = preload.get_mut(len..len + part.len()) else { return false };
            room.copy_from_slice(part);
            len += part.len();
        }
        if len == preload.len() {
            return false; // no room for the NUL
        }
        out[n] = preload.as_ptr().cast();
        n += 1;
    }
    if !has_segment {
        out[n] = start::settings_variable();
        n += 1;
    }
    out[n] = core::ptr::null();
    true
}
