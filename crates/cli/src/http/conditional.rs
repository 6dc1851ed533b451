//! Conditional requests (RFC 9110 section 13): what a client already has, and what it must not be given.

use super::request::Request;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a representation can be compared by.
#[derive(Clone, Debug)]
pub struct Validators {
    /// A strong entity tag, quotes included.
    pub etag: String,
    /// When it was last changed, in whole seconds (the resolution of an HTTP date).
    pub modified: SystemTime,
}

/// What the conditions of a request come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Answer as if there were no condition.
    Proceed,
    /// 304: the client has it.
    NotModified,
    /// 412: the client asked for something else than what is here.
    Failed,
}

/// Cuts a time to whole seconds, as an HTTP date has them.
pub fn whole_seconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs())
}

/// The conditions in the order of section 13.2.2. `Range` with `If-Range` is asked about with [`range_holds`].
pub fn judge(request: &Request<'_>, have: &Validators) -> Verdict {
    let date = |name| request.text(name).and_then(|v| httpdate::parse_http_date(v).ok());
    if let Some(tags) = request.list("if-match") {
        if !matches(&tags, &have.etag, true) {
            return Verdict::Failed;
        }
    } else if date("if-unmodified-since").is_some_and(|limit| have.modified > limit) {
        return Verdict::Failed;
    }
    if let Some(tags) = request.list("if-none-match") {
        if matches(&tags, &have.etag, false) {
            return Verdict::NotModified;
        }
    } else if date("if-modified-since").is_some_and(|limit| have.modified <= limit) {
        return Verdict::NotModified;
    }
    Verdict::Proceed
}

/// Whether a Range may be honoured: no If-Range, or one that names exactly what is here (section 13.1.5). A date does so only
/// where it is a strong validator (section 8.8.2.2), `dated`: a whole second lay behind it when the file was looked at, so
/// that no other version got it or will get it.
pub fn range_holds(request: &Request<'_>, have: &Validators, dated: bool) -> bool {
    let Some(value) = request.text("if-range") else { return request.field("if-range").is_none() };
    if value.starts_with('"') || value.starts_with("W/") {
        return value == have.etag; // strong comparison: a weak tag never matches
    }
    dated && httpdate::parse_http_date(value).is_ok_and(|date| date == have.modified)
}

/// Whether `etag` is in a list of tags; strong comparison leaves out the weak ones. Reads quotes, since a tag
/// may have a comma in it.
fn matches(tags: &str, etag: &str, strong: bool) -> bool {
    if tags.trim() == "*" {
        return true;
    }
    let mut rest = tags;
    while let Some(open) = rest.find('"') {
        let weak = rest[..open].ends_with("W/");
        let Some(close) = rest[open + 1..].find('"') else { return false };
        let tag = &rest[open..open + close + 2];
        if tag == etag && !(strong && weak) {
            return true;
        }
        rest = &rest[open + close + 2..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::request::Limits;
    use super::*;

    fn have() -> Validators {
        let modified = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        Validators { etag: "\"abc\"".into(), modified }
    }

    fn with<T>(fields: &str, judge: impl FnOnce(&Request<'_>, &Validators) -> T) -> T {
        let text = format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n");
        let (request, _) = Request::parse(text.as_bytes(), Limits::default()).unwrap().unwrap();
        judge(&request, &have())
    }

    #[test]
    fn tags() {
        assert_eq!(with("If-None-Match: \"abc\"", judge), Verdict::NotModified);
        assert_eq!(with("If-None-Match: W/\"abc\"", judge), Verdict::NotModified);
        assert_eq!(with("If-None-Match: \"x,y\", \"abc\"", judge), Verdict::NotModified);
        assert_eq!(with("If-None-Match: *", judge), Verdict::NotModified);
        assert_eq!(with("If-None-Match: \"x\"", judge), Verdict::Proceed);
        assert_eq!(with("If-None-Match: \"abc", judge), Verdict::Proceed);
        assert_eq!(with("If-Match: \"abc\"", judge), Verdict::Proceed);
        assert_eq!(with("If-Match: W/\"abc\"", judge), Verdict::Failed);
        assert_eq!(with("If-Match: \"x\"", judge), Verdict::Failed);
        assert_eq!(with("If-Match: *", judge), Verdict::Proceed);
    }

    #[test]
    fn dates() {
        let (before, at) = ("Sun, 06 Nov 1994 08:49:36 GMT", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(with(&format!("If-Modified-Since: {at}"), judge), Verdict::NotModified);
        assert_eq!(with(&format!("If-Modified-Since: {before}"), judge), Verdict::Proceed);
        assert_eq!(with("If-Modified-Since: yesterday", judge), Verdict::Proceed);
        assert_eq!(with(&format!("If-Unmodified-Since: {before}"), judge), Verdict::Failed);
        assert_eq!(with(&format!("If-Unmodified-Since: {at}"), judge), Verdict::Proceed);
        // A tag outranks a date.
        assert_eq!(
            with(&format!("If-None-Match: \"x\"\r\nIf-Modified-Since: {at}"), judge),
            Verdict::Proceed
        );
    }

    #[test]
    fn if_range() {
        let strong = |request: &Request<'_>, have: &Validators| range_holds(request, have, true);
        let weak = |request: &Request<'_>, have: &Validators| range_holds(request, have, false);
        assert!(with("A: b", strong));
        assert!(with("If-Range: \"abc\"", strong));
        assert!(!with("If-Range: W/\"abc\"", strong));
        assert!(!with("If-Range: \"x\"", strong));
        assert!(with("If-Range: Sun, 06 Nov 1994 08:49:37 GMT", strong));
        assert!(!with("If-Range: Sun, 06 Nov 1994 08:49:38 GMT", strong));
        assert!(!with("If-Range: nonsense", strong));
        assert!(!with("If-Range: Sun, 06 Nov 1994 08:49:37 GMT", weak));
        assert!(with("If-Range: \"abc\"", weak));
    }
}
