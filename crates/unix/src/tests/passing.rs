//! Pages with impossible contents, from which a socket is to be taken up.

use super::{Random, alone, wild};
use crate::core::kind::Kind;
use crate::{Config, Records, RecvFlags, SendFlags, SeqPacket, Stream};
use onecopy_ring::page::{EndPage, PAGE_LEN};
use onecopy_sync::atomic::Ordering::Relaxed;
use onecopy_sys::map::Mapping;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

const NOW: (SendFlags, RecvFlags) = (SendFlags::DONTWAIT, RecvFlags::DONTWAIT);

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
                // The words that name descriptors are checked first, and have their own tests.
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
        // "The channel was lost", or belongs to another process.
        Errno::MFILE,
        Errno::BUSY,
        // The pages are in the peer's memory, and no living process has mapped it.
        Errno::OWNERDEAD,
    ];
    assert!(known.map(Errno::raw_os_error).contains(&error.raw_os_error()), "{error}");
}

/// Atomic records are received whole. After a record that is half received, the next one would begin where
/// none can.
#[test]
fn a_rest_of_an_atomic_record_is_refused() {
    alone!();
    let config = Config { passable: true, ..Config::default() };
    let (a, b) = SeqPacket::pair_with(&config).unwrap();
    a.send_with_flags(&[1; 100], NOW.0).unwrap();
    let fds = b.into_fds().unwrap();
    let page = EndPage::over(Mapping::new(&fds[1], PAGE_LEN).unwrap());
    let state = &page.words().rx.0.state;
    let (_, mut words) = state.load();
    // READ and REST: 4 bytes of a frame are left, so the next one begins at 8.
    assert_eq!((words[2], &words[10..13]), (0, &[0; 3][..]), "the layout is another one");
    words[2] = 4;
    words[10..13].copy_from_slice(&[4, 0, 2]);
    state.save(&words);
    assert_eq!(SeqPacket::from_fds(fds).unwrap_err().raw_os_error(), Errno::INVAL.raw_os_error());
}

/// The process that takes a socket up decides itself what it maps, whatever a fork had changed where the
/// socket was.
#[test]
fn who_takes_a_socket_up_maps_as_much_as_he_says() {
    alone!();
    let config = Config { passable: true, ..Config::default() };
    for max_shared in [0, 1 << 20, 1 << 40] {
        let (_a, b) = Stream::pair_with(&config).unwrap();
        let said = |stream: &Stream| stream.end().rx_ring().unwrap().header().info.0.max_shared.load(Relaxed);
        b.end().rx_ring().unwrap().header().info.0.max_shared.store(0, Relaxed);
        let b = Stream::from_fds_with(b.into_fds().unwrap(), &Config { max_shared, ..config }).unwrap();
        assert_eq!((said(&b), b.end().kind()), (max_shared as u64, Kind::Stream));
    }
}

#[test]
fn a_stream_of_a_page_that_lies_is_refused_or_lost_and_nothing_else() {
    alone!();
    let (mut refused, mut lost) = (0, 0);
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let (a, b) = Stream::pair_with(&config(random)).unwrap();
        let (file, mut buffer) = (a.as_fd(), [0; 3000]);
        for _ in 0..random.below(6) {
            let _ = a.send_with_flags(&buffer[..random.below(900)], NOW.0);
            let _ = b.send_fds_with_flags(&buffer[..random.below(900)], &[file][..random.below(2)], NOW.0);
            let _ = b.recv_with_flags(&mut buffer[..random.below(900)], NOW.1);
            let _ = a.recv_with_flags(&mut buffer[..random.below(900)], NOW.1);
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
                0 => a.send_with_flags(&buffer[..random.below(3000)], NOW.0),
                1 => a.recv_with_flags(&mut buffer[..random.below(3000)], NOW.1),
                2 => b.send_with_flags(&buffer[..random.below(3000)], NOW.0),
                3 => b.readable_bytes(),
                4 => b.recv_borrowed_with_flags(random.below(3000), NOW.1).map(|view| view.len()),
                5 => b.send_fds_with_flags(&buffer[..9], &[a.as_fd()], NOW.0),
                _ => b.recv_fds_with_flags(&mut buffer[..random.below(3000)], NOW.1).map(|(n, _)| n),
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
    alone!();
    let (mut refused, mut lost) = (0, 0);
    for seed in 0..2000 {
        let random = &mut Random::new(seed);
        let (a, b) = SeqPacket::pair_with(&config(random)).unwrap();
        let mut buffer = [0; 2000];
        let flags = NOW.0 | SendFlags::EOR;
        for _ in 0..random.below(6) {
            let _ = a.send_with_flags(
                &buffer[..random.below(900)],
                if random.below(2) == 0 { NOW.0 } else { flags },
            );
            let _ =
                b.send_fds_with_flags(&buffer[..random.below(900)], &[a.as_fd()][..random.below(2)], flags);
            let _ = b.recv_with_flags(&mut buffer[..random.below(900)], NOW.1);
            let _ = a.recv_with_flags(&mut buffer[..random.below(900)], NOW.1);
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
                0 => a.send_with_flags(&buffer[..random.below(1900)], flags),
                1 => a.recv_with_flags(&mut buffer[..random.below(2000)], NOW.1),
                2 => b.send_with_flags(&buffer[..random.below(1900)], flags),
                3 => b.readable_bytes(),
                4 => b.recv_borrowed_with_flags(random.below(2000), NOW.1).map(|(view, _)| view.len()),
                5 => b.send_fds_with_flags(&buffer[..9], &[a.as_fd()], flags),
                _ => b.recv_fds_with_flags(&mut buffer[..random.below(2000)], NOW.1).map(|(got, _)| got.len),
            };
            if let Err(error) = done {
                is_told(error);
            }
        }
        lost += a.stats().protocol_errors.max(b.stats().protocol_errors);
    }
    assert!(refused > 100 && lost > 10, "it is to find both: {refused} {lost}");
}
