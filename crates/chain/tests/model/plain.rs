//! What a chain should be: bytes, marks, and the table of checksum states, word for word.

use onecopy_chain::{Chain, Checksum, Mark, Sum};
use onecopy_testing::internet_sum;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    End,
    Rights(Vec<u64>),
    From(i32),
}

impl Note {
    pub fn of(mark: &Mark) -> Note {
        match mark {
            Mark::EndOfRecord => Note::End,
            Mark::Rights(fds) => Note::Rights(fds.iter().map(super::pipes::number).collect()),
            Mark::Credentials(who) => Note::From(who.pid),
            other => panic!("a mark that the model does not know: {other:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    #[default]
    None,
    Partial(usize, usize),
    Verified,
    Known,
}

#[derive(Clone, Debug, Default)]
pub struct Plain {
    pub bytes: Vec<u8>,
    pub notes: Vec<(usize, Note)>,
    pub state: State,
}

/// Would be cut within what an unfinished checksum covers, or gets two.
pub struct Unfinished;

impl Plain {
    /// How many notes stand before a cut at `at`: the rule, spelled out.
    fn notes_before(&self, at: usize) -> usize {
        if at == 0 {
            return 0;
        }
        if at == self.bytes.len() {
            return self.notes.len();
        }
        let here: Vec<usize> = (0..self.notes.len()).filter(|&i| self.notes[i].0 == at).collect();
        let end = here.iter().find(|&&i| self.notes[i].1 == Note::End);
        match end {
            Some(&i) => i + 1,
            None => self.notes.iter().filter(|(position, _)| *position < at).count(),
        }
    }

    pub fn split_to(&mut self, at: usize) -> Result<Plain, Unfinished> {
        self.split_after(at, self.notes_before(at))
    }

    pub fn split_after(&mut self, at: usize, notes: usize) -> Result<Plain, Unfinished> {
        let len = self.bytes.len();
        let (front, back) = match self.state {
            _ if at == 0 && at < len => (State::None, self.state),
            state if at == len => (state, State::None),
            State::None | State::Known => (State::None, State::None),
            State::Verified => (State::Verified, State::Verified),
            State::Partial(start, offset) if at <= start => (State::None, State::Partial(start - at, offset)),
            State::Partial(..) => return Err(Unfinished),
        };
        let rest = self.bytes.split_off(at);
        let mut rest_notes = self.notes.split_off(notes);
        rest_notes.iter_mut().for_each(|(position, _)| *position -= at);
        let bytes = std::mem::replace(&mut self.bytes, rest);
        let notes = std::mem::replace(&mut self.notes, rest_notes);
        self.state = back;
        Ok(Plain { bytes, notes, state: front })
    }

    pub fn joined(&self, other: &Plain) -> Result<State, Unfinished> {
        let len = self.bytes.len();
        Ok(match (self.state, other.state) {
            _ if other.bytes.is_empty() => self.state,
            _ if self.bytes.is_empty() => other.state,
            (State::Partial(..), State::Partial(..)) => return Err(Unfinished),
            (State::Partial(..), _) => self.state,
            (_, State::Partial(start, _)) if len + start > 65535 => return Err(Unfinished),
            (_, State::Partial(start, offset)) => State::Partial(len + start, offset),
            (State::Known, State::Known) => State::Known,
            (State::Verified, State::Verified) => State::Verified,
            _ => State::None,
        })
    }

    pub fn concat(&mut self, mut other: Plain) {
        let len = self.bytes.len();
        self.bytes.append(&mut other.bytes);
        self.notes.extend(other.notes.into_iter().map(|(position, note)| (position + len, note)));
    }

    /// A note behind all that stand at `at` or before.
    pub fn note(&mut self, at: usize, note: Note) {
        let index = self.notes.iter().filter(|(position, _)| *position <= at).count();
        self.notes.insert(index, (at, note));
    }

    /// Bytes came in at the end or in front by a copy.
    pub fn copied_in(&mut self, front: usize) -> Result<(), Unfinished> {
        self.state = match self.state {
            State::Known => State::Known,
            State::Partial(start, _) if start + front > 65535 => return Err(Unfinished),
            State::Partial(start, offset) => State::Partial(start + front, offset),
            State::None | State::Verified => State::None,
        };
        Ok(())
    }

    /// What can be had twice.
    pub fn without_rights(mut self) -> Plain {
        self.notes.retain(|(_, note)| !matches!(note, Note::Rights(_)));
        self
    }

    pub fn rights(&self) -> impl Iterator<Item = u64> + '_ {
        self.notes
            .iter()
            .filter_map(|(_, note)| if let Note::Rights(pipes) = note { Some(pipes) } else { None })
            .flatten()
            .copied()
    }

    /// The chain is this.
    pub fn check(&self, chain: &Chain) {
        assert_eq!(chain.len(), self.bytes.len());
        assert_eq!(chain.is_empty(), self.bytes.is_empty());
        assert!(chain.host().expect("host memory").to_vec() == self.bytes, "other bytes in {chain:?}");
        let notes: Vec<(usize, Note)> = chain.marks().map(|(at, mark)| (at, Note::of(mark))).collect();
        assert_eq!(notes, self.notes);
        assert_eq!(chain.mark_count(), self.notes.len());
        let state = match chain.checksum() {
            Checksum::None => State::None,
            Checksum::Verified => State::Verified,
            Checksum::Partial { start, offset } => State::Partial(start.into(), offset.into()),
            Checksum::Known(sum) => {
                assert_eq!(sum, Sum::new(internet_sum(&self.bytes)), "a sum that is said to be known");
                State::Known
            }
        };
        assert_eq!(state, self.state);
    }
}
