//! `completions` and `man`: texts that are generated from the command line's own description.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::exit::{Failure, TABLE, USAGE};
use crate::{Arguments, output};

/// Prints the completions of a shell
#[derive(Args)]
pub struct Completions {
    shell: Shell,
}

/// Prints the manual page
#[derive(Args)]
pub struct Man {
    /// The page of a subcommand
    subcommand: Option<String>,
}

pub fn completions(options: &Completions) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(
        options.shell,
        &mut Arguments::command(),
        "leasehold",
        &mut text,
    );
    print(&text)
}

pub fn man(options: &Man) -> Result<u8, Failure> {
    let mut command = Arguments::command();
    command.build();
    let page = match &options.subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::new(USAGE, format!("no subcommand `{name}`")))?
        }
    };
    let mut text = Vec::new();
    let render = clap_mangen::Man::new(page).render(&mut text);
    render.map_err(|error| Failure::system("cannot write the page", error))?;
    text.extend_from_slice(b".SH \"EXIT STATUS\"\n");
    for (status, meaning) in TABLE {
        text.extend_from_slice(format!(".TP\n{status}\n{}\n", meaning.replace('`', "")).as_bytes());
    }
    print(&text)
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    let text = String::from_utf8_lossy(text);
    output::print(&text).map_err(|error| Failure::system("cannot write", error))?;
    Ok(0)
}
