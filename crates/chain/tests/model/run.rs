//! Runs a program on chains and on vectors at once.

use crate::pipes::{Pipes, number};
use crate::plain::{Note, Plain, State, Unfinished};
use crate::program::{CHAINS, Step};
use onecopy_chain::{Chain, ChainError, Checksum, Credentials, Fragment, Mark, Placed, Sum, Writer};
use onecopy_pool::{Netmem, Page, PagePool};
use std::collections::HashSet;

/// Few enough that a long program runs out of them.
const PAGES: u32 = 40;

const PAGE: usize = 4096;

pub struct Run {
    pool: PagePool,
    chains: [Chain; CHAINS],
    plains: [Plain; CHAINS],
    pipes: Pipes,
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}

/// Bytes from the start; more than 1000 thousandths are behind the end.
fn place(len: usize, thousandths: usize) -> usize {
    if thousandths <= 1000 { len * thousandths / 1000 } else { len + thousandths - 1000 }
}

/// Whether both failed for this reason.
fn unfinished(error: &ChainError) -> bool {
    matches!(error, ChainError::Unfinished { .. })
}

impl Run {
    pub fn new() -> Run {
        Run {
            pool: crate::pool(PAGES),
            chains: Default::default(),
            plains: Default::default(),
            pipes: Pipes::default(),
        }
    }

    fn page(&self, seed: u8) -> Option<(Page, Vec<u8>)> {
        let mut page = self.pool.alloc().ok()?;
        let bytes = pattern(PAGE, seed);
        page.bytes_mut().expect("a new page").copy_from_slice(&bytes);
        Some((page, bytes))
    }

    /// Only when the pool is (nearly) empty may there be no page.
    fn no_page(&self, error: &ChainError, wanted: usize) {
        assert!(matches!(error, ChainError::NoPage(_)), "{error:?}");
        assert!(self.in_use() + wanted > PAGES as usize, "no page, but {} in use", self.in_use());
    }

    fn in_use(&self) -> usize {
        let of = self.chains.iter().flat_map(Chain::fragments).map(|fragment| fragment.page().netmem());
        of.collect::<HashSet<Netmem>>().len()
    }

    /// `to` gets what a split gave.
    fn put(&mut self, to: usize, chain: Chain, plain: Plain) {
        self.chains[to] = chain;
        self.plains[to] = plain;
    }

    pub fn step(&mut self, step: &Step) {
        match *step {
            Step::Copy { to, len, seed, headroom } => {
                let bytes = pattern(len, seed);
                let fresh = self.plains[to].bytes.is_empty();
                let writer = Writer::new(&self.pool).headroom(headroom);
                match writer.append(&mut self.chains[to], &bytes) {
                    Ok(()) if len == 0 => {}
                    Ok(()) => {
                        let _ = self.plains[to].copied_in(0);
                        self.plains[to].bytes.extend(&bytes);
                        if fresh {
                            assert_eq!(self.chains[to].headroom(), headroom);
                        }
                    }
                    Err(ChainError::OverPage { page, .. }) => assert!(fresh && headroom >= page),
                    Err(error) => self.no_page(&error, 2 + len / PAGE),
                }
            }
            Step::Fragment { to, offset, len, seed, front } => {
                let Some((page, bytes)) = self.page(seed) else { return };
                match Fragment::new(page, offset, len) {
                    Ok(fragment) => self.by_reference(to, fragment, bytes[offset..][..len].to_vec(), front),
                    Err(ChainError::ZeroSize) => assert_eq!(len, 0),
                    Err(ChainError::OutOfPage { .. }) => assert!(offset + len > PAGE),
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Again { of, offset, len, to } => {
                // Another part of a page that is held already, wherever that is.
                let Some(page) = self.chains[of].fragments().next_back().map(|last| last.page().clone())
                else {
                    return;
                };
                let bytes = page.bytes().expect("host memory").to_vec();
                if let Ok(fragment) = Fragment::new(page, offset, len) {
                    self.by_reference(to, fragment, bytes[offset..][..len].to_vec(), false);
                }
            }
            Step::Piece { to, offset, len, seed, copy_break } => {
                let Some((page, bytes)) = self.page(seed) else { return };
                let Ok(fragment) = Fragment::new(page, offset, len) else { return };
                let writer = Writer::new(&self.pool).copy_break(copy_break);
                let placed =
                    writer.append_fragment(&mut self.chains[to], fragment).expect("by reference at worst");
                if placed == Placed::Copied {
                    assert!(len < copy_break);
                    let _ = self.plains[to].copied_in(0);
                } else {
                    assert!(len >= copy_break || self.in_use() + 1 > PAGES as usize);
                    self.referenced(to);
                }
                self.plains[to].bytes.extend(&bytes[offset..][..len]);
            }
            Step::Read { to, len, max, seed } => {
                let bytes = pattern(len, seed);
                match Writer::new(&self.pool).read_from(&mut self.chains[to], &bytes[..], max) {
                    Ok(n) => {
                        assert!(n <= len.min(max));
                        assert!(n == len.min(max) || self.in_use() == PAGES as usize);
                        if n > 0 {
                            self.referenced(to);
                        }
                        self.plains[to].bytes.extend(&bytes[..n]);
                    }
                    Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory),
                }
            }
            Step::Concat { to, from } => self.concat(to, from),
            Step::SplitTo { of, at, to } => {
                let at = place(self.plains[of].bytes.len(), at);
                self.split(of, at, to, false);
            }
            Step::SplitOff { of, at, to } => {
                let at = place(self.plains[of].bytes.len(), at);
                self.split(of, at, to, true);
            }
            Step::Advance { of, at } => {
                let at = place(self.plains[of].bytes.len(), at);
                let answer = self.chains[of].advance(at);
                self.advanced(of, at, answer, false);
            }
            Step::Pull { of, at } => {
                let at = place(self.plains[of].bytes.len(), at);
                let known = self.plains[of].state == State::Known;
                let answer = self.chains[of].pull(at);
                self.advanced(of, at, answer, known);
            }
            Step::Truncate { of, at } => {
                let at = place(self.plains[of].bytes.len(), at);
                let answer = self.chains[of].truncate(at);
                if at >= self.plains[of].bytes.len() {
                    return answer.expect("nothing to do");
                }
                match self.plains[of].split_to(at) {
                    Ok(front) => {
                        answer.expect("as the model");
                        self.plains[of] = front;
                    }
                    Err(Unfinished) => assert!(unfinished(&answer.unwrap_err())),
                }
            }
            Step::Range { of, at, len, to } => self.range(of, at, len, to),
            Step::Share { of, to } => {
                let chain = self.chains[of].share();
                let plain = self.plains[of].clone().without_rights();
                self.put(to, chain, plain);
            }
            Step::Take { of, to } => {
                let (chain, plain) = (self.chains[of].take(), std::mem::take(&mut self.plains[of]));
                self.put(to, chain, plain);
            }
            Step::Clear { of } => {
                self.chains[of].clear();
                self.plains[of] = Plain::default();
            }
            Step::EndRecord { of } => {
                self.chains[of].end_record();
                let at = self.plains[of].bytes.len();
                self.plains[of].note(at, Note::End);
            }
            Step::Rights { of, at, count } if self.pipes.count() < 12 => {
                let (numbers, fds) = (0..count).map(|_| self.pipes.open()).unzip();
                self.mark(of, at, Mark::Rights(fds), Note::Rights(numbers));
            }
            Step::Rights { .. } => {}
            Step::From { of, at, pid } => {
                let who = Credentials { pid, uid: 1, gid: 2 };
                self.mark(of, at, Mark::Credentials(who), Note::From(pid));
            }
            Step::PopMark { of } => {
                let first =
                    self.plains[of].notes.first().filter(|(at, _)| *at == 0).map(|(_, note)| note.clone());
                if first.is_some() {
                    self.plains[of].notes.remove(0);
                }
                let mark = self.chains[of].pop_mark();
                assert_eq!(mark.as_ref().map(Note::of), first);
                if let Some(Mark::Rights(fds)) = mark {
                    let open: Vec<u64> = fds.iter().map(number).collect();
                    self.pipes.check(&[open, self.rights()].concat());
                }
            }
            Step::SplitRecord { of, to } => {
                let plain = &mut self.plains[of];
                let end = plain.notes.iter().position(|(_, note)| *note == Note::End);
                assert_eq!(self.chains[of].record_len(), end.map(|i| plain.notes[i].0));
                let answer = self.chains[of].split_record();
                let Some(end) = end else { return assert!(answer.expect("nothing to cut").is_none()) };
                match plain.split_after(plain.notes[end].0, end + 1) {
                    Ok(front) => self.put(to, answer.expect("as the model").expect("a record"), front),
                    Err(Unfinished) => assert!(unfinished(&answer.unwrap_err())),
                }
            }
            Step::Header { of, len, seed } => {
                let bytes = pattern(len, seed);
                let headroom = self.chains[of].headroom();
                let before = self.in_use();
                match Writer::new(&self.pool).push_header(&mut self.chains[of], &bytes) {
                    Ok(()) if len == 0 => {}
                    Ok(()) => {
                        assert!(self.plains[of].copied_in(len).is_ok());
                        let mut front = Plain { bytes, ..Plain::default() };
                        front.state = self.plains[of].state;
                        front.concat(std::mem::take(&mut self.plains[of]));
                        self.plains[of] = front;
                        assert_eq!(self.in_use(), before + usize::from(headroom < len), "headroom is used");
                    }
                    Err(error) if unfinished(&error) => assert!(self.plains[of].copied_in(len).is_err()),
                    Err(error) => self.no_page(&error, 1),
                }
            }
            Step::PullUp { of, at, headroom } => {
                let len = self.plains[of].bytes.len();
                let n = place(len, at);
                let writer = Writer::new(&self.pool).headroom(headroom);
                match writer.pull_up(&mut self.chains[of], n) {
                    Ok(bytes) => assert_eq!(bytes, &self.plains[of].bytes[..n]),
                    Err(ChainError::BeyondEnd { .. }) => assert!(n > len),
                    Err(ChainError::OverPage { .. }) => assert!(n > PAGE),
                    Err(error) => self.no_page(&error, 1),
                }
            }
            Step::Overwrite { of, at, len, seed } => {
                let all = self.plains[of].bytes.len();
                let at = place(all, at);
                let bytes = pattern(len, seed);
                match Writer::new(&self.pool).overwrite(&mut self.chains[of], at, &bytes) {
                    Ok(()) => {
                        self.plains[of].bytes[at..][..len].copy_from_slice(&bytes);
                        if len > 0 && self.plains[of].state == State::Verified {
                            self.plains[of].state = State::None;
                        }
                    }
                    Err(ChainError::BeyondEnd { .. }) => assert!(at + len > all),
                    Err(error) => self.no_page(&error, 1 + len / PAGE),
                }
            }
            Step::Collapse { of, copy_break } => {
                let before = self.chains[of].true_size();
                let writer = Writer::new(&self.pool).copy_break(copy_break);
                match writer.collapse(&mut self.chains[of]) {
                    Ok(freed) => assert_eq!(self.chains[of].true_size(), before - freed),
                    Err(error) => self.no_page(&error, before / PAGE + 1),
                }
            }
            Step::Known { of } => {
                let sum = self.chains[of].host().and_then(|view| view.sum(0, view.to_vec().len()));
                self.chains[of].set_checksum(Checksum::Known(sum.expect("host memory"))).expect("any sum");
                self.plains[of].state = State::Known;
            }
            Step::Checked { of } => {
                self.chains[of].set_checksum(Checksum::Verified).expect("no condition");
                self.plains[of].state = State::Verified;
            }
            Step::Partial { of, start, offset } => {
                let len = self.plains[of].bytes.len();
                let start = place(len, start).min(65535);
                let checksum = Checksum::Partial { start: start as u16, offset: offset as u16 };
                match self.chains[of].set_checksum(checksum) {
                    Ok(()) => self.plains[of].state = State::Partial(start, offset),
                    Err(_) => assert!(start + offset + 2 > len),
                }
            }
            Step::Verify { of } => self.verify(of),
            Step::Finish { of } => self.finish(of),
        }
    }

    fn by_reference(&mut self, to: usize, fragment: Fragment, bytes: Vec<u8>, front: bool) {
        if front {
            let mut first = Plain { bytes, ..Plain::default() };
            match (self.chains[to].prepend(fragment), first.joined(&self.plains[to])) {
                (Ok(()), Ok(state)) => {
                    first.concat(std::mem::take(&mut self.plains[to]));
                    first.state = state;
                    self.plains[to] = first;
                }
                (Err(error), Err(Unfinished)) => assert!(unfinished(&error)),
                (answer, _) => panic!("unlike the model: {answer:?}"),
            }
        } else {
            self.chains[to].append(fragment).expect("of one kind");
            self.referenced(to);
            self.plains[to].bytes.extend(bytes);
        }
    }

    /// What bytes that nobody looked at, put at the end, do to the checksum.
    fn referenced(&mut self, to: usize) {
        if !matches!(self.plains[to].state, State::Partial(..)) {
            self.plains[to].state = State::None;
        }
    }

    fn concat(&mut self, to: usize, from: usize) {
        if to == from {
            return;
        }
        let mut other = self.chains[from].take();
        match (self.chains[to].concat(&mut other), self.plains[to].joined(&self.plains[from])) {
            (Ok(()), Ok(state)) => {
                assert!(other.is_empty() && other.mark_count() == 0);
                let plain = std::mem::take(&mut self.plains[from]);
                self.plains[to].concat(plain);
                self.plains[to].state = state;
            }
            (Err(error), Err(Unfinished)) => {
                assert!(unfinished(&error));
                self.chains[from] = other;
            }
            (answer, _) => panic!("unlike the model: {answer:?}"),
        }
    }

    fn split(&mut self, of: usize, at: usize, to: usize, off: bool) {
        let answer = if off { self.chains[of].split_off(at) } else { self.chains[of].split_to(at) };
        if at > self.plains[of].bytes.len() {
            return assert!(matches!(answer, Err(ChainError::BeyondEnd { .. })));
        }
        match self.plains[of].split_to(at) {
            Ok(mut plain) => {
                if off {
                    std::mem::swap(&mut plain, &mut self.plains[of]);
                }
                self.put(to, answer.expect("as the model"), plain);
            }
            Err(Unfinished) => assert!(unfinished(&answer.unwrap_err())),
        }
    }

    fn advanced(&mut self, of: usize, at: usize, answer: Result<(), ChainError>, known: bool) {
        if at > self.plains[of].bytes.len() {
            return assert!(matches!(answer, Err(ChainError::BeyondEnd { .. })));
        }
        match self.plains[of].split_to(at) {
            Ok(_) => {
                answer.expect("as the model");
                if known {
                    self.plains[of].state = State::Known;
                }
            }
            Err(Unfinished) => assert!(unfinished(&answer.unwrap_err())),
        }
    }

    fn range(&mut self, of: usize, at: usize, len: usize, to: usize) {
        let all = self.plains[of].bytes.len();
        let at = place(all, at);
        let len = place(all.saturating_sub(at), len);
        let answer = self.chains[of].range(at, len);
        if at + len > all {
            return assert!(matches!(answer, Err(ChainError::BeyondEnd { .. })));
        }
        let mut rest = self.plains[of].clone();
        let plain = match len {
            0 => Ok(Plain::default()),
            _ => rest.split_to(at).and_then(|_| rest.split_to(len)),
        };
        match plain {
            Ok(plain) => self.put(to, answer.expect("as the model"), plain.without_rights()),
            Err(Unfinished) => assert!(unfinished(&answer.unwrap_err())),
        }
    }

    fn mark(&mut self, of: usize, at: usize, mark: Mark, note: Note) {
        let len = self.plains[of].bytes.len();
        let at = place(len, at);
        match self.chains[of].insert_mark(at, mark) {
            Ok(()) => self.plains[of].note(at, note),
            Err(error) => assert!(at > len && matches!(error, ChainError::BeyondEnd { .. })),
        }
    }

    fn verify(&mut self, of: usize) {
        let naive = onecopy_testing::internet_sum(&self.plains[of].bytes);
        // Half of the time the pseudo-header is what makes it right.
        let pseudo = if naive.is_multiple_of(2) { Sum::new(!naive) } else { Sum::new(naive) };
        let right = pseudo.then(Sum::new(naive), 0).is_valid();
        let known = matches!(self.plains[of].state, State::Verified | State::Partial(..));
        let answer = self.chains[of].verify(pseudo).expect("host memory");
        assert_eq!(answer, known || right);
        if !known && right {
            self.plains[of].state = State::Verified;
        }
    }

    fn finish(&mut self, of: usize) {
        let answer = Writer::new(&self.pool).finish(&mut self.chains[of]);
        let State::Partial(start, offset) = self.plains[of].state else {
            return answer.expect("nothing to do");
        };
        match answer {
            Ok(()) => {
                let stored = match !onecopy_testing::internet_sum(&self.plains[of].bytes[start..]) {
                    0 => 0xffff,
                    checksum => checksum,
                };
                self.plains[of].bytes[start + offset..][..2].copy_from_slice(&stored.to_be_bytes());
                self.plains[of].state = State::None;
            }
            Err(error) => self.no_page(&error, 2),
        }
    }

    fn rights(&self) -> Vec<u64> {
        self.plains.iter().flat_map(Plain::rights).collect()
    }

    /// Everything is as the model says.
    pub fn check(&self) {
        for (chain, plain) in self.chains.iter().zip(&self.plains) {
            plain.check(chain);
            check_fragments(chain);
        }
        assert_eq!(crate::in_use(&self.pool), self.in_use(), "pages in use");
        self.pipes.check(&self.rights());
    }

    /// Nothing is left.
    pub fn end(mut self) {
        self.chains.iter_mut().for_each(Chain::clear);
        assert_eq!(crate::in_use(&self.pool), 0, "pages leaked");
        self.pipes.check(&[]);
    }
}

/// What can be said of fragments alone.
fn check_fragments(chain: &Chain) {
    let fragments: Vec<&Fragment> = chain.fragments().collect();
    assert_eq!(fragments.len(), chain.fragment_count());
    assert_eq!(fragments.iter().map(|fragment| fragment.len()).sum::<usize>(), chain.len());
    let mut true_size = 0;
    for (i, fragment) in fragments.iter().enumerate() {
        assert!(fragment.len() > 0 && fragment.end() <= PAGE);
        let same = i > 0 && fragments[i - 1].page().netmem() == fragment.page().netmem();
        true_size += if same { 0 } else { PAGE };
        assert!(
            !same || fragments[i - 1].end() != fragment.offset(),
            "fragments that should be one: {chain:?}"
        );
    }
    assert_eq!(chain.true_size(), true_size);
    assert_eq!(chain.kind().is_none(), chain.is_empty());
}
