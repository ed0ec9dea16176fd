//! A threaded HTTP server that locks the account of a request, and serves its metrics to Prometheus.
//!
//! `cargo run --package leasehold-metrics --example metrics`, with a Redis on this machine; `REDIS_URL` names another. The
//! example is its own client: it scrapes the metrics, and checks them. With `--serve SECONDS` it prints the address of its
//! metrics, and goes on with its requests for that time.
//!
//! `server` handles a request. `scrape` has the client, and the values of a scrape.

mod scrape;
mod server;

use std::net::TcpListener;
use std::time::{Duration, Instant};
use std::{env, error::Error, thread};

use leasehold::LockManager;
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::scrape::{get, value};
use crate::server::{BUSIEST, Server};

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The upper bounds of the histograms, in seconds. Without them, the exporter would serve quantiles, which no query can add up.
const BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0,
];
const CLIENTS: u64 = 4;
const REQUESTS: u64 = 20;

fn main() -> Result {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let serve_for = match &arguments[..] {
        [] => Duration::ZERO,
        [option, seconds] if option == "--serve" => Duration::from_secs(seconds.parse()?),
        _ => return Err("usage: metrics [--serve SECONDS]".into()),
    };
    // The recorder comes first: a manager looks for it when it is built.
    let exporter = PrometheusBuilder::new().set_buckets(&BUCKETS)?;
    let metrics = exporter.install_recorder()?;
    let url = env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let patient = LockManager::single(&url).io_timeout(Duration::from_secs(10));
    let locks = patient.metric_names([BUSIEST]).build()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = Server { locks, metrics };
    thread::spawn(move || server.run(&listener));

    println!("http://{address}/metrics");
    let until = Instant::now() + serve_for;
    loop {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                thread::spawn(move || {
                    (0..REQUESTS).try_for_each(|_| get(address, BUSIEST).map(drop))?;
                    get(address, "bob").map(drop)
                })
            })
            .collect();
        for client in clients {
            client.join().expect("it does not panic")?;
        }
        if Instant::now() >= until {
            break;
        }
    }

    let scraped = get(address, "metrics")?;
    let named = value(&scraped, "leasehold_hold_seconds_count", &[BUSIEST]);
    let others = value(&scraped, "leasehold_hold_seconds_count", &[]) - named;
    let losses = value(&scraped, "leasehold_lost_total", &[]);
    println!(
        "{named} requests locked {BUSIEST}, {others} other accounts; {losses} locks were lost."
    );
    let is_right = named >= CLIENTS * REQUESTS && named == others * REQUESTS;
    let is_right = is_right && losses == 0 && value(&scraped, "leasehold_held", &[]) == 0;
    is_right.then_some(()).ok_or_else(|| scraped.into())
}
