//! Lies where both sides have a say about the rings: both send some, or one joins, or wants larger ones, and does not mean it.

use std::io;

use onecopy::{RecvFlags, SendFlags};

use super::misbehaviour::{
    ANY, ATTACHING, FOREIGN, HARMLESS, JOINING, Misbehaviour, RECEIVER_SEES, ROOM, Role, Scene,
};
use crate::liar::{Field, Memory, Rings};

/// Only a server's rings may be those that stand, and only a client's may be too small.
const CLIENT: &[Role] = &[Role::Client];
const JOINING_CLIENT: &[Role] = &[Role::JoiningClient];
const JOINING_SERVER: &[Role] = &[Role::JoiningServer];
/// Room of rings that are too small.
const SMALL: u64 = 4096;

macro_rules! misbehaviour {
    ($name:literal, $what:literal, $roles:expr, $allowed:expr, $must:literal, $tell:expr) => {
        Misbehaviour {
            name: $name,
            what: $what,
            roles: $roles,
            allowed: $allowed,
            must: $must,
            tell: $tell,
            meanwhile: None,
        }
    };
}

fn rings(s: &Scene, capacity: u64) -> io::Result<Rings> {
    Rings::honest([capacity; 2], s.liar.nonce)
}

/// Takes the victim's rings after it has sent some itself; gives back what it had sent.
fn cross(s: &mut Scene) -> io::Result<(Memory, Memory)> {
    s.victim.send_with_flags(b"v", SendFlags::DONTWAIT)?;
    s.attach(rings(s, ROOM)?)?;
    let mine = (s.liar.theirs.take(), s.liar.mine.take());
    s.liar.take_rings()?;
    match mine {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err(io::ErrorKind::NotConnected.into()),
    }
}

/// Says that the victim's rings are too small, and what it wants; the victim sends, and what came with that is the next pair, if
/// it was one.
fn too_small(s: &mut Scene, wanted: u64) -> io::Result<bool> {
    s.liar.mine()?.set(Field::Larger, wanted)?;
    s.liar.theirs()?.set(Field::Larger, wanted)?;
    s.liar.mine()?.set(Field::Joined, 2)?;
    s.victim.send_with_flags(b"w", SendFlags::DONTWAIT)?;
    let came = s.liar.receive()?;
    let Some(fd) = came.fds.into_iter().next_back() else { return Ok(false) };
    let Some(rings) = Rings::open(fd, s.liar.nonce)? else {
        return Err(io::Error::other("a descriptor that is no rings"));
    };
    (s.liar.mine, s.liar.theirs) = (Some(rings.first), Some(rings.second));
    Ok(true)
}

fn is(what: &str, right: bool) -> io::Result<()> {
    if right { Ok(()) } else { Err(io::Error::other(what.to_owned())) }
}

/// Sends rings that are too small, and lets the victim say so.
fn small(s: &mut Scene) -> io::Result<()> {
    s.attach(rings(s, SMALL)?)?;
    s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
    let (theirs, mine) = (s.liar.theirs()?, s.liar.mine()?);
    let said = [theirs.get(Field::Joined)?, theirs.get(Field::Larger)?, mine.get(Field::Larger)?];
    is(&format!("told of small rings: {said:?}"), said == [2, ROOM, ROOM])
}

/// What the victim says of the liar's rings once it has received the next byte.
fn joined(s: &Scene) -> io::Result<u64> {
    s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
    s.liar.theirs()?.get(Field::Joined)
}

pub const LIES: &[Misbehaviour] = &[
    misbehaviour!(
        "crossing.honest",
        "no lie: both send rings at once, and the server's stand",
        JOINING,
        HARMLESS,
        "",
        |s| {
            let (first, second) = cross(s)?;
            if s.role == Role::JoiningServer {
                (s.liar.theirs, s.liar.mine) = (Some(first), Some(second));
                is("the client has not joined the server's", joined(s)? == 1)?;
            } else {
                s.liar.join()?;
            }
            s.liar.switch()?;
            // Neither is a descriptor of the program.
            while let Ok((1.., with)) = s.victim.recv_fds_with_flags(&mut [0; 9], RecvFlags::DONTWAIT) {
                is("rings were given to the program", with.fds.is_empty())?;
            }
            s.shared()
        }
    ),
    misbehaviour!(
        "crossing.client_insists",
        "sends rings after the server's, and uses its own",
        JOINING_CLIENT,
        HARMLESS,
        "",
        |s| {
            let (first, second) = cross(s)?;
            (s.liar.theirs, s.liar.mine) = (Some(first), Some(second));
            s.liar.theirs()?.set(Field::Joined, 1)?;
            s.liar.mine()?.set(Field::Joined, 1)?;
            s.liar.switch()?;
            s.liar.theirs()?.set(Field::Armed, 0)?;
            s.liar.publish(&[b'u'; 1000]).map(drop)
        }
    ),
    misbehaviour!(
        "crossing.client_again",
        "sends rings after the server's, twice",
        JOINING_CLIENT,
        FOREIGN,
        "",
        |s| {
            cross(s)?;
            s.attach(rings(s, ROOM)?)
        }
    ),
    misbehaviour!(
        "crossing.server_joins",
        "joins the client's rings, and sends its own with its first byte",
        JOINING_SERVER,
        FOREIGN,
        "",
        |s| {
            let own = cross(s)?;
            s.liar.join()?;
            is("own rings", own.0.capacity == ROOM)
        }
    ),
    misbehaviour!(
        "crossing.server_uses_both",
        "as before, and switches in both",
        JOINING_SERVER,
        RECEIVER_SEES_OR_GETS,
        "",
        |s| {
            let (first, _) = cross(s)?;
            s.liar.join()?;
            s.liar.switch()?;
            first.set(Field::SwitchAt, 1)?;
            first.set(Field::Head, 1000)
        }
    ),
    misbehaviour!(
        "crossing.server_late",
        "joins the client's rings, and sends its own later",
        JOINING_SERVER,
        FOREIGN,
        "",
        |s| {
            s.theirs()?;
            s.liar.join()?;
            s.liar.say(b"p", &[])?;
            s.attach(rings(s, ROOM)?)
        }
    ),
    misbehaviour!("joined.never", "takes the victim's rings, and never joins", JOINING, HARMLESS, "", |s| s
        .theirs()),
    misbehaviour!("joined.garbage", "garbage where it says that it joins", JOINING, HARMLESS, "", |s| {
        s.theirs()?;
        s.liar.mine()?.set(Field::Joined, 0xdead_beef)?;
        s.liar.theirs()?.set(Field::Joined, 7)
    }),
    misbehaviour!("joined.elsewhere", "joins in the ring that it sends into", JOINING, HARMLESS, "", |s| {
        s.theirs()?;
        s.liar.theirs()?.set(Field::Joined, 1)
    }),
    misbehaviour!(
        "joined.undone",
        "joins, and takes it back once the victim has switched",
        JOINING,
        HARMLESS,
        "",
        |s| {
            s.upgrade()?;
            s.liar.mine()?.set(Field::Joined, 0)
        }
    ),
    misbehaviour!("joined.then_small", "joins, and then wants larger rings", JOINING, HARMLESS, "", |s| {
        s.meet()?;
        s.nudge();
        is("a joined client sends no other rings", !too_small(s, 1 << 20).unwrap_or(false))
    }),
    misbehaviour!("joined.unasked", "says for the victim that it has joined", ATTACHING, HARMLESS, "", |s| {
        let rings = rings(s, ROOM)?;
        rings.first.set(Field::Joined, 1)?;
        rings.second.set(Field::Joined, 1)?;
        s.attach(rings)
    }),
    misbehaviour!(
        "joined.taken_back",
        "takes back what the victim says of having joined",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            s.upgrade()?;
            s.liar.theirs()?.set(Field::Joined, 2)?;
            s.liar.theirs()?.set(Field::Larger, u64::MAX)
        }
    ),
    misbehaviour!(
        "small.server_wants",
        "no lie: wants larger rings than the client's, once",
        JOINING_SERVER,
        HARMLESS,
        "",
        |s| {
            s.theirs()?;
            is("no larger rings came", too_small(s, 512 << 10)?)?;
            is("their size", s.liar.mine()?.capacity == 512 << 10 && s.liar.theirs()?.capacity == 512 << 10)?;
            s.liar.join()?;
            s.liar.switch()?;
            s.shared()
        }
    ),
    misbehaviour!(
        "small.for_ever",
        "wants larger rings again and again",
        JOINING_SERVER,
        HARMLESS,
        "",
        |s| {
            s.theirs()?;
            is("no larger rings came", too_small(s, 512 << 10)?)?;
            for _ in 0..3 {
                is("rings came a third time", !too_small(s, 1 << 20)?)?;
            }
            Ok(())
        }
    ),
    misbehaviour!("small.none", "wants rings of no room", JOINING_SERVER, HARMLESS, "", |s| {
        s.theirs()?;
        let before = s.liar.mine()?.capacity;
        is("no rings came", too_small(s, 0)?)?;
        is("smaller ones came", s.liar.mine()?.capacity == before)
    }),
    misbehaviour!("small.endless", "wants rings of 2^64 - 1 bytes", JOINING_SERVER, HARMLESS, "", |s| {
        s.theirs()?;
        is("no rings came", too_small(s, u64::MAX)?)?;
        is("larger than max_ring", s.liar.mine()?.capacity == 16 << 20)
    }),
    misbehaviour!(
        "small.of_server",
        "a client that wants larger rings than the server's",
        JOINING_CLIENT,
        HARMLESS,
        "",
        |s| {
            s.theirs()?;
            is("rings came again", !too_small(s, 1 << 20)?)
        }
    ),
    misbehaviour!(
        "small.joined",
        "wants larger rings, and joins the small ones when they have come",
        JOINING_SERVER,
        RECEIVER_SEES,
        "",
        |s| {
            s.theirs()?;
            let (file, at) = (s.liar.mine()?.file.try_clone()?, s.liar.mine()?.at);
            let (theirs, capacity) = (s.liar.theirs()?.at, s.liar.mine()?.capacity);
            is("no rings came", too_small(s, 1 << 20)?)?;
            let old = Memory { file, at, capacity };
            old.set(Field::Joined, 1)?;
            Memory { at: theirs, ..old }.set(Field::SwitchAt, 1)
        }
    ),
    misbehaviour!(
        "small.grown",
        "no lie: its rings are too small, and it sends larger ones",
        CLIENT,
        HARMLESS,
        "",
        |s| {
            small(s)?;
            s.attach(rings(s, ROOM)?)?;
            is("not joined", joined(s)? == 1)?;
            s.liar.switch()?;
            s.shared()
        }
    ),
    misbehaviour!(
        "small.stubborn",
        "its rings are too small, and the next ones, too: they are taken",
        CLIENT,
        HARMLESS,
        "",
        |s| {
            small(s)?;
            s.attach(rings(s, SMALL)?)?;
            is("not joined", joined(s)? == 1)
        }
    ),
    misbehaviour!(
        "small.silent",
        "its rings are too small, and it sends no others",
        CLIENT,
        HARMLESS,
        "",
        |s| {
            small(s)?;
            s.liar.say(&[b'p'; 1000], &[])
        }
    ),
    misbehaviour!(
        "small.late",
        "its rings are too small, and it sends larger ones after a while",
        CLIENT,
        FOREIGN,
        "",
        |s| {
            small(s)?;
            for _ in 0..4 {
                s.liar.say(b"p", &[])?;
            }
            s.attach(rings(s, ROOM)?)
        }
    ),
    misbehaviour!("small.used", "its rings are too small, and it switches in them", CLIENT, ANY, "", |s| {
        small(s)?;
        s.liar.theirs()?.set(Field::Joined, 1)?;
        s.liar.theirs()?.set(Field::Armed, 0)?;
        s.liar.switch()?;
        s.liar.publish(&[b'u'; 1000]).map(drop)
    }),
    misbehaviour!(
        "small.once_more",
        "its rings are too small, it sends larger ones, and larger ones again",
        CLIENT,
        FOREIGN,
        "",
        |s| {
            small(s)?;
            for _ in 0..2 {
                s.attach(rings(s, ROOM)?)?;
            }
            Ok(())
        }
    ),
];

/// What a lie may come to that gives the victim a choice of rings.
const RECEIVER_SEES_OR_GETS: &[&str] = &["EPROTO", "waits", "carries on", "descriptors"];
