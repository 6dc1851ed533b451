//! How tokens are given back.

use crate::world::{World, errno, pattern};
use onecopy_net::RecvFlags;
use onecopy_net::devmem::{Frag, Token, TokenRange};

fn ranges(frags: &[Frag]) -> Vec<TokenRange> {
    frags.iter().map(|frag| (*frag).into()).collect()
}

#[test]
fn a_token_is_its_sockets_alone_and_good_for_once() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (first, second) = (world.connect(), world.connect());
        first.0.send(b"first").unwrap();
        second.0.send(b"second").unwrap();
        let ours = first.1.recv_frags(64).unwrap().into_device();
        let theirs = second.1.recv_frags(64).unwrap().into_device();
        assert_eq!((ours[0].token, theirs[0].token), (1, 1), "each socket counts from 1");
        assert_eq!(first.1.dont_need(&[TokenRange { start: 2, count: 5 }]).unwrap(), 0, "nobody's");
        assert_eq!(first.1.dont_need(&ranges(&ours)).unwrap(), 1);
        assert_eq!(first.1.dont_need(&ranges(&ours)).unwrap(), 0, "a stale one");
        assert_eq!(second.1.tokens_held(), 1, "the other socket's, of the same number, is untouched");
        // A stale token is not the next fragment's.
        first.0.send(b"third").unwrap();
        let next = first.1.recv_frags(64).unwrap().into_device();
        assert_eq!(next[0].token, 2);
        assert_eq!(first.1.dont_need(&ranges(&ours)).unwrap(), 0);
        assert_eq!(world.read(&next), b"third");
        for strange in [(0, 1), (u64::MAX, 2), (u32::MAX.into(), u32::MAX), (1 << 31, 9), (7, 0)] {
            assert_eq!(first.1.dont_need(&[TokenRange { start: strange.0, count: strange.1 }]).unwrap(), 0);
        }
        assert_eq!(
            first.1.dont_need(&ranges(&next)).unwrap() + second.1.dont_need(&ranges(&theirs)).unwrap(),
            2
        );
        assert!(world.all_home());
    }
}

#[test]
fn a_call_has_the_kernels_limits() {
    for world in World::each(1200) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        // Each byte is a fragment of its own.
        let mut frags: Vec<Frag> = Vec::new();
        let data = pattern(1100);
        sender.send(&data).unwrap();
        while frags.len() < data.len() {
            frags.extend(receiver.recv_frags_with_flags(1, 1, RecvFlags::empty()).unwrap().into_device());
        }
        assert!(world.read(&frags) == data);
        assert_eq!(frags.iter().map(|frag| frag.token).collect::<Vec<_>>(), (1..=1100).collect::<Vec<_>>());
        assert_eq!(errno(receiver.dont_need(&[TokenRange { start: 1, count: 1 }; 129])), 22);
        assert_eq!(errno(receiver.dont_need_bytes(&[0; 7])), 22);
        assert_eq!(errno(receiver.dont_need_bytes(&[0; 129 * 8])), 22);
        assert_eq!(receiver.tokens_held(), 1100, "what is refused does nothing");
        // Missing ones count: 24 that nobody has, and a thousand.
        let much = [TokenRange { start: 5000, count: 24 }, TokenRange { start: 1, count: 1100 }];
        assert_eq!(receiver.dont_need(&much).unwrap(), 1000);
        let mut bytes = Vec::new();
        bytes.extend(1001_u32.to_ne_bytes());
        bytes.extend(100_u32.to_ne_bytes());
        assert_eq!(receiver.dont_need_bytes(&bytes).unwrap(), 100);
        assert_eq!(receiver.dont_need(&[]).unwrap(), 0);
        assert_eq!(receiver.tokens_held(), 0);
        assert!(world.all_home());
    }
}

#[test]
fn each_token_goes_home_by_itself_and_a_page_that_is_held_stays() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        sender.send(&pattern(8000)).unwrap();
        let mut tokens = Vec::new();
        while tokens.iter().map(|token: &Token| token.frag().len as usize).sum::<usize>() < 8000 {
            tokens.extend(receiver.recv_frags(3000).unwrap().into_tokens());
        }
        assert_eq!(receiver.tokens_held(), tokens.len());
        let last = tokens.pop().unwrap();
        let (hold, mut bytes) = (last.hold().unwrap(), vec![0; last.frag().len as usize]);
        assert_eq!(hold.memory(), world.memory.id());
        assert!(tokens.pop().unwrap().give_back());
        tokens.clear();
        assert_eq!(receiver.tokens_held(), 1);
        // By number, before it is dropped: it goes home once.
        assert_eq!(receiver.dont_need(&[last.frag().into()]).unwrap(), 1);
        assert!(last.hold().is_none(), "nobody knows what lies there now");
        assert!(!last.give_back());
        assert_eq!(receiver.tokens_held(), 0);
        let before = world.memory.free();
        drop(receiver);
        hold.copy_out(&mut bytes).unwrap();
        assert!(pattern(8000).ends_with(&bytes), "neither the token nor the socket is there any more");
        drop(hold);
        assert!(world.memory.free() >= before && world.all_home());
    }
}

#[test]
fn what_was_looked_at_or_outlives_its_socket_has_no_token() {
    for world in World::each(64) {
        let _binding = world.bind();
        let (sender, receiver) = world.connect();
        sender.send(b"hello").unwrap();
        // (The kernel puts nothing there that it keeps.)
        if !world.is_kernels() {
            let seen = receiver.recv_frags_with_flags(5, 9, RecvFlags::PEEK).unwrap().into_tokens();
            assert!(seen[0].frag().token == 0 && seen[0].hold().is_none());
        }
        let taken = receiver.recv_frags(5).unwrap().into_tokens();
        assert!(taken[0].hold().is_some());
        drop(receiver);
        assert!(taken[0].hold().is_none());
        drop(taken);
        assert!(world.all_home());
    }
}
