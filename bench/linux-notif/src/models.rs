//! A model of the references and the stack, with the code that is measured, under loom.

use super::{Context, Fate, Segment};
use loom::thread;

#[test]
fn a_merged_chain_is_posted_once_by_whoever_frees_last() {
    loom::model(|| {
        let mut context = Context::new(4);
        let mut shared = Segment::new(());
        let mut next = Segment::new(());
        let head = context.open(1, true).unwrap();
        let member = context.open(2, false).unwrap();
        head.link(&mut shared).unwrap();
        member.link(&mut shared).unwrap();
        member.link(&mut next).unwrap();
        let other = thread::spawn(move || shared.free(Fate::Sent));
        head.finish(());
        member.finish(());
        next.free(Fate::Sent);
        let mut all = Vec::new();
        while all.len() < 2 {
            if context.reap(|user_data, copied| all.push((user_data, copied))) == 0 {
                context.wait();
            }
        }
        other.join().unwrap();
        assert_eq!(all, [(1, false), (2, false)]);
    });
}
