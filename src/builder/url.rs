//! The URL of any deployment, with the settings in it: see [`LockManager::from_url`].
//!
//! 1. The scheme names the topology, and says whether there is TLS.
//! 2. The parameters are taken out, and set on the builder by the table [`SETTINGS`]. Only the `protocol` of a single server
//!    stays, which the redis crate reads. No parameter sets a login or a database again that stands in front of it.
//! 3. The rest becomes one URL for each host, as [`Server`] reads it.
//!
//! An error never repeats a part of the URL that may hold a password: see [`unknown`].

use std::borrow::Cow;
use std::mem;

use percent_encoding::percent_decode_str;

use crate::builder::Builder;
use crate::builder::servers::Servers;
use crate::builder::settings::SETTINGS;
use crate::config::Server;
#[cfg(feature = "tls")]
use crate::config::Tls;
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::manager::LockManager;

/// The port of a sentinel whose URL names none, behind its colon.
const SENTINEL_PORT: &str = ":26379";

/// The topologies, by the end of their schemes.
#[derive(Clone, Copy, PartialEq)]
enum Topology {
    Single,
    Socket,
    Sentinel,
    Cluster,
    Quorum,
}

/// The files of TLS.
const TLS_PARAMETERS: [&str; 3] = ["cacert", "cert", "key"];

/// Reads a URL with its settings.
///
/// # Errors
///
/// [`Error::Config`] with the option `url`.
pub(super) fn read(url: &str) -> Result<Builder> {
    // A file or a secret often ends with a new line.
    let url = url.trim();
    let (front, query) = match url.split_once('?') {
        Some((front, query)) => (front, query),
        None => (url, ""),
    };
    let Some((scheme, rest)) = front.split_once("://") else {
        return Err(wrong(
            "it has no scheme; it begins with redis://, for example",
        ));
    };
    let (topology, is_tls) = topology(scheme).ok_or_else(|| wrong(SCHEMES))?;
    let (protocol, settings) = split_query(query, topology, &set_in_front(topology, rest))?;
    let builder = match topology {
        Topology::Single | Topology::Socket => {
            let url = match protocol {
                None => front.to_owned(),
                Some(protocol) => format!("{front}?{protocol}"),
            };
            Server::parse(&url)?;
            Builder::new(Servers::Single(url))
        }
        _ => several(topology, is_tls, rest)?,
    };
    set_all(builder, &settings)
}

const FRAGMENT: &str =
    "it has a fragment, which begins with #; a # in a login or a parameter is %23";

const SCHEMES: &str = "its scheme is none of redis, redis+unix, redis+sentinel, redis+cluster and redis+quorum; for TLS all \
                       but redis+unix begin with rediss";

/// Returns the topology that a scheme names, and whether its servers have TLS.
fn topology(scheme: &str) -> Option<(Topology, bool)> {
    let scheme = scheme.to_ascii_lowercase();
    let (server, kind) = match scheme.split_once('+') {
        Some((server, kind)) => (server, Some(kind)),
        None => (&*scheme, None),
    };
    let is_tls = match server {
        "redis" | "valkey" => false,
        "rediss" | "valkeys" => true,
        "unix" if kind.is_none() => return Some((Topology::Socket, false)),
        _ => return None,
    };
    let topology = match kind {
        None => Topology::Single,
        Some("unix") if !is_tls => Topology::Socket,
        Some("sentinel") => Topology::Sentinel,
        Some("cluster") => Topology::Cluster,
        Some("quorum") => Topology::Quorum,
        Some(_) => return None,
    };
    Some((topology, is_tls))
}

/// A parameter: its place, the name of its setting, and its value, decoded.
type Given<'u> = (usize, Cow<'u, str>, Cow<'u, str>);

/// Returns the settings that a URL has in front of its parameters: a login and a database.
fn set_in_front(topology: Topology, rest: &str) -> Vec<&'static str> {
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, database) = match topology {
        Topology::Socket => return Vec::new(),
        // The login in front is that of the servers behind them, which no parameter sets.
        Topology::Sentinel => (
            "",
            path.split_once('/').map_or("", |(_, database)| database),
        ),
        _ => (
            authority.rsplit_once('@').map_or("", |(login, _)| login),
            path,
        ),
    };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let all = [
        ("username", user),
        ("password", password),
        ("database", database),
    ];
    let set = all.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(name, _)| name).collect()
}

/// Returns the name of the setting that a parameter sets. Returns `None` if a URL of this topology does not have it.
fn setting_of(parameter: Cow<'_, str>, topology: Topology) -> Option<Cow<'_, str>> {
    Some(match (&*parameter, topology) {
        ("db", Topology::Socket) => "database".into(),
        ("user", Topology::Socket) | ("sentinel_user", Topology::Sentinel) => "username".into(),
        ("pass", Topology::Socket) | ("sentinel_pass", Topology::Sentinel) => "password".into(),
        ("username" | "password", Topology::Sentinel) => return None,
        _ => parameter,
    })
}

/// Splits the parameters into the `protocol` of a single server, as it stands in the URL, and all others. `in_front` are the
/// settings that the URL has already.
fn split_query<'u>(
    query: &'u str,
    topology: Topology,
    in_front: &[&str],
) -> Result<(Option<&'u str>, Vec<Given<'u>>)> {
    if query.contains('#') {
        return Err(wrong(FRAGMENT));
    }
    let (mut protocol, mut settings) = (None, Vec::<Given<'_>>::new());
    let pieces = query.split('&').filter(|piece| !piece.is_empty());
    for (place, piece) in (1..).zip(pieces) {
        let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
        let [name, value] = [name, value].map(|text| percent_decode_str(text).decode_utf8());
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(wrong(format!("parameter {place} is not UTF-8")));
        };
        let is_single = matches!(topology, Topology::Single | Topology::Socket);
        let is_protocol = is_single && name == "protocol";
        let name = setting_of(name, topology).ok_or_else(|| {
            let reason = "the login of the sentinels is `sentinel_user` and `sentinel_pass`, and that of the servers stands \
                          in front of the hosts";
            wrong(format!("parameter {place} is not for sentinels; {reason}"))
        })?;
        let is_set = |what: &str| {
            let mut before = settings.iter().map(|(_, set, _)| &**set);
            in_front.contains(&what) || before.any(|set| set == what)
        };
        let instead = match (&*name, topology) {
            // They are passwords of different servers.
            (_, Topology::Sentinel) => "",
            ("password", _) => "password_file",
            ("password_file", _) => "password",
            _ => "",
        };
        if is_set(&name) || is_set(instead) || (is_protocol && protocol.is_some()) {
            return Err(wrong(format!("parameter {place} sets what is set already")));
        }
        if is_protocol {
            protocol = Some(piece);
        } else {
            settings.push((place, name, value));
        }
    }
    Ok((protocol, settings))
}

/// Sets all parameters.
fn set_all(mut builder: Builder, given: &[Given<'_>]) -> Result<Builder> {
    let (tls, settings): (Vec<_>, Vec<_>) = given
        .iter()
        .partition(|(_, name, _)| TLS_PARAMETERS.contains(&&**name));
    for (place, name, value) in settings {
        let Some(setting) = SETTINGS.iter().find(|known| known.name == name) else {
            return Err(unknown(*place, name, given));
        };
        let set = setting.value.set(builder, value);
        builder = set.ok_or_else(|| wrong(format!("`{name}` is not {}", setting.value.what())))?;
    }
    if tls.is_empty() {
        return Ok(builder);
    }
    #[cfg(not(feature = "tls"))]
    {
        let reason =
            "`cacert`, `cert` and `key` need `features = [\"tls\"]` of leasehold in Cargo.toml";
        Err(wrong(reason))
    }
    #[cfg(feature = "tls")]
    {
        let file = |name| {
            let found = tls.iter().find(|(_, other, _)| other == name);
            found.map(|(_, _, value)| &**value)
        };
        let mut tls = Tls::default();
        if let Some(roots) = file("cacert") {
            tls = tls.roots_file(roots);
        }
        tls = match (file("cert"), file("key")) {
            (Some(cert), Some(key)) => tls.client_files(cert, key),
            (None, None) => tls,
            _ => return Err(wrong("`cert` and `key` go together")),
        };
        Ok(builder.tls(tls))
    }
}

/// Returns the error about a parameter that is not in the tables, with its name and the nearest known one.
///
/// A piece of a password that is not percent-encoded may look like a parameter, behind a `?` or `&` in it. Then an `@` or
/// the password's parameter stands there too, and the name is left out.
fn unknown(place: usize, name: &str, given: &[Given<'_>]) -> Error {
    const OTHERS: [&str; 6] = [
        "protocol",
        "sentinel_user",
        "sentinel_pass",
        "db",
        "user",
        "pass",
    ];
    let mut known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
    known.sort_unstable();
    known.extend(TLS_PARAMETERS);
    let is_of_a_password = |(_, name, value): &Given<'_>| {
        name.contains("pass") || name.contains('@') || value.contains('@')
    };
    let called = if name.len() > 40 || given.iter().any(is_of_a_password) {
        String::new()
    } else {
        let nearest = known.iter().min_by_key(|known| distance(name, known));
        let nearest = nearest.filter(|known| distance(name, known) * 2 <= name.len());
        let nearest = nearest.map_or(String::new(), |known| format!(" (is it `{known}`?)"));
        format!(", `{}`{nearest},", name.escape_debug())
    };
    known.extend(OTHERS);
    let names = known.join(", ");
    wrong(format!(
        "parameter {place}{called} is unknown; the parameters are {names}"
    ))
}

/// Returns how many bytes must be added, removed or replaced to make one word the other.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, a) in one.bytes().enumerate() {
        let mut corner = mem::replace(&mut row[0], above + 1);
        for (left, b) in other.bytes().enumerate() {
            let replaced = corner + usize::from(a != b);
            corner = row[left + 1];
            row[left + 1] = replaced.min(row[left] + 1).min(corner + 1);
        }
    }
    row[other.len()]
}

/// Reads what follows the scheme of a URL with several hosts.
fn several(topology: Topology, is_tls: bool, rest: &str) -> Result<Builder> {
    if rest.contains('#') {
        return Err(wrong(FRAGMENT));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    if login.is_some_and(|login| login.contains(['@', ','])) {
        let reason = "it has more than one login; all hosts share one in front of the first host, where , is %2C and @ is %40";
        return Err(wrong(reason));
    }
    let scheme = if is_tls { "rediss" } else { "redis" };
    let is_sentinel = topology == Topology::Sentinel;
    if is_sentinel && path.contains('@') {
        return Err(wrong(
            "it has an @ behind the hosts; in a login, / is %2F, and in a master's name, @ is %40",
        ));
    }
    let login_of_hosts = login.filter(|_| !is_sentinel);
    let path_of_hosts = if is_sentinel { "" } else { path };
    let mut urls = Vec::new();
    for (place, host) in (1..).zip(hosts.split(',')) {
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.is_empty() && !port.contains(']'));
        let port = if is_sentinel && !has_port {
            SENTINEL_PORT
        } else {
            ""
        };
        let (at, login) = login_of_hosts.map_or(("", ""), |login| ("@", login));
        let url = format!("{scheme}://{login}{at}{host}{port}/{path_of_hosts}");
        if let Err(error) = Server::parse(&url) {
            return Err(match error {
                Error::Config {
                    option: "url",
                    reason,
                } => {
                    // The rest of the reason says how the URL of a single server is written.
                    let reason = reason.split("; write").next().unwrap_or_default();
                    wrong(format!("host {place}: {reason}"))
                }
                other => other,
            });
        }
        urls.push(url);
    }
    match topology {
        Topology::Cluster => Ok(Builder::new(Servers::Cluster(urls))),
        Topology::Quorum => {
            let nodes = urls.into_iter().map(Into::into).collect();
            Ok(Builder::new(Servers::Quorum(nodes)))
        }
        _ => behind_sentinels(urls, login, path),
    }
}

/// Reads the path and the login of a URL of sentinels: both are those of the servers behind them.
fn behind_sentinels(urls: Vec<String>, login: Option<&str>, path: &str) -> Result<Builder> {
    let (master, database) = match path.split_once('/') {
        Some((master, database)) => (master, Some(database)),
        None => (path, None),
    };
    let decoded = |text: &str, what: &str| {
        let text = percent_decode_str(text).decode_utf8();
        let text = text.map_err(|_| wrong(format!("its {what} is not UTF-8")))?;
        Ok::<_, Error>(text.into_owned())
    };
    let master = decoded(master, "master's name")?;
    if master.is_empty() {
        return Err(wrong(
            "it names no master, which stands behind the hosts: /mymaster",
        ));
    }
    let mut builder = Builder::new(Servers::Sentinel(urls, master));
    if let Some(database) = database.filter(|database| !database.is_empty()) {
        let number = database.parse().ok().filter(|number| *number >= 0);
        let number =
            number.ok_or_else(|| wrong("its database, behind the master, is not a number"))?;
        builder = builder.database(number);
    }
    if let Some(login) = login.filter(|login| !matches!(*login, "" | ":")) {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (user, password) = (decoded(user, "user")?, decoded(password, "password")?);
        let user = (!user.is_empty()).then_some(&*user);
        builder = builder.node_credentials(user, &password);
    }
    Ok(builder)
}

fn wrong(reason: impl Into<Box<str>>) -> Error {
    Error::config("url", reason)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::builder::settings::Setting;
    use crate::config::Secret;

    /// Returns the servers of a URL in words, and its builder.
    fn servers(url: &str) -> (String, Builder) {
        let builder = read(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let words = match &builder.servers {
            Servers::Single(url) => format!("single {url}"),
            Servers::Sentinel(urls, master) => format!("sentinel {} {master}", urls.join(" ")),
            Servers::Cluster(urls) => format!("cluster {}", urls.join(" ")),
            Servers::Quorum(nodes) => {
                let url = |servers: &Servers| match servers {
                    Servers::Single(url) => url.clone(),
                    _ => panic!("{url}"),
                };
                let urls: Vec<_> = nodes.iter().map(|node| url(&node.servers)).collect();
                format!("quorum {}", urls.join(" "))
            }
        };
        (words, builder)
    }

    #[test]
    fn a_url_names_the_servers_of_each_topology() {
        for (url, expected) in [
            ("redis://h", "single redis://h"),
            (
                "VALKEY://u:p@h:1/3?protocol=3&lease=10s",
                "single VALKEY://u:p@h:1/3?protocol=3",
            ),
            (
                " unix:///run/r.sock?db=2&lease=10s&protocol=3&pass=a%26b\n",
                "single unix:///run/r.sock?protocol=3",
            ),
            (
                "redis+unix:///run/r.sock",
                "single redis+unix:///run/r.sock",
            ),
            (
                "redis+sentinel://s1:1,[::1],s3/m%2Fx",
                "sentinel redis://s1:1/ redis://[::1]:26379/ redis://s3:26379/ m/x",
            ),
            (
                "redis+cluster://u:p%2C@n1:1,n2",
                "cluster redis://u:p%2C@n1:1/ redis://u:p%2C@n2/",
            ),
            (
                "valkey+quorum://n1,[fe80::1]:7/2",
                "quorum redis://n1/2 redis://[fe80::1]:7/2",
            ),
            ("redis+quorum://n1", "quorum redis://n1/"),
        ] {
            assert_eq!(servers(url).0, expected);
        }
    }

    #[test]
    fn the_login_of_a_sentinel_url_is_that_of_the_servers() {
        let url = "redis+sentinel://me:a%40b@s1,s2/m/4?sentinel_user=they&sentinel_pass=s%2F";
        let settings = servers(url).1.settings;
        let (user, Secret(password)) = settings.node_credentials.expect("a login");
        assert_eq!((user.as_deref(), &*password), (Some("me"), "a@b"));
        assert_eq!(settings.username.as_deref(), Some("they"));
        let Secret(of_sentinels) = settings.password.expect("a password");
        assert_eq!((&*of_sentinels, settings.database), ("s/", Some(4)));
        let settings = servers("redis+sentinel://:p@s1/m").1.settings;
        let (user, _) = settings.node_credentials.expect("a login");
        assert_eq!(user, None);
        assert_eq!(settings.username, None);
        // A template whose variables are empty.
        for url in ["redis+sentinel://:@s1/m", "redis+sentinel://@s1/m"] {
            assert!(servers(url).1.settings.node_credentials.is_none());
        }
    }

    #[test]
    fn a_plus_is_a_plus_and_a_new_line_at_the_end_is_none() {
        let settings = servers("unix:///s?pass=a+b&user=me&db=2").1.settings;
        let Secret(password) = settings.password.expect("a password");
        assert_eq!((&*password, settings.database), ("a+b", Some(2)));
        assert_eq!(settings.username.as_deref(), Some("me"));
        let settings = servers("redis://h/?prefix=billing:\n").1.settings;
        assert_eq!(settings.prefix, "billing:");
    }

    /// Each parameter changes the settings, and one that the builder refuses has another name.
    #[test]
    fn each_parameter_sets_something() {
        let shown = |builder: &Builder| format!("{:?}", builder.settings);
        let before = shown(&servers("redis://h").1);
        for Setting { name, value, .. } in SETTINGS {
            let values = match value.what() {
                "true or false" => ["true", "false"],
                "a number" => ["3", "4"],
                "a text" => ["a%20b", "c"],
                _ => ["123ms", "7s"],
            };
            let changed = values.iter().any(|value| {
                let url = format!("redis://h/?{name}={value}");
                shown(&servers(&url).1) != before
            });
            assert!(changed, "{name} sets nothing");
            if value.what() != "a text" {
                let error = read(&format!("redis://h/?{name}=s3cret")).expect_err(name);
                let expected = format!("invalid `url`: `{name}` is not {}", value.what());
                assert_eq!(error.to_string(), expected);
            }
        }
        let all = "redis://h/?lease=90s&max_hold=5m&prefix=billing:&fencing=false&pool_size=20";
        let settings = servers(all).1.settings;
        assert_eq!(settings.options.lease, Duration::from_secs(90));
        assert_eq!(settings.options.max_hold, Some(Duration::from_secs(300)));
        assert_eq!((&*settings.prefix, settings.pool_size), ("billing:", 20));
        assert!(!settings.options.fencing);
    }

    #[test]
    fn an_error_says_what_is_wrong_where_and_repeats_nothing() {
        for (url, expected) in [
            ("", "it has no scheme"),
            ("s3cret", "it has no scheme"),
            ("http://s3cret", "its scheme is none of redis"),
            ("rediss+unix:///s3cret", "its scheme is none of redis"),
            ("unix+sentinel://s3cret/m", "its scheme is none of redis"),
            ("redis+s3cret://h", "its scheme is none of redis"),
            ("redis://s3cret:x@h:y", "its port is not a number"),
            (
                "redis://h/?lease=1s&&lease=2s",
                "parameter 2 sets what is set already",
            ),
            ("redis://h/?label=%ff", "parameter 1 is not UTF-8"),
            ("redis://h/?sentinel_pass=s3cret", "parameter 1 is unknown"),
            (
                "redis+sentinel://s1/m?password=s3cret",
                "parameter 1 is not for sentinels",
            ),
            (
                "redis://:p@h/?password=s3cret",
                "parameter 1 sets what is set already",
            ),
            (
                "redis+quorum://u@a,b/?username=s3cret",
                "parameter 1 sets what is set already",
            ),
            (
                "redis://h/3?database=4",
                "parameter 1 sets what is set already",
            ),
            (
                "redis+sentinel://s1/m/3?database=4",
                "parameter 1 sets what is set already",
            ),
            (
                "redis://:p@h/?password_file=s3cret",
                "parameter 1 sets what is set already",
            ),
            (
                "unix:///s?password_file=a&pass=s3cret",
                "parameter 2 sets what is set already",
            ),
            (
                "unix:///s?pass=a&password=s3cret",
                "parameter 2 sets what is set already",
            ),
            (
                "redis://h/?protocol=2&protocol=3",
                "parameter 2 sets what is set already",
            ),
            ("redis://h/?prefix=a#s3cret", "it has a fragment"),
            (
                "redis+sentinel://u/s3cret@s1/m",
                "it has an @ behind the hosts",
            ),
            ("redis+sentinel://s1:/m", "host 1: "),
            (
                "redis://h/?pool_size=4294967296",
                "`pool_size` is not a number",
            ),
            ("redis+cluster://", "host 1: missing hostname"),
            ("redis+cluster://n1,,n3", "host 2: missing hostname"),
            (
                "redis+quorum://n1,s3cret:x",
                "host 2: its port is not a number",
            ),
            (
                "redis+quorum://n1,n2/s3cret",
                "host 1: invalid database number",
            ),
            (
                "redis+quorum://u:s3cret@n1,u:s3cret@n2",
                "it has more than one login",
            ),
            ("redis+cluster://n1,n2#s3cret", "it has a fragment"),
            ("redis+sentinel://s1,s2", "it names no master"),
            ("redis+sentinel://s1,s2/", "it names no master"),
            (
                "redis+sentinel://s1/m/s3cret",
                "its database, behind the master, is not a number",
            ),
            (
                "redis+sentinel://s1/m/-1",
                "its database, behind the master, is not a number",
            ),
            ("redis+sentinel://u:%ff@s1/m", "its password is not UTF-8"),
        ] {
            is_refused(url, expected);
        }
    }

    #[track_caller]
    fn is_refused(url: &str, expected: &str) {
        let error = read(url).expect_err(url);
        let text = format!("{error} {error:?}");
        assert!(
            text.starts_with(&format!("invalid `url`: {expected}")),
            "{url}: {text}"
        );
        assert!(!text.contains("s3cret"), "{text}");
    }

    #[test]
    fn an_unknown_parameter_is_named_unless_it_may_be_of_a_password() {
        for (url, expected) in [
            ("redis://h/?db=1", "parameter 1, `db`, is unknown"),
            (
                "redis://h/?lease=1s&ttl=1",
                "parameter 2, `ttl`, is unknown; the parameters are background_release, ",
            ),
            (
                "redis://h/?leese=1s&prefix=s3cret",
                "parameter 1, `leese` (is it `lease`?), is unknown; the parameters are ",
            ),
            (
                "redis://h/?timeout=1s",
                "parameter 1, `timeout` (is it `io_timeout`?), is unknown",
            ),
            (
                "redis://h/?max-hold=1s",
                "parameter 1, `max-hold` (is it `max_hold`?), is unknown",
            ),
            (
                "redis://h/?a%0a=",
                "parameter 1, `a\\n`, is unknown; the parameters are ",
            ),
            // Pieces of a password that is not encoded.
            (
                "redis://h/?lease=1s&password=s3&s3cret",
                "parameter 3 is unknown; the parameters are ",
            ),
            (
                "redis://u:6379?s3cret&s3cret@h/",
                "parameter 1 is unknown; the parameters are ",
            ),
            (
                "redis+cluster://u:6379?s3cret=&x@h/",
                "parameter 1 is unknown; the parameters are ",
            ),
        ] {
            is_refused(url, expected);
        }
    }

    #[test]
    #[cfg(not(feature = "tls"))]
    fn without_the_feature_the_files_of_tls_are_refused() {
        let error = read("redis://h/?cacert=s3cret").expect_err("there is no TLS");
        let text = error.to_string();
        assert!(
            text.contains("features = [\"tls\"]") && !text.contains("s3cret"),
            "{text}"
        );
    }
}
