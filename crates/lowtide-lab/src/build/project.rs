//! The built project: C files that each take the compiler tens of MiB, a table of rows and
//! functions over it, and a Makefile. The same for the same sizes, always.

use std::fmt::Write;
use std::path::{Path, PathBuf};

const FUNCTIONS: usize = 50;

/// A project on disk; drop removes it.
#[derive(Debug)]
pub struct Project {
    directory: PathBuf,
}

impl Project {
    /// Writes `files` C files with tables of `rows` rows into a new directory in `work`.
    ///
    /// # Errors
    /// A line: it can't be written.
    pub fn new(work: &Path, files: usize, rows: usize) -> Result<Project, String> {
        let directory = work.join(format!("lowtide-lab-build-{}", std::process::id()));
        std::fs::create_dir(&directory).map_err(|e| format!("can't make {}: {e}", directory.display()))?;
        let project = Project { directory };
        for number in 0..files {
            project.write(&format!("part{number}.c"), &part(number, rows))?;
        }
        project.write("main.c", &main(files))?;
        project.write("Makefile", MAKEFILE)?;
        Ok(project)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.directory.join(name);
        std::fs::write(&path, text).map_err(|e| format!("can't write {}: {e}", path.display()))
    }
}

impl Drop for Project {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

const MAKEFILE: &str = "CC = cc
OBJECTS = $(patsubst %.c,%.o,$(wildcard *.c))
all: program
program: $(OBJECTS)
\t$(CC) -o $@ $(OBJECTS)
%.o: %.c
\t$(CC) -O0 -g -c -o $@ $<
clean:
\trm -f program $(OBJECTS)
.PHONY: all clean
";

fn part(number: usize, rows: usize) -> String {
    let mut text = String::from(
        "struct row { int key; double weight; const char *name; long next[2]; };\nstatic const struct row rows[] = {\n",
    );
    // Writing to a String doesn't fail.
    for i in number * rows..(number + 1) * rows {
        let (key, weight) = (i * 7919 % 100_003, i as f64 * 0.37);
        let _ = writeln!(text, "{{{key}, {weight:.2}, \"name-{i}\", {{{}, {}L}}}},", i * 31 % 1009, i * 131_071);
    }
    text.push_str("};\n");
    for i in 0..FUNCTIONS {
        let _ = writeln!(
            text,
            "static long f{i}(long n) {{ long s = {i}; while (n-- > {i}) s += rows[n % {rows}].next[n & 1] * {}; return s; }}",
            i % 77
        );
    }
    let calls: Vec<String> = (0..FUNCTIONS).map(|i| format!("f{i}(n)")).collect();
    let _ = writeln!(text, "long part{number}(long n) {{ return {}; }}", calls.join(" + "));
    text
}

fn main(files: usize) -> String {
    let mut text = String::new();
    for number in 0..files {
        let _ = writeln!(text, "long part{number}(long n);");
    }
    let calls: Vec<String> = (0..files).map(|number| format!("part{number}(argc)")).collect();
    let _ = writeln!(text, "int main(int argc, char **argv) {{ (void)argv; return ({}) == 42; }}", calls.join(" + "));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_whole_and_goes_again() {
        let project = Project::new(&std::env::temp_dir(), 3, 10).unwrap();
        let directory = project.directory().to_owned();
        let names: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3 + 2, "{names:?}");
        assert_eq!(part(1, 10), part(1, 10));
        assert_ne!(part(1, 10), part(2, 10));
        drop(project);
        assert!(!directory.exists());
    }
}
