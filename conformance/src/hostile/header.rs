//! Lies in shared memory and on the control socket, after an honest upgrade.

use std::io;
use std::os::fd::AsFd;

use super::misbehaviour::{ALL, ANY, HARMLESS, Misbehaviour, OVER, RECEIVER_SEES, Scene};
use crate::liar::{Field, HEADER_LEN, Liar};
use crate::tools::Dice;

macro_rules! misbehaviour {
    ($name:literal, $what:literal, $allowed:expr, $must:literal, $tell:expr) => {
        misbehaviour!($name, $what, $allowed, $must, $tell, None)
    };
    ($name:literal, $what:literal, $allowed:expr, $must:literal, $tell:expr, $meanwhile:expr) => {
        Misbehaviour {
            name: $name,
            what: $what,
            roles: ALL,
            allowed: $allowed,
            must: $must,
            tell: |s: &mut Scene| {
                s.upgrade()?;
                $tell(s)
            },
            meanwhile: $meanwhile,
        }
    };
}

/// Sets a field of the victim's ring, where the liar is the sender.
fn sender(s: &Scene, field: Field, value: u64) -> io::Result<()> {
    s.liar.theirs()?.set(field, value)
}

/// Sets a field of the liar's ring, where it is the receiver.
fn receiver(s: &Scene, field: Field, value: u64) -> io::Result<()> {
    s.liar.mine()?.set(field, value)
}

/// Sends something and lets it be received, so that no index is at its beginning.
fn used(s: &mut Scene) -> io::Result<()> {
    use onecopy::{RecvFlags, SendFlags};
    s.liar.publish(&[b'u'; 5_000])?;
    let _ = s.victim.recv_with_flags(&mut [0; 3_000], RecvFlags::DONTWAIT);
    let _ = s.victim.send_with_flags(&[b'v'; 5_000], SendFlags::empty());
    s.liar.take().map(drop)
}

/// No lie at all: every field of the header is where it is thought to be, or the lies below mean nothing.
fn honest(s: &mut Scene) -> io::Result<()> {
    use onecopy::{RecvFlags, SendFlags};
    fn is<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> io::Result<()> {
        if seen == expected {
            Ok(())
        } else {
            Err(io::Error::other(format!("{what} is {seen:?}, not {expected:?}")))
        }
    }
    is("magic", s.liar.theirs()?.get(Field::Magic)?, u64::from_le_bytes(*b"ONECOPY1"))?;
    is("capacity", s.liar.theirs()?.get(Field::Capacity)?, s.liar.theirs()?.capacity)?;
    is("armed before", s.liar.theirs()?.get(Field::Armed)?, 1)?;
    s.liar.publish(b"to the victim")?;
    is("armed then", s.liar.theirs()?.get(Field::Armed)?, 0)?;
    let mut buf = [0; 20];
    is("received", s.victim.recv_with_flags(&mut buf, RecvFlags::DONTWAIT).ok(), Some(13))?;
    is("text", &buf[..13], &b"to the victim"[..])?;
    is("again", s.victim.recv_with_flags(&mut buf, RecvFlags::DONTWAIT).ok(), None)?;
    is("armed again", s.liar.theirs()?.get(Field::Armed)?, 1)?;
    is("tail", s.liar.theirs()?.get(Field::Tail)?, 13)?;
    is("sent", s.victim.send_with_flags(b"to the liar", SendFlags::empty()).ok(), Some(11))?;
    is("head", s.liar.mine()?.get(Field::Head)?, 11)?;
    is("taken", s.liar.take()?, b"to the liar".to_vec())?;
    while s.victim.send_with_flags(&[0; 9_000], SendFlags::DONTWAIT).is_ok() {}
    is("parked", s.liar.mine()?.get(Field::Parked)?, 2)?;
    is("filler", s.liar.mine()?.get(Field::Filler)? > 0, true)?;
    is("wanted", (1..=s.liar.mine()?.capacity).contains(&s.liar.mine()?.get(Field::Wanted)?), true)?;
    // Made room for, the victim goes on.
    s.liar.take()?;
    let mut filler = vec![0; 1 << 20];
    let _ = rustix::net::recv(&s.liar.fd, &mut filler[..], rustix::net::RecvFlags::DONTWAIT);
    receiver(s, Field::Parked, 0)
}

pub const LIES: &[Misbehaviour] = &[
    misbehaviour!("honest", "no lie", HARMLESS, "", honest),
    misbehaviour!(
        "head.beyond",
        "head further ahead than the ring is large",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            let capacity = s.liar.theirs()?.capacity;
            sender(s, Field::Head, capacity + 1)?;
            s.liar.doorbell(1)
        }
    ),
    misbehaviour!("head.end_of_time", "head 2^64 - 1", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        sender(s, Field::Head, u64::MAX)?;
        s.liar.doorbell(1)
    }),
    misbehaviour!(
        "head.backwards",
        "head behind what was published",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            used(s)?;
            sender(s, Field::Head, 1_000)?;
            s.liar.doorbell(1)
        }
    ),
    misbehaviour!(
        "head.backwards_within",
        "head behind what was seen, but ahead of what was taken",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            used(s)?;
            sender(s, Field::Head, 4_000)?;
            s.liar.doorbell(1)
        }
    ),
    misbehaviour!(
        "head.unwritten",
        "head ahead of what was written: zeroes, which is the liar's right",
        HARMLESS,
        "",
        |s: &mut Scene| {
            sender(s, Field::Head, 10_000)?;
            sender(s, Field::Armed, 0)?;
            s.liar.doorbell(1)
        }
    ),
    misbehaviour!(
        "head.jumping",
        "head at random, all the time",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let mut dice = Dice(u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.subsec_nanos())));
            if let Ok(ring) = liar.theirs() {
                let _ = ring.set(Field::Head, dice.roll() % (2 * ring.capacity));
            }
            let _ = liar.doorbell(1);
        })
    ),
    misbehaviour!("tail.beyond", "tail ahead of what was sent", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        receiver(s, Field::Tail, 1 << 30)
    }),
    misbehaviour!("tail.end_of_time", "tail 2^64 - 1", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        receiver(s, Field::Tail, u64::MAX)
    }),
    misbehaviour!("tail.backwards", "tail behind what was given back", RECEIVER_SEES, "", |s: &mut Scene| {
        used(s)?;
        receiver(s, Field::Tail, 0)
    }),
    misbehaviour!(
        "tail.backwards_seen",
        "tail behind what the sender saw",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            use onecopy::SendFlags;
            for _ in 0..40 {
                let _ = s.victim.send_with_flags(&[b'v'; 10_000], SendFlags::DONTWAIT);
                s.liar.take()?;
            }
            receiver(s, Field::Tail, 0)
        }
    ),
    misbehaviour!(
        "tail.jumping",
        "tail at random, all the time",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let mut dice = Dice(u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.subsec_nanos())));
            if let Ok(ring) = liar.mine() {
                let _ = ring.set(Field::Tail, dice.roll() % (2 * ring.capacity));
            }
        })
    ),
    misbehaviour!(
        "shut.alone",
        "says in memory that it receives no more, and goes on",
        ANY,
        "",
        |s: &mut Scene| { receiver(s, Field::Shut, 1) }
    ),
    misbehaviour!("shut.garbage", "garbage for shut", ANY, "", |s: &mut Scene| receiver(
        s,
        Field::Shut,
        0xdead_beef
    )),
    misbehaviour!("armed.garbage", "garbage for armed, in both rings", ANY, "", |s: &mut Scene| {
        receiver(s, Field::Armed, 7)?;
        sender(s, Field::Armed, 0xffff_ffff)
    }),
    misbehaviour!(
        "armed.always",
        "arms all the time: each send must ring",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let _ = liar.mine().and_then(|ring| ring.set(Field::Armed, 1));
        })
    ),
    misbehaviour!(
        "armed.flipping",
        "arms and disarms the victim's ring at random",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let _ = liar.theirs().and_then(|ring| ring.set(Field::Armed, 0));
            let _ = liar.theirs().and_then(|ring| ring.set(Field::Armed, 1));
        })
    ),
    misbehaviour!("bell.none", "publishes and never rings", HARMLESS, "", |s: &mut Scene| {
        sender(s, Field::Armed, 0)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!("bell.one_too_many", "a bell for nothing", ANY, "", |s: &mut Scene| s.liar.doorbell(1)),
    misbehaviour!("bell.flood", "bells until the queue is full", ANY, "EPROTO", |s: &mut Scene| s
        .liar
        .doorbell(100_000)),
    misbehaviour!(
        "bell.storm",
        "bells all the time",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let _ = liar.doorbell(100);
        })
    ),
    misbehaviour!(
        "bell.with_fds",
        "bells with descriptors, ten each: none may stay",
        ANY,
        "",
        |s: &mut Scene| {
            let null = std::fs::File::open("/dev/null")?;
            for _ in 0..5 {
                s.liar.send_with(&[0], &[null.as_fd(); 10])?;
            }
            s.liar.publish(&[b'u'; 100]).map(drop)
        }
    ),
    misbehaviour!(
        "bell.text",
        "speaks in the clear on the control socket",
        ANY,
        "EPROTO",
        |s: &mut Scene| { s.liar.send_with(&[b'x'; 100_000], &[]).map(drop) }
    ),
    misbehaviour!("parked.nothing", "parked, but there is no filler", ANY, "", |s: &mut Scene| {
        sender(s, Field::Filler, 5_000)?;
        sender(s, Field::Wanted, 1)?;
        sender(s, Field::Parked, 2)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!("parked.endless", "a filler of 2^32 - 1 bytes", ANY, "", |s: &mut Scene| {
        sender(s, Field::Filler, u64::from(u32::MAX))?;
        sender(s, Field::Parked, 2)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!("parked.for_ever", "a filler under way that never comes", ANY, "", |s: &mut Scene| {
        sender(s, Field::Parked, 1)?;
        s.liar.doorbell(3)
    }),
    misbehaviour!("parked.insatiable", "parks for more room than there is", ANY, "", |s: &mut Scene| {
        sender(s, Field::Wanted, u64::MAX)?;
        sender(s, Field::Filler, 2)?;
        s.liar.doorbell(3)?;
        sender(s, Field::Parked, 2)
    }),
    misbehaviour!("parked.garbage", "garbage for parked", ANY, "", |s: &mut Scene| {
        sender(s, Field::Parked, 0x7777)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!(
        "parked.theirs",
        "frees or invents the victim's own filler",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            for value in [0, 2, 1, 9] {
                let _ = liar.mine().and_then(|ring| ring.set(Field::Parked, value));
                let _ = liar.mine().and_then(|ring| ring.set(Field::Filler, value << 20));
            }
        })
    ),
    misbehaviour!("switch.undone", "takes the switch back", ANY, "", |s: &mut Scene| {
        sender(s, Field::SwitchAt, 0)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!("switch.again", "switches again, later", ANY, "", |s: &mut Scene| {
        sender(s, Field::SwitchAt, 1_000_000)?;
        s.liar.publish(&[b'u'; 5_000]).map(drop)
    }),
    misbehaviour!("info.garbage", "garbage where only persons look", HARMLESS, "", |s: &mut Scene| {
        for field in [Field::Magic, Field::Capacity] {
            sender(s, field, u64::MAX)?;
            receiver(s, field, u64::MAX)?;
        }
        Ok(())
    }),
    misbehaviour!(
        "hole.data",
        "punches a hole into the data: it reads as zeroes",
        HARMLESS,
        "",
        |s: &mut Scene| {
            s.liar.publish(&[b'u'; 10_000])?;
            let (theirs, mine) = (s.liar.theirs()?, s.liar.mine()?);
            theirs.punch(HEADER_LEN, theirs.capacity)?;
            mine.punch(HEADER_LEN, mine.capacity)
        }
    ),
    misbehaviour!(
        "hole.header",
        "punches a hole into the header, after use",
        ANY,
        "EPROTO",
        |s: &mut Scene| {
            used(s)?;
            let (theirs, mine) = (s.liar.theirs()?, s.liar.mine()?);
            theirs.punch(0, HEADER_LEN)?;
            mine.punch(0, HEADER_LEN)?;
            s.liar.doorbell(1)
        }
    ),
    misbehaviour!(
        "hole.always",
        "punches holes everywhere, all the time",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            for ring in [liar.theirs(), liar.mine()].into_iter().flatten() {
                let _ = ring.punch(0, HEADER_LEN + ring.capacity);
            }
        })
    ),
    misbehaviour!(
        "scribble",
        "garbage all over both headers, all the time",
        ANY,
        "",
        |_| Ok(()),
        Some(|liar: &Liar| {
            let mut dice = Dice(u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.subsec_nanos())));
            for field in Field::ALL {
                for ring in [liar.theirs(), liar.mine()].into_iter().flatten() {
                    let _ = ring.set(field, dice.roll() >> (dice.roll() % 64));
                }
            }
            let _ = liar.doorbell(1);
        })
    ),
    misbehaviour!(
        "close.unrung",
        "publishes, rings no bell, closes: what was published is received",
        OVER,
        "",
        |s: &mut Scene| {
            sender(s, Field::Armed, 0)?;
            s.liar.publish(&[b'u'; 5_000])?;
            s.hang_up()
        }
    ),
    misbehaviour!("close.parked", "closes with a filler parked", OVER, "", |s: &mut Scene| {
        sender(s, Field::Filler, 10)?;
        s.liar.doorbell(11)?;
        sender(s, Field::Parked, 2)?;
        s.hang_up()
    }),
    misbehaviour!(
        "shutdown.receive",
        "shuts its socket down for receiving, not its memory",
        ANY,
        "EPIPE",
        |s: &mut Scene| { Ok(rustix::net::shutdown(&s.liar.fd, rustix::net::Shutdown::Read)?) }
    ),
    misbehaviour!(
        "shutdown.send",
        "shuts its socket down for sending, and goes on in memory",
        ANY,
        "",
        |s: &mut Scene| {
            rustix::net::shutdown(&s.liar.fd, rustix::net::Shutdown::Write)?;
            let _ = s.liar.publish(&[b'u'; 5_000]);
            Ok(())
        }
    ),
];
