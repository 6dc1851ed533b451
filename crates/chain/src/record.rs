//! Marks on a chain: records, and control data among the bytes.

use crate::chain::Chain;
use crate::error::ChainError;
use crate::marks::Mark;

impl Chain {
    /// Ends a record here: the last byte is its last one. Two ends in one place make a record without bytes.
    pub fn end_record(&mut self) {
        self.attach(Mark::EndOfRecord);
    }

    /// Puts a mark behind all that is here. O(1).
    pub fn attach(&mut self, mark: Mark) {
        let len = self.len();
        self.marks.get_or_insert_default().insert(len, mark);
    }

    /// Puts a mark before byte `at`, behind the marks that are there already.
    ///
    /// # Errors
    ///
    /// [`ChainError::BeyondEnd`]; the mark is dropped, and with it its descriptors.
    pub fn insert_mark(&mut self, at: usize, mark: Mark) -> Result<(), ChainError> {
        self.inside(at)?;
        self.marks.get_or_insert_default().insert(at, mark);
        Ok(())
    }

    /// The marks in order, each with the number of bytes before it.
    pub fn marks(&self) -> impl Iterator<Item = (usize, &Mark)> {
        self.marks.iter().flat_map(|marks| marks.iter())
    }

    /// How many marks there are.
    pub fn mark_count(&self) -> usize {
        self.marks.as_ref().map_or(0, |marks| marks.len())
    }

    /// Takes the first mark, if no byte is before it.
    pub fn pop_mark(&mut self) -> Option<Mark> {
        let marks = self.marks.as_mut()?;
        marks.iter().next().filter(|(at, _)| *at == 0)?;
        let mark = marks.pop_front();
        if marks.is_empty() {
            self.marks = None;
        }
        mark
    }

    /// Bytes up to the first end of a record; `None` when none ends here.
    pub fn record_len(&self) -> Option<usize> {
        self.marks().find(|(_, mark)| matches!(mark, Mark::EndOfRecord)).map(|(at, _)| at)
    }

    /// Takes the first record out, with its end and all marks before that; `None` when none ends here.
    ///
    /// # Errors
    ///
    /// [`ChainError::Unfinished`], as [`Chain::split_to`].
    pub fn split_record(&mut self) -> Result<Option<Chain>, ChainError> {
        let end = self.marks().enumerate().find(|(_, (_, mark))| matches!(mark, Mark::EndOfRecord));
        match end.map(|(number, (at, _))| (at, number + 1)) {
            Some((at, marks)) => self.cut(at, marks).map(Some),
            None => Ok(None),
        }
    }
}
