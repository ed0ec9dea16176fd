//! node-redlock, run by `tests/node_redlock/client.js`. `LEASEHOLD_NODE_REDLOCK` names a directory with the packages of
//! that program. `.ci/long` installs them and runs these tests with them.

use std::env;
use std::process::Command;

use super::program::{Client, urls};
use super::{each, each_on_a_quorum};
use crate::support::Raw;

/// Names a directory `node_modules` that has node-redlock.
const PACKAGES: &str = "LEASEHOLD_NODE_REDLOCK";
const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../node_redlock/client.js");

pub(super) struct NodeRedlock;

impl Client for NodeRedlock {
    fn command(redis: &Raw, name: &str) -> Command {
        let Some(packages) = env::var_os(PACKAGES).filter(|packages| !packages.is_empty()) else {
            panic!("{PACKAGES} does not say where node-redlock is; see .ci/long");
        };
        let mut client = Command::new("node");
        client.args([CLIENT, &urls(redis), name]);
        client.env("NODE_PATH", packages);
        client
    }
}

macro_rules! tests {
    ($servers:ident: $($behaviour:ident)+) => {
        $(
            #[test]
            #[ignore = "it needs node and the packages of tests/node_redlock: .ci/long installs them"]
            fn $behaviour() {
                use crate::foreign;
                foreign::$servers(
                    foreign::$behaviour::<foreign::Program<foreign::node_redlock::NodeRedlock>>,
                );
            }
        )+
    };
}

each!(tests);
each_on_a_quorum!(tests);
