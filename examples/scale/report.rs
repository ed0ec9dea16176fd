//! The result of a run.

// The number of leases is far below the largest integer of an `f64`.
#![allow(clippy::cast_precision_loss)]

use serde_json::{Value, json};

pub struct Report {
    pub leases: usize,
    pub seconds: f64,
    pub taken_per_second: f64,
    /// A percentage of one core.
    pub client_cpu_percent: f64,
    /// A percentage of one core, of all masters together.
    pub server_cpu_percent: f64,
    /// The bytes of this process's memory.
    pub memory_per_lease: usize,
    pub memory: usize,
    /// The bytes of the masters' memory, with that of their connections.
    pub server_memory_per_lease: u64,
    pub commands_per_second: f64,
    /// The CPU time of this process for an acquire and a release.
    pub client_us_per_pair: f64,
    /// The CPU time of the masters for the same.
    pub server_us_per_pair: f64,
    pub commands_per_pair: f64,
    pub masters: usize,
    pub connections: u64,
    pub lost: usize,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.lost == 0
    }

    pub fn shown(&self, json: bool) -> String {
        if json {
            self.json().to_string()
        } else {
            self.table()
        }
    }

    fn json(&self) -> Value {
        json!({
            "leases": self.leases,
            "seconds": self.seconds,
            "taken_per_second": self.taken_per_second,
            "client_cpu_percent": self.client_cpu_percent,
            "server_cpu_percent": self.server_cpu_percent,
            "memory_per_lease": self.memory_per_lease,
            "memory": self.memory,
            "server_memory_per_lease": self.server_memory_per_lease,
            "commands_per_second": self.commands_per_second,
            "client_us_per_pair": self.client_us_per_pair,
            "server_us_per_pair": self.server_us_per_pair,
            "commands_per_pair": self.commands_per_pair,
            "masters": self.masters,
            "connections": self.connections,
            "lost": self.lost,
        })
    }

    fn table(&self) -> String {
        let leases = self.leases as f64;
        format!(
            "leases            {:>12}
taken             {:>12.0} a second
held for          {:>12.1} s
client CPU        {:>12.2} % of a core, {:.3} for each 1,000 leases
server CPU        {:>12.2} % of a core
client memory     {:>12} bytes a lease, {} MiB in all
server memory     {:>12} bytes a lease
server commands   {:>12.0} a second, with those in scripts
client CPU        {:>12.1} µs for an acquire and a release
server CPU        {:>12.1} µs for the same, {:.2} commands
connections       {:>12} to {} masters
lost              {:>12}",
            self.leases,
            self.taken_per_second,
            self.seconds,
            self.client_cpu_percent,
            self.client_cpu_percent * 1000.0 / leases,
            self.server_cpu_percent,
            self.memory_per_lease,
            self.memory >> 20,
            self.server_memory_per_lease,
            self.commands_per_second,
            self.client_us_per_pair,
            self.server_us_per_pair,
            self.commands_per_pair,
            self.connections,
            self.masters,
            self.lost,
        )
    }
}
