//! Calls, and the values in them.

use super::{Reader, Wrong};
use crate::lex::Kind;
use crate::script::{Call, Value};

impl Reader<'_> {
    pub(super) fn call(&mut self) -> Result<Call, Wrong> {
        let ends = if self.mark("...") { Some(self.time()?) } else { None };
        let Some(Kind::Word(name)) = self.peek() else { return self.wrong("a packet or a call") };
        self.at += 1;
        self.expect("(")?;
        let args = self.values(")")?;
        self.expect("=")?;
        let result = self.value()?;
        let mut errno = None;
        if let Some(Kind::Word(word)) = self.peek() {
            errno = Some(word.clone());
            self.at += 1;
        }
        // A note, such as the errno's text.
        if self.mark("(") {
            let mut depth = 1;
            while depth > 0 {
                match self.next() {
                    Some(Kind::Mark("(")) => depth += 1,
                    Some(Kind::Mark(")")) => depth -= 1,
                    Some(_) => {}
                    None => return self.wrong("')'"),
                }
            }
        }
        Ok(Call { name: name.clone(), args, ends, result, errno })
    }

    /// Values up to `close`.
    fn values(&mut self, close: &str) -> Result<Vec<Value>, Wrong> {
        let mut values = Vec::new();
        if self.mark(close) {
            return Ok(values);
        }
        loop {
            values.push(self.value()?);
            if self.mark(close) {
                return Ok(values);
            }
            self.expect(",")?;
        }
    }

    fn value(&mut self) -> Result<Value, Wrong> {
        let first = self.single()?;
        if !self.mark("|") {
            return Ok(first);
        }
        let mut all = vec![first];
        loop {
            all.push(self.single()?);
            if !self.mark("|") {
                return Ok(Value::Either(all));
            }
        }
    }

    fn single(&mut self) -> Result<Value, Wrong> {
        if self.mark("-") {
            return Ok(Value::Number(-self.number::<i64>("a number")?));
        }
        let value = match self.peek() {
            Some(Kind::Number(number)) => Value::Number(*number),
            Some(Kind::Text(text)) => Value::Text(text.clone()),
            Some(Kind::Word(word)) => Value::Name(word.clone()),
            Some(Kind::Mark("...")) => Value::Whatever,
            Some(Kind::Mark("[")) => {
                self.at += 1;
                return Ok(Value::List(self.values("]")?));
            }
            Some(Kind::Mark("{")) => {
                self.at += 1;
                return self.fields();
            }
            _ => return self.wrong("a value"),
        };
        self.at += 1;
        Ok(value)
    }

    /// `fd=3, events=POLLIN}`
    fn fields(&mut self) -> Result<Value, Wrong> {
        let mut fields = Vec::new();
        loop {
            let Some(Kind::Word(name)) = self.peek() else { return self.wrong("a field's name") };
            self.at += 1;
            self.expect("=")?;
            fields.push((name.clone(), self.value()?));
            if self.mark("}") {
                return Ok(Value::Fields(fields));
            }
            self.expect(",")?;
        }
    }
}
