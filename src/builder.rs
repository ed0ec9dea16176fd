//! The builder of a manager. Its methods stand in two modules: the way to the servers, and the settings.

pub use servers::Endpoint;
pub use settings::Builder;
pub use url::parse_time;

mod servers;
mod settings;
mod topology;
mod url;
