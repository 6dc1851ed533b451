//! Writing a response head, and the short pages that stand for a refusal.

use std::fmt::{Display, Write};
use std::time::SystemTime;

/// The reason phrase of the statuses that this program sends.
pub fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        304 => "Not Modified",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Unknown",
    }
}

/// A response head being written.
#[derive(Debug)]
pub struct Head(String);

impl Head {
    /// Starts with the status line and the date.
    pub fn new(status: u16) -> Head {
        let mut head = String::with_capacity(320);
        // Writing to a String cannot fail.
        let _ = write!(head, "HTTP/1.1 {status} {}\r\n", reason(status));
        let mut head = Head(head);
        head.field("Date", httpdate::HttpDate::from(SystemTime::now()));
        head
    }

    /// Adds a field. Values come from this program, never unchecked from a client.
    pub fn field(&mut self, name: &str, value: impl Display) -> &mut Head {
        let _ = write!(self.0, "{name}: {value}\r\n");
        self
    }

    /// Adds `Connection: close` when the connection ends after this answer.
    pub fn close_unless(&mut self, keep: bool) -> &mut Head {
        if !keep {
            self.field("Connection", "close");
        }
        self
    }

    /// Ends the head.
    pub fn finish(&mut self) -> String {
        self.0.push_str("\r\n");
        std::mem::take(&mut self.0)
    }
}

/// A whole short answer with a plain text body (left out when `bodiless`, as for HEAD; its length still stands
/// in the head).
pub fn page(status: u16, why: &str, extra: &[(&str, String)], keep: bool, bodiless: bool) -> String {
    let mut head = Head::new(status);
    let body = format!("{status} {}: {why}\n", reason(status));
    head.field("Content-Type", "text/plain; charset=utf-8").field("Content-Length", body.len());
    if status == 405 || status == 501 {
        head.field("Allow", "GET, HEAD");
    }
    for (name, value) in extra {
        head.field(name, value);
    }
    let mut text = head.close_unless(keep).finish();
    if !bodiless {
        text.push_str(&body);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_says_its_length() {
        let text = page(404, "no such file", &[], true, false);
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 404 Not Found\r\nDate: "));
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(!head.contains("Connection"));
        assert!(page(400, "x", &[], false, false).contains("Connection: close\r\n"));
        assert!(page(405, "x", &[], true, true).ends_with("Allow: GET, HEAD\r\n\r\n"));
    }
}
