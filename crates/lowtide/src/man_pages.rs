//! Manual pages and completions for packages, generated from the command line's definition.

use crate::args::Cli;
use crate::error::Failure;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;
use std::path::Path;

/// Prints the manual page of lowtide, or of one of its commands.
///
/// # Errors
/// There is no such command.
pub fn man(command: Option<&str>) -> Result<u8, Failure> {
    let mut cli = Cli::command();
    cli.build();
    let page = match command {
        None => cli,
        Some(name) => match cli.find_subcommand(name) {
            Some(found) => found.clone(),
            None => return Err(Failure::usage(format!("`{name}` is not a command of lowtide; see `lowtide --help`"))),
        },
    };
    let _ = clap_mangen::Man::new(page).render(&mut std::io::stdout());
    Ok(0)
}

/// Writes the manual pages of lowtide and of all its commands into a directory.
///
/// # Errors
/// One of them can't be written.
pub fn man_pages(dir: &Path) -> Result<u8, Failure> {
    clap_mangen::generate_to(Cli::command(), dir).map_err(|error| {
        Failure::usage(format!("can't write manual pages into {}: {error}; name a directory that exists", dir.display()))
    })?;
    Ok(0)
}

pub fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "lowtide", &mut text);
    // A closed pipe is no error.
    let _ = std::io::stdout().write_all(&text);
    0
}
