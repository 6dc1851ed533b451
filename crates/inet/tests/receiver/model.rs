//! A stream that is cut, overlapped, repeated and reordered, against a plain vector.

use crate::world::{MS, MSS, World, agreed, byte, in_use, stream};
use onecopy_inet::tcp::rcv::{AckWhen, Check, Limits, Refused};
use onecopy_inet::wire::Flags;
use proptest::prelude::*;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// Bytes from so far behind what is acknowledged (or before it) come, with the FIN if they reach the end.
    Come(i32, u32),
    /// What follows what was acknowledged comes.
    Next(u32),
    /// The program reads.
    Read(usize),
    /// An ACK leaves, wanted or not.
    Ack,
    /// Time passes, in microseconds.
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (-3000..40_000_i32, 0..4000_u32).prop_map(|(at, len)| Step::Come(at, len)),
        3 => (-300..4000_i32, 0..1500_u32).prop_map(|(at, len)| Step::Come(at, len)),
        4 => (1..3000_u32).prop_map(Step::Next),
        2 => (0..20_000_usize).prop_map(Step::Read),
        2 => Just(Step::Ack),
        1 => (0..100_000_u32).prop_map(Step::Wait),
    ]
}

/// What is known of the receiver from outside.
struct Model {
    world: World,
    /// Bytes in the stream; the FIN stands behind them.
    len: u32,
    /// Which bytes came, and were not refused or given up: those that may be reported.
    came: Vec<bool>,
    edge: u32,
    most: u64,
}

impl Model {
    fn come(&mut self, at: u32, len: u32) {
        let len = len.min(self.len - at);
        let fin = at + len == self.len;
        let flags = if fin { Flags::FIN } else { Flags::empty() };
        let header = self.world.header(at, flags);
        let was = self.world.nxt();
        match self.world.rcv.check(&header, len) {
            Check::Acceptable => {}
            Check::Old => {
                assert!(at + len < was);
                return self.unacceptable(at, len + u32::from(fin));
            }
            Check::Outside | Check::EndsOutside => {
                assert!(at + len > self.edge, "{at} and {len} are inside {}", self.edge);
                return self.unacceptable(at, len + u32::from(fin));
            }
        }
        let chain = self.world.chain(&stream(at, len));
        let (accepted, due) = self.world.give_chain(&header, chain);
        let now = self.world.nxt();
        assert_eq!(now - was, accepted.readable + u32::from(accepted.fin));
        if accepted.refused.is_none() {
            self.came[at as usize..(at + len) as usize].fill(true);
            self.came[self.len as usize] |= fin;
        }
        if at <= was && len > 0 && at + len > was && accepted.refused.is_none() {
            assert!(now >= at + len, "what fills the first hole is taken");
        }
        if at <= was && accepted.refused == Some(Refused::Memory) {
            assert!(!self.world.lends, "what the window promised is kept, where it can be copied together");
            let bare_fin = self.came[self.len as usize];
            assert!(self.world.rcv.available() > 0 && (bare_fin || !self.world.rcv.has_holes()));
        } else if len > 0 && accepted.refused != Some(Refused::Memory) {
            assert_ne!(due, AckWhen::No, "the peer has to hear of it");
        }
        // The pages that are kept, which may be counted twice where a segment lies around others, never less than once.
        let kept = in_use(&self.world.pool) * 4096;
        // Beyond the buffer: one segment, or what was promised, as dense as it can be.
        let most = self.most + self.most / 8 + 5 * 4096;
        assert!(kept <= most && kept <= self.world.rcv.held(), "{kept}");
        if due == AckWhen::Now {
            // The one case in which the edge goes back.
            let shut = accepted.refused == Some(Refused::Memory) && at <= was;
            self.ack(shut);
        }
    }

    fn unacceptable(&mut self, at: u32, len: u32) {
        let seq = self.world.start.plus(at);
        self.world.rcv.unacceptable(seq, len);
        self.ack(false);
    }

    fn ack(&mut self, shut: bool) {
        let nxt = self.world.nxt();
        let (window, blocks) = self.world.ack();
        let edge = nxt + window;
        assert!(edge >= self.edge || shut, "the edge went back from {} to {edge}", self.edge);
        assert_eq!(self.world.place(self.world.rcv.edge()), edge);
        self.edge = edge;
        for (index, &(from, end)) in blocks.iter().enumerate() {
            assert!(from < end);
            let range = from as usize..end as usize;
            assert!(self.came[range].iter().all(|came| *came), "{from}..{end} did not come");
            // Only the first may lie in what is acknowledged, or in another.
            assert!(index == 0 || from > nxt, "{blocks:?} with {nxt}");
            for &(other, last) in &blocks[index + 1..] {
                assert!(index == 0 || last < from || end < other, "{blocks:?}");
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Come(at, len) => {
                let at = i64::from(self.world.nxt()) + i64::from(at);
                self.come(at.clamp(0, self.len.into()) as u32, len);
            }
            Step::Next(len) => self.come(self.world.nxt().min(self.len), len),
            Step::Read(max) => {
                let at = self.world.read;
                let available = self.world.rcv.available();
                let bytes = self.world.read(max);
                assert_eq!(bytes.len() as u64, available.min(max as u64));
                assert!(bytes.iter().zip(at..).all(|(got, at)| *got == byte(at)));
                if self.world.rcv.window_update_due(bytes.len() as u64) {
                    self.ack(false);
                }
            }
            Step::Ack => self.ack(false),
            Step::Wait(micros) => {
                self.world.wait(u64::from(micros) * 1000);
                if self.world.rcv.on_timer(&self.world.moment) == AckWhen::Now {
                    self.ack(false);
                }
            }
        }
    }

    /// All of it is sent again until all of it is there.
    fn finish(&mut self) {
        // Each time at least a byte comes: a small buffer without a scale may let no more through.
        for _ in 0..2000 + self.len {
            if self.world.rcv.end() {
                break;
            }
            self.run(&Step::Wait(1000));
            self.run(&Step::Read(usize::MAX));
            // A byte asks a window that is shut.
            let len = self.world.rcv.window_left().clamp(1, MSS.into());
            self.run(&Step::Next(len));
        }
        assert!(
            self.world.rcv.end(),
            "it does not end: {} of {}: {:?}",
            self.world.nxt(),
            self.len,
            self.world.rcv
        );
        assert_eq!(self.world.read, self.len);
        assert!(!self.world.rcv.has_holes());
        assert_eq!((self.world.rcv.held(), in_use(&self.world.pool)), (0, 0));
        assert_eq!(self.world.rcv.figures().received, self.len.into());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_comes_once_and_in_order(
        before_wrap in prop_oneof![0..60_000_u32, any::<u32>()],
        len in 0..120_000_u32,
        buffer in prop_oneof![4608..20_000_u32, 20_000..300_000_u32],
        locked in any::<bool>(),
        scaled in any::<bool>(),
        sack in any::<bool>(),
        lends in any::<bool>(),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let most = if locked { buffer } else { buffer.max(200_000) };
        let limits = Limits { buffer, most: buffer.max(200_000), locked, ..Limits::default() };
        let mut agreed = agreed(&limits, scaled);
        agreed.sack = sack;
        let mut world = World::with(u32::MAX - before_wrap, &limits, &agreed);
        world.lends = lends;
        let edge = world.place(world.rcv.edge());
        let came = vec![false; len as usize + 1];
        let mut model = Model { world, len, came, edge, most: most.into() };
        for step in &steps {
            model.run(step);
        }
        model.finish();
        let Model { world, .. } = model;
        prop_assert!(world.moment.now > MS);
    }
}
