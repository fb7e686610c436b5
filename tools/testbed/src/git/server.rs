//! Git server over https: `git http-backend`, with responses of a test in front of it.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{
    origin::{self, isolated},
    tls::Authority,
};

/// Request of a client.
#[derive(Clone, Debug)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Response that a test gives in place of Git, or change of Git's response.
pub enum Reply {
    /// Full response: its status, additional headers and body.
    Full(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Beginning of a response, followed by nothing for as long as the client waits.
    Stall(Vec<u8>),
    /// Git's response, one byte at a time, with this pause after each byte.
    Drip(Duration),
    /// Git's response in version 0 of the protocol, whatever version the client requests.
    Old,
    /// Git's response without the capability to truncate history, in this version of the protocol.
    Whole(Protocol),
}

/// Version of Git's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Version 0.
    Older,
    /// Version that the client requests.
    Newer,
}

type Rule = dyn Fn(&Asked) -> Option<Reply> + Send + Sync;

/// Git server over https on `localhost`.
pub struct Server {
    pub authority: Authority,
    pub port: u16,
    /// All requests so far.
    pub log: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Starts a server of the repositories below `root`.
    pub fn new(root: &Path) -> Self {
        Self::with(root, false, |_| None)
    }

    /// Starts a server that requires client certificates if `clients` is true, and that replaces Git's responses where
    /// `rule` returns another one.
    pub fn with(root: &Path, clients: bool, rule: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static) -> Self {
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::<Mutex<Vec<Asked>>>::default();
        let backend = Arc::new(Backend {
            root: root.to_owned(),
            tls: authority.server(clients),
            rule: Box::new(rule),
            log: Arc::clone(&log),
        });
        // The threads end with the process. The thread of a connection ends when its client disconnects.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let backend = Arc::clone(&backend);
                thread::spawn(move || backend.serve(stream));
            }
        });
        Self { authority, port, log }
    }

    /// Returns the URL of the repository of an [`Origin`](super::origin::Origin).
    pub fn url(&self) -> String {
        self.at(origin::PATH)
    }

    /// Returns the URL of a path on the server.
    pub fn at(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.port)
    }

    /// Returns the number of requests so far.
    pub fn asked(&self) -> usize {
        self.log.lock().unwrap().len()
    }
}

struct Backend {
    root: PathBuf,
    tls: Arc<ServerConfig>,
    rule: Box<Rule>,
    log: Arc<Mutex<Vec<Asked>>>,
}

type Wire = StreamOwned<ServerConnection, TcpStream>;

impl Backend {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        let connection = ServerConnection::new(Arc::clone(&self.tls)).map_err(io::Error::other)?;
        let mut wire = BufReader::new(StreamOwned::new(connection, stream));
        let mut asked = ask(&mut wire)?;
        let wire = wire.get_mut();
        self.log.lock().unwrap().push(asked.clone());
        let reply = (self.rule)(&asked);
        match &reply {
            Some(Reply::Full(status, headers, body)) => {
                let headers: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
                let (headers, length) = (headers.concat(), body.len());
                write!(
                    wire,
                    "HTTP/1.1 {status} Said\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
                )?;
                wire.write_all(body)?;
                return end(wire);
            }
            Some(Reply::Stall(beginning)) => {
                wire.write_all(beginning)?;
                wire.flush()?;
                // Wait until the client disconnects.
                let _ = wire.read(&mut [0]);
                return Ok(());
            }
            Some(Reply::Old | Reply::Whole(Protocol::Older)) => {
                asked.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("git-protocol"));
            }
            Some(Reply::Drip(_) | Reply::Whole(Protocol::Newer)) | None => {}
        }
        let mut answer = self.git(&asked)?;
        if matches!(reply, Some(Reply::Whole(_))) && asked.method == "GET" {
            // Replace the capability by an unknown word of the same length.
            while let Some(at) = answer.windows(7).position(|word| word == b"shallow") {
                answer[at..at + 7].copy_from_slice(b"hallows");
            }
        }
        if let Some(Reply::Drip(pace)) = reply {
            for byte in answer.chunks(1) {
                wire.write_all(byte)?;
                wire.flush()?;
                thread::sleep(pace);
            }
        } else {
            wire.write_all(&answer)?;
        }
        end(wire)
    }

    fn git(&self, asked: &Asked) -> io::Result<Vec<u8>> {
        let mut command = Command::new("git");
        isolated(&mut command, &self.root);
        command
            .arg("http-backend")
            .env("GIT_PROJECT_ROOT", &self.root)
            .env("GIT_HTTP_EXPORT_ALL", "1")
            .env("REQUEST_METHOD", &asked.method)
            .env("PATH_INFO", &asked.path)
            .env("QUERY_STRING", &asked.query)
            .env("CONTENT_TYPE", asked.header("content-type").unwrap_or_default())
            .env("CONTENT_LENGTH", asked.body.len().to_string())
            .env("HTTP_GIT_PROTOCOL", asked.header("git-protocol").unwrap_or_default())
            .env("GIT_PROTOCOL", asked.header("git-protocol").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        let mut input = child.stdin.take().unwrap();
        let body = asked.body.clone();
        let feeds = thread::spawn(move || {
            let _ = input.write_all(&body);
        });
        let output = child.wait_with_output()?.stdout;
        feeds.join().unwrap();
        let cut = output.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(output.len().saturating_sub(4));
        let (head, body) = (String::from_utf8_lossy(&output[..cut]), output.get(cut + 4..).unwrap_or_default());
        let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK");
        let rest: Vec<_> = head.lines().filter(|line| !line.starts_with("Status: ")).collect();
        let rest = rest.join("\r\n");
        let length = body.len();
        let mut answer =
            format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{rest}\r\n\r\n")
                .into_bytes();
        answer.extend_from_slice(body);
        Ok(answer)
    }
}

fn end(wire: &mut Wire) -> io::Result<()> {
    wire.flush()?;
    wire.conn.send_close_notify();
    wire.conn.complete_io(&mut wire.sock).map(drop)
}

fn ask(wire: &mut BufReader<Wire>) -> io::Result<Asked> {
    let mut line = String::new();
    let mut next = |wire: &mut BufReader<Wire>| {
        line.clear();
        wire.read_line(&mut line).map(|_| line.trim_end().to_owned())
    };
    let first = next(wire)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut headers = Vec::new();
    loop {
        let header = next(wire)?;
        let Some((name, value)) = header.split_once(':') else { break };
        headers.push((name.to_owned(), value.trim().to_owned()));
    }
    let mut asked = Asked { method, path, query, headers, body: Vec::new() };
    let length = asked.header("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    asked.body = vec![0; length];
    wire.read_exact(&mut asked.body)?;
    if asked.method.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(asked) }
}
