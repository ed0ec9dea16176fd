//! The servers of a world as an operator sees them, without the crate under test.

use leasehold_simulator::Topology;
use leasehold_test_support::{Raw, Servers};
pub(crate) use leasehold_test_support::{companions_of, fence_of, leader_of, record_of};

use crate::world::World;

/// One server of a world, or all of them.
pub(crate) type Redis = Raw<ServersOf>;

#[derive(Clone)]
pub(crate) struct ServersOf {
    world: World,
    servers: Vec<usize>,
}

impl ServersOf {
    pub(crate) fn new(world: &World, servers: impl IntoIterator<Item = usize>) -> Self {
        Self {
            world: world.clone(),
            servers: servers.into_iter().collect(),
        }
    }
}

impl Servers for ServersOf {
    fn each(&self) -> Vec<Self> {
        let one = |server: &usize| Self::new(&self.world, [*server]);
        self.servers.iter().map(one).collect()
    }

    fn are_a_cluster(&self) -> bool {
        self.world.topology() == Topology::Cluster
    }

    fn send(&self, command: &[&str]) -> redis::RedisResult<redis::Value> {
        self.world.execute(self.servers[0], command)
    }

    #[track_caller]
    fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        self.world.until(what, condition);
    }
}
