//! The settings, parsed and checked. No other module sees a URL, or a number that is out of bounds.

mod credentials;
mod server;
mod settings;
#[cfg(feature = "tls")]
mod tls;

pub use credentials::Credentials;
pub(crate) use credentials::Logins;
pub(crate) use server::{ClusterNodes, SentinelSet, Server};
pub(crate) use settings::{FENCE_LEAD, LONGEST_QUANTUM, Options, Secret, Settings, Terms};
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(feature = "tls")]
pub(crate) use tls::{TlsClients, provide_crypto};
