//! Two halves of a network, which a test may cut from each other: two namespaces of the system's network, by `ip netns`.
//!
//! | link | addresses | use |
//! | --- | --- | --- |
//! | between the halves | `….1` and `….2` | servers and children; [`Network::cut`] cuts it |
//! | from each half to the test | `….5` and `….6`, `….9` and `….10` | the test asks the servers |

use std::hash::{BuildHasher, RandomState};
use std::process::{self, Command};

/// Two halves. Dropping it removes them.
pub struct Network {
    pub halves: [Namespace; 2],
}

/// One half of a network.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
    /// The address for the other half.
    pub address: String,
    /// The address for the test.
    pub own_address: String,
}

impl Network {
    /// Makes two connected halves. Returns the reason if the machine does not allow it.
    pub fn new() -> Result<Self, String> {
        let chance = RandomState::new().hash_one(0u8).to_le_bytes();
        let prefix = format!("10.{}.{}", chance[0], chance[1]);
        let half = |number: u8| Namespace {
            name: format!("lh-it-{}-{}-{number}", process::id(), chance[2]),
            address: format!("{prefix}.{}", 1 + number),
            own_address: format!("{prefix}.{}", 6 + 4 * number),
        };
        // From here on a failure removes what was made.
        let network = Self {
            halves: [half(0), half(1)],
        };
        for half in &network.halves {
            ip(&format!("netns add {}", half.name))?;
            ip(&format!("-n {} link set lo up", half.name))?;
        }
        let [one, other] = &network.halves;
        let (a, b) = (&one.name, &other.name);
        ip(&format!(
            "-n {a} link add half type veth peer name half netns {b}"
        ))?;
        for (number, half) in network.halves.iter().enumerate() {
            let name = &half.name;
            let here = format!("lh{}{}{number}", process::id() % 100_000, chance[2]);
            let gateway = format!("{prefix}.{}", 5 + 4 * number);
            ip(&format!("-n {name} addr add {}/30 dev half", half.address))?;
            ip(&format!("-n {name} link set half up"))?;
            ip(&format!(
                "link add {here} type veth peer name test netns {name}"
            ))?;
            ip(&format!("addr add {gateway}/30 dev {here}"))?;
            ip(&format!("link set {here} up"))?;
            ip(&format!(
                "-n {name} addr add {}/30 dev test",
                half.own_address
            ))?;
            ip(&format!("-n {name} link set test up"))?;
        }
        Ok(network)
    }

    /// Cuts the halves from each other: packets are lost.
    pub fn cut(&self) {
        self.set_link("down");
    }

    pub fn heal(&self) {
        self.set_link("up");
    }

    fn set_link(&self, state: &str) {
        for half in &self.halves {
            ip(&format!("-n {} link set half {state}", half.name)).expect("the link is there");
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for half in &self.halves {
            ip(&format!("netns del {}", half.name)).ok();
        }
    }
}

impl Namespace {
    /// Returns the words that run the command after them in this half.
    pub fn command(&self) -> [&str; 4] {
        ["ip", "netns", "exec", &self.name]
    }
}

/// Runs `ip` with these arguments. Returns what it says if it fails.
fn ip(arguments: &str) -> Result<(), String> {
    let run = Command::new("ip").args(arguments.split(' ')).output();
    let run = run.map_err(|error| format!("ip: {error}"))?;
    if run.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&run.stderr);
    Err(format!("ip {arguments}: {}", said.trim()))
}
