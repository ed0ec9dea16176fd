//! The description of the command line with its examples, and the texts that are generated from it: `completions` and `man`.

use std::fmt::Write as _;

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;

use crate::exit::{Failure, TABLE, USAGE};
use crate::{Arguments, output};

/// Examples first: people read those, and little else.
const TEMPLATE: &str =
    "{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}";

/// The examples of a subcommand, or of the program itself.
fn examples(subcommand: &str) -> &'static [&'static str] {
    match subcommand {
        "leasehold" => &["leasehold run backup -- tar -cf /backup/home.tar /home"],
        "run" => &[
            "leasehold run backup -- tar -cf /backup/home.tar /home",
            "leasehold run -n -E 0 nightly-report -- report",
            "leasehold run -w 60 dump -c 'pg_dump shop | gzip > /backup/shop.gz'",
        ],
        "elect" => &[
            "leasehold elect shop --value 10.0.0.7:8080 -- serve",
            "leasehold elect shop --lease 5s --value \"$(hostname)\" -- serve",
        ],
        "leader" => &["leasehold leader shop", "leasehold leader shop --watch"],
        "status" => &[
            "leasehold status deploy:shop",
            "if leasehold status --check deploy:shop; then echo 'it is taken'; fi",
        ],
        "list" => &["leasehold list 'deploy:*'"],
        "watch" => &["leasehold watch", "leasehold watch 'deploy:*'"],
        "release" => &[
            "leasehold release deploy:shop",
            "leasehold release imports --holder 2",
        ],
        "request" => &["leasehold request deploy:shop --why 'build 9 has a fix'"],
        "doctor" => &[
            "leasehold doctor",
            "leasehold doctor --url redis+sentinel://s1,s2,s3/mymaster",
        ],
        "bench" => &["leasehold bench --url redis://test.example/"],
        "completions" => &["leasehold completions bash > /etc/bash_completion.d/leasehold"],
        "man" => &["leasehold man | man -l -", "leasehold man run | man -l -"],
        _ => &[],
    }
}

/// The variables of the environment, for the manual.
const ENVIRONMENT: [(&str, &str); 4] = [
    (
        "LEASEHOLD_URL, LEASEHOLD_URL_FILE, REDIS_URL",
        "The servers and their settings, or a file with them, if there is no `--url` and no `--url-file`. The last counts if neither of the others is set.",
    ),
    (
        "LEASEHOLD_NAME, LEASEHOLD_FENCE, LEASEHOLD_OWNER",
        "`run` and `elect` set them for the command: the names of its locks and their fences, a line each, and the owner of the first.",
    ),
    (
        "LEASEHOLD_NESTED",
        "`run` and `elect` set it, and read it to know the locks that one around them holds.",
    ),
    (
        "NO_COLOR",
        "If it is not empty, `watch` and `doctor` have no colours.",
    ),
];

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

/// Returns the description of the command line.
pub fn command() -> Command {
    let command = with_examples(Arguments::command());
    let names = command.get_subcommands().map(|it| it.get_name().to_owned());
    let names: Vec<_> = names.collect();
    names.iter().fold(command, |command, name| {
        command.mut_subcommand(name, with_examples)
    })
}

fn with_examples(command: Command) -> Command {
    let text = examples(command.get_name()).join("\n  ");
    command
        .help_template(TEMPLATE)
        .before_help(format!("Examples:\n  {text}"))
}

pub fn completions(options: &Completions) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(options.shell, &mut command(), "leasehold", &mut text);
    print(&text)
}

pub fn man(options: &Man) -> Result<u8, Failure> {
    let mut command = command().disable_help_subcommand(true);
    command.build();
    let page = match &options.subcommand {
        None => command,
        Some(name) => {
            let found = command.find_subcommand(name).cloned();
            found.ok_or_else(|| Failure::new(USAGE, format!("no subcommand `{name}`")))?
        }
    };
    let examples = examples(page.get_name());
    // The page would lack the text of an option that the short help does not show.
    let page = page.mut_args(|argument| argument.hide_short_help(false));
    let mut text = Vec::new();
    let render = clap_mangen::Man::new(page).render(&mut text);
    render.map_err(|error| Failure::system("cannot write the page", error))?;
    let text = String::from_utf8_lossy(&text);
    // As it is, so that it can be copied: no filling, no dashes, no typographic quotes.
    let examples = examples.join("\n").replace('\\', "\\e");
    let examples = examples.replace('-', "\\-").replace('\'', "\\(aq");
    let examples = format!(".SH EXAMPLES\n.nf\n{examples}\n.fi\n.SH DESCRIPTION");
    let mut text = text.replacen(".SH DESCRIPTION", &examples, 1);
    for (section, rows) in [
        ("ENVIRONMENT", &ENVIRONMENT[..]),
        ("EXIT STATUS", &TABLE[..]),
    ] {
        let _ = writeln!(text, ".SH \"{section}\"");
        for (what, meaning) in rows {
            let _ = writeln!(text, ".TP\n{what}\n{}", meaning.replace('`', ""));
        }
    }
    print(text.as_bytes())
}

fn print(text: &[u8]) -> Result<u8, Failure> {
    let text = String::from_utf8_lossy(text);
    output::print(&text).map_err(|error| Failure::system("cannot write", error))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the words of a simple command, as a shell has them.
    fn words(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        for (number, part) in line.split('\'').enumerate() {
            if number % 2 == 1 {
                words.push(part.to_owned());
                continue;
            }
            let end = part.find([';', '|', '>']);
            words.extend(
                part[..end.unwrap_or(part.len())]
                    .split_whitespace()
                    .map(str::to_owned),
            );
            if end.is_some() {
                break;
            }
        }
        words
    }

    #[test]
    fn the_words_of_the_library_are_accepted() {
        for line in [
            "leasehold run a --min-hold 5m --max-hold 1h -- true",
            "leasehold force-release a",
            "leasehold request-release a --why b",
        ] {
            let parsed = command().try_get_matches_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }

    #[test]
    fn each_subcommand_has_examples_that_it_accepts() {
        let all = command();
        for subcommand in all.get_subcommands() {
            let name = subcommand.get_name();
            let examples = examples(name);
            assert!(!examples.is_empty(), "{name}");
            for example in examples {
                assert!(example.len() <= 76, "it fits a terminal: {example}");
                let words = words(example.strip_prefix("if ").unwrap_or(example));
                assert_eq!(words[..2], ["leasehold", name], "{example}");
                let parsed = command().try_get_matches_from(&words);
                assert!(parsed.is_ok(), "{example}: {parsed:?}");
            }
        }
        for example in examples("leasehold") {
            let parsed = command().try_get_matches_from(words(example));
            assert!(parsed.is_ok(), "{example}: {parsed:?}");
        }
    }
}
