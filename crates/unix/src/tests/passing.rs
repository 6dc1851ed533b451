//! Pages that lie, which a socket is to be taken up from.

use super::{Random, alone, wild};
use crate::{Config, Records, RecvFlags, SendFlags, SeqPacket, Stream};
use onecopy_ring::page::{EndPage, PAGE_LEN};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::map::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

const NOW: (SendFlags, RecvFlags) = (SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT), RecvFlags::DONTWAIT);

fn config(random: &mut Random) -> Config {
    let records = if random.below(2) == 0 { Records::Atomic } else { Records::Stream };
    Config {
        send_buffer: Some(2048),
        receive_buffer: Some(2048),
        passable: true,
        records,
        ..Config::default()
    }
}

/// Changes some words of the page.
fn scribble(page: &OwnedFd, random: &mut Random) {
    let page = EndPage::over(Mapping::new(page, PAGE_LEN).unwrap());
    let words = page.words();
    for _ in 0..random.below(4) {
        match random.below(3) {
            0 => {
                // (Its names of descriptors are looked at first, and have tests of their own.)
                let word =
                    &words.pass.0.words[[0, 1, 2, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17][random.below(13)]];
                word.store(wild(random, word.load(Relaxed)), Relaxed);
            }
            side => {
                let state = if side == 1 { &words.rx.0.state } else { &words.tx.0.state };
                let (_, mut saved) = state.load();
                let at = random.below(18);
                saved[at] = wild(random, saved[at]);
                state.save(&saved);
            }
        }
    }
}

fn is_told(error: crate::Error) {
    let known = [
        Errno::INVAL,
        Errno::PROTO,
        Errno::AGAIN,
        Errno::PIPE,
        Errno::CONNRESET,
        Errno::PROTONOSUPPORT,
        // "The channel was lost", or is another process's.
        Errno::MFILE,
        Errno::BUSY,
    ];
    assert!(known.map(Errno::raw_os_error).contains(&error.raw_os_error()), "{error}");
}

#[test]
fn a_stream_of_a_page_that_lies_is_refused_or_lost_and_nothing_else() {
    let _alone = alone();
    let (mut refused, mut lost) = (0, 0);
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let (a, b) = Stream::pair_with(&config(random)).unwrap();
        let (file, mut buffer) = (a.as_fd(), [0; 3000]);
        for _ in 0..random.below(6) {
            let _ = a.send(&buffer[..random.below(900)], NOW.0);
            let _ = b.send_with(&buffer[..random.below(900)], &[file][..random.below(2)], NOW.0);
            let _ = b.recv(&mut buffer[..random.below(900)], NOW.1);
            let _ = a.recv(&mut buffer[..random.below(900)], NOW.1);
        }
        let Ok(fds) = b.into_fds() else { continue };
        scribble(&fds[1], random);
        let b = match Stream::from_fds(fds) {
            Ok(b) => b,
            Err(error) => {
                is_told(error);
                refused += 1;
                continue;
            }
        };
        for _ in 0..random.below(20) {
            let done = match random.below(7) {
                0 => a.send(&buffer[..random.below(3000)], NOW.0),
                1 => a.recv(&mut buffer[..random.below(3000)], NOW.1),
                2 => b.send(&buffer[..random.below(3000)], NOW.0),
                3 => b.readable_bytes(),
                4 => b.recv_borrowed_with(random.below(3000), NOW.1).map(|view| view.len()),
                5 => b.send_with(&buffer[..9], &[a.as_fd()], NOW.0),
                _ => b.recv_with(&mut buffer[..random.below(3000)], NOW.1).map(|(n, _)| n),
            };
            if let Err(error) = done {
                is_told(error);
            }
        }
        lost += a.stats().protocol_errors.max(b.stats().protocol_errors);
    }
    assert!(refused > 100 && lost > 10, "it is to find both: {refused} {lost}");
}

#[test]
fn records_of_a_page_that_lies_are_refused_or_lost_and_nothing_else() {
    let _alone = alone();
    let (mut refused, mut lost) = (0, 0);
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let (a, b) = SeqPacket::pair_with(&config(random)).unwrap();
        let mut buffer = [0; 2000];
        let flags = NOW.0 | SendFlags::EOR;
        for _ in 0..random.below(6) {
            let _ = a.send(&buffer[..random.below(900)], if random.below(2) == 0 { NOW.0 } else { flags });
            let _ = b.send_with(&buffer[..random.below(900)], &[a.as_fd()][..random.below(2)], flags);
            let _ = b.recv(&mut buffer[..random.below(900)], NOW.1);
            let _ = a.recv(&mut buffer[..random.below(900)], NOW.1);
        }
        let Ok(fds) = b.into_fds() else { continue };
        scribble(&fds[1], random);
        let b = match SeqPacket::from_fds(fds) {
            Ok(b) => b,
            Err(error) => {
                is_told(error);
                refused += 1;
                continue;
            }
        };
        for _ in 0..random.below(20) {
            let done = match random.below(7) {
                0 => a.send(&buffer[..random.below(1900)], flags),
                1 => a.recv(&mut buffer[..random.below(2000)], NOW.1),
                2 => b.send(&buffer[..random.below(1900)], flags),
                3 => b.readable_bytes(),
                4 => b.recv_borrowed_with(random.below(2000), NOW.1).map(|(view, _)| view.len()),
                5 => b.send_with(&buffer[..9], &[a.as_fd()], flags),
                _ => b.recv_with(&mut buffer[..random.below(2000)], NOW.1).map(|(got, _)| got.len),
            };
            if let Err(error) = done {
                is_told(error);
            }
        }
        lost += a.stats().protocol_errors.max(b.stats().protocol_errors);
    }
    assert!(refused > 100 && lost > 10, "it is to find both: {refused} {lost}");
}
