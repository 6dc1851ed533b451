//! What an access log says of a request, and the two forms of it.

use crate::counters::Counters;
use crate::http::request::{Method, Request};
use jiff::Timestamp;
use serde::Serialize;
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
pub struct Entry {
    client: Option<IpAddr>,
    at: SystemTime,
    line: String,
    referer: Option<String>,
    agent: Option<String>,
    status: Option<u16>,
    took: Duration,
    done: Counters,
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
    pub fn request(&self, request: &Request<'_>, status: Option<u16>, done: &Counters) -> Entry {
        let method = if request.method == Method::Head { "HEAD" } else { "GET" };
        let line = format!("{method} {} HTTP/1.{}", short(request.target), request.minor);
        let text = |name| request.field(name).map(|value| short(&String::from_utf8_lossy(value)).to_owned());
        Entry { referer: text("referer"), agent: text("user-agent"), ..self.entry(line, status, done) }
    }

    /// What came instead of a request, its first line.
    pub fn nonsense(&self, came: &[u8], status: u16, done: &Counters) -> Entry {
        let line = came.trim_ascii_start().split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(&line[..line.len().min(MOST)]);
        self.entry(line.trim_end().to_owned(), Some(status), done)
    }

    fn entry(&self, line: String, status: Option<u16>, done: &Counters) -> Entry {
        let (client, at, took) = (self.client, self.at, self.took());
        Entry { client, at, line, referer: None, agent: None, status, took, done: *done }
    }
}

fn short(text: &str) -> &str {
    let mut end = text.len().min(MOST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Entry {
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
            Some(client) => write!(out, "{client} - - [{second}] \""),
            None => write!(out, "- - - [{second}] \""),
        };
        escape(&self.line, out);
        let _ = match self.status {
            Some(status) => write!(out, "\" {status} {body_bytes}"),
            None => write!(out, "\" - {body_bytes}"),
        };
        for field in [&self.referer, &self.agent] {
            out.extend_from_slice(b" \"");
            escape(field.as_deref().unwrap_or("-"), out);
            out.push(b'"');
        }
        let (seconds, way, end) = (self.took.as_secs_f64(), self.way(), self.end());
        let _ = write!(
            out,
            " {seconds:.6} {way} {end} user={user_copied} kernel={kernel_copied} referenced={referenced}"
        );
    }

    fn json(&self, second: &str, out: &mut Vec<u8>) {
        let micros = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros();
        let Counters { body_bytes, user_copied, kernel_copied, referenced, lent_bytes, .. } = self.done;
        let line = Line {
            time: &format!("{second}.{micros:06}Z"),
            client: self.client,
            request: &self.line,
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
struct Line<'a> {
    time: &'a str,
    client: Option<IpAddr>,
    request: &'a str,
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

    fn line(entry: &Entry, format: Format) -> String {
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
