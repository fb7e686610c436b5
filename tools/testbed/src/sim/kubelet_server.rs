//! HTTPS server of a simulated kubelet, with the logs of containers. It presents the serving certificate that the cluster has issued, and accepts
//! clients whose certificate is signed by an authority in kubelet's file of client authorities on the host. The file is read again for each connection.

use std::{net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use api::host::path;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::machine::Machine;
use crate::pki::server_config;

/// Port of kubelet.
const PORT: u16 = 10250;
/// Maximum length of a request.
const MAX_REQUEST: usize = 16 << 10;
/// Maximum time for a request and its response.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves at this address until dropped.
pub(super) async fn serve(machine: &Arc<Machine>, address: IpAddr) {
    let listener = loop {
        match TcpListener::bind((address, PORT)).await {
            Ok(listener) => break listener,
            // The previous kubelet may still hold the port.
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let machine = machine.clone();
        tokio::spawn(async move {
            if let Ok(Err(error)) = timeout(PATIENCE, answer(&machine, stream)).await {
                let host = machine.parts().name.as_str();
                tracing::warn!(host, error = format!("{error:#}"), "a simulated kubelet does not answer");
            }
        });
    }
}

async fn answer(machine: &Machine, stream: TcpStream) -> Result<()> {
    let mut stream = TlsAcceptor::from(Arc::new(config(machine)?)).accept(stream).await?;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        ensure!(request.len() < MAX_REQUEST, "the request is too long");
        ensure!(stream.read_buf(&mut request).await? > 0, "the request is cut off");
    }
    let line = String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned();
    let target = line.strip_prefix("GET ").and_then(|l| l.split([' ', '?']).next()).unwrap_or_default();
    let (status, body) = match target.strip_prefix("/containerLogs/") {
        Some(container) => ("200 OK", format!("{} runs {container}\n", machine.parts().name)),
        None => ("404 Not Found", String::new()),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

fn config(machine: &Machine) -> Result<ServerConfig> {
    let pem = machine.windows().serving_certificate().context("there is no serving certificate")?;
    server_config(&pem, &pem, Some(&super::drive::read(machine.drive(), path::KUBELET_CA)?))
}
