//! What comes with bytes: descriptors (SCM_RIGHTS), and who sent them (SCM_CREDENTIALS).

use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustix::process::{Resource, Rlimit};

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::credentials;
use crate::cases::descriptors::{QUIET, closed, give, pipe, take, tell};
use crate::cases::poll::brim;
use crate::impls::{End, Kind, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{self, NOW, PEEK, TX_NOW, WAITALL, asleep, drain, poll_now, rx, said, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "rights.works",
        "a descriptor arrives, works, and has close-on-exec",
        Both,
        "3 with 1, \"x\", cloexec",
        works,
    ),
    Case::same(
        "rights.first_byte",
        "fds arrive with the first byte of their send",
        Both,
        "2 with 1, 2 with 0, EAGAIN",
        first_byte,
    ),
    Case::same(
        "rights.merge",
        "data before fds may merge with them, never past them",
        Linux,
        "5 with 1, 4 with 0",
        merge,
    ),
    Case::same("rights.two", "two fd messages never merge", Both, "2 with 1, 2 with 2, EAGAIN", two),
    Case::same("rights.waitall", "WAITALL stops after fds", Linux, "2 with 1, 2 with 1", waitall),
    Case::same(
        "rights.no_bytes",
        "control-only on a stream is dropped, with a record of no bytes delivered",
        Linux,
        "0, EAGAIN",
        no_bytes,
    ),
    Case::same("rights.limit", "over 253 fds EINVAL, 253 arrive", Linux, "EINVAL, 1, 1 with 253", limit),
    Case::same(
        "rights.truncated",
        "truncation sets MSG_CTRUNC and leaks no fd",
        Both,
        "1 with 1 cut, all closed, \"next\"",
        truncated,
    ),
    Case::same(
        "rights.no_place",
        "a receive without a place for fds closes them",
        Both,
        "\"ab\", all closed",
        no_place,
    ),
    Case::same(
        "rights.peek",
        "PEEK hands out copies, repeatable",
        Linux,
        "1 with 1, 1 with 1, 1 with 1, closed",
        peek,
    ),
    Case::same(
        "rights.failed_send",
        "failed sends leak no fd",
        Both,
        "EAGAIN, EPIPE, all closed",
        failed_send,
    ),
    Case::same(
        "rights.closed_undelivered",
        "close with undelivered fds closes them",
        Both,
        "all closed",
        closed_undelivered,
    ),
    Case::same(
        "rights.sender_gone",
        "fds of a peer that has closed arrive, then the end",
        Both,
        "1 with 1, end",
        sender_gone,
    ),
    Case::same("rights.own_shut_rd", "own SHUT_RD keeps queued fds", Linux, "1 with 1", own_shut_rd),
    Case::same(
        "rights.poll",
        "POLLIN for what came with fds, and off after it",
        Both,
        "IN+OUT, OUT, IN+OUT, OUT",
        poll,
    ),
    Case::same("rights.sleeper", "a sleeping receiver is woken, and gets them", Both, "1 with 1", sleeper),
    Case::same(
        "rights.itself",
        "an end's own descriptor travels through it",
        Both,
        "1 with 1, same socket",
        itself,
    ),
    Case::same(
        "rights.cycles",
        "descriptors of ends in flight through each other, in the shapes of Linux' scm_rights.c, go when all are closed",
        Linux,
        "all closed, all closed, all closed, all closed",
        cycles,
    ),
    Case::same(
        "rights.peek_gc",
        "peek against garbage collection: what was peeked at stays, and stays to be received",
        Linux,
        "1 with 2, 1 with 2, works",
        peek_gc,
    ),
    Case::same("rights.bad_fd", "bad fd EBADF", Both, "EBADF, EAGAIN", bad_fd),
    Case::same("rights.short_cmsg", "short cmsg EINVAL", Both, "EINVAL, EAGAIN", short_cmsg),
    Case::same(
        "creds.passed",
        "SO_PASSCRED: pid, uid and gid of the sender come with each receive",
        Linux,
        "1 own, 2 own, EAGAIN",
        credentials::passed,
    ),
    Case::same(
        "creds.off",
        "without SO_PASSCRED none come",
        Linux,
        "3 without, 3 own, 3 without",
        credentials::passed_off,
    ),
    Case::same(
        "creds.before",
        "what was sent before anybody asked comes from nobody, and never merges with what was sent after",
        Linux,
        "3 nobody, 3 own",
        credentials::asked_late,
    ),
    Case::same(
        "creds.waitall",
        "WAITALL stops where the sender changes",
        Linux,
        "3 nobody, 3 own",
        credentials::creds_waitall,
    ),
    Case::same("creds.peek", "PEEK tells them too", Linux, "3 own, 3 own", credentials::creds_peek),
    Case::same(
        "creds.forged",
        "a sender may only claim what it is: EPERM, and nothing is sent",
        Both,
        "EPERM, EPERM, EPERM, EAGAIN",
        credentials::forged,
    ),
    Case::same(
        "creds.claimed",
        "a privileged sender's claim holds for its send, and never merges with others",
        Linux,
        "3 own, 3 other, 3 own",
        credentials::claimed,
    ),
    Case::same(
        "creds.changed",
        "a sender that changes its user sends as the new one from then on",
        Linux,
        "3 own, 3 other",
        credentials::changed,
    ),
    Case::same(
        "creds.with_fds",
        "descriptors and credentials come together",
        Linux,
        "3 own with 1",
        credentials::creds_with_fds,
    ),
    Case::same(
        "creds.before_accept",
        "what was sent before accept says who sent it, where the peer asks before it receives",
        Linux,
        "*",
        credentials::creds_before_accept,
    ),
    Case::same(
        "rights.many",
        "each of 500 arrives with its bytes and no others, both ways at once",
        Both,
        "500 and 500 in place",
        many,
    ),
];

fn works(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"abc", &[w.as_fd()])?;
    drop(w);
    let mut came = b.recv_with(&mut [0; 9], Rx::default())?;
    let told = tell(&came);
    let fd = came.fds.pop().ok_or_else(|| Stop::broken("no descriptor"))?;
    let cloexec = rustix::io::fcntl_getfd(&fd)?.contains(rustix::io::FdFlags::CLOEXEC);
    File::from(fd).write_all(b"x")?;
    let mut text = String::new();
    r.read_to_string(&mut text)?;
    Ok(format!("{told}, {text:?}, {}", if cloexec { "cloexec" } else { "inherited" }))
}

fn first_byte(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"abcd", &[a.fd()])?;
    Ok(format!("{}, {}, {}", take(&*b, 2, NOW)?, take(&*b, 2, NOW)?, take(&*b, 2, NOW)?))
}

fn merge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"aaaa")?;
    give(&*a, b"b", &[a.fd()])?;
    tx(&*a, b"cccc")?;
    Ok(format!("{}, {}", take(&*b, 20, NOW)?, take(&*b, 20, NOW)?))
}

fn two(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"ab", &[a.fd()])?;
    give(&*a, b"cd", &[a.fd(), a.fd()])?;
    Ok(format!("{}, {}, {}", take(&*b, 20, NOW)?, take(&*b, 20, NOW)?, take(&*b, 20, NOW)?))
}

fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"ab", &[a.fd()])?;
    give(&*a, b"cd", &[a.fd()])?;
    Ok(format!("{}, {}", take(&*b, 4, WAITALL)?, take(&*b, 4, WAITALL)?))
}

fn no_bytes(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    Ok(format!("{}, {}", give(&*a, b"", &[a.fd()])?, take(&*b, 9, NOW)?))
}

fn limit(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let many = vec![a.fd(); 254];
    let (over, all) = (give(&*a, b"x", &many)?, give(&*a, b"x", &many[..253])?);
    Ok(format!("{over}, {all}, {}", take(&*b, 9, NOW)?))
}

/// A process of its own: the limit is this case's alone.
fn truncated(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    // The way that descriptors take is there already, and whatever else an end opens with its first receives.
    for _ in 0..8 {
        give(&*a, b"first", &[a.fd()])?;
        drop(b.recv_with(&mut [0; 5], NOW)?);
    }
    let (mut r, w) = pipe()?;
    give(&*a, b"x", &[w.as_fd(), w.as_fd(), w.as_fd()])?;
    drop(w);
    // The lowest free number is the only one that is left.
    let free = rustix::io::dup(a.fd())?;
    let next = std::os::fd::AsRawFd::as_raw_fd(&free) as u64 + 1;
    drop(free);
    let before = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(next), maximum: before.maximum })?;
    let came = b.recv_with(&mut [0; 9], NOW);
    rustix::process::setrlimit(Resource::Nofile, before)?;
    let told = said(came.map(|came| tell(&came)))?;
    tx(&*a, b"next")?;
    Ok(format!("{told}, {}, {}", closed(&mut r), rx(&*b, 9, NOW)?))
}

fn no_place(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"ab", &[w.as_fd(), w.as_fd()])?;
    drop(w);
    Ok(format!("{}, {}", rx(&*b, 9, NOW)?, closed(&mut r)))
}

fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"x", &[w.as_fd()])?;
    drop(w);
    let all = [take(&*b, 9, PEEK)?, take(&*b, 9, PEEK)?, take(&*b, 9, NOW)?].join(", ");
    Ok(format!("{all}, {}", closed(&mut r).trim_start_matches("all ")))
}

fn failed_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    let full = brim(&*a)?;
    let first = said(a.send_fds(b"x", &[w.as_fd()], TX_NOW))?;
    if cx.kind == Kind::Stream {
        drain(&*b, full)?;
    } else {
        while b.recv(&mut [0; 4096], NOW).is_ok() {}
    }
    b.shutdown(Shutdown::Read)?;
    let second = said(a.send_fds(b"x", &[w.as_fd()], TX_NOW))?;
    drop(w);
    Ok(format!("{first}, {second}, {}", closed(&mut r)))
}

fn closed_undelivered(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"one", &[w.as_fd()])?;
    give(&*a, b"two", &[w.as_fd(), w.as_fd()])?;
    drop(b.recv_with(&mut [0; 3], PEEK)?);
    drop((b, w));
    // (The sender lives on.)
    let told = closed(&mut r).to_owned();
    drop(a);
    Ok(told)
}

fn sender_gone(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (_r, w) = pipe()?;
    give(&*a, b"x", &[w.as_fd()])?;
    drop(a);
    Ok(format!("{}, {}", take(&*b, 9, Rx::default())?, rx(&*b, 9, Rx::default())?))
}

fn own_shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"x", &[a.fd()])?;
    b.shutdown(Shutdown::Read)?;
    take(&*b, 9, NOW)
}

fn poll(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut all = Vec::new();
    for _ in 0..2 {
        give(&*a, b"x", &[a.fd()])?;
        all.push(poll_now(&*b)?);
        take(&*b, 9, NOW)?;
        all.push(poll_now(&*b)?);
    }
    Ok(all.join(", "))
}

fn sleeper(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let sleeper = asleep(s, || take(&*b, 9, Rx::default()));
        give(&*a, b"x", &[a.fd()])?;
        sleeper.join().map_err(|_| Stop::broken("the receiver panicked"))?
    })
}

fn itself(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"x", &[b.fd()])?;
    let came = b.recv_with(&mut [0; 9], NOW)?;
    let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).map(|stat| stat.st_ino);
    let same = came.fds.first().is_some_and(|fd| inode(fd.as_fd()) == inode(b.fd()));
    Ok(format!("{}, {}", tell(&came), if same { "same socket" } else { "another" }))
}

/// The shapes of tools/testing/selftests/net/af_unix/scm_rights.c: how many pairs, and which one's end is sent into which.
const SHAPES: [(usize, &[(usize, usize)]); 4] = [
    (1, &[(0, 0)]),
    (3, &[(0, 1), (1, 2), (2, 0)]),
    (4, &[(0, 1), (1, 2), (2, 0), (1, 3), (3, 2)]),
    (5, &[(0, 1), (0, 4), (1, 2), (2, 3), (3, 1)]),
];

fn cycles(cx: &Ctx<'_>) -> Outcome {
    let mut told = Vec::new();
    for (count, edges) in SHAPES {
        let pairs = (0..count).map(|_| cx.pair()).collect::<Result<Vec<_>, _>>()?;
        let (mut r, w) = pipe()?;
        for (inflight, receiver) in edges {
            let end = pairs[*inflight].0.fd();
            give(&*pairs[*receiver].1, b"x", &[end, end, w.as_fd()])?;
        }
        drop((pairs, w));
        // The kernel collects them a moment later, and some only with the next ones.
        for _ in 0..100 {
            if tools::poll(&r, PollFlags::IN, 50)? != "nothing" {
                break;
            }
            garbage(cx)?;
        }
        told.push(closed(&mut r));
    }
    Ok(told.join(", "))
}

/// Ends that nobody but themselves has any more, to be collected.
fn garbage(cx: &Ctx<'_>) -> Result<(), Stop> {
    for _ in 0..8 {
        let (a, b) = cx.pair()?;
        give(&*a, b"x", &[b.fd()])?;
    }
    Ok(())
}

fn peek_gc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"x", &[b.fd(), w.as_fd()])?;
    drop(w);
    let peeked = b.recv_with(&mut [0; 9], PEEK)?;
    garbage(cx)?;
    let seen = tell(&peeked);
    drop(peeked);
    garbage(cx)?;
    let came = b.recv_with(&mut [0; 9], NOW)?;
    let Some(w) = came.fds.get(1) else { return Ok(format!("{seen}, {}", tell(&came))) };
    File::from(w.try_clone()?).write_all(b"y")?;
    let mut byte = [0];
    r.read_exact(&mut byte)?;
    Ok(format!("{seen}, {}, {}", tell(&came), if byte == *b"y" { "works" } else { "is another" }))
}

/// A control message as cmsg(3) has it: SCM_RIGHTS with one descriptor, and the length that it says it has.
fn rights(len: usize, number: i32) -> Vec<u8> {
    const SOL_SOCKET: i32 = 1;
    const SCM_RIGHTS: i32 = 1;
    let words = [SOL_SOCKET, SCM_RIGHTS, number, 0].map(i32::to_ne_bytes);
    [&len.to_ne_bytes()[..], &words.concat()].concat()
}

fn wrong_control(cx: &Ctx<'_>, control: &[u8]) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = said(a.send_control(b"x", control, QUIET))?;
    Ok(format!("{sent}, {}", rx(&*b, 9, NOW)?))
}

fn bad_fd(cx: &Ctx<'_>) -> Outcome {
    wrong_control(cx, &rights(size_of::<usize>() + 12, i32::MAX))
}

fn short_cmsg(cx: &Ctx<'_>) -> Outcome {
    wrong_control(cx, &rights(size_of::<usize>() + 4, 0))
}

/// Descriptors of pipes in which stands which send they are of.
fn many(cx: &Ctx<'_>) -> Outcome {
    const MANY: usize = 500;
    let (a, b) = cx.pair()?;
    let (a, b) = (&*a, &*b);
    let send = |from: &dyn End| -> Result<(), Stop> {
        for i in 0..MANY {
            let (r, w) = rustix::pipe::pipe()?;
            File::from(w).write_all(&[i as u8])?;
            from.send_fds(&[i as u8; 3], &[r.as_fd()], QUIET)?;
        }
        Ok(())
    };
    let recv = |to: &dyn End| -> Result<usize, Stop> {
        let mut got = 0;
        while got < MANY {
            let mut buf = [0; 3];
            let came = to.recv_with(&mut buf, WAITALL)?;
            let mut noted = [255];
            for fd in came.fds {
                File::from(fd).read_exact(&mut noted)?;
            }
            if came.len != 3 || buf != [got as u8; 3] || noted[0] != got as u8 {
                return Ok(got);
            }
            got += 1;
        }
        Ok(got)
    };
    std::thread::scope(|s| {
        let senders = [s.spawn(move || send(a)), s.spawn(move || send(b))];
        let receivers = [s.spawn(move || recv(a)), s.spawn(move || recv(b))];
        let panicked = |_| Stop::broken("a thread panicked");
        let mut got = Vec::new();
        for receiver in receivers {
            got.push(receiver.join().map_err(panicked)??);
        }
        for sender in senders {
            sender.join().map_err(panicked)??;
        }
        Ok(format!("{} and {} in place", got[0], got[1]))
    })
}
