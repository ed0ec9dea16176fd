//! The cores of the client and the server.
//!
//! A request and its reply take 2.3 times as long between two cores as on one, and the system moves threads as it
//! likes. So both ends are bound, in the same way for both sides of a row.
//!
//! A server on its own core resembles a server on another machine: the client can work while it waits, and each
//! message takes time.

use std::str::FromStr;

use crate::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The server on the last core, everything else on the other cores.
    #[default]
    Apart,
    /// Everything on the last core.
    Together,
    Free,
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "apart" => Ok(Self::Apart),
            "together" => Ok(Self::Together),
            "free" => Ok(Self::Free),
            _ => Err("it is apart, together or free".to_owned()),
        }
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    Server,
}

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::{End, Placement};
    use crate::Result;

    /// The cores that this process may use.
    pub struct Cores {
        all: Vec<usize>,
        placement: Placement,
    }

    impl Cores {
        pub fn new(placement: Placement) -> Result<Self> {
            let mine = sched_getaffinity(None)?;
            let all: Vec<_> = (0..CpuSet::MAX_CPU)
                .filter(|&core| mine.is_set(core))
                .collect();
            // With a single core, both ends share it.
            let placement = match placement {
                Placement::Apart if all.len() < 2 => Placement::Together,
                placement => placement,
            };
            Ok(Self { all, placement })
        }

        /// Binds this thread, and all threads and processes that it starts from now on.
        pub fn bind(&self, end: End) -> Result<()> {
            let mut set = CpuSet::new();
            for &core in self.of(end) {
                set.set(core);
            }
            Ok(sched_setaffinity(None, &set)?)
        }

        fn of(&self, end: End) -> &[usize] {
            let last = self.all.len() - 1;
            match (self.placement, end) {
                (Placement::Apart, End::Client) => &self.all[..last],
                (Placement::Apart, End::Server) | (Placement::Together, _) => &self.all[last..],
                (Placement::Free, _) => &self.all,
            }
        }

        /// Returns a description for a reader of the figures.
        pub fn describe(&self) -> String {
            let (client, server) = (self.of(End::Client), self.of(End::Server));
            format!("server on cores {server:?}, clients on {client:?}")
        }
    }
}

/// Other systems cannot bind threads to cores, or do so by another call.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::{End, Placement};
    use crate::Result;

    pub struct Cores;

    impl Cores {
        pub fn new(_: Placement) -> Result<Self> {
            Ok(Self)
        }

        pub fn bind(&self, _: End) -> Result<()> {
            Ok(())
        }

        pub fn describe(&self) -> String {
            "bound to no cores on this system".to_owned()
        }
    }
}

pub use system::Cores;

impl Cores {
    /// Starts servers on their cores. Binds this thread to the clients' cores afterwards.
    pub fn start<T>(&self, servers: impl FnOnce() -> Result<T>) -> Result<T> {
        self.bind(End::Server)?;
        let servers = servers();
        self.bind(End::Client)?;
        servers
    }
}
