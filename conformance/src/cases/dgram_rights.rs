//! What comes with datagrams: descriptors and credentials, with and without a connection, and where a connection ends.

use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::os::fd::AsFd;

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::credentials::whose;
use crate::cases::datagrams::{bound, dg, named_pair, same, short};
use crate::cases::descriptors::{closed, give, pipe, take, tell};
use crate::impls::{Column, End, Name, Rx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, said, tx};

pub const CASES: &[Case] = &[
    same(
        "dgram_rights.sendto",
        "sendto carries descriptors, and recvmsg tells the sender's name with them",
        Both,
        "2 with 1 from /a, 0 with 2 from /a, all closed",
        send_to,
    ),
    same(
        "dgram_rights.sendto_peer",
        "so it does to the peer by its name",
        Both,
        "2 with 1 from /a, 3 with 0 from /a",
        send_to_peer,
    ),
    same(
        "dgram_rights.in_order",
        "each descriptor comes with exactly the datagram that it was sent with, while the way changes",
        Both,
        "3000 in place",
        in_order,
    ),
    same(
        "dgram_rights.short",
        "a short receive gets all descriptors, and the rest of the bytes is gone",
        Linux,
        "2 of 6 with 2, EAGAIN",
        short_receive,
    ),
    same(
        "dgram_rights.no_place",
        "a receive without a place for them closes them, and MSG_CTRUNC says so",
        Linux,
        "2 with 0 cut, all closed",
        no_place,
    ),
    same(
        "dgram_rights.only",
        "a datagram of no bytes brings them",
        Linux,
        "0, 0, 0 with 2, 0 with 1, EAGAIN",
        no_bytes,
    ),
    same(
        "dgram_rights.left",
        "connecting to none loses what was queued, and closes what came with it",
        Linux,
        "EAGAIN, all closed",
        left,
    ),
    same(
        "dgram_rights.refused",
        "a send that is refused loses what the closed peer had sent, and closes what came with it",
        Linux,
        "1 with 1, ECONNREFUSED, EAGAIN, all closed",
        refused,
    ),
    same(
        "dgram_rights.crossed",
        "descriptors of a peer that closed with others unread arrive",
        Linux,
        "1 with 1, 1 with 2, EAGAIN, all closed",
        crossed,
    ),
    same(
        "dgram_rights.refused_send",
        "a send that is refused keeps none of its own",
        Both,
        "ECONNREFUSED, ENOTCONN, all closed",
        refused_send,
    ),
    same("dgram_rights.self", "to itself", Both, "2 with 1", to_itself),
    same(
        "dgram_rights.creds_sendto",
        "SO_PASSCRED: who sent what came without a connection",
        Linux,
        "1 own, 1 own, EAGAIN",
        creds_send_to,
    ),
    same(
        "dgram_rights.creds_left",
        "credentials come on when the connection is over",
        Linux,
        "1 own, 1 own",
        creds_left,
    ),
    same(
        "dgram_rights.creds_named",
        "who asks for credentials gets a name with its first send",
        Linux,
        "NUL + 5 hex",
        creds_named,
    ),
];

fn take_from(end: &dyn End, max: usize) -> Result<String, Stop> {
    said(
        end.recv_with_from(&mut vec![0; max], NOW)
            .map(|(came, from)| format!("{} from {}", tell(&came), short(&from))),
    )
}

fn send_to(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = (bound(cx, "a")?, bound(cx, "b")?);
    let (mut r, w) = pipe()?;
    a.send_fds_to(b"hi", &[w.as_fd()], &cx.path("b"))?;
    a.send_fds_to(b"", &[w.as_fd(), w.as_fd()], &cx.path("b"))?;
    drop(w);
    Ok(format!("{}, {}, {}", take_from(&*b, 9)?, take_from(&*b, 9)?, closed(&mut r)))
}

fn send_to_peer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    a.send_fds_to(b"hi", &[a.fd()], &cx.path("b"))?;
    a.send_fds_to(b"you", &[], &cx.path("b"))?;
    Ok(format!("{}, {}", take_from(&*b, 9)?, take_from(&*b, 9)?))
}

/// Connected and not yet upgraded: ours move to shared memory meanwhile. A pipe says which datagram its end is of.
fn in_order(cx: &Ctx<'_>) -> Outcome {
    const ALL: u32 = 3000;
    const BEHIND: u32 = 5;
    let (a, b) = (bound(cx, "a")?, bound(cx, "b")?);
    a.connect(&cx.path("b"))?;
    b.connect(&cx.path("a"))?;
    let mut buf = [0; 9];
    for i in 0..ALL + BEHIND {
        if i < ALL {
            let (r, w) = rustix::pipe::pipe()?;
            File::from(w).write_all(&i.to_le_bytes())?;
            // (So that both move.)
            tx(&*b, b"")?;
            a.recv(&mut buf, NOW)?;
            let with: &[_] = if i % 3 == 0 { &[] } else { &[r.as_fd()] };
            give(&*a, &i.to_le_bytes(), with)?;
        }
        let Some(due) = i.checked_sub(BEHIND) else { continue };
        let came = b.recv_with(&mut buf, NOW)?;
        let mut noted = due.to_le_bytes();
        let with = came.fds.len();
        for fd in came.fds {
            noted = [0; 4];
            File::from(fd).read_exact(&mut noted)?;
        }
        let right = with == usize::from(due % 3 != 0) && noted == due.to_le_bytes();
        if !right || came.len != 4 || buf[..4] != noted {
            return Ok(format!("{due} in place"));
        }
    }
    if cx.imp.column() == Column::Shared && a.path().0 != "shared memory" {
        return Err(Stop::broken("the way did not change"));
    }
    Ok(format!("{ALL} in place"))
}

fn short_receive(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    give(&*a, b"abcdef", &[a.fd(), a.fd()])?;
    let came = b.recv_with(&mut [0; 2], Rx { trunc: true, ..NOW })?;
    let told = if came.returned.trunc { "2 of" } else { "whole" };
    Ok(format!("{told} {}, {}", tell(&came), take(&*b, 9, NOW)?))
}

fn no_place(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (mut r, w) = pipe()?;
    give(&*a, b"ab", &[w.as_fd(), w.as_fd()])?;
    drop(w);
    let came = b.recv_msg(&mut [IoSliceMut::new(&mut [0; 9])], false, NOW)?;
    Ok(format!("{}, {}", tell(&came), closed(&mut r)))
}

fn no_bytes(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = [give(&*a, b"", &[a.fd(), a.fd()])?, give(&*a, b"", &[a.fd()])?].join(", ");
    Ok(format!("{sent}, {}, {}, {}", take(&*b, 9, NOW)?, take(&*b, 9, NOW)?, take(&*b, 9, NOW)?))
}

fn left(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let (mut r, w) = pipe()?;
    for count in [1, 2] {
        give(&*a, b"x", &vec![w.as_fd(); count])?;
    }
    drop(w);
    b.disconnect()?;
    Ok(format!("{}, {}", take(&*b, 9, NOW)?, closed(&mut r)))
}

fn refused(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let (mut r, w) = pipe()?;
    for _ in 0..3 {
        give(&*a, b"x", &[w.as_fd()])?;
    }
    drop((a, w));
    let first = take(&*b, 9, NOW)?;
    Ok(format!("{first}, {}, {}, {}", tx(&*b, b"y")?, take(&*b, 9, NOW)?, closed(&mut r)))
}

fn crossed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let (mut r, w) = pipe()?;
    give(&*b, b"x", &[w.as_fd()])?;
    give(&*b, b"x", &[w.as_fd(), w.as_fd()])?;
    give(&*a, b"unread", &[w.as_fd()])?;
    drop((b, w));
    let all = [take(&*a, 9, NOW)?, take(&*a, 9, NOW)?, take(&*a, 9, NOW)?].join(", ");
    Ok(format!("{all}, {}", closed(&mut r)))
}

fn refused_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    let (mut r, w) = pipe()?;
    drop(b);
    let all = [give(&*a, b"x", &[w.as_fd()])?, give(&*a, b"x", &[w.as_fd()])?].join(", ");
    drop(w);
    Ok(format!("{all}, {}", closed(&mut r)))
}

fn to_itself(cx: &Ctx<'_>) -> Outcome {
    let a = bound(cx, "a")?;
    a.connect(&cx.path("a"))?;
    give(&*a, b"me", &[a.fd()])?;
    take(&*a, 9, NOW)
}

fn creds_send_to(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = (dg(cx)?, bound(cx, "b")?);
    b.set_pass_credentials(true)?;
    for _ in 0..2 {
        a.send_to(b"x", &cx.path("b"))?;
    }
    Ok(format!("{}, {}, {}", whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?))
}

fn creds_left(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = named_pair(cx)?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"x")?;
    let first = whose(&*b, 9, NOW)?;
    b.disconnect()?;
    dg(cx)?.send_to(b"x", &cx.path("b"))?;
    Ok(format!("{first}, {}", whose(&*b, 9, NOW)?))
}

fn creds_named(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.set_pass_credentials(true)?;
    tx(&*a, b"x")?;
    let (_, from) = b.recv_from(&mut [0; 9], NOW)?;
    Ok(match from {
        Name::Abstract(name) if name.len() == 5 && name.iter().all(u8::is_ascii_hexdigit) => {
            "NUL + 5 hex".to_owned()
        }
        other => short(&other),
    })
}
