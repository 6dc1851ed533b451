//! The contents of a token, and forged tokens.

use super::*;
use onecopy_testing::descriptors;

/// Returns the message of a token, and its descriptors.
fn open_token(token: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 1000];
    let came =
        scm::recv(token, &mut [IoSliceMut::new(&mut bytes)], Space::All, net::RecvFlags::DONTWAIT).unwrap();
    (bytes[..came.bytes].to_vec(), came.fds)
}

/// Makes a token with that message and those descriptors.
fn forge(bytes: &[u8], fds: &[OwnedFd]) -> Vec<OwnedFd> {
    let (to, from) = Line::pair();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    scm::send(&to.0, &[IoSlice::new(bytes)], &fds, None, net::SendFlags::empty()).unwrap();
    vec![from.0]
}

#[test]
fn a_token_that_lies_is_refused_and_leaks_nothing() {
    alone!();
    // This stranger may come: the first of these descriptors holds the end here.
    let stranger = Stranger::new(|line| {
        let token = &line.take()[0];
        let (bytes, fds) = open_token(token);
        let copies = || fds.iter().map(|fd| fd.try_clone().unwrap()).collect::<Vec<_>>();
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        // The first socket of a process makes its table of counters.
        drop(pair(&small()));
        let refused = |what: &str, bytes: &[u8], fds: &[OwnedFd], with: Errno| {
            let before = descriptors();
            let error = Stream::from_fds(forge(bytes, fds)).unwrap_err();
            assert_eq!(error.raw_os_error(), with.raw_os_error(), "{what}: {error}");
            assert!(error.to_string().len() > 30, "{what}: {error}");
            assert_eq!(descriptors(), before, "{what}");
        };
        for count in 0..fds.len() {
            refused("too few", &bytes, &fds[..count], Errno::INVAL);
            for with in 0..count {
                let mut fds = copies();
                fds.swap(count, with);
                refused("swapped", &bytes, &fds, Errno::INVAL);
            }
        }
        refused("short", &bytes[1..], &fds, Errno::INVAL);
        refused("long", &[&bytes[..], &[0]].concat(), &fds, Errno::INVAL);
        for word in [0, 1, 4, 5, 6, 7, 8, 9] {
            let mut bytes = bytes.clone();
            bytes[word * 8] ^= 0x40;
            refused("another word", &bytes, &fds, Errno::INVAL);
        }
        // No place is kept there.
        for (word, value) in [(2, 40), (2, 255), (3, 0), (3, 1)] {
            let mut bytes = bytes.clone();
            bytes[word * 8..][..8].copy_from_slice(&u64::to_le_bytes(value));
            refused("another place", &bytes, &fds, Errno::ALREADY);
        }
        let error = Stream::from_fds(vec![token.try_clone().unwrap()]).unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::ALREADY.raw_os_error(), "{error}");
        assert_eq!(errno(Stream::from_fds(vec![file])), Errno::INVAL.raw_os_error());
        assert_eq!(errno(SeqPacket::from_fds(forge(&bytes, &fds))), Errno::INVAL.raw_os_error());
        // This is the token as it was made.
        let a = Stream::from_fds(forge(&bytes, &fds)).unwrap();
        assert_eq!(errno(Stream::from_fds(forge(&bytes, &fds))), Errno::ALREADY.raw_os_error());
        drop(a);
        // Its place is free.
        assert_eq!(errno(Stream::from_fds(forge(&bytes, &fds))), Errno::ALREADY.raw_os_error());
        0
    });
    let (a, b) = pair(&passable());
    stranger.line.give(a.share_fds().unwrap());
    stranger.ends_well();
    send(&a, b"still");
    assert_eq!(b.recv(&mut [0; 9]).unwrap(), 5);
}

/// The token and the page may say anything.
#[test]
fn a_token_that_says_anything_costs_its_connection_and_nothing_else() {
    alone!();
    let stranger = Stranger::new(|line| {
        let (mut refused, mut lost) = (0, 0);
        for seed in 0..600 {
            let random = &mut Random::new(seed);
            let fds = line.take();
            let (mut bytes, fds) = open_token(&fds[0]);
            for _ in 0..random.below(3) {
                // The inode and the words that name descriptors stay as they are: they have a test of their
                // own.
                let at = 8 * [2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21][random.below(12)];
                let was = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                bytes[at..at + 8].copy_from_slice(&wild(random, was).to_le_bytes());
            }
            let page = onecopy_ring::page::EndPage::over(
                onecopy_sys::map::Mapping::new(&fds[1], onecopy_ring::page::PAGE_LEN).unwrap(),
            );
            for _ in 0..random.below(3) {
                let side = if random.below(2) == 0 { &page.words().rx.0 } else { &page.words().tx.0 };
                let (_, mut words) = side.state.load();
                let at = random.below(18);
                words[at] = wild(random, words[at]);
                side.state.save(&words);
            }
            match Stream::from_fds(forge(&bytes, &fds)) {
                Ok(a) => {
                    let mut buffer = [0; 3000];
                    for _ in 0..random.below(12) {
                        let n = random.below(3000);
                        let done = match random.below(4) {
                            0 => a.send_with_flags(&buffer[..n], SendFlags::DONTWAIT),
                            1 => a.recv_fds_with_flags(&mut buffer[..n], NOW).map(|(n, _)| n),
                            2 => a.recv_with_flags(&mut buffer[..n], NOW),
                            _ => a.readable_bytes(),
                        };
                        let known = [Errno::PROTO, Errno::AGAIN, Errno::PIPE, Errno::CONNRESET, Errno::BUSY];
                        if let Err(error) = done {
                            let known = known.map(Errno::raw_os_error);
                            assert!(known.contains(&error.raw_os_error()), "seed {seed}: {error}");
                        }
                    }
                    lost += usize::from(a.stats().protocol_errors > 0);
                }
                Err(error) => {
                    let known = [Errno::INVAL, Errno::ALREADY].map(Errno::raw_os_error);
                    assert!(known.contains(&error.raw_os_error()), "seed {seed}: {error}");
                    refused += 1;
                }
            }
            line.give(vec![]);
        }
        i32::from(refused < 50 || lost < 50)
    });
    for seed in 0..600 {
        let random = &mut Random::new(seed << 32);
        let (a, b) = Stream::pair_with(&passable()).unwrap();
        let mut buffer = [0; 3000];
        for _ in 0..random.below(6) {
            let _ = a.send_fds_with_flags(
                &buffer[..random.below(900)],
                &[b.as_fd()][..random.below(2)],
                SendFlags::DONTWAIT,
            );
            let _ = b.send_with_flags(&buffer[..random.below(900)], SendFlags::DONTWAIT);
            let _ = a.recv_with_flags(&mut buffer[..random.below(900)], NOW);
        }
        let Ok(token) = a.share_fds() else { unreachable!("nothing here cannot be shared") };
        stranger.line.give(token);
        let bystander = pair(&small());
        stranger.line.take();
        let _ = a.recv_with_flags(&mut buffer, NOW);
        let _ = a.send_with_flags(&buffer[..100], SendFlags::DONTWAIT);
        send(&bystander.0, b"well");
        assert_eq!(bystander.1.recv_with_flags(&mut buffer, NOW).unwrap(), 4);
    }
    stranger.ends_well();
}
