//! PTX, as far as our kernels use it, interpreted: parallel thread execution's text (docs.nvidia.com/cuda/parallel-thread-execution), one thread after
//! the other. There are no barriers and no shared memory, so their order says nothing.

use std::collections::HashMap;

/// The memory that threads load from and store to.
pub trait Bus {
    /// `width` bytes from `at`; None for an address that there is not, or that is not aligned to the width.
    fn load(&self, at: u64, width: usize) -> Option<u64>;
    /// The other way round.
    fn store(&self, at: u64, width: usize, value: u64) -> Option<()>;
}

/// Where a thread is in its grid.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thread {
    /// `%ctaid.x` and `%ctaid.y`.
    pub block: (u32, u32),
    /// `%nctaid.x`.
    pub blocks: u32,
    /// `%tid.x`.
    pub thread: u32,
    /// `%ntid.x`.
    pub threads: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Operand {
    Register(usize),
    Immediate(u64),
    BlockX,
    BlockY,
    Blocks,
    Thread,
    Threads,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Two {
    Add,
    And,
    Or,
    Shl,
    Shr,
    MulWide,
    MulLo,
}

#[derive(Debug)]
enum Act {
    Move(usize, Operand),
    Parameter(usize, usize, usize),
    Load {
        width: usize,
        to: Vec<usize>,
        at: usize,
        plus: u64,
    },
    Store {
        width: usize,
        from: Vec<usize>,
        at: usize,
        plus: u64,
    },
    Two(Two, usize, usize, Operand, Operand),
    Mad(usize, Operand, Operand, Operand),
    /// Greater or equal, else not equal.
    Compare(usize, bool, Operand, Operand),
    /// To a label, which is that instruction.
    Branch(String, usize),
    Return,
}

#[derive(Debug)]
struct Instruction {
    guard: Option<usize>,
    act: Act,
}

/// A kernel.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    /// Bytes of each parameter.
    parameters: Vec<(String, usize)>,
    code: Vec<Instruction>,
    registers: usize,
}

/// Instructions that a thread may do: one that does more hangs.
const MOST: usize = 1 << 24;

impl Kernel {
    /// Reads the text, which has one entry.
    ///
    /// # Errors
    ///
    /// The line that is not understood.
    pub fn parse(text: &str) -> Result<Kernel, String> {
        let mut parser = Parser::default();
        let plain: String = text.lines().map(|line| line.split("//").next().unwrap_or_default()).fold(
            String::new(),
            |mut all, line| {
                all.push_str(line);
                all.push('\n');
                all
            },
        );
        let (head, rest) = plain.split_once(".entry").ok_or("no .entry")?;
        for word in [".version", ".target", ".address_size 64"] {
            if !head.contains(word) {
                return Err(format!("no {word}"));
            }
        }
        let (name, rest) = rest.split_once('(').ok_or("an .entry without parameters")?;
        let (parameters, rest) = rest.split_once(')').ok_or("parameters without an end")?;
        let body = rest.trim().strip_prefix('{').and_then(|body| body.strip_suffix('}')).ok_or("no body")?;
        for parameter in parameters.split(',') {
            let words: Vec<&str> = parameter.split_whitespace().collect();
            let [".param", kind, name] = words[..] else { return Err(parameter.to_owned()) };
            parser.parameters.push((name.to_owned(), width(kind)?));
        }
        for statement in body.split(';') {
            let mut statement = statement.trim();
            while let Some((label, rest)) = statement.split_once(':') {
                parser.labels.insert(label.trim().to_owned(), parser.code.len());
                statement = rest.trim();
            }
            if !statement.is_empty() && !statement.starts_with(".reg") {
                parser.statement(statement).map_err(|why| format!("{statement}: {why}"))?;
            }
        }
        for instruction in &mut parser.code {
            if let Act::Branch(label, to) = &mut instruction.act {
                *to = *parser.labels.get(label).ok_or_else(|| format!("no label {label}"))?;
            }
        }
        Ok(Kernel {
            name: name.trim().to_owned(),
            parameters: parser.parameters,
            code: parser.code,
            registers: parser.registers.len(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of each parameter.
    pub fn parameters(&self) -> impl Iterator<Item = usize> {
        self.parameters.iter().map(|(_, width)| *width)
    }

    /// Runs one thread.
    ///
    /// # Errors
    ///
    /// An address that leads nowhere or is not aligned, and a thread that does not end.
    pub fn run(&self, bus: &dyn Bus, thread: Thread, arguments: &[u64]) -> Result<(), String> {
        let mut registers = vec![0_u64; self.registers];
        let mut at = 0;
        for _ in 0..MOST {
            let Some(Instruction { guard, act }) = self.code.get(at) else { return Ok(()) };
            at += 1;
            if guard.is_some_and(|guard| registers[guard] == 0) {
                continue;
            }
            let value = |operand: &Operand, registers: &[u64]| match *operand {
                Operand::Register(index) => registers[index],
                Operand::Immediate(value) => value,
                Operand::BlockX => thread.block.0.into(),
                Operand::BlockY => thread.block.1.into(),
                Operand::Blocks => thread.blocks.into(),
                Operand::Thread => thread.thread.into(),
                Operand::Threads => thread.threads.into(),
            };
            match act {
                Act::Move(to, from) => registers[*to] = value(from, &registers),
                Act::Parameter(to, index, width) => {
                    registers[*to] = cut(*arguments.get(*index).ok_or("too few arguments")?, *width);
                }
                Act::Load { width, to, at: base, plus } => {
                    for (index, to) in to.iter().enumerate() {
                        let place = registers[*base].wrapping_add(plus + (index * width) as u64);
                        // A vector is aligned as a whole.
                        let whole =
                            registers[*base].wrapping_add(*plus).is_multiple_of((width * to_len(act)) as u64);
                        let loaded = bus.load(place, *width).filter(|_| whole);
                        registers[*to] =
                            loaded.ok_or_else(|| format!("a load of {width} from {place:#x}"))?;
                    }
                }
                Act::Store { width, from, at: base, plus } => {
                    for (index, from) in from.iter().enumerate() {
                        let place = registers[*base].wrapping_add(plus + (index * width) as u64);
                        let whole =
                            registers[*base].wrapping_add(*plus).is_multiple_of((width * to_len(act)) as u64);
                        let stored = bus.store(place, *width, registers[*from]).filter(|()| whole);
                        stored.ok_or_else(|| format!("a store of {width} to {place:#x}"))?;
                    }
                }
                Act::Two(two, width, to, a, b) => {
                    let (a, b) = (value(a, &registers), value(b, &registers));
                    let result = match two {
                        Two::Add => a.wrapping_add(b),
                        Two::And => a & b,
                        Two::Or => a | b,
                        Two::Shl => a.checked_shl(b as u32).unwrap_or(0),
                        Two::Shr => a.checked_shr(b as u32).unwrap_or(0),
                        Two::MulLo | Two::MulWide => a.wrapping_mul(b),
                    };
                    registers[*to] = if *two == Two::MulWide { result } else { cut(result, *width) };
                }
                Act::Mad(to, a, b, c) => {
                    let (a, b, c) = (value(a, &registers), value(b, &registers), value(c, &registers));
                    registers[*to] = cut(a.wrapping_mul(b).wrapping_add(c), 4);
                }
                Act::Compare(to, greater, a, b) => {
                    let (a, b) = (value(a, &registers), value(b, &registers));
                    registers[*to] = u64::from(if *greater { a >= b } else { a != b });
                }
                Act::Branch(_, to) => at = *to,
                Act::Return => return Ok(()),
            }
        }
        Err("a thread does not end".to_owned())
    }
}

/// How many registers a load or store has.
fn to_len(act: &Act) -> usize {
    match act {
        Act::Load { to, .. } => to.len(),
        Act::Store { from, .. } => from.len(),
        _ => 1,
    }
}

fn cut(value: u64, width: usize) -> u64 {
    if width == 8 { value } else { value & ((1 << (width * 8)) - 1) }
}

/// Bytes of a type.
fn width(kind: &str) -> Result<usize, String> {
    match kind.trim_start_matches('.') {
        "u64" | "b64" => Ok(8),
        "u32" | "b32" => Ok(4),
        "u8" | "b8" => Ok(1),
        other => Err(format!("type {other}")),
    }
}

#[derive(Default)]
struct Parser {
    parameters: Vec<(String, usize)>,
    code: Vec<Instruction>,
    labels: HashMap<String, usize>,
    registers: HashMap<String, usize>,
}

impl Parser {
    fn register(&mut self, name: &str) -> Result<usize, String> {
        let name = name.trim();
        if !name.starts_with('%') || name.contains('.') {
            return Err(format!("{name} is no register"));
        }
        let next = self.registers.len();
        Ok(*self.registers.entry(name.to_owned()).or_insert(next))
    }

    fn operand(&mut self, text: &str) -> Result<Operand, String> {
        Ok(match text.trim() {
            "%ctaid.x" => Operand::BlockX,
            "%ctaid.y" => Operand::BlockY,
            "%nctaid.x" => Operand::Blocks,
            "%tid.x" => Operand::Thread,
            "%ntid.x" => Operand::Threads,
            text if text.starts_with('%') => Operand::Register(self.register(text)?),
            text => Operand::Immediate(text.parse().map_err(|_| format!("{text} is no number"))?),
        })
    }

    /// `[%rd0+16]`.
    fn address(&mut self, text: &str) -> Result<(usize, u64), String> {
        let inner = text.trim().strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        let inner = inner.ok_or_else(|| format!("{text} is no address"))?;
        let (register, plus) = inner.split_once('+').unwrap_or((inner, "0"));
        let plus = plus.trim().parse().map_err(|_| format!("{plus} is no number"))?;
        Ok((self.register(register)?, plus))
    }

    fn group(&mut self, text: &str) -> Result<Vec<usize>, String> {
        let inner = text.trim().trim_start_matches('{').trim_end_matches('}');
        inner.split(',').map(|name| self.register(name)).collect()
    }

    fn statement(&mut self, statement: &str) -> Result<(), String> {
        let (guard, statement) = match statement.strip_prefix('@') {
            Some(guarded) => {
                let (guard, rest) = guarded.split_once(char::is_whitespace).ok_or("nothing is guarded")?;
                (Some(self.register(guard)?), rest.trim())
            }
            None => (None, statement),
        };
        let (name, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        let words: Vec<&str> = name.split('.').collect();
        let arguments = split(rest);
        let argument =
            |index: usize| arguments.get(index).copied().ok_or_else(|| "too few operands".to_owned());
        let last = || width(words.last().copied().unwrap_or_default());
        let act = match words[..] {
            ["ret"] => Act::Return,
            ["bra"] => Act::Branch(rest.trim().to_owned(), 0),
            ["mov", "u32"] | ["cvt", "u64", "u32"] | ["cvta", "to", "global", "u64"] => {
                Act::Move(self.register(argument(0)?)?, self.operand(argument(1)?)?)
            }
            ["ld", "param", kind] => {
                let wanted = argument(1)?.trim_matches(['[', ']']);
                let index = self.parameters.iter().position(|(name, _)| name == wanted);
                let index = index.ok_or_else(|| format!("no parameter {wanted}"))?;
                Act::Parameter(self.register(argument(0)?)?, index, width(kind)?)
            }
            ["ld", "global", .., _] => {
                let (to, (at, plus)) = (self.group(argument(0)?)?, self.address(argument(1)?)?);
                Act::Load { width: last()?, to, at, plus }
            }
            ["st", "global", .., _] => {
                let ((at, plus), from) = (self.address(argument(0)?)?, self.group(argument(1)?)?);
                Act::Store { width: last()?, from, at, plus }
            }
            ["setp", how @ ("ge" | "ne"), _] => Act::Compare(
                self.register(argument(0)?)?,
                how == "ge",
                self.operand(argument(1)?)?,
                self.operand(argument(2)?)?,
            ),
            ["mad", "lo", "u32"] => Act::Mad(
                self.register(argument(0)?)?,
                self.operand(argument(1)?)?,
                self.operand(argument(2)?)?,
                self.operand(argument(3)?)?,
            ),
            _ => {
                let two = match words[..] {
                    ["add", _] => Two::Add,
                    ["and", _] => Two::And,
                    ["or", _] => Two::Or,
                    ["shl", _] => Two::Shl,
                    ["shr", "u32" | "u64"] => Two::Shr,
                    ["mul", "wide", "u32"] => Two::MulWide,
                    ["mul", "lo", "u32"] => Two::MulLo,
                    _ => return Err("an instruction that our kernels do not use".to_owned()),
                };
                let to = self.register(argument(0)?)?;
                Act::Two(two, last()?, to, self.operand(argument(1)?)?, self.operand(argument(2)?)?)
            }
        };
        self.code.push(Instruction { guard, act });
        Ok(())
    }
}

/// Operands, of which one may be a group in braces.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    if !text[from..].trim().is_empty() {
        parts.push(text[from..].trim());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    struct Bytes(RefCell<Vec<u8>>);

    impl Bus for Bytes {
        fn load(&self, at: u64, width: usize) -> Option<u64> {
            let bytes = self.0.borrow();
            let mut word = [0; 8];
            word[..width].copy_from_slice(bytes.get(at as usize..at as usize + width)?);
            Some(u64::from_le_bytes(word))
        }
        fn store(&self, at: u64, width: usize, value: u64) -> Option<()> {
            let mut bytes = self.0.borrow_mut();
            let to = bytes.get_mut(at as usize..at as usize + width)?;
            to.copy_from_slice(&value.to_le_bytes()[..width]);
            Some(())
        }
    }

    const HEAD: &str =
        ".version 6.4\n.target sm_60\n.address_size 64\n.visible .entry k(.param .u64 p, .param .u32 n) {";

    #[test]
    fn threads_do_as_the_text_says() {
        let body = "// each thread adds its number to its word
            .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<2>;
            mov.u32 %r0, %tid.x; ld.param.u32 %r1, [n]; setp.ge.u32 %p0, %r0, %r1; @%p0 bra END;
            ld.param.u64 %d0, [p]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
            ld.global.u32 %r2, [%d0]; add.u32 %r2, %r2, %r0; st.global.u32 [%d0], %r2;
            END: ret; }";
        let kernel = Kernel::parse(&format!("{HEAD}{body}")).unwrap();
        assert_eq!((kernel.name(), kernel.parameters().collect::<Vec<_>>()), ("k", vec![8, 4]));
        let bus = Bytes(RefCell::new(vec![0xff; 16]));
        for thread in 0..4 {
            kernel.run(&bus, Thread { thread, threads: 4, ..Thread::default() }, &[0, 3]).unwrap();
        }
        let words: Vec<u32> =
            bus.0.borrow().chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [u32::MAX, 0, 1, u32::MAX]);
        // A misaligned vector, and an address that is not there.
        for (body, at) in [("ld.global.v2.u32 {%a, %b}, [%d0]", 4), ("ld.global.u32 %a, [%d0+8]", 8)] {
            let kernel = Kernel::parse(&format!("{HEAD} ld.param.u64 %d0, [p]; {body}; ret; }}")).unwrap();
            assert!(kernel.run(&bus, Thread::default(), &[at, 0]).is_err(), "{body}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for body in [
            "bra NOWHERE; }",
            "fma.rn.f32 %f0, %f1, %f2; }",
            "mov.u32 %r0; }",
            "ld.param.u32 %r0, [q]; }",
            "ret;",
        ] {
            assert!(Kernel::parse(&format!("{HEAD}{body}")).is_err(), "{body}");
        }
        assert!(Kernel::parse("nothing").is_err());
    }
}
