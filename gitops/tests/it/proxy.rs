//! Proxy that opens tunnels for authenticated clients.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

pub(crate) struct Proxy {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) fn new(authorization: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::<AtomicUsize>::default();
        let (authorization, counter) = (authorization.to_owned(), Arc::clone(&connections));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (authorization, counter) = (authorization.clone(), Arc::clone(&counter));
                thread::spawn(move || serve(stream, &authorization, &counter));
            }
        });
        Self { port, connections }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the number of CONNECT requests with the right credentials.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(client: TcpStream, authorization: &str, counter: &AtomicUsize) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let (mut target, mut authorized, mut line) = (String::new(), false, String::new());
    while reader.read_line(&mut line)? > 2 {
        if let Some(rest) = line.strip_prefix("CONNECT ") {
            rest.split(' ').next().unwrap_or_default().clone_into(&mut target);
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("proxy-authorization")
        {
            authorized = value.trim() == authorization;
        }
        line.clear();
    }
    let mut client = client;
    if !authorized {
        return client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n");
    }
    counter.fetch_add(1, Ordering::SeqCst);
    let server = TcpStream::connect(target)?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (from, to) = (server.try_clone()?, client.try_clone()?);
    let back = thread::spawn(move || relay(from, to));
    let there = relay(client, server);
    let _ = back.join();
    there
}

fn relay(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let copied = io::copy(&mut from, &mut to).map(drop);
    let _ = to.shutdown(Shutdown::Write);
    copied
}
