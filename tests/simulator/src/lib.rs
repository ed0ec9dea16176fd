//! A deterministic simulator of leasehold: the shipped code on a machine that a seed decides.
//!
//! | module | its subject |
//! | --- | --- |
//! | [`schedule`] | a schedule: what a seed decides |
//! | [`scenario`], [`programs`] | the same as data, and its run |
//! | [`shrink`](mod@shrink) | a schedule that fails is made smaller |
//! | `world` | the time, and the threads, which pass a baton |
//! | `clock` | clocks that drift and jump |
//! | `process` | the world as one process sees it |
//! | [`processor`] | the processor on which all threads of a world run |
//! | `network` | streams of bytes, and servers |
//! | `replication` | what goes between masters and replicas |
//! | `cluster` | nodes of a cluster, and slots that move |
//! | `failover` | masters that change, and what remains of a promise meanwhile |
//! | [`faults`] | faults, and bugs that are made on purpose |
//! | `workload` | the threads that run the programs |
//! | [`checks`], `fairness`, `elections` | the rules that a schedule must keep |
//! | `registers` | the numbers that holders increase |
//! | [`history`] | what was done with each lock and each register, for the judge of `tests/judge` |
//! | `trace` | the events of a schedule |
//! | [`stage`] | the same world for the body of a test |
//! | [`record`] | the lines in `docs/evidence` |
//! | [`evidence`] | EVIDENCE.md, which is made of these lines |
//! | [`soak`] | a long run on real servers, without a virtual machine |
//!
//! `cargo run --release -p leasehold-simulator -- --help` tells how to run it.

#![allow(missing_docs, reason = "the package is for this repository alone")]

pub mod checks;
mod clock;
mod cluster;
mod elections;
pub mod evidence;
mod failover;
mod fairness;
pub mod faults;
pub mod history;
mod network;
mod process;
pub mod processor;
pub mod programs;
pub mod random;
pub mod record;
mod registers;
mod replication;
pub mod scenario;
pub mod schedule;
pub mod shrink;
pub mod soak;
pub mod stage;
mod trace;
mod workload;
mod world;

pub use leasehold_testing::memory::{Refusal, Refused};
pub use network::{LinkFault, Role};
pub use scenario::{Kept, Scenario};
pub use schedule::{Plan, Report, Topology};
pub use shrink::{Shrunk, shrink};
pub use stage::Stage;
pub use world::note_log_line;
