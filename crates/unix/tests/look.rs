//! Looking at received bytes where they lie: in a ring, in a lent page, over the kernel.
#![allow(missing_docs, reason = "a test")]

use onecopy_testing::alone;
use onecopy_unix::*;
use proptest::prelude::*;
use std::io::Write;

/// Where the bytes lie that are looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Ring,
    Page,
    Kernel,
}

const PLACES: [Place; 3] = [Place::Ring, Place::Page, Place::Kernel];
/// A ring this small is gone around often.
const BUFFER: usize = 2048;

struct Way {
    place: Place,
    sender: Stream,
    receiver: Stream,
    pool: SharedPool,
}

impl Way {
    fn new(place: Place) -> Way {
        let transport = if place == Place::Kernel { Transport::Kernel } else { Transport::Auto };
        let config = Config {
            transport,
            send_buffer: Some(BUFFER),
            receive_buffer: Some(BUFFER),
            ..Config::default()
        };
        let (sender, receiver) = Stream::pair_with(&config).unwrap();
        Way { place, sender, receiver, pool: SharedPool::new(64 << 10, 4).unwrap() }
    }

    /// Has all of these bytes in one view.
    fn carry(&self, bytes: &[u8]) -> View {
        match self.place {
            Place::Page => {
                let mut loan = self.pool.loan_within(bytes.len(), onecopy_testing::LONG).unwrap();
                loan.copy_from_slice(bytes);
                self.sender.send_loan(loan).unwrap();
            }
            _ => (&self.sender).write_all(bytes).unwrap(),
        }
        let view = self.receiver.recv_borrowed(bytes.len()).unwrap();
        assert_eq!(view.len(), bytes.len(), "{:?}", self.place);
        view
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed).wrapping_mul(2654435761) >> 13) as u8).collect()
}

fn shown(look: Look<'_>) -> Vec<u8> {
    let mut blocks = look.blocks();
    let mut bytes = Vec::new();
    while let Some(block) = blocks.next() {
        assert!(block.len() == Block::SIZE || blocks.len() == 0, "only the last block is short");
        bytes.extend_from_slice(&block);
    }
    bytes
}

/// The views of a stream begin at each place of a ring in turn, also where a block goes around its end.
#[test]
fn all_lengths_from_all_places_of_a_ring_and_a_page() {
    alone!();
    for place in PLACES {
        let way = Way::new(place);
        for round in 0..10 {
            for len in 1..=300 {
                let bytes = pattern(round + len, len);
                let mut view = way.carry(&bytes);
                assert_eq!(shown(view.look()), bytes, "{place:?}");
                // Cut: it begins anywhere in the page.
                let cut = (round * 7 + len) % len;
                view.advance(cut);
                assert_eq!(shown(view.look()), bytes[cut..], "{place:?}");
                assert_eq!((view.look().len(), view.look().is_empty()), (len - cut, cut == len));
                assert!(view.look() == bytes[cut..] && view.look() != bytes[cut..len - 1]);
                view.advance(len);
                assert_eq!(shown(view.look()), b"");
                assert!(view.look().is_empty() && view.look() == b"");
            }
        }
        assert_eq!(way.receiver.stats().user_copied_out, 0, "{place:?}");
    }
}

#[test]
fn looking_is_no_copy_and_copying_is() {
    alone!();
    for place in PLACES {
        let way = Way::new(place);
        let mut bytes = pattern(1, 1000);
        bytes[500..504].fill(0);
        let view = way.carry(&bytes);
        let before = way.receiver.stats();
        let look = view.look();
        assert_eq!(look.find(&[0; 4]), Some(500));
        assert!(shown(look) == bytes && look == bytes && look.starts_with(&bytes[..100]));
        assert_eq!(look.split(&bytes[..1]).map(|part| part.len() + 1).sum::<usize>(), 1001);
        assert_eq!(way.receiver.stats(), before, "{place:?}");
        let mut part = [0; 40];
        assert_eq!(look.get(960..).unwrap().copy_to(&mut part), 40);
        assert_eq!(part, bytes[960..]);
        assert_eq!(look.get(990..).unwrap().copy_to(&mut part), 10);
        assert_eq!(part[..10], bytes[990..]);
        assert_eq!(way.receiver.stats().user_copied_out - before.user_copied_out, 50, "{place:?}");
    }
}

#[test]
fn parts_are_those_of_a_slice() {
    alone!();
    let bytes = b"one,two,,three,";
    for place in PLACES {
        let way = Way::new(place);
        let view = way.carry(bytes);
        let parts: Vec<_> = view.look().split(b",").map(shown).collect();
        assert_eq!(parts, bytes.split(|byte| *byte == b',').collect::<Vec<_>>());
        let parts: Vec<_> = view.look().split(b",,").map(shown).collect();
        assert_eq!(parts, [&b"one,two"[..], b"three,"]);
        assert_eq!(view.look().split(b";").map(shown).collect::<Vec<_>>(), [bytes]);
        for range in [0..0, 0..15, 3..7, 15..15, 3..16, 16..16] {
            assert_eq!(view.look().get(range.clone()).map(shown).as_deref(), bytes.get(range));
        }
        assert_eq!(view.look().get(2..=3).map(shown).as_deref(), bytes.get(2..=3));
        assert!(view.look().get(..=usize::MAX).is_none());
        for mid in 0..=bytes.len() {
            let (front, back) = view.look().split_at(mid);
            assert!(front == bytes[..mid] && back == bytes[mid..], "{mid}");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "it is what a program may ask for")]
        let reversed = view.look().get(4..3);
        assert!(reversed.is_none());
    }
}

#[test]
#[should_panic(expected = "an empty separator is everywhere")]
fn an_empty_separator_is_refused() {
    let (a, b) = Stream::pair().unwrap();
    (&a).write_all(b"x").unwrap();
    let view = b.recv_borrowed(1).unwrap();
    let _ = view.look().split(b"").count();
}

#[test]
#[should_panic(expected = "2 of 1 bytes")]
fn there_is_no_place_behind_the_end() {
    let (a, b) = Stream::pair().unwrap();
    (&a).write_all(b"x").unwrap();
    b.recv_borrowed(1).unwrap().look().split_at(2);
}

/// What a step of the property does: a message, and how much of it is given back before the look.
fn messages() -> impl Strategy<Value = Vec<(Vec<u8>, prop::sample::Index)>> {
    // Few different bytes, so that separators are frequent.
    let bytes = prop::collection::vec(prop_oneof![3 => 0..3u8, 1 => any::<u8>()], 1..1500);
    prop::collection::vec((bytes, any::<prop::sample::Index>()), 1..12)
}

fn check(place: Place, messages: &[(Vec<u8>, prop::sample::Index)]) {
    let way = Way::new(place);
    for (bytes, cut) in messages {
        let mut view = way.carry(bytes);
        view.advance(cut.index(bytes.len()));
        let mut copied = vec![0; view.len()];
        view.copy_to(&mut copied);
        let look = view.look();
        assert!(look == copied && shown(look) == copied);
        for separator in [&[0][..], &[1, 2], &[2, 0, 1], &copied[copied.len() / 2..]] {
            let found = (0..copied.len()).find(|at| copied[*at..].starts_with(separator));
            assert_eq!(look.find(separator), found);
            // Joined again they are what was split.
            let parts: Vec<_> = look.split(separator).map(shown).collect();
            assert!(parts.join(separator) == copied);
        }
        let parts: Vec<_> = look.split(&[1]).map(shown).collect();
        assert_eq!(parts, copied.split(|byte| *byte == 1).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_seen_is_what_is_copied(messages in messages()) {
        for place in PLACES {
            check(place, &messages);
        }
    }
}
