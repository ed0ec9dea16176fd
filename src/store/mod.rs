//! The connections to Redis, and the calls on them.
//!
//! A *node* is one logical Redis that runs one script atomically. The layers above use it only through the trait
//! [`Store`]. So a store of several nodes, or of a test, can replace it. On a cluster the keys of one script must share a
//! slot ([`Store::has_slots`]). Every other node holds all keys, whatever their slots.
//!
//! Each folder uses only the folders below it in this table, `api` and `deadline`.
//!
//! | folder | its subject |
//! | --- | --- |
//! | [`topology`] | the stores: one server, a Sentinel set, a cluster, a quorum |
//! | [`server`] | one server: connecting, the pool, error answers |
//! | [`transport`] | bytes and replies, each with a time limit |
//!
//! `api` has the trait [`Store`], and the answers to requests. `deadline` has the time of a call.

mod api;
mod deadline;
pub(crate) mod server;
pub(crate) mod topology;
pub(crate) mod transport;

pub(crate) use api::{Answer, DedicatedConnection, NodeReport, Pinged, PubSubEvent, Store};
pub(crate) use deadline::{Deadline, LEAST, Phase};
