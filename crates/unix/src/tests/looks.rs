//! What a sender of pages is told about who looks into them.

use super::{PATIENCE, alone, pair};
use crate::{Config, SharedPool};

/// The sender takes pages home sooner where they are looked into: then they are worth having while they are warm.
#[test]
fn a_look_into_a_page_is_told_and_none_is_not() {
    alone!();
    let (a, b) = pair(&Config::default());
    let pool = SharedPool::new(4096, 4).unwrap();
    let told = || a.end().tx_ring().unwrap().header().looks_at_lent();
    let lend = || {
        a.send_loan(pool.loan_within(4096, PATIENCE).unwrap()).unwrap();
        b.recv_borrowed(4096).unwrap()
    };
    drop(lend());
    assert!(!told(), "nobody looked");
    let mut gone = lend();
    gone.advance(4096);
    assert!(gone.look().is_empty() && !told(), "there was nothing to look at");
    assert!(lend().look() == [0; 4096]);
    assert!(told());
}
