//! The options that say where the servers are, which all subcommands have.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use leasehold::{Builder, LockManager};

use crate::deployment::Deployment;
use crate::exit::{Failure, USAGE};

const URL: &str = "LEASEHOLD_URL";
const URL_FILE: &str = "LEASEHOLD_URL_FILE";
/// Other programs have it too, so it comes last.
const REDIS_URL: &str = "REDIS_URL";

#[derive(Args)]
pub struct Servers {
    /// Servers and settings, such as redis://host/?prefix=billing: [default: $LEASEHOLD_URL, else $REDIS_URL]
    #[arg(long, global = true, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    url: Option<String>,
    /// A file with the URL, which keeps its password out of `ps` [default: $LEASEHOLD_URL_FILE]
    #[arg(long, global = true, value_name = "FILE")]
    url_file: Option<PathBuf>,
    /// The URL, once it was read: a file may be a pipe, which can be read once.
    #[arg(skip)]
    found: OnceLock<String>,
}

impl Servers {
    /// Returns the URL. It may contain a password, so it must not be shown.
    pub fn url(&self) -> Result<&str, Failure> {
        if let Some(url) = self.found.get() {
            return Ok(url);
        }
        let url = match (&self.url, &self.url_file) {
            (Some(_), Some(_)) => return Err(wrong("--url and --url-file exclude each other")),
            (Some(url), None) => url.clone(),
            (None, Some(file)) => in_file(file)?,
            (None, None) => in_environment()?,
        };
        Ok(self.found.get_or_init(|| url))
    }

    /// Returns a warning if a password stands in the command line.
    pub fn warning(&self) -> Option<&'static str> {
        let has_password = Deployment::read(self.url.as_deref()?).has_password;
        has_password.then_some(
            "`ps` shows the password in --url to all users of this machine: use --url-file or LEASEHOLD_URL",
        )
    }

    /// Returns the builder of a manager. No error shows the password of the URL.
    pub fn builder(&self) -> Result<Builder, Failure> {
        Ok(LockManager::from_url(self.url()?)?)
    }

    /// Connects with the settings of the URL alone.
    pub fn connect(&self) -> Result<LockManager, Failure> {
        Ok(self.builder()?.build()?)
    }
}

/// Returns the URL of the environment. A variable that is set counts, also if it cannot be used: otherwise the locks would
/// be taken on another server than the one that was meant.
fn in_environment() -> Result<String, Failure> {
    match [URL, URL_FILE, REDIS_URL].map(env::var_os) {
        [Some(_), Some(_), _] => Err(wrong(format!("{URL} and {URL_FILE} exclude each other"))),
        [Some(url), None, _] => in_variable(URL, url),
        [None, Some(file), _] if file.is_empty() => Err(wrong(format!("{URL_FILE} is empty"))),
        [None, Some(file), _] => in_file(Path::new(&file)),
        [None, None, Some(url)] => in_variable(REDIS_URL, url),
        [None, None, None] => Err(wrong(format!(
            "no server is named: set {URL}, {URL_FILE} or {REDIS_URL}, or pass --url or --url-file"
        ))),
    }
}

fn in_variable(name: &str, value: OsString) -> Result<String, Failure> {
    let text = value.into_string();
    match text.as_deref().map(str::trim) {
        Ok("") => Err(wrong(format!("{name} is empty"))),
        Ok(url) => Ok(url.to_owned()),
        // The value may have a password.
        Err(_) => Err(wrong(format!("{name} is not UTF-8"))),
    }
}

/// Returns the URL in a file. An editor ends the line.
fn in_file(file: &Path) -> Result<String, Failure> {
    let shown = file.display();
    let text = fs::read_to_string(file);
    let text = text.map_err(|error| wrong(format!("the URL file {shown}: {error}")))?;
    match text.trim() {
        "" => Err(wrong(format!("the URL file {shown} is empty"))),
        url if url.contains('\n') => {
            let text = format!("the URL file {shown} has more than one line");
            Err(wrong(text))
        }
        url => Ok(url.to_owned()),
    }
}

fn wrong(text: impl Into<String>) -> Failure {
    Failure::new(USAGE, text)
}
