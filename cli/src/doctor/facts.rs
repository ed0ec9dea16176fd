//! The answers of a server to INFO and CONFIG GET.

use std::collections::HashMap;

use redis::Value;

use crate::server::{Problem, Server, text};

/// The settings that no section of INFO has.
const SETTINGS: [&str; 7] = [
    "appendfsync",
    "save",
    "stop-writes-on-bgsave-error",
    "min-replicas-to-write",
    "timeout",
    "active-replica",
    "maxmemory*",
];
/// The answers of a server to INFO and CONFIG GET.
pub struct Facts {
    pub info: Result<HashMap<String, String>, Problem>,
    pub settings: Result<HashMap<String, String>, Problem>,
}

impl Facts {
    pub fn read(server: &Server<'_>) -> Self {
        let info = server.ask(&["INFO"]).map(|reply| {
            let report = text(&reply).unwrap_or_default();
            let fields = report.lines().filter_map(|line| line.split_once(':'));
            fields
                .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
                .collect()
        });
        Self {
            info,
            settings: read_settings(server),
        }
    }

    /// Returns a field of INFO.
    pub fn info(&self, name: &str) -> Option<&str> {
        self.info.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// Returns a number of INFO. A field that is missing is 0.
    pub fn number(&self, name: &str) -> u64 {
        self.info(name)
            .and_then(|number| number.parse().ok())
            .unwrap_or(0)
    }

    /// Returns a setting of CONFIG GET.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref().ok()?.get(name).map(String::as_str)
    }

    /// Returns the name of the program, and its version.
    pub fn program(&self) -> (&'static str, &str) {
        const OTHERS: [(&str, &str); 4] = [
            ("dragonfly_version", "Dragonfly"),
            ("garnet_version", "Garnet"),
            ("kvrocks_version", "Kvrocks"),
            ("valkey_version", "Valkey"),
        ];
        for (field, name) in OTHERS {
            if let Some(version) = self.info(field) {
                return (name, version);
            }
        }
        let is_keydb = self
            .info("executable")
            .is_some_and(|path| path.contains("keydb"))
            || self.info("mvcc_depth").is_some();
        let name = if is_keydb { "KeyDB" } else { "Redis" };
        (
            name,
            self.info("redis_version")
                .unwrap_or("of an unknown version"),
        )
    }
}

fn read_settings(server: &Server<'_>) -> Result<HashMap<String, String>, Problem> {
    // A server before 7.0 accepts one name at a time.
    let commands = SETTINGS.map(|name| ["CONFIG", "GET", name]);
    let commands: Vec<&[&str]> = commands.iter().map(<[_; 3]>::as_slice).collect();
    let mut settings = HashMap::new();
    for answer in server.session()?.ask_at_once(&commands)? {
        let Value::Array(words) = answer? else {
            continue;
        };
        for pair in words.chunks_exact(2) {
            let pair = (text(&pair[0]), text(&pair[1]));
            if let (Some(name), Some(value)) = pair {
                settings.insert(name.into_owned(), value.into_owned());
            }
        }
    }
    Ok(settings)
}
