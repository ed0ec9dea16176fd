//! The client with a minimal HTTP, and the values in a scrape.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::Result;

/// Returns the text of a page, if its status is 200.
pub fn get(address: SocketAddr, page: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "GET /{page} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, text)) if head.starts_with("HTTP/1.1 200 ") => Ok(text.to_owned()),
        _ => Err(answer.into()),
    }
}

/// Returns the sum of a metric whose values are whole over all series that have these words among their labels. 0 if there is none.
pub fn value(scraped: &str, metric: &str, words: &[&str]) -> u64 {
    let series = scraped.lines().filter_map(|line| line.rsplit_once(' '));
    let matching = series.filter(|(series, _)| {
        let labels = series.strip_prefix(metric).unwrap_or("-");
        (labels.is_empty() || labels.starts_with('{')) && words.iter().all(|it| labels.contains(it))
    });
    matching
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum()
}
