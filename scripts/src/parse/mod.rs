//! Reads a script: the events, their times, and which kind of thing each is.

mod call;
mod packet;

use crate::lex::{Kind, Token, words};
use crate::script::{Action, Event, Script, Time};
use crate::wire::Family;
use crate::{SECOND, expression};

/// Reads the script `text` of file `file`.
///
/// # Errors
///
/// What stands where in the file that is not understood.
pub fn parse(file: &str, text: &str) -> Result<Script, String> {
    let at = |(line, why): (usize, String)| format!("{file}:{line}: {why}");
    let tokens = words(text).map_err(at)?;
    let mut reader = Reader { tokens: &tokens, at: 0 };
    let mut events = Vec::new();
    while let Some(event) = reader.event().map_err(at)? {
        events.push(event);
    }
    let comments = text.lines().map_while(|line| line.strip_prefix("//")).map(str::trim);
    let (mut header, mut differs, mut only, mut plus_plus) = (String::new(), None, None, false);
    for line in comments {
        match (line, line.strip_prefix("kernel: differs:")) {
            (_, Some(why)) => differs = Some(why.trim().to_owned()),
            ("only: IPv4", _) => only = Some(Family::V4),
            ("ours: HyStart++", _) => plus_plus = true,
            ("only: IPv6", _) => only = Some(Family::V6),
            _ => {
                header.push_str(line);
                header.push('\n');
            }
        }
    }
    Ok(Script { file: file.to_owned(), events, differs, only, plus_plus, header })
}

type Wrong = (usize, String);

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl<'a> Reader<'a> {
    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    fn wrong<T>(&self, what: &str) -> Result<T, Wrong> {
        let found = match self.peek() {
            None => "the script ends".to_owned(),
            Some(Kind::Mark(mark)) => format!("'{mark}' stands"),
            Some(Kind::Word(word)) => format!("'{word}' stands"),
            Some(Kind::Number(number)) => format!("{number} stands"),
            Some(other) => format!("{other:?} stands"),
        };
        Err((self.line(), format!("{found} where {what} should")))
    }

    fn peek(&self) -> Option<&'a Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn next(&mut self) -> Option<&'a Kind> {
        let token = self.tokens.get(self.at)?;
        self.at += 1;
        Some(&token.kind)
    }

    fn mark(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Some(Kind::Mark(mark)) if *mark == wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: &str) -> Result<(), Wrong> {
        if self.mark(wanted) { Ok(()) } else { self.wrong(&format!("'{wanted}'")) }
    }

    fn word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Some(Kind::Word(word)) if word == wanted);
        self.at += usize::from(found);
        found
    }

    fn number<N: TryFrom<i64>>(&mut self, what: &str) -> Result<N, Wrong> {
        if let Some(Kind::Number(number)) = self.peek()
            && let Ok(number) = N::try_from(*number)
        {
            self.at += 1;
            return Ok(number);
        }
        self.wrong(what)
    }

    fn time(&mut self) -> Result<u64, Wrong> {
        let nanos = match self.peek() {
            Some(Kind::Seconds(nanos)) => Some(*nanos),
            Some(Kind::Number(seconds)) => u64::try_from(*seconds).ok().and_then(|s| s.checked_mul(SECOND)),
            _ => None,
        };
        self.at += usize::from(nanos.is_some());
        nanos.map_or_else(|| self.wrong("a time in seconds"), Ok)
    }

    fn event(&mut self) -> Result<Option<Event>, Wrong> {
        let line = self.line();
        let time = match self.peek() {
            None => return Ok(None),
            // What prepares the script has no time.
            Some(Kind::Command(_)) => Time::After(0),
            Some(Kind::Mark("*")) => {
                self.at += 1;
                Time::Any
            }
            Some(Kind::Mark("+")) => {
                self.at += 1;
                let from = self.time()?;
                match self.mark("~") {
                    true => {
                        self.expect("+")?;
                        Time::AfterBetween(from, self.time()?)
                    }
                    false => Time::After(from),
                }
            }
            _ => {
                let from = self.time()?;
                if self.mark("~") { Time::Between(from, self.time()?) } else { Time::At(from) }
            }
        };
        let action = match self.peek() {
            Some(Kind::Command(text)) => {
                self.at += 1;
                Action::Sysctl(sysctls(text).map_err(|why| (line, why))?)
            }
            Some(Kind::Code(text)) => {
                self.at += 1;
                Action::Assert(expression::asserts(text).map_err(|why| (line, why))?)
            }
            Some(Kind::Mark("<" | ">")) => Action::Packet(self.packet()?),
            _ => Action::Call(self.call()?),
        };
        Ok(Some(Event { line, time, action }))
    }
}

/// `sysctl -q a.b=c d.e="f g"`, of any number, in one line or more: the only command there is.
fn sysctls(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some(mut rest) = line.strip_prefix("sysctl -q ").map(str::trim) else {
            return Err(format!("'{line}': the only command is sysctl -q NAME=VALUE..."));
        };
        while !rest.is_empty() {
            let (name, behind) = rest.split_once('=').ok_or_else(|| format!("'{rest}' has no '='"))?;
            let (value, behind) = match behind.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"').ok_or_else(|| format!("'{behind}' has no end"))?,
                None => behind.split_once(' ').unwrap_or((behind, "")),
            };
            all.push((name.to_owned(), value.to_owned()));
            rest = behind.trim_start();
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_where_and_what() {
        for (text, said) in [
            ("+0 < S 0:0(1)", "f:1: 0:0(1): 1 bytes do not end there"),
            ("\n+0 > S. 0:0(0) ack\n+1 close(3) = 0", "f:3: '+' stands where a number should"),
            ("+0 socket(", "f:1: the script ends where a value should"),
            ("+0 < S 0:0(0) <mss 1460,nop>", "f:1: options of 5 bytes"),
            ("+0 < S 0:0(0) <FO abc,nop>", "f:1: 'abc' stands where a cookie"),
            ("+0 < S 0:0(0) <FO abcd12,nop>", "f:1: 'abcd12' stands where a cookie"),
            ("+0 < S 0:0(0) <FO,nop>", "f:1: options of 3 bytes"),
            ("`ls`", "f:1: 'ls': the only command"),
            ("+0 %{ print(1) }%", "f:1: 'print(1)' is no assert"),
        ] {
            let error = parse("f", text).expect_err(text);
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn the_header_says_what_the_kernel_does() {
        let script =
            parse("f", "// RFC 1, section 2.\n// kernel: differs: it is old\n\n// no header\n0 close(3) = 0");
        let script = script.unwrap();
        assert_eq!((script.header(), script.kernel_differs()), ("RFC 1, section 2.\n", Some("it is old")));
        let both = sysctls("sysctl -q net.a=1 net.b=\"1 2 3\" net.c=x").unwrap();
        let both: Vec<_> = both.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(both, [("net.a", "1"), ("net.b", "1 2 3"), ("net.c", "x")]);
    }
}
