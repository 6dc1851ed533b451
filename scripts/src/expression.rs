//! What a script says of TCP_INFO: names, whole numbers, comparisons, `and`, `or`, `not`, sums and bits.

use crate::lex::{Kind, Token};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    Number(i128),
    Name(String),
    Not(Box<Expression>),
    Two(&'static str, Box<Expression>, Box<Expression>),
    /// `a <= b <= c`, as Python has it.
    Chain(Box<Expression>, Vec<(&'static str, Expression)>),
}

impl Expression {
    /// Its value, where `name` says those of names.
    pub fn value(&self, name: &dyn Fn(&str) -> Option<u64>) -> Result<i128, String> {
        let truth = |truth: bool| i128::from(truth);
        Ok(match self {
            Expression::Number(number) => *number,
            Expression::Name(text) => i128::from(name(text).ok_or_else(|| format!("nobody knows {text}"))?),
            Expression::Not(inner) => truth(inner.value(name)? == 0),
            Expression::Two(sign, left, right) => {
                let (left, right) = (left.value(name)?, right.value(name)?);
                match *sign {
                    "and" => truth(left != 0 && right != 0),
                    "or" => truth(left != 0 || right != 0),
                    "&" => left & right,
                    "+" => left + right,
                    "-" => left - right,
                    _ => left * right,
                }
            }
            Expression::Chain(first, rest) => {
                let mut left = first.value(name)?;
                let mut holds = true;
                for (sign, right) in rest {
                    let right = right.value(name)?;
                    holds &= match *sign {
                        "==" => left == right,
                        "!=" => left != right,
                        "<" => left < right,
                        "<=" => left <= right,
                        ">" => left > right,
                        _ => left >= right,
                    };
                    left = right;
                }
                truth(holds)
            }
        })
    }

    /// The names in it.
    pub fn names(&self, into: &mut Vec<String>) {
        match self {
            Expression::Number(_) => {}
            Expression::Name(name) => into.push(name.clone()),
            Expression::Not(inner) => inner.names(into),
            Expression::Two(_, left, right) => {
                left.names(into);
                right.names(into);
            }
            Expression::Chain(first, rest) => {
                first.names(into);
                rest.iter().for_each(|(_, right)| right.names(into));
            }
        }
    }
}

/// Reads `assert` and what follows, as often as it stands there; each with its text.
pub(crate) fn asserts(text: &str) -> Result<Vec<(String, Expression)>, String> {
    let mut all = Vec::new();
    for line in
        text.split(['\n', ';']).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let Some(claim) = line.strip_prefix("assert") else {
            return Err(format!("'{line}' is no assert"));
        };
        // Behind the comma stands what Python would print when it fails: we print the values anyway.
        let claim = claim.split(',').next().unwrap_or(claim);
        let tokens = crate::lex::words(claim).map_err(|(_, why)| why)?;
        let mut at = Reader { tokens: &tokens, at: 0 };
        let expression = at.either()?;
        if at.at < tokens.len() {
            return Err(format!("'{line}' goes on where its expression is over"));
        }
        all.push((claim.trim().to_owned(), expression));
    }
    Ok(all)
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
}

impl Reader<'_> {
    fn mark(&mut self, wanted: &str) -> bool {
        let found =
            matches!(self.tokens.get(self.at), Some(Token { kind: Kind::Mark(mark), .. }) if *mark == wanted);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, wanted: &str) -> bool {
        let found =
            matches!(self.tokens.get(self.at), Some(Token { kind: Kind::Word(word), .. }) if word == wanted);
        self.at += usize::from(found);
        found
    }

    fn either(&mut self) -> Result<Expression, String> {
        let mut left = self.both()?;
        while self.word("or") {
            left = Expression::Two("or", Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Expression, String> {
        let mut left = self.not()?;
        while self.word("and") {
            left = Expression::Two("and", Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expression, String> {
        if self.word("not") {
            return Ok(Expression::Not(Box::new(self.not()?)));
        }
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(sign) = ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|sign| self.mark(sign)) {
            rest.push((sign, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Chain(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expression, String> {
        let mut left = self.one()?;
        while let Some(sign) = ["+", "-", "*", "&"].into_iter().find(|sign| self.mark(sign)) {
            left = Expression::Two(sign, Box::new(left), Box::new(self.one()?));
        }
        Ok(left)
    }

    fn one(&mut self) -> Result<Expression, String> {
        if self.mark("(") {
            let inner = self.either()?;
            return if self.mark(")") { Ok(inner) } else { Err("a ) is missing".to_owned()) };
        }
        let token = self.tokens.get(self.at).ok_or("the expression ends too early")?;
        self.at += 1;
        match &token.kind {
            Kind::Number(number) => Ok(Expression::Number((*number).into())),
            Kind::Word(word) => Ok(Expression::Name(word.clone())),
            other => Err(format!("{other:?} is no value")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &str) -> Result<bool, String> {
        let claims = asserts(&format!("assert {text}"))?;
        let name = |name: &str| match name {
            "a" => Some(7),
            "b" => Some(u64::MAX),
            _ => None,
        };
        claims[0].1.value(&name).map(|value| value != 0)
    }

    #[test]
    fn python_agrees() {
        for yes in [
            "a == 7",
            "a + 1 == 8 and b > 0, 'text'",
            "5 <= a <= 7",
            "not a < 7",
            "(a & 4) == 4",
            "a != 7 or b == 18446744073709551615 - 0 or a",
        ] {
            if yes.contains("18446744073709551615") {
                assert!(holds(yes).is_err(), "too large a number is refused, not cut");
            } else {
                assert_eq!(holds(yes), Ok(true), "{yes}");
            }
        }
        for no in ["a == 8", "7 < a < 9", "a and 0", "not a"] {
            assert_eq!(holds(no), Ok(false), "{no}");
        }
        for wrong in ["c", "a ==", "a b", "(a", "\"a\""] {
            assert!(holds(wrong).is_err(), "{wrong}");
        }
        assert!(asserts("print(a)").is_err());
        assert_eq!(asserts("assert a\n assert b; assert 1").unwrap().len(), 3);
    }
}
