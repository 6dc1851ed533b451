//! Words of a script.

/// A word, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub line: usize,
    /// Whether it stands right behind the one before.
    pub glued: bool,
    pub kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Word(String),
    Number(i64),
    /// With a dot: seconds, in nanoseconds.
    Seconds(u64),
    Text(String),
    /// Between backticks: a command.
    Command(String),
    /// Between `%{` and `}%`.
    Code(String),
    Mark(&'static str),
}

/// The longest first.
const MARKS: [&str; 28] = [
    "...", "==", "!=", "<=", ">=", "+", "-", "*", "~", "<", ">", "(", ")", "[", "]", "{", "}", ":", ";", ",",
    "=", "|", "&", ".", "!", "/", "@", "#",
];

/// Parts a script into words; comments are left out.
pub(crate) fn words(text: &str) -> Result<Vec<Token>, (usize, String)> {
    let mut at = Cursor { rest: text, line: 1 };
    let mut tokens = Vec::new();
    let mut glued = false;
    loop {
        let before = at.rest.len();
        at.skip_blank()?;
        glued &= before == at.rest.len();
        let line = at.line;
        let Some(first) = at.rest.chars().next() else { return Ok(tokens) };
        let kind = match first {
            // A cookie, in hexadecimal digits, may begin with any of them.
            _ if first.is_ascii_alphanumeric() && follows(&tokens, "FO") => {
                Kind::Word(at.take_while(|c| c.is_ascii_alphanumeric() || c == '_').to_owned())
            }
            'a'..='z' | 'A'..='Z' | '_' => {
                Kind::Word(at.take_while(|c| c.is_ascii_alphanumeric() || c == '_').to_owned())
            }
            '0'..='9' => at.number()?,
            '.' if at.rest[1..].starts_with(|c: char| c.is_ascii_digit()) => at.number()?,
            '"' => Kind::Text(at.until("\"", "\"")?),
            '`' => Kind::Command(at.until("`", "`")?),
            '%' if at.rest.starts_with("%{") => Kind::Code(at.until("%{", "}%")?),
            other => match MARKS.iter().find(|mark| at.rest.starts_with(**mark)) {
                Some(mark) => {
                    at.rest = &at.rest[mark.len()..];
                    Kind::Mark(mark)
                }
                None => return Err((line, format!("'{other}' is no part of the language"))),
            },
        };
        tokens.push(Token { line, glued, kind });
        glued = true;
    }
}

fn follows(tokens: &[Token], word: &str) -> bool {
    matches!(tokens.last(), Some(Token { kind: Kind::Word(last), .. }) if last == word)
}

struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !wanted(c)).unwrap_or(self.rest.len());
        self.take(end)
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn skip_blank(&mut self) -> Result<(), (usize, String)> {
        loop {
            self.take_while(char::is_whitespace);
            if self.rest.starts_with("//") {
                self.take_while(|c| c != '\n');
            } else if self.rest.starts_with("/*") {
                self.until("/*", "*/")?;
            } else {
                return Ok(());
            }
        }
    }

    fn until(&mut self, open: &str, close: &str) -> Result<String, (usize, String)> {
        let line = self.line;
        self.take(open.len());
        let Some(end) = self.rest.find(close) else {
            return Err((line, format!("{open} without {close}; close it")));
        };
        let inner = self.take(end).to_owned();
        self.take(close.len());
        Ok(inner)
    }

    fn number(&mut self) -> Result<Kind, (usize, String)> {
        let line = self.line;
        let wrong = |text: &str| (line, format!("{text} is too large a number"));
        if let Some(hex) = self.rest.strip_prefix("0x") {
            let len = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
            let digits = &self.take(2 + len)[2..];
            return i64::from_str_radix(digits, 16).map(Kind::Number).map_err(|_| wrong(digits));
        }
        let whole = self.take_while(|c| c.is_ascii_digit());
        let behind =
            self.rest.strip_prefix('.').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        if behind.is_none() {
            return whole.parse().map(Kind::Number).map_err(|_| wrong(whole));
        }
        self.take(1);
        let part = self.take_while(|c| c.is_ascii_digit());
        let nanos: String = part.chars().chain("000000000".chars()).take(9).collect();
        let seconds: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong(whole))? };
        let nanos: u64 = nanos.parse().map_err(|_| wrong(part))?;
        seconds
            .checked_mul(crate::SECOND)
            .and_then(|seconds| seconds.checked_add(nanos))
            .map(Kind::Seconds)
            .ok_or_else(|| wrong(whole))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_flags_times_or_ellipses() {
        let kinds: Vec<Kind> =
            words("+.1...0.25 < P. 1:2(1) // c\n...").unwrap().into_iter().map(|t| t.kind).collect();
        let mark = Kind::Mark;
        assert_eq!(
            kinds,
            [
                mark("+"),
                Kind::Seconds(100_000_000),
                mark("..."),
                Kind::Seconds(250_000_000),
                mark("<"),
                Kind::Word("P".into()),
                mark("."),
                Kind::Number(1),
                mark(":"),
                Kind::Number(2),
                mark("("),
                Kind::Number(1),
                mark(")"),
                mark("...")
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_comments_and_code() {
        let tokens = words("/* a\nb */ x %{ y\n }% z").unwrap();
        assert_eq!(tokens.iter().map(|t| t.line).collect::<Vec<_>>(), [2, 2, 3]);
        assert_eq!(words("a\n\"b"), Err((2, "\" without \"; close it".to_owned())));
        assert!(words("\u{e9}").is_err());
    }
}
