//! The facts that `doctor`, `bench` and `run` need from the URL. The library has checked the URL before, and
//! reads it by the same rules in its `builder/url.rs`.

use std::time::Duration;

use percent_encoding::percent_decode_str;

/// How the servers work together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Single,
    Sentinel,
    Cluster,
    Quorum,
}

/// The servers, the way to them, and the settings of locks that depend on them. It is not `Debug`, because it has the
/// password.
pub struct Deployment {
    pub topology: Topology,
    /// The login of the servers. That of the sentinels is not here, because nobody asks them.
    pub user: Option<String>,
    pub password: Option<String>,
    /// Whether the URL has a password of the servers or of the sentinels.
    pub has_password: bool,
    /// The database, if it is not the first.
    database: Option<i64>,
    /// The files of TLS, if the servers have TLS.
    pub tls: Option<TlsFiles>,
    /// The prefix of the names.
    pub prefix: String,
    /// The label of this process, if it is not the host and the process.
    pub label: Option<String>,
    /// How long a guard may hold its lock.
    pub max_hold: Option<Duration>,
    /// How many replicas must confirm a grant.
    pub replicas: u32,
    pub connect_timeout: Duration,
    pub io_timeout: Duration,
}

/// The files that a URL names, in place of what the system trusts.
pub struct TlsFiles {
    pub roots: Option<String>,
    /// The certificate of this process, and its key.
    pub client: Option<(String, String)>,
}

impl Deployment {
    pub fn read(url: &str) -> Self {
        let url = url.trim();
        let (front, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, rest) = front.split_once("://").unwrap_or((front, ""));
        let scheme = scheme.to_ascii_lowercase();
        let (server, kind) = scheme.split_once('+').unwrap_or((&scheme, ""));
        let topology = match kind {
            "sentinel" => Topology::Sentinel,
            "cluster" => Topology::Cluster,
            "quorum" => Topology::Quorum,
            _ => Topology::Single,
        };
        let parameter = |names: &[&str]| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(name, _)| names.contains(&&*decoded(name)))?;
            Some(decoded(value))
        };
        let time = |name: &str| leasehold::parse_time(&parameter(&[name])?).ok();

        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, _) = authority.rsplit_once('@').unwrap_or_default();
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let in_front = |text: &str| Some(decoded(text)).filter(|text| !text.is_empty());
        let database = match topology {
            // The path is that of the socket.
            Topology::Single if scheme.ends_with("unix") => "",
            // It begins with the name of the master.
            Topology::Sentinel => path.split_once('/').unwrap_or_default().1,
            _ => path.trim_matches('/'),
        };
        let database = in_front(database).or_else(|| parameter(&["database", "db"]));
        let has_tls = ["rediss", "valkeys"].contains(&server);
        let password = in_front(password).or_else(|| parameter(&["password", "pass"]));
        Self {
            topology,
            has_password: password.is_some() || parameter(&["sentinel_pass"]).is_some(),
            user: in_front(user).or_else(|| parameter(&["username", "user"])),
            password,
            database: database
                .and_then(|number| number.parse().ok())
                .filter(|number| *number != 0),
            tls: has_tls.then(|| TlsFiles {
                roots: parameter(&["cacert"]),
                client: parameter(&["cert"]).zip(parameter(&["key"])),
            }),
            prefix: parameter(&["prefix"]).unwrap_or_default(),
            label: parameter(&["label"]),
            max_hold: time("max_hold"),
            replicas: parameter(&["replicas"])
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
            connect_timeout: time("connect_timeout").unwrap_or(Duration::from_secs(2)),
            io_timeout: time("io_timeout").unwrap_or(Duration::from_secs(1)),
        }
    }

    /// Returns the commands with which a connection logs in.
    pub fn login(&self) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        if self.user.is_some() || self.password.is_some() {
            let mut auth = vec!["AUTH".to_owned()];
            auth.extend(self.user.clone());
            // A user may have no password.
            auth.push(self.password.clone().unwrap_or_default());
            commands.push(auth);
        }
        if let Some(number) = self.database {
            commands.push(vec!["SELECT".to_owned(), number.to_string()]);
        }
        commands
    }

    /// Returns whether a replica becomes the master when the master fails.
    pub fn fails_over(&self) -> bool {
        [Topology::Sentinel, Topology::Cluster].contains(&self.topology)
    }
}

/// Returns the name of a key that stands beside the lock with this key, such as its `fence`.
pub fn beside(key: &str, what: &str) -> String {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    match tag {
        Some((tag, _)) if !tag.is_empty() => format!("{key}:lht:{what}"),
        _ => format!("{{{key}}}:lh:{what}"),
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_beside_a_lock_has_the_form_that_the_lock_gives_it() {
        assert_eq!(beside("billing:x", "fence"), "{billing:x}:lh:fence");
        assert_eq!(beside("{billing}:x", "queue"), "{billing}:x:lht:queue");
        assert_eq!(beside("{}:x", "queue"), "{{}:x}:lh:queue");
    }

    #[test]
    fn the_url_of_each_topology_is_read() {
        let read = Deployment::read;
        let plain = read("redis://127.0.0.1:6379/");
        assert_eq!(plain.topology, Topology::Single);
        assert_eq!((&*plain.prefix, plain.replicas), ("", 0));
        assert_eq!(read("redis+unix:///tmp/s").topology, Topology::Single);
        assert_eq!(read("rediss+cluster://n1,n2").topology, Topology::Cluster);
        assert_eq!(read("redis+quorum://n1,n2,n3").topology, Topology::Quorum);
        let full = read(
            " redis+sentinel://app%40x:p:w@s1,s2/mine?replicas=2&prefix=a%26b:&io_timeout=250ms ",
        );
        assert_eq!(full.topology, Topology::Sentinel);
        assert_eq!((&*full.prefix, full.replicas), ("a&b:", 2));
        assert_eq!(full.io_timeout, Duration::from_millis(250));
        assert_eq!(full.connect_timeout, Duration::from_secs(2));
    }

    #[test]
    fn the_login_of_each_topology_is_read() {
        let login = |url| {
            let deployment = Deployment::read(url);
            let commands = deployment.login();
            let lines: Vec<_> = commands.iter().map(|words| words.join(" ")).collect();
            lines.join("; ")
        };
        for (url, expected) in [
            ("redis://h", ""),
            ("redis://h/0?database=0", ""),
            ("redis://:p%3Aw@h/03", "AUTH p:w; SELECT 3"),
            (
                "valkey://app@h?password=p%20w&database=4",
                "AUTH app p w; SELECT 4",
            ),
            ("redis://app@h", "AUTH app "),
            (
                "unix:///tmp/7@h?user=app&pass=pw&db=2",
                "AUTH app pw; SELECT 2",
            ),
            (
                "redis+unix:///tmp/s?username=app&password=pw",
                "AUTH app pw",
            ),
            ("redis+sentinel://s1,s2/mine?sentinel_pass=x", ""),
            (
                "redis+sentinel://app:p:w@s1,s2/mine/4",
                "AUTH app p:w; SELECT 4",
            ),
            ("rediss+cluster://:pw@n1,n2/", "AUTH pw"),
            (
                "redis+quorum://n1,n2/5?username=app&password=pw",
                "AUTH app pw; SELECT 5",
            ),
        ] {
            assert_eq!(login(url), expected, "{url}");
        }
    }

    #[test]
    fn a_password_anywhere_in_the_url_is_noticed() {
        for (url, expected) in [
            ("redis://app@h/?password_file=f", false),
            ("redis://:p@h", true),
            ("redis+quorum://n1,n2?password=p", true),
            ("unix:///tmp/s?pass=p", true),
            ("redis+sentinel://s1/mine?sentinel_user=u", false),
            ("redis+sentinel://s1/mine?sentinel_pass=p", true),
        ] {
            assert_eq!(Deployment::read(url).has_password, expected, "{url}");
        }
    }

    #[test]
    fn the_files_of_tls_are_read() {
        let read = Deployment::read;
        assert!(read("redis://h").tls.is_none());
        let trusted = read("rediss://h").tls.expect("it has TLS");
        assert!(trusted.roots.is_none() && trusted.client.is_none());
        let own = read("valkeys+quorum://n1,n2?cacert=%2Fca&cert=c&key=k").tls;
        let own = own.expect("it has TLS");
        assert_eq!(own.roots.as_deref(), Some("/ca"));
        assert_eq!(own.client, Some(("c".to_owned(), "k".to_owned())));
    }
}
