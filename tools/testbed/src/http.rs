//! HTTP without TLS to programs on this machine.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// Sends a request on a connection of its own, and returns the whole response. A response to HTTP/1.0 is not split into chunks.
pub(crate) async fn exchange(address: SocketAddr, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

/// Sends a request with a JSON body, and returns the status and the body of the response.
pub(crate) async fn request(address: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n");
    let response = exchange(address, &(head + body)).await?;
    let (head, body) = response.split_once("\r\n\r\n").context("the response has no body")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("the response has no status")?;
    Ok((status, body.to_owned()))
}

/// Returns the sum of a metric over all its labels, from the text of `/metrics`. `None` if there is no such metric.
pub(crate) fn metric(text: &str, name: &str) -> Option<f64> {
    let lines = text.lines().filter(|l| l.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
    let values: Vec<f64> = lines.filter_map(|l| l.rsplit(' ').next()?.parse().ok()).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}
