//! Whose memory arrives, and when its owner hears of it.

use crate::frames::{TCP, chain, pool};
use onecopy_chain::Fragment;
use onecopy_chain::notify::{Config, Context, Fate, Lender, Segment};
use onecopy_link::pair::{Pair, PairConfig, Path, Side};
use onecopy_link::{Link, Packet};

#[test]
fn what_arrives_is_the_senders_own_memory_and_keeps_its_send_waiting() {
    let pool = pool();
    let mut lender = Lender::new(Config::default()).unwrap();
    let Pair { mut a, mut b, wire: _wire } = Pair::new(PairConfig::new());
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().fill(7);
    let mut segment = Segment::default();
    let loan = lender.send(&mut segment, page, 0).unwrap();
    // As TCP: a part by reference, and the whole stays until it is acknowledged.
    a.transmit(0, TCP.packet(segment.range(0, 1448).unwrap(), 0));
    let packet = b.receive(0).unwrap();
    segment.advance(4096, Fate::Sent).unwrap();
    let loan = loan.try_take().expect_err("its bytes lie at the receiver");
    assert_eq!(packet.payload().payload().host().unwrap().to_vec(), [7; 1448]);
    drop(packet);
    let (page, how) = loan.try_take().unwrap();
    assert!(page.is_unique() && !how.copied && !how.dropped, "the receiver says nothing of it");
}

#[test]
fn what_is_lost_has_left_and_what_is_not_taken_has_not() {
    let (context, mut queue) = Context::new();
    let mut lane = context.lane(Config::default()).unwrap();
    let pool = pool();
    let mut send = |number: u64, len: usize| {
        let mut segment = Segment::from(chain(&pool, &vec![1; len]));
        lane.send_there(&mut segment, number, 0).unwrap();
        TCP.packet(segment, 0)
    };
    let mut pair = Pair::new(PairConfig::new().from(Side::A, Path::new().loss(1.0)));
    pair.a.transmit(0, send(1, 100));
    pair.a.transmit(0, send(2, 2000));
    pair.wire.set_path(Side::A, Path::new().rate(1000).queue(0));
    pair.a.transmit(0, send(3, 100));
    pair.a.transmit(0, send(4, 100));
    let Pair { a, b, wire } = pair;
    assert_eq!(wire.stats(Side::A).full, 1);
    drop(b);
    drop(a);
    let mut all = Vec::new();
    queue.reap(|one| all.push((one.user_data, one.how.dropped)));
    assert_eq!(all, [(1, false), (2, true), (3, false), (4, true)]);
}

#[test]
fn a_notification_may_ask_the_pair() {
    // Its hook runs where a packet is freed: under no lock of the pair's.
    let pool = pool();
    let mut lender = Lender::new(Config::default()).unwrap();
    let Pair { mut a, b, wire } = Pair::new(PairConfig::new().both(Path::new().loss(1.0)));
    let mut segment = Segment::default();
    let loan = lender.send(&mut segment, pool.alloc().unwrap(), 0).unwrap();
    let wire = std::sync::Arc::new(std::sync::Mutex::new(wire));
    struct Look(std::sync::Arc<std::sync::Mutex<onecopy_link::pair::Wire>>, std::sync::mpsc::Sender<u64>);
    impl std::task::Wake for Look {
        fn wake(self: std::sync::Arc<Self>) {
            let lost = self.0.lock().unwrap().stats(Side::A).lost;
            self.1.send(lost).unwrap();
        }
    }
    let (seen, told) = std::sync::mpsc::channel();
    let waker = std::task::Waker::from(std::sync::Arc::new(Look(wire, seen)));
    let mut loan = std::pin::pin!(loan);
    let mut context = std::task::Context::from_waker(&waker);
    assert!(std::future::Future::poll(loan.as_mut(), &mut context).is_pending());
    let mut rest = segment;
    let behind = rest.divide(1000).unwrap();
    drop(behind);
    a.transmit(0, Packet::from(rest).with_head());
    assert_eq!(told.try_recv(), Ok(1));
    assert!(std::future::Future::poll(loan, &mut context).is_ready());
    drop(b);
}

trait WithHead {
    fn with_head(self) -> Packet;
}

impl WithHead for Packet {
    fn with_head(mut self) -> Packet {
        self.head_mut().push(54).unwrap();
        self
    }
}

#[test]
fn a_pair_goes_to_two_threads() {
    let Pair { mut a, mut b, wire } = Pair::new(PairConfig::new());
    let pool = pool();
    let sent = std::thread::spawn(move || {
        for number in 0..1000u64 {
            let page = pool.alloc().unwrap();
            let fragment = Fragment::new(page, 0, 1000).unwrap();
            while a.room(number) == 0 {
                std::thread::yield_now();
            }
            a.transmit(number, TCP.packet(onecopy_chain::Chain::from(fragment), 0));
        }
        (a, pool)
    });
    let mut received = 0;
    while received < 1000 {
        match b.receive(0) {
            Some(_) => received += 1,
            None => std::thread::yield_now(),
        }
    }
    let (a, pool) = sent.join().unwrap();
    assert_eq!((wire.now(), a.side(), b.side()), (999, Side::A, Side::B));
    let stats = pool.stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "no page is missing");
}
