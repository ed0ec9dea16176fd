//! The facts about the servers that `doctor` and `bench` need from the URL. The library has checked the URL before.

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

/// The servers, and the settings of locks that depend on them.
#[derive(Debug, PartialEq, Eq)]
pub struct Deployment {
    pub topology: Topology,
    /// The user of the servers.
    pub user: String,
    /// The prefix of the names.
    pub prefix: String,
    /// How many replicas must confirm a grant.
    pub replicas: u32,
    pub io_timeout: Duration,
}

impl Deployment {
    pub fn read(url: &str) -> Self {
        let url = url.trim();
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = query.split('#').next().unwrap_or_default();
        let parameter = |names: &[&str]| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            let (_, value) = pairs.find(|(name, _)| names.contains(name))?;
            Some(decoded(value))
        };
        let topology = match scheme.to_ascii_lowercase().rsplit_once('+') {
            Some((_, "sentinel")) => Topology::Sentinel,
            Some((_, "cluster")) => Topology::Cluster,
            Some((_, "quorum")) => Topology::Quorum,
            _ => Topology::Single,
        };
        let login = place.rsplit_once('@').map(|(login, _)| login);
        let user = login.and_then(|login| login.trim_start_matches('/').split(':').next());
        let user = user.map(decoded).filter(|user| !user.is_empty());
        let user = user.or_else(|| parameter(&["user", "username"]));
        let io_timeout = parameter(&["io_timeout"]);
        let io_timeout = io_timeout.and_then(|time| humantime::parse_duration(&time).ok());
        Self {
            topology,
            user: user.unwrap_or_else(|| "default".to_owned()),
            prefix: parameter(&["prefix"]).unwrap_or_default(),
            replicas: parameter(&["replicas"])
                .and_then(|number| number.parse().ok())
                .unwrap_or(0),
            io_timeout: io_timeout.unwrap_or(Duration::from_secs(1)),
        }
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
        assert_eq!(
            (&*plain.user, &*plain.prefix, plain.replicas),
            ("default", "", 0)
        );
        let full = read(
            " redis+sentinel://app%40x:p:w@s1,s2/mine?replicas=2&prefix=a%26b:&io_timeout=250ms ",
        );
        assert_eq!(full.topology, Topology::Sentinel);
        assert_eq!(
            (&*full.user, &*full.prefix, full.replicas),
            ("app@x", "a&b:", 2)
        );
        assert_eq!(full.io_timeout, Duration::from_millis(250));
        assert_eq!(read("rediss+cluster://n1,n2").topology, Topology::Cluster);
        assert_eq!(read("redis+quorum://n1,n2,n3").topology, Topology::Quorum);
        let socket = read("redis+unix:///tmp/s?user=app");
        assert_eq!((socket.topology, &*socket.user), (Topology::Single, "app"));
        assert_eq!(read("redis://:secret@h").user, "default");
    }
}
