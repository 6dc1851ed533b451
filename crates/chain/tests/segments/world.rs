//! Runs a program on a queue of segments and on a vector at once.

use crate::memory::{PAGE, Peer, device, host, in_use, peer};
use crate::program::{Memory, Step};
use onecopy_chain::notify::{Config, Context, Fate, Lane, Limits, Queue, Segment, SegmentQueue};
use onecopy_chain::{Chain, ChainError, Fragment, Kind, Writer};
use onecopy_pool::PagePool;
use onecopy_sys::map::Span;
use std::collections::BTreeSet;
use std::time::Duration;

/// Pages that the peer has, and slots that he lends them in.
const LENT: u32 = 40;

/// A byte as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Byte {
    /// None where nobody can look.
    value: Option<u8>,
    /// The send that it is of, if somebody waits for it.
    send: Option<u64>,
}

/// What is known of a send.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    bytes: u32,
    copied: bool,
    dropped: bool,
}

pub struct World {
    ours: PagePool,
    theirs: Peer,
    gpu: PagePool,
    lane: Lane,
    completions: Queue,
    queue: SegmentQueue,
    plain: Vec<Byte>,
    on_its_way: Vec<(Segment<Chain>, Vec<Byte>)>,
    sent: Vec<Sent>,
    told: u64,
    turn: u8,
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8).collect()
}

impl World {
    pub fn new() -> World {
        let (context, completions) = Context::new();
        let limits = Limits { bytes: u32::MAX, sends: u32::MAX, age: Duration::MAX };
        let theirs = peer(LENT);
        for page in 0..LENT {
            theirs.write(page as usize * PAGE, &pattern(PAGE, page as u8));
        }
        World {
            ours: host(4000),
            theirs,
            gpu: device(1, 4000, 0),
            lane: context.lane(Config { capacity: 4095, limits }).unwrap(),
            completions,
            queue: SegmentQueue::new(),
            plain: Vec::new(),
            on_its_way: Vec::new(),
            sent: Vec::new(),
            told: 0,
            turn: 0,
        }
    }

    fn place(&self, thousandths: u64) -> u64 {
        let len = self.queue.len();
        if thousandths <= 1000 { len * thousandths / 1000 } else { len + thousandths - 1000 }
    }

    pub fn step(&mut self, step: &Step) {
        self.turn = self.turn.wrapping_add(1);
        match step {
            Step::Push(parts) => self.push(parts),
            Step::Write(len) => {
                let bytes = pattern(*len, self.turn);
                self.queue.write(&Writer::new(&self.ours), &bytes).unwrap();
                self.plain.extend(bytes.iter().map(|byte| Byte { value: Some(*byte), send: None }));
            }
            Step::Range(at, len) => self.range(self.place(*at), *len),
            Step::Gone(which, fate) => self.gone(*which, *fate),
            Step::Advance(at, fate) => {
                let n = self.place(*at);
                match self.queue.advance(n, *fate) {
                    Ok(()) => {
                        let freed: Vec<Byte> = self.plain.drain(..n as usize).collect();
                        self.became(&freed, *fate);
                    }
                    Err(error) => {
                        assert!(n > self.queue.len() && matches!(error, ChainError::BeyondEnd { .. }));
                    }
                }
            }
            Step::Truncate(at, fate) => {
                let n = self.place(*at);
                self.queue.truncate(n, *fate).unwrap();
                let freed = self.plain.split_off(self.plain.len().min(n as usize));
                self.became(&freed, *fate);
            }
            Step::Take(max, fate) => match self.queue.take(*max).unwrap() {
                None => assert!(*max == 0 || self.plain.is_empty()),
                Some(taken) => {
                    let n = taken.payload().len();
                    assert!(0 < n && n <= *max);
                    let bytes: Vec<Byte> = self.plain.drain(..n).collect();
                    is(taken.payload(), &bytes);
                    taken.free(*fate);
                    self.became(&bytes, *fate);
                }
            },
            Step::Clear(fate) => {
                self.queue.clear(*fate);
                let freed = std::mem::take(&mut self.plain);
                self.became(&freed, *fate);
            }
            Step::Cut(which, at, again) => self.cut(*which, *at, *again),
            Step::Reap(most) => self.reap(*most),
            Step::Rest => self.queue.rest(),
        }
    }

    /// Bytes in such memory, and what they are; None where the peer has no more to lend.
    fn fragment(&mut self, memory: Memory, len: usize) -> Option<(Fragment, Vec<Option<u8>>)> {
        let bytes = pattern(len, self.turn);
        let values = bytes.iter().map(|byte| Some(*byte)).collect();
        Some(match memory {
            Memory::Copied => unreachable!("it needs no fragment"),
            Memory::Ours => {
                let mut page = self.ours.alloc().unwrap();
                let at = (PAGE - len) / 2;
                page.bytes_mut().unwrap()[at..at + len].copy_from_slice(&bytes);
                (Fragment::new(page, at, len).unwrap(), values)
            }
            Memory::Piece => {
                let file =
                    rustix::fs::memfd_create("onecopy-chain-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                assert_eq!(rustix::io::write(&file, &bytes).unwrap(), len);
                let mut piece = self.ours.alloc_piece(len as u32).unwrap();
                let spans = [piece.span_mut().unwrap(), Span::EMPTY];
                assert_eq!(onecopy_sys::spans::pread(&file, &spans, 0).unwrap(), len);
                (piece.into(), values)
            }
            Memory::Peer => {
                let pages = &mut self.theirs.pages;
                let page = (0..LENT).find_map(|slot| pages.adopt(slot, slot).ok())?;
                let values =
                    pattern(PAGE, page.index() as u8)[..len].iter().map(|byte| Some(*byte)).collect();
                (Fragment::new(page, 0, len).unwrap(), values)
            }
            Memory::Device => (Fragment::new(self.gpu.alloc().unwrap(), 0, len).unwrap(), vec![None; len]),
        })
    }

    fn push(&mut self, parts: &[(Memory, usize)]) {
        let mut segment = Segment::<Chain>::default();
        for &(memory, len) in parts {
            if memory == Memory::Copied {
                let bytes = pattern(len, self.turn);
                if Writer::new(&self.ours).append(segment.payload_mut(), &bytes).is_err() {
                    self.queue.push(std::mem::take(&mut segment));
                    Writer::new(&self.ours).append(segment.payload_mut(), &bytes).unwrap();
                }
                self.plain.extend(bytes.iter().map(|byte| Byte { value: Some(*byte), send: None }));
                continue;
            }
            let len = len.max(1);
            let Some((fragment, values)) = self.fragment(memory, len) else { continue };
            let mut at = segment.payload().len();
            if segment.payload_mut().append(fragment.clone()).is_err() {
                self.queue.push(std::mem::take(&mut segment));
                at = 0;
                segment.payload_mut().append(fragment).unwrap();
            }
            let number = self.sent.len() as u64;
            let id = self.lane.send_at(&mut segment, at as u32, number + 1000, len as u32, 0).unwrap();
            assert_eq!(id, number);
            self.sent.push(Sent { bytes: len as u32, ..Sent::default() });
            self.plain.extend(values.into_iter().map(|value| Byte { value, send: Some(number) }));
        }
        self.queue.push(segment);
    }

    fn range(&mut self, at: u64, len: usize) {
        let range = match self.queue.range(at, len) {
            Ok(range) => range,
            Err(error) => {
                assert!(at + len as u64 > self.queue.len() && matches!(error, ChainError::BeyondEnd { .. }));
                return;
            }
        };
        let got = range.payload().len();
        let bytes = self.plain[at as usize..][..got].to_vec();
        is(range.payload(), &bytes);
        // It ends early only where a device's memory begins or ends.
        if got < len {
            let (last, next) = (self.plain[at as usize + got - 1], self.plain[at as usize + got]);
            assert_ne!(last.value.is_none(), next.value.is_none(), "{got} of {len} bytes");
        }
        self.on_its_way.push((range, bytes));
    }

    fn gone(&mut self, which: usize, fate: Option<Fate>) {
        if self.on_its_way.is_empty() {
            return;
        }
        let (segment, bytes) = self.on_its_way.swap_remove(which % self.on_its_way.len());
        match fate {
            Some(fate) => {
                segment.free(fate);
                self.became(&bytes, fate);
            }
            // Nobody says anything, so it is what is said of the rest.
            None => drop(segment),
        }
    }

    fn cut(&mut self, which: usize, at: u64, again: bool) {
        if self.on_its_way.is_empty() {
            return;
        }
        let which = which % self.on_its_way.len();
        let (segment, bytes) = &mut self.on_its_way[which];
        let at = bytes.len() * at as usize / 1000;
        let rest = segment.divide(at).unwrap();
        let behind = bytes.split_off(at);
        is(segment.payload(), bytes);
        is(rest.payload(), &behind);
        if again {
            segment.concat(rest).unwrap();
            bytes.extend(behind);
        } else {
            self.on_its_way.push((rest, behind));
        }
    }

    /// Says of the sends of these bytes what became of some.
    fn became(&mut self, bytes: &[Byte], fate: Fate) {
        for send in bytes.iter().filter_map(|byte| byte.send) {
            let sent = &mut self.sent[send as usize];
            sent.copied |= fate == Fate::Copied;
            sent.dropped |= fate == Fate::Dropped;
        }
    }

    /// Sends of which somebody has bytes.
    fn live(&self) -> BTreeSet<u64> {
        let on_its_way = self.on_its_way.iter().flat_map(|(_, bytes)| bytes);
        self.plain.iter().chain(on_its_way).filter_map(|byte| byte.send).collect()
    }

    fn reap(&mut self, most: usize) {
        let most = if most == 5 { usize::MAX } else { most };
        let first = self.live().first().copied().unwrap_or(self.sent.len() as u64);
        let (sent, told) = (&self.sent, &mut self.told);
        self.completions.reap_some(most, |one| {
            assert_eq!((one.id, one.user_data), (*told, *told + 1000), "each once, in order");
            assert!(one.id < first, "send {} is told of while somebody has its bytes", one.id);
            let sent = sent[one.id as usize];
            assert_eq!((one.bytes, one.how.copied, one.how.dropped), (sent.bytes, sent.copied, sent.dropped));
            *told += 1;
        });
        if most == usize::MAX {
            assert_eq!(self.told, first, "told of later than need be");
        }
    }

    /// Everything is as the vector says.
    pub fn check(&self) {
        assert_eq!(
            (self.queue.len(), self.queue.is_empty()),
            (self.plain.len() as u64, self.plain.is_empty())
        );
        let (mut at, mut true_size) = (0, 0);
        for segment in self.queue.segments() {
            let len = segment.payload().len();
            assert!(len > 0);
            is(segment.payload(), &self.plain[at..at + len]);
            at += len;
            true_size += segment.payload().true_size() as u64;
        }
        assert_eq!((at, true_size), (self.plain.len(), self.queue.true_size()));
    }

    /// Nothing is left, and every send was told of once.
    pub fn end(mut self) {
        self.reap(5);
        let queued = std::mem::take(&mut self.plain);
        self.queue.clear(Fate::Sent);
        self.became(&queued, Fate::Sent);
        self.reap(5);
        self.on_its_way.clear();
        self.reap(5);
        assert_eq!(self.told, self.sent.len() as u64);
        assert_eq!(self.completions.reap(|one| panic!("told of twice: {one:?}")), 0);
        // (The page that pieces are cut from stays with its pool.)
        let cut = u64::from(self.ours.stats().in_flight > 0 && in_use(&self.ours) > 0);
        assert!(in_use(&self.ours) <= cut, "{} pages of ours are missing", in_use(&self.ours));
        assert_eq!((self.theirs.pages.in_flight(), in_use(&self.gpu)), (0, 0));
    }
}

/// The chain has just these bytes.
fn is(chain: &Chain, bytes: &[Byte]) {
    assert_eq!(chain.len(), bytes.len());
    let values: Vec<Option<u8>> = match chain.kind() {
        None => Vec::new(),
        Some(Kind::Host) => chain.host().unwrap().to_vec().into_iter().map(Some).collect(),
        Some(Kind::Peer) => {
            let mut out = vec![0; chain.len()];
            chain.peer().unwrap().copy_to(0, &mut out, Default::default()).unwrap();
            out.into_iter().map(Some).collect()
        }
        Some(Kind::Device) => vec![None; chain.len()],
    };
    assert!(values.iter().eq(bytes.iter().map(|byte| &byte.value)), "other bytes in {chain:?}");
}
