//! From a request to the pieces of its answer.

use super::store::{Found, Known, Object};
use crate::http::conditional::{self, Verdict};
use crate::http::range::{self, Asked, Part};
use crate::http::request::{Method, Refusal, Request};
use crate::http::response::{Head, page};
use std::sync::Arc;
use std::time::Duration;

/// A piece of an answer, in the order of sending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Heads, boundaries, short pages.
    Text(String),
    /// Bytes of the object.
    Object(Part),
}

impl Piece {
    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Piece::Text(text) => text.len() as u64,
            Piece::Object(part) => part.len(),
        }
    }
}

/// An answer that is ready to be sent.
#[derive(Debug)]
pub struct Answer {
    /// Its status, which also stands in the head.
    pub status: u16,
    /// What is sent.
    pub pieces: Vec<Piece>,
    /// What the `Object` pieces are parts of.
    pub object: Option<Arc<Object>>,
    /// For how long the same answer may be given to others who ask in the same way, without asking here.
    pub fresh: Duration,
}

impl Answer {
    /// A short page instead of an object.
    pub fn refusal(refusal: Refusal, keep: bool, bodiless: bool) -> Answer {
        Answer::text(refusal.status, page(refusal.status, refusal.why, &[], keep, bodiless))
    }

    /// An answer that is only text.
    pub fn text(status: u16, text: String) -> Answer {
        Answer { status, pieces: vec![Piece::Text(text)], object: None, fresh: Duration::ZERO }
    }

    /// Bytes of the object that will be sent.
    pub fn object_bytes(&self) -> u64 {
        object_bytes(&self.pieces)
    }
}

/// Where the last bytes of the object are: before these go it is asked whether it still is what it was.
pub fn last_part(pieces: &[Piece]) -> Option<usize> {
    pieces.iter().rposition(|piece| matches!(piece, Piece::Object(_)))
}

/// How many of their bytes are bytes of the object.
pub fn object_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|p| if let Piece::Object(part) = p { part.len() } else { 0 }).sum()
}

/// Answers a request for what `find` finds under its path. `keep`: the connection stays open after it.
pub fn answer(
    request: &Request<'_>,
    keep: bool,
    find: impl FnOnce(&str) -> Result<(String, Found), Refusal>,
) -> Answer {
    let bodiless = request.method == Method::Head;
    let (object, Known { left, dated }) = match find(request.target) {
        Err(refusal) => return Answer::refusal(refusal, keep, bodiless),
        Ok((path, Found::Folder)) => {
            let to = format!("/{}/", escape(&path));
            return Answer::text(301, page(301, "this is a folder", &[("Location", to)], keep, bodiless));
        }
        Ok((_, Found::Object(object, known))) => (object, known),
    };
    match conditional::judge(request, &object.validators) {
        Verdict::Proceed => {}
        Verdict::NotModified => {
            let mut head = Head::new(304);
            validators(&mut head, &object, dated);
            return Answer::text(304, head.close_unless(keep).finish());
        }
        Verdict::Failed => {
            let why = "the file is not the one that was asked for";
            return Answer::text(412, page(412, why, &[], keep, bodiless));
        }
    }
    // Range is defined for GET only (RFC 9110 section 14.2).
    let asked = match request.list("range") {
        Some(value) if !bodiless && conditional::range_holds(request, &object.validators, dated) => {
            range::parse(&value, object.length)
        }
        _ => Asked::Whole,
    };
    match asked {
        Asked::Nothing => {
            let length = ("Content-Range", format!("bytes */{}", object.length));
            Answer::text(416, page(416, "the range lies outside the file", &[length], keep, bodiless))
        }
        Asked::Whole => {
            let mut head = Head::new(200);
            head.field("Content-Type", &object.media).field("Content-Length", object.length);
            validators(&mut head, &object, dated);
            let mut pieces = vec![Piece::Text(head.close_unless(keep).finish())];
            if !bodiless && object.length > 0 {
                pieces.push(Piece::Object(Part { start: 0, end: object.length - 1 }));
            }
            Answer { status: 200, pieces, object: Some(object), fresh: left }
        }
        Asked::Parts(parts) => partial(parts, object, dated, keep),
    }
}

fn partial(parts: Vec<Part>, object: Arc<Object>, dated: bool, keep: bool) -> Answer {
    let mut head = Head::new(206);
    validators(&mut head, &object, dated);
    let place = |part: &Part| format!("bytes {}-{}/{}", part.start, part.end, object.length);
    if let [part] = parts[..] {
        head.field("Content-Type", &object.media).field("Content-Range", place(&part));
        head.field("Content-Length", part.len());
        let pieces = vec![Piece::Text(head.close_unless(keep).finish()), Piece::Object(part)];
        return Answer { status: 206, pieces, object: Some(object), fresh: Duration::ZERO };
    }
    // The boundary must not stand in the content. A nonce makes that as likely as a guessed key; parts are not
    // searched for it, since nothing here reads the content.
    let boundary = format!("onecopy-{:016x}{:016x}", nonce(), nonce());
    let mut pieces = vec![Piece::Text(String::new())];
    let mut length = 0;
    for (i, part) in parts.iter().enumerate() {
        let lead = if i == 0 { "" } else { "\r\n" };
        let text = format!(
            "{lead}--{boundary}\r\nContent-Type: {}\r\nContent-Range: {}\r\n\r\n",
            object.media,
            place(part)
        );
        length += text.len() as u64 + part.len();
        pieces.push(Piece::Text(text));
        pieces.push(Piece::Object(*part));
    }
    let end = format!("\r\n--{boundary}--\r\n");
    length += end.len() as u64;
    pieces.push(Piece::Text(end));
    head.field("Content-Type", format_args!("multipart/byteranges; boundary={boundary}"));
    head.field("Content-Length", length);
    pieces[0] = Piece::Text(head.close_unless(keep).finish());
    Answer { status: 206, pieces, object: Some(object), fresh: Duration::ZERO }
}

/// No date as long as another version may yet get the same one, so that whoever has a date has it of one version alone. (It
/// would also lie behind Date for a file from the future, against RFC 9110 section 8.8.2.1.)
fn validators(head: &mut Head, object: &Object, dated: bool) {
    head.field("ETag", &object.validators.etag);
    if dated {
        head.field("Last-Modified", httpdate::HttpDate::from(object.validators.modified));
    }
    head.field("Accept-Ranges", "bytes");
}

/// An unpredictable number: std's hash keys are random for each process and differ for each use.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::Instant::now())
}

/// A path as it may stand in a Location field.
fn escape(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => {
                out.push(byte.into())
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
