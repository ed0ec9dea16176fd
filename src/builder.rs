//! The builder of a manager. Its methods stand in four modules: the way to the servers, the settings of guards, those
//! that divide a lock among threads and processes, and all others.

pub use servers::Endpoint;
pub use settings::Builder;

mod guards;
mod servers;
mod settings;
mod topology;
mod turns;
mod url;
