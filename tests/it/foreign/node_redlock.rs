//! node-redlock, run by `tests/node_redlock/client.js`. `LEASEHOLD_NODE_REDLOCK` names a directory with the packages of
//! that program. `.ci/run` installs them and runs these tests with them.

use std::env;
use std::process::Command;
use std::time::Duration;

use super::program::{Program, urls};
use super::{Foreign, each, each_on_a_quorum};
use crate::support::Raw;

/// Names a directory `node_modules` that has node-redlock.
const PACKAGES: &str = "LEASEHOLD_NODE_REDLOCK";
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/node_redlock/client.js");

struct NodeRedlock(Program);

impl Foreign for NodeRedlock {
    fn new(redis: &Raw, name: &str) -> Self {
        let Some(packages) = env::var_os(PACKAGES).filter(|packages| !packages.is_empty()) else {
            panic!("{PACKAGES} does not say where node-redlock is; see .ci/run");
        };
        let mut client = Command::new("node");
        client.args([CLIENT, &urls(redis), name]);
        Self(Program::start(client.env("NODE_PATH", packages)))
    }

    fn try_acquire(&mut self, ttl: Option<Duration>) -> bool {
        let ttl = ttl.expect("its locks all have one");
        self.0.ask_with("acquire", Some(ttl))
    }

    fn extend(&mut self, ttl: Duration) -> bool {
        self.0.ask_with("extend", Some(ttl))
    }

    fn release(&mut self) -> bool {
        self.0.ask("release")
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs node and the packages of tests/node_redlock: .ci/run installs them"]
            fn $behaviour() {
                use crate::foreign;
                foreign::$servers(foreign::$behaviour::<foreign::node_redlock::NodeRedlock>);
            }
        )+
    };
}

each!(tests);
each_on_a_quorum!(tests);
