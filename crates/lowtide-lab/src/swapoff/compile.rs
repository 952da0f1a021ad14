//! A build beside something else: generated C files, compiled one after the other on each CPU.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

/// Functions of a file: some tenths of a second of `cc -O2`.
const FUNCTIONS: usize = 400;

pub struct Build {
    stop: Arc<AtomicBool>,
    files: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Build {
    /// Starts in a directory of its own, with as many compilers at a time as there are CPUs.
    ///
    /// # Errors
    /// A line: nothing can be written there.
    pub fn start(directory: &Path) -> Result<Build, String> {
        let source = directory.join("generated.c");
        std::fs::write(&source, generated()).map_err(|e| format!("{}: {e}", source.display()))?;
        let (stop, files) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let compilers = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..compilers).map(|i| {
            let (stop, files, source, object) = (stop.clone(), files.clone(), source.clone(), directory.join(format!("{i}.o")));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    compile(&source, &object)?;
                    files.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        });
        let threads = threads.collect();
        Ok(Build { stop, files, threads })
    }

    /// Ends it after the files under way; returns the count of compiled files.
    ///
    /// # Errors
    /// A line: the compiler failed.
    pub fn end(mut self) -> Result<u64, String> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| "a thread of the build ended early".to_owned())??;
        }
        Ok(self.files.load(Ordering::Relaxed))
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn compile(source: &PathBuf, object: &PathBuf) -> Result<(), String> {
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-c"]).arg(source).arg("-o").arg(object).stdin(Stdio::null());
    let status = cc.status().map_err(|e| format!("cc can't be started: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("cc failed: {status}")) }
}

fn generated() -> String {
    let mut text = String::new();
    for i in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "int f{i}(int *a, int n)\n{{\n\tint s = {i};\n\tfor (int k = 0; k < n; k++)\n\t\ts = s * {} + (a[k] ^ (s >> {}));\n\treturn s;\n}}",
            i * 2 + 3,
            i % 13 + 1,
        );
    }
    text
}
