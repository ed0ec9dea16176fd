//! Which cores the two ends run on.
//!
//! One pair of requests takes 2.3 times as long with the server on another core as on the same one, and the system
//! moves threads as it likes. So both ends are bound, the same for both sides of a row. A server of its own core is
//! what a server elsewhere is like: what a client does while it waits for nothing is its own time, and the way to the
//! server costs something.

use std::str::FromStr;

use crate::Result;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// The server on the last core, all else on the others.
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

/// One end of a connection.
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

    /// The cores that this process may use at all.
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
            // Of a single core there is no other.
            let placement = match placement {
                Placement::Apart if all.len() < 2 => Placement::Together,
                placement => placement,
            };
            Ok(Self { all, placement })
        }

        /// Binds this thread, and with it all threads and processes that it starts from now on.
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

        /// In words, for whoever reads the figures.
        pub fn describe(&self) -> String {
            let (client, server) = (self.of(End::Client), self.of(End::Server));
            format!("server on cores {server:?}, clients on {client:?}")
        }
    }
}

/// Other systems do not bind, or not by the same call.
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
