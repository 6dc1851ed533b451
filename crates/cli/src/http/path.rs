//! From a request target to a path below the served folder.

use super::request::Refusal;

/// The path that a target names, relative to the root, without empty, `.` or `..` segments; a trailing `/` is
/// kept as an empty last segment. `..` is resolved here (RFC 3986 section 5.2.4) and refused where it would
/// leave the root; links are the kernel's to judge (`openat2`).
pub fn relative(target: &str) -> Result<String, Refusal> {
    let bad = |why| Refusal { status: 400, why };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let path = decode(path).ok_or(bad("the path has a bad percent escape or is not UTF-8"))?;
    if path.contains('\0') {
        return Err(bad("the path has a NUL in it"));
    }
    let mut out: Vec<&str> = Vec::new();
    let mut folder = true;
    for segment in path.split('/') {
        folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => {
                out.pop().ok_or(bad("the path leaves the root"))?;
            }
            name => out.push(name),
        }
    }
    let mut joined = out.join("/");
    if folder && !joined.is_empty() {
        joined.push('/');
    }
    Ok(joined)
}

fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_escaped_and_dotted() {
        let relative = |t: &str| super::relative(t).map_err(|r| r.status);
        assert_eq!(relative("/"), Ok("".into()));
        assert_eq!(relative("/a/b.txt?x=../.."), Ok("a/b.txt".into()));
        assert_eq!(relative("/a%20b/%C3%A9"), Ok("a b/é".into()));
        assert_eq!(relative("//a//./b/"), Ok("a/b/".into()));
        assert_eq!(relative("/a/../b"), Ok("b".into()));
        assert_eq!(relative("/a/.."), Ok("".into()));
        assert_eq!(relative("/.."), Err(400));
        assert_eq!(relative("/%2e%2e/etc/passwd"), Err(400));
        assert_eq!(relative("/a/..%2f..%2f..%2fetc"), Err(400));
        assert_eq!(relative("/%"), Err(400));
        assert_eq!(relative("/%zz"), Err(400));
        assert_eq!(relative("/%+1"), Err(400));
        assert_eq!(relative("/a%00b"), Err(400));
        assert_eq!(relative("/%ff"), Err(400));
    }

    proptest! {
        /// Whatever the target, the path stays relative and never climbs.
        #[test]
        fn never_climbs(target in "/([a./%2eEfF\\\\]|\\.\\.|%2f){0,40}") {
            if let Ok(path) = relative(&target) {
                prop_assert!(!path.starts_with('/'));
                prop_assert!(path.split('/').all(|s| s != ".." && s != "."));
            }
        }
    }
}
