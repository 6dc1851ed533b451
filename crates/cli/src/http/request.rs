//! Reading a request head, strictly: what two programs could read in two ways is refused (RFC 9112 section
//! 11.2, request smuggling), not guessed at.

/// How much of a request head is accepted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest request line, in bytes; beyond it 414.
    pub line: usize,
    /// Longest head, in bytes, request line included; beyond it 431.
    pub head: usize,
    /// Most header fields; beyond it 431.
    pub fields: usize,
}

impl Limits {
    /// What the daemon takes: all that a proxy may have let through, and what it adds.
    pub const BACKEND: Limits = Limits { line: 64 << 10, head: 96 << 10, fields: SLOTS };
    /// The most that a proxy may be told to let through.
    pub const MOST: Limits = Limits { line: 64 << 10, head: 64 << 10, fields: SLOTS - 8 };
}

impl Default for Limits {
    fn default() -> Self {
        Limits { line: 8 << 10, head: 16 << 10, fields: 64 }
    }
}

/// Fields that there is room for while a head is read.
const SLOTS: usize = 96;

/// Bodies of GET and HEAD have no meaning; up to this they are read and dropped, beyond it refused.
const MAX_IGNORED_BODY: u64 = 64 << 10;

/// Methods that this program answers; all others are 405 (known ones) or 501.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD: the head of the answer to GET, without its body.
    Head,
}

/// A request that is well-formed and that this program can answer. Borrows from the bytes it was read from.
#[derive(Clone, Debug)]
pub struct Request<'b> {
    /// GET or HEAD.
    pub method: Method,
    /// Path and query as sent, beginning with `/`; an absolute-form target has lost its authority.
    pub target: &'b str,
    /// An absolute-form target with the scheme `https`: to be answered over TLS only.
    pub https: bool,
    /// The authority of an absolute-form target, which outranks Host (RFC 9112 section 3.2.2).
    pub authority: Option<&'b str>,
    /// The minor version: 0 or 1.
    pub minor: u8,
    /// Header fields in the order sent.
    pub fields: Vec<(&'b str, &'b [u8])>,
    /// Bytes of body that follow the head.
    pub body: u64,
    /// Whether the client wants the connection kept after the answer.
    pub keep: bool,
    /// The client waits for `100 Continue` before it sends its body.
    pub expects: bool,
}

/// Why a head was refused, as the status to answer with. The connection ends after it: where the next
/// request begins is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status code.
    pub status: u16,
    /// What to do differently, for the body of the answer.
    pub why: &'static str,
}

fn refuse<T>(status: u16, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { status, why })
}

impl<'b> Request<'b> {
    /// The value of the only field called `name`; None when absent.
    pub fn field(&self, name: &str) -> Option<&'b [u8]> {
        self.fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| *v)
    }

    /// The same as text; a value that is not ASCII text counts as absent.
    pub fn text(&self, name: &str) -> Option<&'b str> {
        self.field(name).and_then(|v| std::str::from_utf8(v).ok()).map(str::trim)
    }

    /// All values of the fields called `name` as one comma-separated list (RFC 9110 section 5.3).
    pub fn list(&self, name: &str) -> Option<String> {
        list(&self.fields, name)
    }

    /// Why a well-formed request is refused all the same: it has more of a body than is worth dropping, or waits to be
    /// told to send one, or asks over a connection that is not `secure` for what is secret (RFC 9110 section 7.4).
    pub fn unwanted(&self, secure: bool) -> Option<Refusal> {
        if self.https && !secure {
            return Some(Refusal { status: 400, why: "what https:// names is not given out in plain text" });
        }
        if self.body > MAX_IGNORED_BODY {
            return Some(Refusal { status: 413, why: "GET and HEAD need no body" });
        }
        self.expects.then_some(Refusal { status: 417, why: "no expectations are met here" })
    }

    /// Reads the head at the start of `buf`: `Ok(None)` when more bytes are needed, otherwise the request and
    /// the length of its head.
    pub fn parse(buf: &'b [u8], limits: Limits) -> Result<Option<(Request<'b>, usize)>, Refusal> {
        let mut slots = [httparse::EMPTY_HEADER; SLOTS];
        let mut raw = httparse::Request::new(&mut slots);
        let status = raw.parse(buf);
        // The line's length is judged first, so that a long line is 414 whatever else is wrong with it.
        let start = buf.iter().position(|b| *b != b'\r' && *b != b'\n').unwrap_or(buf.len());
        let line = buf[start..].iter().position(|b| *b == b'\n').unwrap_or(buf.len() - start);
        if line > limits.line {
            return refuse(414, "the request line is too long: shorten path and query");
        }
        let length = match status {
            Ok(httparse::Status::Complete(length))
                if length <= limits.head && raw.headers.len() <= limits.fields =>
            {
                length
            }
            Ok(httparse::Status::Partial) if buf.len() <= limits.head => return Ok(None),
            Ok(_) | Err(httparse::Error::TooManyHeaders) => {
                return refuse(431, "the request head is too large: send fewer or shorter header fields");
            }
            Err(httparse::Error::Version) => {
                return refuse(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
            }
            Err(_) => return refuse(400, "the request head is not well-formed HTTP/1.1"),
        };
        // A line may end in LF alone (RFC 9112 section 2.2), but who stands in front of us may take it for part of a value.
        let head = &buf[start..length];
        if head.iter().zip(&head[1..]).any(|(before, byte)| *byte == b'\n' && *before != b'\r') {
            return refuse(400, "a line of the head ends in LF without CR");
        }
        let (Some(method), Some(target), Some(minor)) = (raw.method, raw.path, raw.version) else {
            return refuse(400, "the request line is not complete");
        };
        let fields: Vec<_> = raw.headers.iter().map(|h| (h.name, h.value)).collect();
        let body = body_length(&fields, minor)?;
        hosts(&fields, minor)?;
        let keep = keeps(&fields, minor);
        let method = match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            "POST" | "PUT" | "DELETE" | "PATCH" | "OPTIONS" | "TRACE" | "CONNECT" => {
                return refuse(405, "only GET and HEAD are answered here");
            }
            _ => return refuse(501, "this method is not known here: use GET or HEAD"),
        };
        // From HTTP/1.0 an expectation MUST be ignored (RFC 9110 section 10.1.1).
        let expects = minor == 1 && list(&fields, "expect").is_some();
        let Target { https, authority, target } = split(target)?;
        let request = Request { method, target, https, authority, minor, fields, body, keep, expects };
        Ok(Some((request, length)))
    }
}

fn list(fields: &[(&str, &[u8])], name: &str) -> Option<String> {
    let mut out: Option<String> = None;
    for (_, value) in fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)) {
        let value = String::from_utf8_lossy(value);
        match &mut out {
            Some(out) => {
                out.push(',');
                out.push_str(value.trim());
            }
            None => out = Some(value.trim().to_owned()),
        }
    }
    out
}

/// RFC 9112 section 6.3. Two lengths, a list of lengths, a sign, or a length beside a transfer coding are how
/// requests are smuggled: all refused, even where the RFC would let them pass.
fn body_length(fields: &[(&str, &[u8])], minor: u8) -> Result<u64, Refusal> {
    let mut length = None;
    for (name, value) in fields {
        if name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return refuse(400, "Content-Length is given twice");
            }
            let digits = value.trim_ascii();
            if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
                return refuse(400, "Content-Length is not a plain decimal number");
            }
            length = Some(digits.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0')));
        }
    }
    if let Some(coding) = list(fields, "transfer-encoding") {
        if length.is_some() {
            return refuse(400, "Content-Length and Transfer-Encoding exclude each other");
        }
        if minor == 0 {
            return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
        }
        if coding.eq_ignore_ascii_case("chunked") {
            return refuse(411, "chunked request bodies are not taken: GET and HEAD need no body");
        }
        return refuse(501, "this Transfer-Encoding is not known here");
    }
    Ok(length.unwrap_or(0))
}

/// RFC 9112 section 3.2: exactly one Host in HTTP/1.1, with nothing in it that could not be a host.
fn hosts(fields: &[(&str, &[u8])], minor: u8) -> Result<(), Refusal> {
    let mut hosts = fields.iter().filter(|(n, _)| n.eq_ignore_ascii_case("host"));
    match (hosts.next(), hosts.next()) {
        (None, _) if minor == 1 => refuse(400, "HTTP/1.1 needs a Host field"),
        (_, Some(_)) => refuse(400, "Host is given twice"),
        (Some((_, value)), None) if !value.is_empty() && !is_authority(value) => {
            refuse(400, "Host is not a host name")
        }
        _ => Ok(()),
    }
}

/// Whether it is a host and perhaps a port (RFC 3986 section 3.2, without user information): the same for Host and for the
/// target that replaces it, since what one lets pass the other must not have to. A comma, which a list of hosts would have,
/// is left out although a registered name could have it.
fn is_authority(text: &[u8]) -> bool {
    let (host, port) = match text {
        [b'[', rest @ ..] => match rest.iter().position(|b| *b == b']') {
            // An address of version 6, or of one to come: its digits are for who connects there to read.
            Some(end @ 1..)
                if rest[..end].iter().all(|b| b.is_ascii_alphanumeric() || b":.-_~".contains(b)) =>
            {
                (None, &rest[end + 1..])
            }
            _ => return false,
        },
        _ => {
            let end = text.iter().position(|b| *b == b':').unwrap_or(text.len());
            (Some(&text[..end]), &text[end..])
        }
    };
    let named = |b: &u8| b.is_ascii_alphanumeric() || b"-._~%!$&'()*+;=".contains(b);
    let host = host.is_none_or(|host| !host.is_empty() && host.iter().all(named));
    host && match port {
        [] => true,
        [b':', digits @ ..] => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn keeps(fields: &[(&str, &[u8])], minor: u8) -> bool {
    let options = list(fields, "connection").unwrap_or_default();
    let has = |option: &str| options.split(',').any(|o| o.trim().eq_ignore_ascii_case(option));
    !has("close") && (minor == 1 || has("keep-alive"))
}

struct Target<'b> {
    https: bool,
    authority: Option<&'b str>,
    target: &'b str,
}

/// The authority, if any, and the path and query of an origin-form or absolute-form target (RFC 9112 section 3.2).
fn split(target: &str) -> Result<Target<'_>, Refusal> {
    if target.starts_with('/') {
        return Ok(Target { https: false, authority: None, target });
    }
    let why = "the request target must be a path or an http:// or https:// URL";
    let after = |scheme: &str| {
        let is = target.get(..scheme.len()).is_some_and(|s| s.eq_ignore_ascii_case(scheme));
        is.then(|| &target[scheme.len()..])
    };
    let (https, rest) = match (after("http://"), after("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return refuse(400, why),
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    match path {
        _ if !is_authority(authority.as_bytes()) => refuse(400, why),
        "" => Ok(Target { https, authority: Some(authority), target: "/" }),
        target if target.starts_with('/') => Ok(Target { https, authority: Some(authority), target }),
        _ => refuse(400, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Option<(Request<'_>, usize)>, Refusal> {
        Request::parse(text.as_bytes(), Limits::default())
    }

    fn status(text: &str) -> u16 {
        match parse(text) {
            Ok(Some(_)) => 200,
            Ok(None) => 0,
            Err(refusal) => refusal.status,
        }
    }

    #[test]
    fn an_ordinary_request() {
        let text = "GET /a?b HTTP/1.1\r\nHost: x\r\nRange: bytes=0-\r\n\r\nGET /next";
        let (request, length) = parse(text).unwrap().unwrap();
        assert_eq!((request.method, request.target, request.keep), (Method::Get, "/a?b", true));
        assert_eq!(&text[length..], "GET /next");
        assert_eq!(request.text("range"), Some("bytes=0-"));
    }

    #[test]
    fn half_a_head_needs_more() {
        assert_eq!(status("GET / HTTP/1.1\r\nHost: x\r\n"), 0);
        assert_eq!(status(""), 0);
    }

    #[test]
    fn what_smuggles_is_refused() {
        let with = |fields: &str| status(&format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n"));
        assert_eq!(with("Content-Length: 3\r\nContent-Length: 3"), 400);
        assert_eq!(with("Content-Length: 3\r\nContent-Length: 4"), 400);
        assert_eq!(with("Content-Length: 3, 3"), 400);
        assert_eq!(with("Content-Length: +3"), 400);
        assert_eq!(with("Content-Length: -1"), 400);
        assert_eq!(with("Content-Length: 0x3"), 400);
        assert_eq!(with("Content-Length:"), 400);
        assert_eq!(with("Content-Length: 99999999999999999999"), 400);
        assert_eq!(with("Content-Length: 3\r\nTransfer-Encoding: chunked"), 400);
        assert_eq!(with("Transfer-Encoding: chunked\r\nContent-Length: 3"), 400);
        assert_eq!(with("Transfer-Encoding: chunked"), 411);
        assert_eq!(with("Transfer-Encoding: xchunked"), 501);
        assert_eq!(with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"), 501);
        assert_eq!(with("Transfer-Encoding : chunked"), 400);
        assert_eq!(with("A: b\r\n folded: yes"), 400);
        assert_eq!(with("Host: y"), 400);
        assert_eq!(with("A: b\rC: d"), 400);
        assert_eq!(with("A: b\nC: d"), 400);
        assert_eq!(with("A: b\n"), 400);
        assert_eq!(with("A: b\r\n\nGET / HTTP/1.1\r\nHost: x"), 400);
        assert_eq!(status("GET / HTTP/1.1\nHost: x\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: x\n\n"), 400);
        assert_eq!(status("\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
        assert_eq!(with("A: b\0"), 400);
        assert_eq!(with("Content-Length: 7"), 200);
    }

    #[test]
    fn lines_versions_and_methods() {
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), 200);
        assert_eq!(status("GET  / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(status("GET a HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(status("GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
        assert_eq!(status("GET http://x HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
        assert_eq!(status("GET ftp://x/ HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        let text = "GET HTTPS://x/a HTTP/1.1\r\nHost: y\r\n\r\n";
        let (request, _) = parse(text).unwrap().unwrap();
        assert_eq!((request.authority, request.target), (Some("x"), "/a"));
        assert_eq!((request.unwanted(true), request.unwanted(false).map(|r| r.status)), (None, Some(400)));
        assert_eq!(status("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
        assert_eq!(status("POST / HTTP/1.1\r\nHost: x\r\n\r\n"), 405);
        assert_eq!(status("BREW / HTTP/1.1\r\nHost: x\r\n\r\n"), 501);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400);
        assert_eq!(status("\x16\x03\x01\x02"), 400);
    }

    /// What names a host is checked alike in both places.
    #[test]
    fn hosts_in_two_places() {
        let field = |host: &str| status(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let target = |host: &str| status(&format!("GET http://{host}/ HTTP/1.1\r\nHost: x\r\n\r\n"));
        for good in [
            "x",
            "a.b-c_d~e",
            "x:80",
            "x:",
            "127.0.0.1:8080",
            "[::1]",
            "[::1]:80",
            "[v1.x]",
            "%41",
            "a!$&'()*+;=",
        ] {
            assert_eq!((field(good), target(good)), (200, 200), "{good}");
        }
        let bad = [
            "x,y", "x@y", "x:y", "x:80:80", "x:123456", ":80", "[", "[]", "[::1", "[::1]x", "[::1]:x", "::1",
            "x\\y", "x\"y", "x<y", "x|y", "x^y", "x`y", "x{y}", "é",
        ];
        for bad in bad {
            assert_eq!((field(bad), target(bad)), (400, 400), "{bad}");
        }
        assert_eq!((field(""), target("")), (200, 400), "nothing is a Host that says nothing");
        assert_eq!(status("GET http:// HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
        assert_eq!(status("GET http://?q HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
    }

    #[test]
    fn expectations() {
        let expects = |minor| {
            let text = format!("GET / HTTP/1.{minor}\r\nHost: x\r\nExpect: 100-continue\r\n\r\n");
            parse(&text).unwrap().unwrap().0.expects
        };
        assert!(expects(1) && !expects(0));
    }

    #[test]
    fn limits() {
        let long = "a".repeat(9 << 10);
        assert_eq!(status(&format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n")), 414);
        assert_eq!(status(&format!("GET /{long}")), 414);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {long}{long}\r\n\r\n")), 431);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {long}{long}")), 431);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", "A: b\r\n".repeat(64))), 431);
    }

    #[test]
    fn keeping_the_connection() {
        let keep = |text: &str| parse(text).unwrap().unwrap().0.keep;
        assert!(keep("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
        assert!(!keep("GET / HTTP/1.1\r\nHost: x\r\nConnection: a, Close\r\n\r\n"));
        assert!(!keep("GET / HTTP/1.0\r\n\r\n"));
        assert!(keep("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
    }

    proptest! {
        /// No bytes make the parser panic, and what it takes lies within what it was given.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
            if let Ok(Some((request, length))) = Request::parse(&bytes, Limits::default()) {
                prop_assert!(length <= bytes.len());
                prop_assert!(request.target.starts_with('/'));
            }
        }

        /// Pieces of real requests in any order: a prefix never answers differently than "more, please" or
        /// what the whole answers, so that a slow client and a fast one are served alike.
        #[test]
        fn any_split(
            parts in prop::collection::vec(prop::sample::select(vec![
                "GET ", "/", "a", " HTTP/1.1", "\r\n", "\n", "Host: x", "Content-Length: 1", "Transfer-Encoding: ",
                "chunked", ",", " ", "\t", ":", "Connection: close", "\r", "%", "\0", "é",
            ]), 0..24),
            cut in 0usize..256,
        ) {
            let text: String = parts.concat();
            let text = format!("GET / HTTP/1.1\r\n{text}\r\n\r\n");
            let whole = Request::parse(text.as_bytes(), Limits::default());
            let cut = cut.min(text.len());
            let part = Request::parse(&text.as_bytes()[..cut], Limits::default());
            match (part, whole) {
                (Ok(None), _) => {}
                (Ok(Some((_, a))), Ok(Some((_, b)))) => prop_assert_eq!(a, b),
                (Err(_), Err(_)) => {}
                (part, whole) => prop_assert!(false, "{part:?} then {whole:?}"),
            }
        }
    }
}
