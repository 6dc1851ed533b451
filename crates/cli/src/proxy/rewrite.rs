//! Heads on their way through the proxy: built anew from what was understood, so that nothing that was not
//! understood gets past (RFC 9110 section 7.6.1, RFC 9112 section 11.2).

use crate::http::request::{Method, Request};
use crate::http::response::reason;
use std::io::Write;
use std::net::IpAddr;

/// Fields that belong to one connection, or that this proxy writes itself.
const HOP: [&str; 13] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "content-length",
    "expect",
    "host",
    "http2-settings",
];

/// Whether a field stays on its own connection: the known ones, those that `Connection` names, and every
/// `Onecopy-` field, which only this proxy may say to the daemon.
fn stays(name: &str, nominated: &str) -> bool {
    HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop))
        || name.get(..8).is_some_and(|prefix| prefix.eq_ignore_ascii_case("onecopy-"))
        || nominated.split(',').any(|n| n.trim().eq_ignore_ascii_case(name))
}

/// How a request came, and what is to be said of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// From there.
    pub client: IpAddr,
    /// Over TLS.
    pub secure: bool,
    /// Who will read the body, for the daemon.
    pub reader: &'a str,
    /// The body may be lent.
    pub lent: bool,
}

/// Writes the request head for the backend.
pub fn request(out: &mut Vec<u8>, request: &Request<'_>, asked: Asked<'_>) {
    let Asked { client, secure, reader, lent } = asked;
    let method = match request.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
    };
    out.clear();
    // Writing to a Vec cannot fail, here and below.
    let _ = write!(out, "{method} {} HTTP/1.1\r\nHost: ", request.target);
    let host = request.authority.map(str::as_bytes).or_else(|| request.field("host")).unwrap_or(b"localhost");
    out.extend_from_slice(host);
    let nominated = request.list("connection").unwrap_or_default();
    for (name, value) in &request.fields {
        // Each is said again below: of the one this proxy adds to what it was told, the other it knows itself.
        let told =
            ["x-forwarded-for", "x-forwarded-proto"].iter().any(|told| name.eq_ignore_ascii_case(told));
        if !told && !stays(name, &nominated) {
            out.extend_from_slice(b"\r\n");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value);
        }
    }
    let before = request.list("x-forwarded-for").map(|list| list + ", ").unwrap_or_default();
    let _ = write!(
        out,
        "\r\nX-Forwarded-For: {before}{client}\r\nX-Forwarded-Proto: {}\r\nVia: 1.{} onecopy\r\nOnecopy-Reader: \
         {reader}{}\r\n\r\n",
        if secure { "https" } else { "http" },
        request.minor,
        if lent { "\r\nOnecopy-Takes: lent" } else { "" }
    );
}

/// What the proxy has to know of a backend's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Bytes of body that follow.
    pub body: u64,
    /// Whether the backend keeps the connection.
    pub keep: bool,
    /// Length of the head as the backend sent it.
    pub head: usize,
    /// The body does not follow: it lies here in memory whose descriptor came with the head.
    pub lent: Option<u64>,
    /// For how long what is lent may be used again, in milliseconds.
    pub fresh: u64,
    /// When the file that is lent was last changed, as the backend saw it: seconds and nanoseconds.
    pub changed: Option<(u64, u64)>,
}

/// How the connection to the client goes on, in words of its own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    /// It asked with HEAD: no body follows whatever the head says.
    pub head: bool,
    /// It is to be kept.
    pub keep: bool,
    /// Its minor version.
    pub minor: u8,
}

/// Reads a backend's head from `raw` and writes it for the client. `Ok(None)`: more bytes are needed. An
/// interim answer (1xx) is skipped by its `head` length and written nowhere. `Err` says why it is a 502.
pub fn reply(raw: &[u8], client: Client, out: &mut Vec<u8>) -> Result<Option<Reply>, &'static str> {
    let mut slots = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Response::new(&mut slots);
    let head = match parsed.parse(raw) {
        Ok(httparse::Status::Complete(head)) => head,
        Ok(httparse::Status::Partial) if raw.len() < MOST => return Ok(None),
        Ok(httparse::Status::Partial) => return Err("the backend's head is too large"),
        Err(_) => return Err("the backend does not speak HTTP/1.1"),
    };
    let status = parsed.code.unwrap_or_default();
    out.clear();
    if (100..200).contains(&status) {
        return match status {
            101 => Err("the backend switched protocols unasked"),
            _ => Ok(Some(Reply { status, body: 0, keep: true, head, lent: None, fresh: 0, changed: None })),
        };
    }
    if !(200..600).contains(&status) {
        return Err("the backend's status is outside 100 to 599");
    }
    let phrase = parsed.reason.filter(|r| !r.is_empty()).unwrap_or_else(|| reason(status));
    let _ = write!(out, "HTTP/1.1 {status} {phrase}\r\n");
    let (mut length, mut lent, mut fresh, mut changed) = (None, None, 0, None);
    let mut nominated = String::new();
    let mut keep = parsed.version == Some(1);
    for field in parsed.headers.iter().filter(|f| f.name.eq_ignore_ascii_case("connection")) {
        nominated += &String::from_utf8_lossy(field.value);
        nominated.push(',');
    }
    for option in nominated.split(',').map(str::trim) {
        keep = (keep || option.eq_ignore_ascii_case("keep-alive")) && !option.eq_ignore_ascii_case("close");
    }
    for field in parsed.headers.iter() {
        if field.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err("the backend sent a Transfer-Encoding; only Content-Length bodies are passed on");
        }
        if field.name.eq_ignore_ascii_case("content-length") {
            let said = number(field.value);
            if said.is_none() || length.is_some_and(|l| Some(l) != said) {
                return Err("the backend's Content-Length makes no sense");
            }
            length = said;
        } else if field.name.eq_ignore_ascii_case("onecopy-lent") {
            lent = number(field.value);
            if lent.is_none() {
                return Err("the backend lent a body from a place that makes no sense (Onecopy-Lent)");
            }
        } else if field.name.eq_ignore_ascii_case("onecopy-fresh") {
            fresh = number(field.value).ok_or("the backend's Onecopy-Fresh makes no sense")?;
        } else if field.name.eq_ignore_ascii_case("onecopy-changed") {
            let mut numbers = field.value.splitn(2, |byte| *byte == b'.').map(number);
            let both = numbers.next().flatten().zip(numbers.next().flatten());
            changed = Some(both.ok_or("the backend's Onecopy-Changed makes no sense")?);
        } else if !stays(field.name, &nominated) {
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(field.value);
            out.extend_from_slice(b"\r\n");
        }
    }
    let bodiless = client.head || status == 204 || status == 304;
    let body = match length {
        _ if bodiless => 0,
        Some(length) => length,
        None => return Err("the backend did not say how long its answer is"),
    };
    if let Some(length) = length.filter(|_| status != 204) {
        let _ = write!(out, "Content-Length: {length}\r\n");
    }
    match (client.keep, client.minor) {
        (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
        (true, 0) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (true, _) => {}
    }
    out.extend_from_slice(b"\r\n");
    Ok(Some(Reply { status, body, keep, head, lent, fresh, changed }))
}

/// A field's value that is a number and nothing else. As in a request it has at most 18 digits: no file is longer, and sums of
/// a few such numbers do not overflow.
pub fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let plain = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    plain.then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
}

/// Longest head that is taken from a backend.
pub const MOST: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::Limits;
    use proptest::prelude::*;

    const CLIENT: Client = Client { head: false, keep: true, minor: 1 };

    fn forwarded(text: &str) -> String {
        let (parsed, _) = Request::parse(text.as_bytes(), Limits::default()).unwrap().unwrap();
        let mut out = Vec::new();
        let client = [127, 0, 0, 1].into();
        request(&mut out, &parsed, Asked { client, secure: false, reader: "other-core", lent: false });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn hop_by_hop_fields_stay() {
        let out = forwarded(
            "GET /a HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, X-Secret\r\nX-Secret: 1\r\nTE: trailers\r\nUpgrade: \
             h2c\r\nOnecopy-Reader: no-cpu\r\nonecopy-anything: 1\r\nKeep-Alive: 5\r\nContent-Length: 3\r\nAccept: \
             */*\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: https\r\n\r\n",
        );
        assert_eq!(
            out,
            "GET /a HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nX-Forwarded-For: 10.0.0.1, 127.0.0.1\r\nX-Forwarded-Proto: \
             http\r\nVia: 1.1 onecopy\r\nOnecopy-Reader: other-core\r\n\r\n"
        );
        assert!(
            forwarded("GET http://y/b HTTP/1.1\r\nHost: x\r\n\r\n")
                .starts_with("GET /b HTTP/1.1\r\nHost: y\r\n")
        );
        // Nominating Host does not remove it.
        assert!(
            forwarded("GET / HTTP/1.1\r\nHost: x\r\nConnection: host\r\n\r\n").contains("\r\nHost: x\r\n")
        );
    }

    fn read(text: &str, client: Client) -> Result<Option<(Reply, String)>, &'static str> {
        let mut out = Vec::new();
        let reply = reply(text.as_bytes(), client, &mut out)?;
        Ok(reply.map(|reply| (reply, String::from_utf8(out).unwrap())))
    }

    #[test]
    fn answers() {
        let text = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: X\r\nX: 1\r\nY: 2\r\nOnecopy-Z: 3\r\n\r\nabc";
        let (reply, out) = read(text, CLIENT).unwrap().unwrap();
        assert_eq!(
            reply,
            Reply {
                status: 200,
                body: 3,
                keep: true,
                head: text.len() - 3,
                lent: None,
                fresh: 0,
                changed: None
            }
        );
        assert_eq!(out, "HTTP/1.1 200 OK\r\nY: 2\r\nContent-Length: 3\r\n\r\n");
        let (reply, out) = read(text, Client { head: true, keep: false, minor: 1 }).unwrap().unwrap();
        assert_eq!(reply.body, 0);
        assert!(out.ends_with("Content-Length: 3\r\nConnection: close\r\n\r\n"));
        let (_, out) = read(text, Client { minor: 0, ..CLIENT }).unwrap().unwrap();
        assert!(out.ends_with("Connection: keep-alive\r\n\r\n"));
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-", CLIENT).unwrap(), None);
        let lent = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nonecopy-lent: 4096\r\nOnecopy-Fresh: 70\r\nOnecopy-Changed: \
                    7.000000123\r\n\r\n";
        let (reply, out) = read(lent, CLIENT).unwrap().unwrap();
        assert_eq!((reply.body, reply.lent, reply.fresh, reply.changed), (9, Some(4096), 70, Some((7, 123))));
        assert!(!out.to_lowercase().contains("onecopy"), "it is between the proxy and its backend");
        assert_eq!(read("HTTP/1.1 304 Not Modified\r\n\r\n", CLIENT).unwrap().unwrap().0.body, 0);
        assert!(!read("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", CLIENT).unwrap().unwrap().0.keep);
        assert_eq!(read("HTTP/1.1 100 Continue\r\n\r\n", CLIENT).unwrap().unwrap().0.status, 100);
        for bad in [
            "nonsense\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 999 OK\r\nContent-Length: 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 18446744073709551615\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Lent: 18446744073709551615\r\n\r\n",
            "HTTP/1.1 101 Up\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Lent: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Lent: \r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Fresh: soon\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Changed: 7\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nOnecopy-Changed: 7.\r\n\r\n",
        ] {
            assert!(read(bad, CLIENT).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_answer(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
            let mut text = b"HTTP/1.1 200 OK\r\n".to_vec();
            text.extend(bytes);
            let _ = reply(&text, CLIENT, &mut Vec::new());
        }
    }
}
