//! The rights of the user at one server, for each kind of lock.
//!
//! The commands are those of the section "Rights of a Redis user" in the library's documentation. There are two ways to
//! try a command:
//!
//! * `ACL DRYRUN`, if the server has it and this user may use it. It executes nothing.
//! * The command itself, on a throwaway key with a text that expires. A command for another type of value answers
//!   `WRONGTYPE`, so it changes nothing, and the user has the right.

use crate::deployment::{Deployment, Topology, beside};
use crate::server::{Answer, Problem, Server, text};

use super::finding::{Finding, Level};
use super::{TTL_MS, new_key};

/// Commands that are needed together, and the consequence if one is missing.
struct Group {
    name: &'static str,
    /// As after the `+` of an access control list, in a line of the documentation.
    commands: &'static str,
    means: &'static str,
    is_needed: bool,
}

/// The groups that a deployment needs, the first with everything for mutexes.
fn groups(deployment: &Deployment) -> Vec<Group> {
    let group = |name, commands, means, is_needed| Group {
        name,
        commands,
        means,
        is_needed,
    };
    let mut groups = vec![
        group("mutexes", MUTEXES, "No lock can be used.", true),
        group(
            "messages",
            MESSAGES,
            "A waiting process is not told when a lock comes free. It polls, so it waits for up to 1 s longer.",
            false,
        ),
        group(
            "reader-writer locks and semaphores",
            SHARES,
            "Reader-writer locks and semaphores cannot be used.",
            false,
        ),
        group(
            "rate limiters",
            LIMITERS,
            "Rate limiters cannot be used.",
            false,
        ),
        group(
            "operators",
            OPERATORS,
            "The subcommands status, list, watch, release and request cannot be used.",
            false,
        ),
    ];
    if deployment.replicas > 0 {
        groups.push(group(
            "replicas",
            REPLICAS,
            "With replicas in the URL, no lock can be acquired.",
            true,
        ));
    }
    match deployment.topology {
        Topology::Single => {}
        Topology::Quorum => groups.push(group("a quorum", QUORUM, "This node cannot vote.", true)),
        Topology::Sentinel => {
            let means =
                "leasehold cannot check that this server is the master, and does not use it.";
            groups.push(group("a Sentinel set", SENTINEL, means, true));
        }
        Topology::Cluster => {
            let means = "leasehold cannot find the master of a lock.";
            groups.push(group("a cluster", CLUSTER, means, true));
        }
    }
    groups
}

const MUTEXES: &str = "ping eval evalsha get getrange exists set del append pttl pexpire time hset hget hdel zadd zrem \
                       zpopmin zcard zscore zrange";
const MESSAGES: &str = "subscribe publish pubsub|numsub";
const SHARES: &str = "hlen zrangebyscore pexpireat";
const LIMITERS: &str = "lindex llen lpop lset rpush pexpire";
const REPLICAS: &str = "wait";
const OPERATORS: &str = "scan type strlen zrangebyscore lindex llen";
const QUORUM: &str = "script|load info";
const SENTINEL: &str = "role";
const CLUSTER: &str = "cluster|slots cluster|nodes asking role info";

/// Commands that make a key without a time to live, unless the throwaway key is there.
const MAKING: [&str; 4] = ["append", "hset", "zadd", "rpush"];

/// The throwaway names of a trial.
struct Names {
    key: String,
    /// The name of a key beside a lock with this key.
    beside: String,
    channel: String,
}

impl Names {
    fn new(key: String) -> Self {
        Self {
            beside: beside(&key, "fence"),
            key,
            channel: "leasehold:doctor".to_owned(),
        }
    }

    /// Returns the words of a command, with arguments that change nothing but the throwaway key.
    fn words<'a>(&'a self, command: &'a str) -> Vec<&'a str> {
        let (key, channel) = (self.key.as_str(), self.channel.as_str());
        let (name, subcommand) = command.split_once('|').unwrap_or((command, ""));
        let arguments: &[&str] = match command {
            "eval" => &["return 1", "0"],
            // No script has this digest.
            "evalsha" => &["0000000000000000000000000000000000000000", "0"],
            "get" | "pttl" | "exists" | "del" | "zpopmin" | "zcard" | "hlen" | "llen" | "lpop"
            | "type" | "strlen" => &[key],
            "getrange" | "zrange" | "zrangebyscore" => &[key, "0", "0"],
            "set" => &[key, "x", "PX", TTL_MS, "NX"],
            "append" => &[key, ""],
            "pexpire" => &[key, TTL_MS],
            // Year 2100.
            "pexpireat" => &[&self.beside, "4102444800000"],
            "hset" => &[key, "f", "x"],
            "hget" | "hdel" | "zrem" | "zscore" | "rpush" => &[key, "f"],
            "lindex" => &[key, "0"],
            "zadd" | "lset" => &[key, "0", "f"],
            "subscribe" | "pubsub|numsub" => &[channel],
            "publish" => &[channel, ""],
            "scan" => &["0", "COUNT", "1"],
            "wait" => &["0", "1"],
            "script|load" => &["return 1"],
            _ => &[],
        };
        let mut words = vec![name];
        words.extend((!subcommand.is_empty()).then_some(subcommand));
        words.extend(arguments);
        words
    }
}

/// The commands, keys and channels that a user lacks for a group.
#[derive(Default)]
struct Lacks {
    commands: Vec<&'static str>,
    /// Commands that the server does not have.
    unknown: Vec<&'static str>,
    keys: bool,
    channels: bool,
}

pub fn check(server: &Server<'_>) -> Vec<Finding> {
    const CHECK: &str = "rights";
    let names = Names::new(new_key(server));
    let whoami = server.ask(&["ACL", "WHOAMI"]).ok();
    let user = whoami.as_ref().and_then(text);
    let user = user.or(server.deployment.user.as_deref().map(Into::into));
    let user = user.unwrap_or("default".into());
    let tried = Tried::new(server, &user, &names);
    let mut findings = Vec::new();
    for group in groups(server.deployment) {
        let mut lacks = match tried.lacks_of(group.commands) {
            Ok(lacks) => lacks,
            Err(problem) => {
                let found = format!("could not be tried: {problem}");
                return vec![Finding::skip(
                    CHECK,
                    found,
                    "Mend the other findings first.",
                )];
            }
        };
        // The keys are the same for each group.
        lacks.keys &= findings.is_empty();
        findings.extend(lacks.finding(CHECK, &group, &user, server.deployment));
    }
    tried.end();
    if findings.is_empty() {
        let how = if tried.is_dry {
            "ACL DRYRUN"
        } else {
            "throwaway keys"
        };
        findings.push(Finding::ok(
            CHECK,
            format!("user {user} has all that locks need (tried by {how})"),
        ));
    }
    findings
}

impl Lacks {
    fn finding(
        &self,
        check: &'static str,
        group: &Group,
        user: &str,
        deployment: &Deployment,
    ) -> Option<Finding> {
        let level = if group.is_needed {
            Level::Bad
        } else {
            Level::Warn
        };
        if !self.unknown.is_empty() {
            let found = format!(
                "the server has no {} for {}",
                self.unknown.join(", "),
                group.name
            );
            let mend = "Undo a rename-command, connect without a proxy, or use Redis or Valkey.";
            return Some(Finding::new(check, level, found, group.means, mend));
        }
        let mut rights: Vec<String> = self
            .commands
            .iter()
            .map(|command| format!("+{command}"))
            .collect();
        if self.keys {
            let prefix = &deployment.prefix;
            rights.push(format!("~{prefix}*"));
            rights.extend((!prefix.is_empty()).then(|| format!("~{{{prefix}*")));
        }
        if self.channels {
            rights.push("&leasehold:*".to_owned());
        }
        if rights.is_empty() {
            return None;
        }
        let rights = rights.join(" ");
        let found = format!("user {user} lacks {rights} for {}", group.name);
        let mend = format!("ACL SETUSER {user} {rights}");
        Some(Finding::new(check, level, found, group.means, mend))
    }
}

/// The way in which rights are tried.
struct Tried<'a> {
    server: &'a Server<'a>,
    user: &'a str,
    names: &'a Names,
    /// Whether `ACL DRYRUN` tries them.
    is_dry: bool,
    /// Whether the throwaway key is there, or belongs to another master, which rejects all commands for it alike.
    has_key: bool,
}

impl<'a> Tried<'a> {
    fn new(server: &'a Server<'a>, user: &'a str, names: &'a Names) -> Self {
        let dry = server.ask(&["ACL", "DRYRUN", user, "PING"]);
        let is_dry = dry.is_ok_and(|reply| text(&reply).is_some_and(|said| said == "OK"));
        let has_key = !is_dry
            && match server.ask(&names.words("set")) {
                Ok(_) => true,
                Err(Problem::Refused(text)) => text.starts_with("MOVED"),
                Err(_) => false,
            };
        Self {
            server,
            user,
            names,
            is_dry,
            has_key,
        }
    }

    /// Removes the throwaway key. If this user may not do so, the key expires.
    fn end(&self) {
        if self.has_key {
            let _ = self.server.ask(&["DEL", &self.names.key]);
        }
    }

    fn lacks_of(&self, commands: &'static str) -> Result<Lacks, Problem> {
        let commands = commands.split(' ').filter(|command| {
            // The key goes at the end. Until then a right to remove it is tried on a key that does not exist.
            self.is_dry || self.has_key || !MAKING.contains(command)
        });
        let commands: Vec<_> = commands.collect();
        let mut words: Vec<Vec<&str>> =
            commands.iter().map(|command| self.words(command)).collect();
        // Keys beside a lock match another pattern of keys.
        words.push(self.around(vec!["exists", &self.names.beside]));
        let answers = self.answers(&words)?;
        let mut lacks = Lacks::default();
        for (answer, command) in answers.iter().zip(commands.iter().copied().chain([""])) {
            let said = match answer {
                Ok(reply) if self.is_dry => text(reply).unwrap_or_default(),
                Ok(_) => continue,
                Err(problem @ Problem::Failed(_)) => return Err(problem.clone()),
                Err(Problem::Denied(said) | Problem::Refused(said)) => said.into(),
            };
            lacks.add(command, &said);
        }
        Ok(lacks)
    }

    fn words(&self, command: &'a str) -> Vec<&'a str> {
        let words = match command {
            "del" => vec!["del", self.names.beside.as_str()],
            _ => self.names.words(command),
        };
        self.around(words)
    }

    fn around(&self, words: Vec<&'a str>) -> Vec<&'a str> {
        if self.is_dry {
            [vec!["ACL", "DRYRUN", self.user], words].concat()
        } else {
            words
        }
    }

    /// Sends the commands in one go. SUBSCRIBE is sent on a separate connection, because the server accepts few commands after it.
    fn answers(&self, commands: &[Vec<&str>]) -> Result<Vec<Answer>, Problem> {
        let is_alone = |words: &[&str]| words[0] == "subscribe";
        let together: Vec<&[&str]> = commands.iter().map(Vec::as_slice).collect();
        let together: Vec<&[&str]> = together
            .into_iter()
            .filter(|words| !is_alone(words))
            .collect();
        let mut answers = self.server.session()?.ask_at_once(&together)?.into_iter();
        let no_answer = || Err(Problem::Failed("no answer".to_owned()));
        let answer = |words: &Vec<&str>| {
            if is_alone(words) {
                self.server.ask(words)
            } else {
                answers.next().unwrap_or_else(no_answer)
            }
        };
        Ok(commands.iter().map(answer).collect())
    }
}

impl Lacks {
    /// Notes what the server says to a command. `""` stands for a key beside a lock.
    fn add(&mut self, command: &'static str, said: &str) {
        let is_denied = said.starts_with("NOPERM")
            || said.contains("has no permissions")
            || said.contains("o permissions to");
        if is_denied && said.contains(" channel") {
            self.channels = true;
        } else if is_denied && said.contains(" key") {
            self.keys = true;
        } else if is_denied && !command.is_empty() {
            self.commands.push(command);
        } else if said.contains("unknown command") || said.contains("not found") {
            self.unknown
                .extend((!command.is_empty()).then_some(command));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_commands_are_those_of_the_documentation() {
        let documented: BTreeSet<_> = include_str!("../../../src/builder/mod.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("/// ACL SETUSER app +"))
            .flat_map(|line| line.split(" +"))
            .collect();
        let all = [
            MUTEXES, MESSAGES, SHARES, LIMITERS, REPLICAS, OPERATORS, QUORUM, SENTINEL, CLUSTER,
        ];
        let tried: BTreeSet<_> = all.iter().flat_map(|group| group.split(' ')).collect();
        // SELECT was sent when the connection was opened.
        let without = &documented - &tried;
        assert_eq!(without.into_iter().collect::<Vec<_>>(), ["select"]);
        assert_eq!((&tried - &documented).len(), 0);
    }
}
