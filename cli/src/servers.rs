//! The options that say where the servers are, which all subcommands have.

use std::env;

use clap::Args;
use leasehold::{Builder, LockManager};

use crate::exit::{Failure, USAGE};

/// The variables that hold the URL, the first that is set.
const VARIABLES: [&str; 2] = ["LEASEHOLD_URL", "REDIS_URL"];

#[derive(Args)]
pub struct Servers {
    /// Servers and settings, such as redis://host/?prefix=billing: [default: $LEASEHOLD_URL, else $REDIS_URL]
    #[arg(long, global = true, value_name = "URL")]
    url: Option<String>,
}

impl Servers {
    /// Returns the URL. It may contain a password, so it must not be shown.
    pub fn url(&self) -> Result<String, Failure> {
        let set = |name: &&str| env::var(name).ok().filter(|url| !url.is_empty());
        let url = self.url.clone().or_else(|| VARIABLES.iter().find_map(set));
        url.ok_or_else(|| {
            let text = "no server is named: set LEASEHOLD_URL or REDIS_URL, or pass --url";
            Failure::new(USAGE, text)
        })
    }

    /// Returns the builder of a manager. No error shows the password of the URL.
    pub fn builder(&self) -> Result<Builder, Failure> {
        Ok(LockManager::from_url(&self.url()?)?)
    }

    /// Connects with the settings of the URL alone.
    pub fn connect(&self) -> Result<LockManager, Failure> {
        Ok(self.builder()?.build()?)
    }
}
