//! What an access log says of a request, and the two forms of it.

use crate::counters::Counters;
use crate::http::request::{Method, Request};
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

/// The form of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// As Apache and nginx have it, and behind that seconds, way and copies
    #[default]
    Combined,
    /// An object for each request
    Json,
}

/// What of a request may stand in a log, at most: what waits to be written is bounded in bytes, too.
const MOST: usize = 8 << 10;

/// One request that was answered, or was tried to.
#[derive(Debug)]
pub struct Entry<'r> {
    client: Option<IpAddr>,
    at: SystemTime,
    line: Line<'r>,
    referer: Option<Cow<'r, str>>,
    agent: Option<Cow<'r, str>>,
    status: Option<u16>,
    took: Duration,
    done: Counters,
}

/// The first line of a request, or what came instead.
#[derive(Debug)]
enum Line<'r> {
    Request { method: &'static str, target: &'r str, minor: u8 },
    Nonsense(Cow<'r, str>),
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Request { method, target, minor } => write!(f, "{method} {target} HTTP/1.{minor}"),
            Line::Nonsense(came) => f.write_str(came),
        }
    }
}

/// A request as it begins.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    client: Option<IpAddr>,
    at: SystemTime,
    since: Instant,
}

impl Begun {
    /// Begins now. The daemon does not know the `client` behind a proxy.
    pub fn now(client: Option<IpAddr>) -> Begun {
        Begun { client, at: SystemTime::now(), since: Instant::now() }
    }

    /// Time since then.
    pub fn took(&self) -> Duration {
        self.since.elapsed()
    }

    /// A request that was understood. No status: the answer broke off before there was one, or another program gave it.
    pub fn request<'r>(&self, request: &Request<'r>, status: Option<u16>, done: &Counters) -> Entry<'r> {
        let method = if request.method == Method::Head { "HEAD" } else { "GET" };
        let line = Line::Request { method, target: short(request.target), minor: request.minor };
        let text = |name| request.field(name).map(text);
        Entry { referer: text("referer"), agent: text("user-agent"), ..self.entry(line, status, done) }
    }

    /// What came instead of a request, its first line.
    pub fn nonsense<'r>(&self, came: &'r [u8], status: u16, done: &Counters) -> Entry<'r> {
        let line = came.trim_ascii_start().split(|b| *b == b'\n').next().unwrap_or_default();
        self.entry(Line::Nonsense(text(line.trim_ascii_end())), Some(status), done)
    }

    fn entry<'r>(&self, line: Line<'r>, status: Option<u16>, done: &Counters) -> Entry<'r> {
        let (client, at, took) = (self.client, self.at, self.took());
        Entry { client, at, line, referer: None, agent: None, status, took, done: *done }
    }
}

/// Bytes as text, what is none of it marked as such.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match String::from_utf8_lossy(&bytes[..bytes.len().min(MOST)]) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        Cow::Owned(text) => Cow::Owned(short(&text).to_owned()),
    }
}

fn short(text: &str) -> &str {
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Entry<'_> {
    /// How the body went.
    fn way(&self) -> &'static str {
        match &self.done {
            done if done.direct > 0 => "direct",
            done if done.lent_again > 0 => "lent-again",
            done if done.lent > 0 => "lent",
            done if done.body_bytes == 0 => "none",
            done if done.referenced > 0 => "referenced",
            _ => "copied",
        }
    }

    /// Whether all of it was sent.
    fn end(&self) -> &'static str {
        if self.done.broken > 0 { "broken" } else { "whole" }
    }

    /// Adds the line, with its end.
    pub fn write(&self, format: Format, clock: &mut Clock, out: &mut Vec<u8>) {
        match format {
            Format::Combined => self.combined(clock.second(self.at, format), out),
            Format::Json => self.json(clock.second(self.at, format), out),
        }
        out.push(b'\n');
    }

    fn combined(&self, second: &str, out: &mut Vec<u8>) {
        let Counters { body_bytes, user_copied, kernel_copied, referenced, .. } = self.done;
        // Nothing that is written to memory fails.
        let _ = match self.client {
            Some(client) => write!(out, "{client}"),
            None => out.write_all(b"-"),
        };
        for part in [" - - [", second, "] \""] {
            out.extend_from_slice(part.as_bytes());
        }
        match &self.line {
            Line::Request { method, target, minor } => {
                out.extend_from_slice(method.as_bytes());
                out.push(b' ');
                escape(target, out);
                out.extend_from_slice(b" HTTP/1.");
                out.push(b'0' + minor);
            }
            Line::Nonsense(came) => escape(came, out),
        }
        out.extend_from_slice(b"\" ");
        match self.status {
            Some(status) => number(status.into(), out),
            None => out.push(b'-'),
        }
        out.push(b' ');
        number(body_bytes, out);
        for field in [&self.referer, &self.agent] {
            out.extend_from_slice(b" \"");
            escape(field.as_deref().unwrap_or("-"), out);
            out.push(b'"');
        }
        let micros = (self.took.as_nanos() + 500) / 1000;
        let (seconds, micros) = (micros / 1_000_000, (micros % 1_000_000) as u64);
        out.push(b' ');
        number(u64::try_from(seconds).unwrap_or(u64::MAX), out);
        out.push(b'.');
        six_digits(micros, out);
        for part in [" ", self.way(), " ", self.end(), " user="] {
            out.extend_from_slice(part.as_bytes());
        }
        number(user_copied, out);
        out.extend_from_slice(b" kernel=");
        number(kernel_copied, out);
        out.extend_from_slice(b" referenced=");
        number(referenced, out);
    }

    fn json(&self, second: &str, out: &mut Vec<u8>) {
        let micros = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros();
        let Counters { body_bytes, user_copied, kernel_copied, referenced, lent_bytes, .. } = self.done;
        let line = Object {
            time: Shown(format_args!("{second}.{micros:06}Z")),
            client: self.client,
            request: Shown(&self.line),
            status: self.status,
            bytes: body_bytes,
            seconds: self.took.as_secs_f64(),
            way: self.way(),
            whole: self.done.broken == 0,
            user_copied,
            kernel_copied,
            referenced,
            lent_bytes,
            referer: self.referer.as_deref(),
            user_agent: self.agent.as_deref(),
        };
        // As above; and texts and numbers can all be written.
        let _ = serde_json::to_writer(out, &line);
    }
}

/// A line as JSON.
#[derive(Serialize)]
struct Object<'a, T, R> {
    time: T,
    client: Option<IpAddr>,
    request: R,
    status: Option<u16>,
    bytes: u64,
    seconds: f64,
    way: &'a str,
    whole: bool,
    user_copied: u64,
    kernel_copied: u64,
    referenced: u64,
    lent_bytes: u64,
    referer: Option<&'a str>,
    user_agent: Option<&'a str>,
}

/// A text that is made where it is written.
struct Shown<T>(T);

impl<T: fmt::Display> Serialize for Shown<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.0)
    }
}

/// A number's digits. (What fmt does for widths, signs and other bases takes longer than the digits; a line has six numbers.)
fn number(mut number: u64, out: &mut Vec<u8>) {
    let (mut digits, mut at) = ([0; 20], 20);
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// A number below a million, with noughts before it.
fn six_digits(number: u64, out: &mut Vec<u8>) {
    out.extend([100_000, 10_000, 1000, 100, 10, 1].map(|power| b'0' + (number / power % 10) as u8));
}

/// The second of the last line, as its form has it: many lines come in one.
#[derive(Debug, Default)]
pub struct Clock {
    of: Option<(u64, Format)>,
    text: String,
}

impl Clock {
    fn second(&mut self, at: SystemTime, format: Format) -> &str {
        let second = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        if self.of != Some((second, format)) {
            let at = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            let at = at.unwrap_or(Timestamp::UNIX_EPOCH);
            self.text = match format {
                Format::Combined => at.strftime("%d/%b/%Y:%H:%M:%S +0000"),
                Format::Json => at.strftime("%Y-%m-%dT%H:%M:%S"),
            }
            .to_string();
            self.of = Some((second, format));
        }
        &self.text
    }
}

/// As nginx has it: what could end the field or the line, or talk to a terminal, is a number.
fn escape(text: &str, out: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ' | 0x7f..)) {
        out.extend_from_slice(&rest[..at]);
        let _ = write!(out, "\\x{:02X}", rest[at]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun() -> Begun {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(86_400);
        Begun { at, ..Begun::now(Some("192.0.2.7".parse().unwrap())) }
    }

    fn line(entry: &Entry<'_>, format: Format) -> String {
        let mut out = Vec::new();
        entry.write(format, &mut Clock::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn combined_begins_as_everywhere() {
        let text = b"GET /a?b HTTP/1.1\r\nHost: x\r\nUser-Agent: c\"u\r\nReferer: \xff\r\n\r\n";
        let (request, _) = Request::parse(text, Default::default()).unwrap().unwrap();
        let done = Counters { body_bytes: 5, kernel_copied: 5, lent: 1, ..Default::default() };
        let entry =
            Entry { took: Duration::from_micros(1500), ..begun().request(&request, Some(200), &done) };
        assert_eq!(
            line(&entry, Format::Combined),
            "192.0.2.7 - - [02/Jan/1970:00:00:00 +0000] \"GET /a?b HTTP/1.1\" 200 5 \"\\xEF\\xBF\\xBD\" \
             \"c\\x22u\" 0.001500 lent whole user=0 kernel=5 referenced=0\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(&entry, Format::Json)).unwrap();
        assert_eq!(
            (&json["time"], &json["user_agent"]),
            (&"1970-01-02T00:00:00.000000Z".into(), &"c\"u".into())
        );
    }

    #[test]
    fn numbers_are_what_fmt_makes_of_them() {
        for n in [0, 7, 10, 99, 100, 65_536, 999_999, 1_000_000, u64::MAX] {
            let mut out = Vec::new();
            number(n, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), n.to_string());
        }
        for (nanos, seconds) in [
            (0, "0.000000"),
            (1_499, "0.000001"),
            (999_999_500, "1.000000"),
            (u64::MAX, "18446744073.709552"),
        ] {
            let entry = Entry {
                took: Duration::from_nanos(nanos),
                ..begun().nonsense(b"x", 400, &Counters::default())
            };
            assert!(line(&entry, Format::Combined).contains(&format!(" {seconds} none whole ")), "{nanos}");
        }
    }

    #[test]
    fn each_line_has_the_second_of_its_own() {
        let (mut clock, mut out) = (Clock::default(), Vec::new());
        let at = [(0, 0), (0, 999_999), (1, 0), (1, 5), (0, 0)];
        let forms = [Format::Combined, Format::Json, Format::Json, Format::Combined, Format::Json];
        for ((seconds, micros), format) in at.into_iter().zip(forms) {
            let at = SystemTime::UNIX_EPOCH + Duration::from_micros(seconds * 1_000_000 + micros);
            Begun { at, ..begun() }
                .nonsense(b"x", 400, &Counters::default())
                .write(format, &mut clock, &mut out);
        }
        let text = String::from_utf8(out).unwrap();
        let times: Vec<&str> = text
            .lines()
            .map(|line| line.split(['[', ']', '"']).find(|part| part.contains(":00:")).unwrap())
            .collect();
        assert_eq!(
            times,
            [
                "01/Jan/1970:00:00:00 +0000",
                "1970-01-01T00:00:00.999999Z",
                "1970-01-01T00:00:01.000000Z",
                "01/Jan/1970:00:00:01 +0000",
                "1970-01-01T00:00:00.000000Z",
            ]
        );
    }

    #[test]
    fn nobody_writes_lines_of_his_own() {
        let done = Counters { broken: 1, ..Default::default() };
        for came in [&b"\r\nGE\x1b[2J \"\r x\ny"[..], b"", b"\n\n", &[b'x'; 100_000]] {
            let entry = begun().nonsense(came, 400, &done);
            for format in [Format::Combined, Format::Json] {
                let line = line(&entry, format);
                assert_eq!(line.matches('\n').count(), 1, "{line}");
                assert!(!line.contains(['\x1b', '\r']) && line.len() < MOST + 1000, "{line}");
            }
        }
    }
}
