//! HTTPS transport: gix implements Git, reqwest implements HTTP. Redirects, credentials and waits are handled here.

use std::{
    any::Any,
    cell::RefCell,
    io::{self, BufRead, Cursor, Read, Write},
    rc::Rc,
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use gix::protocol::transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use zeroize::Zeroizing;

use super::{Access, AccessError, GitError, Proxy, link::Link, tls, url::origin};

/// Time limit for establishing a connection. The whole fetch has its own time limit.
const CONNECT: Duration = Duration::from_secs(20);

/// Maximum number of redirects of a request. Renamed and moved repositories redirect once or twice.
const REDIRECTS: usize = 5;

/// Connection to the server of one repository.
pub(super) struct Https<'a> {
    link: &'a Link<'a>,
    client: Client,
    authorization: Option<HeaderValue>,
    /// URL of the repository. Requests go to this server only.
    url: Url,
    /// New URL of the repository after a redirect, on the same server.
    moved: Option<String>,
    logs_in: bool,
}

impl<'a> Https<'a> {
    pub(super) fn new(link: &'a Link<'a>, url: &Url, access: &Access) -> Result<Self, GitError> {
        let builder = Client::builder()
            .tls_backend_preconfigured(tls::config(access)?)
            .connect_timeout(CONNECT)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            // Ignore proxy settings of the environment.
            .no_proxy();
        let builder = match &access.proxy {
            Some(settings) => builder.proxy(
                proxy(settings)
                    .map_err(|_| link.failed("the address of the proxy is not of the form http://host:port"))?,
            ),
            None => builder,
        };
        let client = builder.build().map_err(|error| link.failed(super::error::chain(&error)))?;
        let authorization = authorization(access)?;
        let logs_in = authorization.is_some() || access.client_certificate.is_some();
        Ok(Self { link, client, authorization, url: url.clone(), moved: None, logs_in })
    }

    fn request(&self, post: bool, url: Url, headers: HeaderMap) -> RequestBuilder {
        let request = if post { self.client.post(url) } else { self.client.get(url) }.headers(headers);
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value.clone()),
            None => request,
        }
    }

    fn send(&self, request: RequestBuilder) -> io::Result<Response> {
        let response = self.link.wait(request.send())?;
        response.map_err(|error| self.link.fail(self.connection_error(&error)))
    }

    fn connection_error(&self, error: &reqwest::Error) -> GitError {
        let host = self.link.host.clone();
        if let Some(problem) = tls::problem(error) {
            return GitError::CertificateInvalid { host, problem };
        }
        // The outermost message contains the URL.
        let source = std::error::Error::source(error).map_or_else(|| "no answer".to_owned(), super::error::chain);
        if source.contains("proxy auth") {
            return refused_by_proxy();
        }
        self.link.failed(source)
    }

    /// Returns the target of a redirect if it may be followed: it must be on the same server and end with `tail`.
    fn redirect(&self, from: &Url, tail: &str, response: &Response) -> Result<Url, GitError> {
        let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let to = location.and_then(|location| from.join(location).ok());
        let to = to.ok_or_else(|| self.link.failed("it redirects without a location"))?;
        let same = to.scheme() == "https"
            && to.host_str() == self.url.host_str()
            && to.port_or_known_default() == self.url.port_or_known_default();
        if !same {
            let to = super::error::excerpt(&format!("{}://{}", to.scheme(), origin(&to)));
            return Err(GitError::RedirectRefused { host: self.link.host.clone(), to });
        }
        if !to.as_str().ends_with(tail) || !to.username().is_empty() || to.password().is_some() {
            return Err(self.link.failed("it redirects to a URL that is not part of the repository"));
        }
        Ok(to)
    }

    fn url(&self, text: &str) -> gix::Result<Url> {
        Url::parse(text).map_err(|error| carry(self.link.fail(self.link.failed(error.to_string()))))
    }
}

impl<'a> Http for Https<'a> {
    type Headers = Headers<'a>;
    type ResponseBody = Body<'a>;
    type PostBody = PostBody<'a>;

    fn get(
        &mut self,
        url: &str,
        base: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Headers<'a>, Body<'a>>> {
        let headers = header_map(headers);
        let tail = url.strip_prefix(base).unwrap_or(url);
        let mut at = self.url(url)?;
        for _ in 0..=REDIRECTS {
            let response = self.send(self.request(false, at.clone(), headers.clone())).map_err(carry)?;
            if response.status().is_redirection() {
                at = self.redirect(&at, tail, &response).map_err(|error| carry(self.link.fail(error)))?;
                self.moved = at.as_str().strip_suffix(tail).map(ToOwned::to_owned);
                continue;
            }
            check(self.link, self.logs_in, &response).map_err(|error| carry(self.link.fail(error)))?;
            let speaks =
                response.headers().get(CONTENT_TYPE).is_some_and(|t| t.as_bytes().starts_with(b"application/x-git-"));
            if !speaks {
                let problem = "the response is not in Git's protocol";
                return Err(carry(self.link.fail(self.link.failed(problem))));
            }
            let exchange = Rc::new(Exchange::answered(self.link, self.logs_in, response));
            return Ok(GetResponse { headers: Headers::of(&exchange), body: Body::of(&exchange) });
        }
        Err(carry(self.link.fail(self.link.failed("too many redirects"))))
    }

    fn post(
        &mut self,
        url: &str,
        _base: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _kind: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Headers<'a>, Body<'a>, PostBody<'a>>> {
        let request = self.request(true, self.url(url)?, header_map(headers));
        let exchange = Rc::new(Exchange::new(self.link, self.logs_in, request));
        Ok(PostResponse {
            post_body: PostBody(Rc::clone(&exchange)),
            headers: Headers::of(&exchange),
            body: Body::of(&exchange),
        })
    }

    fn configure(&mut self, _config: &dyn Any) -> gix::Result {
        Ok(())
    }

    fn redirected_base_url(&self) -> Option<String> {
        self.moved.clone()
    }
}

/// Maps an HTTP status other than 200 to an error.
fn check(link: &Link<'_>, logs_in: bool, response: &Response) -> Result<(), GitError> {
    let host = link.host.clone();
    match response.status() {
        StatusCode::OK => Ok(()),
        // Azure DevOps answers with 203 to an expired token.
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NON_AUTHORITATIVE_INFORMATION) => {
            let problem = if logs_in {
                "it rejects the credentials of the Secret, or they may not read the repository: renew them, or allow them to read it"
            } else {
                "the pool has no credentials, and the repository is not public or does not exist: check inventory.git.url, or set \
                 inventory.git.secretRef to a Secret with username and password, or with bearerToken"
            };
            Err(GitError::AuthenticationFailed { host, problem: format!("{problem} (HTTP {})", status.as_u16()) })
        }
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => Err(refused_by_proxy()),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(GitError::RepositoryNotFound { host }),
        status => Err(link.failed(format!("it answers with HTTP {status}"))),
    }
}

fn refused_by_proxy() -> GitError {
    let problem = "check the user name and the password in the Secret of inventory.git.proxySecretRef, or without one in the operator's setting \
                   --https-proxy";
    GitError::AuthenticationFailed { host: "the proxy".to_owned(), problem: problem.to_owned() }
}

/// Wraps an I/O error for gix. The link has recorded the original error.
fn carry(error: io::Error) -> gix::Error {
    gix::Error::from_error(error)
}

fn header_map(lines: impl IntoIterator<Item = impl AsRef<str>>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines {
        let Some((name, value)) = line.as_ref().split_once(':') else { continue };
        if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.trim().parse::<HeaderValue>()) {
            map.append(name, value);
        }
    }
    map
}

fn authorization(access: &Access) -> Result<Option<HeaderValue>, GitError> {
    let (key, words) = match (&access.bearer, &access.username, &access.password) {
        (Some(token), _, _) => ("bearerToken", Zeroizing::new(format!("Bearer {}", token.as_str()))),
        (None, Some(name), Some(password)) => {
            let pair = Zeroizing::new(format!("{name}:{}", password.as_str()));
            ("password", Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes()))))
        }
        _ => return Ok(None),
    };
    let mut value = HeaderValue::from_str(&words).map_err(|_| AccessError::Unusable {
        key,
        problem: "HTTP allows only printable ASCII characters in it: correct it",
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn proxy(settings: &Proxy) -> reqwest::Result<reqwest::Proxy> {
    let proxy = reqwest::Proxy::all(&settings.address)?;
    let proxy = proxy.no_proxy(settings.except.as_deref().and_then(reqwest::NoProxy::from_string));
    Ok(match (&settings.username, &settings.password) {
        (Some(name), Some(password)) => proxy.basic_auth(name, password),
        _ => proxy,
    })
}

/// Request and its response. The request is sent when gix starts to read the response, after it has written the whole body.
pub(super) struct Exchange<'a> {
    link: &'a Link<'a>,
    logs_in: bool,
    request: RefCell<Option<RequestBuilder>>,
    written: RefCell<Vec<u8>>,
    response: RefCell<Option<Response>>,
}

impl<'a> Exchange<'a> {
    fn new(link: &'a Link<'a>, logs_in: bool, request: RequestBuilder) -> Self {
        let (written, response) = (RefCell::default(), RefCell::default());
        Self { link, logs_in, request: RefCell::new(Some(request)), written, response }
    }

    fn answered(link: &'a Link<'a>, logs_in: bool, response: Response) -> Self {
        let (request, written) = (RefCell::default(), RefCell::default());
        Self { link, logs_in, request, written, response: RefCell::new(Some(response)) }
    }

    fn send(&self) -> io::Result<()> {
        let Some(request) = self.request.take() else { return Ok(()) };
        let sent = self.link.wait(request.body(self.written.take()).send())?;
        let response = sent.map_err(|error| self.broken(&error))?;
        check(self.link, self.logs_in, &response).map_err(|error| self.link.fail(error))?;
        self.response.replace(Some(response));
        Ok(())
    }

    fn broken(&self, error: &reqwest::Error) -> io::Error {
        let words =
            std::error::Error::source(error).map_or_else(|| "the connection ended".to_owned(), super::error::chain);
        self.link.fail(self.link.failed(words))
    }
}

/// Writer for the body of a request.
pub(super) struct PostBody<'a>(Rc<Exchange<'a>>);

impl Write for PostBody<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.written.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Headers of a response, one per line. Only the content type is included: gix reads no other header.
pub(super) struct Headers<'a> {
    exchange: Rc<Exchange<'a>>,
    lines: Option<Cursor<Vec<u8>>>,
}

impl<'a> Headers<'a> {
    fn of(exchange: &Rc<Exchange<'a>>) -> Self {
        Self { exchange: Rc::clone(exchange), lines: None }
    }

    fn lines(&mut self) -> io::Result<&mut Cursor<Vec<u8>>> {
        if self.lines.is_none() {
            self.exchange.send()?;
            let mut lines = b"content-type:".to_vec();
            if let Some(response) = &*self.exchange.response.borrow() {
                lines.extend(response.headers().get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes));
            }
            lines.push(b'\n');
            self.lines = Some(Cursor::new(lines));
        }
        self.lines.as_mut().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Read for Headers<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.lines()?.read(buffer)
    }
}

impl BufRead for Headers<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.lines()?.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if let Some(lines) = &mut self.lines {
            lines.consume(amount);
        }
    }
}

/// Body of a response.
pub(super) struct Body<'a> {
    exchange: Rc<Exchange<'a>>,
    chunk: Cursor<bytes::Bytes>,
}

impl<'a> Body<'a> {
    fn of(exchange: &Rc<Exchange<'a>>) -> Self {
        Self { exchange: Rc::clone(exchange), chunk: Cursor::default() }
    }
}

impl Read for Body<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for Body<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let exchange = &self.exchange;
        while self.chunk.fill_buf()?.is_empty() {
            exchange.send()?;
            let mut response = exchange.response.borrow_mut();
            let Some(open) = response.as_mut() else { break };
            match exchange.link.wait(open.chunk())? {
                Ok(Some(chunk)) => {
                    exchange.link.count(chunk.len())?;
                    self.chunk = Cursor::new(chunk);
                }
                Ok(None) => *response = None,
                Err(error) => return Err(exchange.broken(&error)),
            }
        }
        self.chunk.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.chunk.consume(amount);
    }
}
