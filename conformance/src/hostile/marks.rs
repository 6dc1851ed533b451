//! Lies about what a stream carries besides bytes: marks, descriptors, pools, references, and pages given back.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::SealFlags;

use super::misbehaviour::{ANY, HARMLESS, Misbehaviour, RECEIVER_SEES, Role, Scene};
use crate::lender::{self, MARKS, fds, honest_memory, memory, pool, reference, who};
use crate::liar::{Field, Liar, SEALS};
use crate::tools::Dice;

/// One role suffices: marks are the same in both.
const ONE: &[Role] = &[Role::Client];
/// Bytes of a page, pages, and bytes of the pool that the lies below are about.
const PAGE: u64 = 8192;
const PAGES: u64 = 4;
const POOL: u64 = PAGE * PAGES;

macro_rules! misbehaviour {
    ($name:literal, $what:literal, $allowed:expr, $must:literal, $tell:expr) => {
        misbehaviour!($name, $what, $allowed, $must, $tell, None)
    };
    ($name:literal, $what:literal, $allowed:expr, $must:literal, $tell:expr, $meanwhile:expr) => {
        Misbehaviour {
            name: $name,
            what: $what,
            roles: ONE,
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

/// No lie at all: everything is where it is thought to be, or the lies below mean nothing.
fn honest(s: &mut Scene) -> io::Result<()> {
    use onecopy::unix::SharedPool;
    use onecopy::{RecvFlags, SendFlags};
    let wrong = |what: &str| io::Error::other(format!("an honest conversation failed: {what}"));
    // To the victim: descriptors, then a page.
    s.liar.open_channel()?;
    s.liar.put(&[File::open("/dev/null")?.as_fd(); 2])?;
    s.liar.mark(fds(2, 3))?;
    s.liar.publish(b"abc")?;
    let (n, with) =
        s.victim.recv_fds_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).map_err(|e| wrong(&e.to_string()))?;
    if (n, with.fds.len()) != (3, 2) {
        return Err(wrong("descriptors"));
    }
    s.liar.share(&honest_memory(POOL)?, pool(0, PAGE, PAGES))?;
    s.liar.mark(reference(5, 0, 3, 8000, 192))?;
    let view =
        s.victim.recv_borrowed_with_flags(500, RecvFlags::DONTWAIT).map_err(|e| wrong(&e.to_string()))?;
    let mut bytes = [0; 500];
    if view.copy_to(&mut bytes) != 192 || bytes[..192] != [7; 192] {
        return Err(wrong("a page"));
    }
    if s.liar.theirs()?.get(Field::Returned)? != 0 {
        return Err(wrong("a page that is in use was given back"));
    }
    drop(view);
    if s.liar.theirs()?.get(Field::Returned)? != 1 << 5 {
        return Err(wrong("the page was not given back"));
    }
    s.liar.theirs()?.set(Field::Returned, 0)?;
    // From the victim: a page.
    s.liar.mine()?.set(Field::MaxShared, 1 << 20)?;
    let pages = SharedPool::new(4096, 1).map_err(|e| wrong(&e.to_string()))?;
    let lend = |s: &Scene| {
        let mut loan = pages.loan(9).map_err(|e| wrong(&e.to_string()))?;
        loan.fill(8);
        s.victim.send_loan_with_flags(loan, SendFlags::DONTWAIT).map_err(|not| wrong(&not.to_string()))
    };
    lend(s)?;
    if s.liar.mine()?.get(Field::Marks)? != 2 || pages.loan(1).is_ok() {
        return Err(wrong("marks of a pool and a page"));
    }
    s.liar.mine()?.set(Field::Returned, 1)?;
    lend(s)?;
    if s.liar.mine()?.get(Field::Marks)? != 3 || s.liar.mine()?.get(Field::Returned)? != 0 {
        return Err(wrong("a page that came home"));
    }
    s.liar.mine()?.set(Field::Returned, 1)?;
    drop(s.liar.take()?);
    let _ = rustix::net::recv(&s.liar.fd, &mut [0u8; 64][..], rustix::net::RecvFlags::DONTWAIT);
    Ok(())
}

/// Shares a pool honestly, and sends one reference into it.
fn refer(s: &mut Scene, slot: u32, name: u32, page: u32, offset: u32, len: u32) -> io::Result<()> {
    s.liar.share(&honest_memory(POOL)?, pool(0, PAGE, PAGES))?;
    s.liar.mark(reference(slot, name, page, offset, len))
}

/// Lets the victim lend.
fn mapping(s: &Scene) -> io::Result<()> {
    s.liar.mine()?.set(Field::MaxShared, u64::MAX)
}

fn dice() -> Dice {
    Dice(u64::from(std::time::UNIX_EPOCH.elapsed().map_or(1, |d| d.subsec_nanos())))
}

pub const LIES: &[Misbehaviour] = &[
    misbehaviour!("marks.honest", "no lie", HARMLESS, "", honest),
    misbehaviour!(
        "mark.count",
        "more marks than there is room for",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.theirs()?.set(Field::Marks, MARKS + 1)?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!("mark.count_end", "2^64 - 1 marks", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.theirs()?.set(Field::Marks, u64::MAX)?;
        s.liar.publish(b"x").map(drop)
    }),
    misbehaviour!("mark.count_back", "takes a mark back", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        use onecopy::RecvFlags;
        refer(s, 0, 0, 0, 0, 10)?;
        let _ = s.victim.recv_with_flags(&mut [0; 10], RecvFlags::DONTWAIT);
        s.liar.theirs()?.set(Field::Marks, 1)?;
        s.liar.publish(b"x").map(drop)
    }),
    misbehaviour!(
        "mark.past",
        "a mark behind what was received",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            use onecopy::RecvFlags;
            s.liar.publish(&[b'u'; 5_000])?;
            let _ = s.victim.recv_with_flags(&mut [0; 5_000], RecvFlags::DONTWAIT);
            s.liar.lay(100, fds(1, 1), 2_000)
        }
    ),
    misbehaviour!("mark.future", "a mark beyond the ring", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.lay(1 << 40, fds(1, 1), 2_000)
    }),
    misbehaviour!(
        "who.no_channel",
        "says who sends, without a channel",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { s.liar.mark(who(true)) }
    ),
    misbehaviour!("who.nothing", "says who sends, and does not", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.open_channel()?;
        s.liar.mark(who(true))
    }),
    misbehaviour!(
        "who.fds",
        "descriptors where it should say who sends",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put(&[File::open("/dev/null")?.as_fd()])?;
            s.liar.mark(who(true))
        }
    ),
    misbehaviour!(
        "who.nobody",
        "says who sends, and leaves it empty: nobody",
        HARMLESS,
        "",
        |s: &mut Scene| {
            use onecopy::RecvFlags;
            s.victim.set_pass_credentials(true).map_err(io::Error::from)?;
            s.liar.open_channel()?;
            s.liar.put(&[])?;
            s.liar.mark(who(true))?;
            s.liar.publish(b"abc")?;
            let (n, with) =
                s.victim.recv_fds_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).map_err(io::Error::from)?;
            match with.credentials.map(|who| (who.pid, who.uid, who.gid)) {
                Some((0, 65534, 65534)) if n == 3 => Ok(()),
                other => Err(io::Error::other(format!("{n} bytes of {other:?}"))),
            }
        }
    ),
    misbehaviour!("mark.kind", "a mark of no kind", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.mark([0x7777_7777_7777, 1, 1])
    }),
    misbehaviour!(
        "mark.short",
        "a mark of which a byte is published",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { s.liar.lay(s.liar.head, reference(0, 0, 0, 0, 1), 1) }
    ),
    misbehaviour!("mark.overlapping", "two marks at one place", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        let at = s.liar.head;
        s.liar.share(&honest_memory(POOL)?, pool(0, PAGE, PAGES))?;
        s.liar.lay(at, reference(0, 0, 0, 0, 1), 1024)
    }),
    misbehaviour!(
        "fds.no_channel",
        "descriptors, and no channel",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "fds.none",
        "descriptors that are not in the channel",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "fds.fewer",
        "fewer descriptors than announced",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put(&[File::open("/dev/null")?.as_fd(); 3])?;
            s.liar.mark(fds(200, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "fds.more",
        "more descriptors than announced: none may stay",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put(&[File::open("/dev/null")?.as_fd(); 100])?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "fds.empty",
        "no descriptors, or no bytes with them",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put(&[])?;
            s.liar.mark(fds(0, 0))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!("fds.endless", "descriptors whose bytes never end", HARMLESS, "", |s: &mut Scene| {
        s.liar.open_channel()?;
        s.liar.put(&[File::open("/dev/null")?.as_fd()])?;
        s.liar.mark(fds(1, u64::MAX))?;
        s.liar.publish(b"x").map(drop)
    }),
    misbehaviour!(
        "number.older",
        "descriptors of what was before",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.publish(b"x")?;
            s.liar.open_channel()?;
            s.liar.put_as(&0u64.to_le_bytes(), &[File::open("/dev/null")?.as_fd()])?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "number.newer",
        "descriptors of what is to come",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put_as(&u64::MAX.to_le_bytes(), &[File::open("/dev/null")?.as_fd()])?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "number.half",
        "descriptors with half a number",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put_as(&[0; 4], &[File::open("/dev/null")?.as_fd()])?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!(
        "number.crowd",
        "descriptors that nothing announces, before those that are",
        HARMLESS,
        "",
        |s: &mut Scene| {
            use onecopy::RecvFlags;
            let (null, zero) = (File::open("/dev/null")?, File::open("/dev/zero")?);
            s.liar.publish(b"x")?;
            s.liar.open_channel()?;
            for number in [0, 0, 1, 1] {
                s.liar.put_as(&u64::to_le_bytes(number), &[null.as_fd(); 3])?;
            }
            s.liar.put(&[zero.as_fd()])?;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"y")?;
            let mut came = Vec::new();
            for _ in 0..2 {
                let (_, with) = s
                    .victim
                    .recv_fds_with_flags(&mut [0; 1], RecvFlags::DONTWAIT)
                    .map_err(io::Error::from)?;
                came.extend(with.fds);
            }
            let inode = |fd: &std::os::fd::OwnedFd| rustix::fs::fstat(fd).map(|stat| stat.st_rdev);
            match &came[..] {
                [fd] if inode(fd)? == rustix::fs::fstat(&zero)?.st_rdev => Ok(()),
                other => Err(io::Error::other(format!("{} descriptors", other.len()))),
            }
        }
    ),
    misbehaviour!("channel.unused", "opens a channel for nothing", HARMLESS, "", |s: &mut Scene| s
        .liar
        .open_channel()),
    misbehaviour!("channel.file", "a channel that is no socket", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.send_with(&[0], &[File::open("/dev/zero")?.as_fd()])?;
        s.liar.mark(fds(1, 1))?;
        s.liar.publish(b"x").map(drop)
    }),
    misbehaviour!("channel.many", "a channel again and again", ANY, "", |s: &mut Scene| {
        for _ in 0..20 {
            s.liar.open_channel()?;
        }
        s.liar.publish(b"x").map(drop)
    }),
    misbehaviour!(
        "channel.closed",
        "closes the channel with descriptors in it",
        RECEIVER_SEES,
        "",
        |s: &mut Scene| {
            s.liar.open_channel()?;
            s.liar.put(&[File::open("/dev/null")?.as_fd()])?;
            s.liar.channel = None;
            s.liar.mark(fds(1, 1))?;
            s.liar.publish(b"x").map(drop)
        }
    ),
    misbehaviour!("pool.unsealed", "a pool that may shrink", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.share(&memory(POOL, SealFlags::FUTURE_WRITE)?, pool(0, PAGE, PAGES))
    }),
    misbehaviour!(
        "pool.writable",
        "a pool that anybody may write to",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { s.liar.share(&memory(POOL, SEALS)?, pool(0, PAGE, PAGES)) }
    ),
    misbehaviour!("pool.file", "a pool that is a device", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.share(&File::open("/dev/zero")?, pool(0, PAGE, PAGES))
    }),
    misbehaviour!(
        "pool.hugetlb",
        "a pool of huge pages, which fault",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| {
            use rustix::fs::MemfdFlags;
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            let file = File::from(rustix::fs::memfd_create("onecopy-liar-pool", flags)?);
            rustix::fs::ftruncate(&file, 2 << 20)?;
            rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE)?;
            s.liar.share(&file, pool(0, 2 << 20, 1))
        }
    ),
    misbehaviour!("pool.small", "a pool of less than announced", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        s.liar.share(&honest_memory(POOL)?, pool(0, PAGE, PAGES + 1))
    }),
    misbehaviour!(
        "pool.endless",
        "a pool of more than any memory",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { s.liar.share(&honest_memory(POOL)?, pool(0, u64::MAX, u64::MAX)) }
    ),
    misbehaviour!("pool.large", "a pool larger than is mapped", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        let file = lender::memory(0, SealFlags::empty())?;
        rustix::fs::ftruncate(&file, 1 << 40)?;
        rustix::fs::fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE)?;
        s.liar.share(&file, pool(0, 1 << 20, 1 << 20))
    }),
    misbehaviour!(
        "pool.name",
        "a pool with a name that is not its turn",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { s.liar.share(&honest_memory(POOL)?, pool(3, PAGE, PAGES)) }
    ),
    misbehaviour!("pool.many", "one pool more than is mapped", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        (0..17).try_for_each(|name| s.liar.share(&honest_memory(POOL)?, pool(name, PAGE, PAGES)))
    }),
    misbehaviour!("reference.pool", "a page of no pool", RECEIVER_SEES, "EPROTO", |s: &mut Scene| refer(
        s, 0, 1, 0, 0, 10
    )),
    misbehaviour!("reference.page", "a page behind the last", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        refer(s, 0, 0, PAGES as u32, 0, 10)
    }),
    misbehaviour!("reference.page_end", "page 2^32 - 1", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        refer(s, 0, 0, u32::MAX, 0, 10)
    }),
    misbehaviour!("reference.offset", "bytes behind a page", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        refer(s, 0, 0, 3, PAGE as u32, 1)
    }),
    misbehaviour!("reference.len", "more bytes than a page has", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        refer(s, 0, 0, 0, 1, PAGE as u32)
    }),
    misbehaviour!(
        "reference.wrapping",
        "an offset and a length that wrap",
        RECEIVER_SEES,
        "EPROTO",
        |s: &mut Scene| { refer(s, 0, 0, 0, u32::MAX, 2) }
    ),
    misbehaviour!("reference.empty", "no bytes of a page", RECEIVER_SEES, "EPROTO", |s: &mut Scene| refer(
        s, 0, 0, 0, 0, 0
    )),
    misbehaviour!("reference.slot", "a slot that there is not", RECEIVER_SEES, "EPROTO", |s: &mut Scene| {
        refer(s, 60_000, 0, 0, 0, 10)
    }),
    misbehaviour!("reference.twice", "one slot for two pages", ANY, "", |s: &mut Scene| {
        refer(s, 0, 0, 0, 0, 10)?;
        s.liar.mark(reference(0, 0, 1, 0, 10))
    }),
    misbehaviour!(
        "reference.jumping",
        "marks at random, all the time",
        ANY,
        "",
        |s: &mut Scene| refer(s, 0, 0, 0, 0, 10),
        Some(|liar: &Liar| {
            let mut dice = dice();
            if let Ok(ring) = liar.theirs() {
                let word = dice.roll() >> (dice.roll() % 64);
                let _ = ring.write(&word.to_le_bytes(), 512 + dice.roll() % 256 * 8);
                let _ = ring.set(Field::Marks, dice.roll() % 70);
                let _ = ring.set(Field::Head, dice.roll() % ring.capacity);
            }
            let _ = liar.doorbell(1);
        })
    ),
    misbehaviour!("lent.never", "never gives a page back", HARMLESS, "", |s: &mut Scene| mapping(s)),
    misbehaviour!("lent.unlent", "gives back what was not lent", ANY, "EPROTO", |s: &mut Scene| {
        mapping(s)?;
        s.liar.mine()?.set(Field::Returned, 1 << 63)
    }),
    misbehaviour!(
        "lent.all",
        "gives everything back, all the time",
        ANY,
        "EPROTO",
        |s: &mut Scene| mapping(s),
        Some(|liar: &Liar| {
            let _ = liar.mine().and_then(|ring| ring.set(Field::Returned, u64::MAX));
        })
    ),
    misbehaviour!(
        "lent.unread",
        "gives back without looking: it sees later bytes, which is its own loss",
        ANY,
        "",
        |s: &mut Scene| mapping(s),
        Some(|liar: &Liar| {
            let _ = liar.mine().and_then(|ring| ring.set(Field::Returned, 1));
            let _ = liar.take();
        })
    ),
    misbehaviour!(
        "lent.asleep",
        "wakes and does not wake the lender",
        ANY,
        "",
        |s: &mut Scene| mapping(s),
        Some(|liar: &Liar| {
            let mut dice = dice();
            let _ = liar.mine().and_then(|ring| ring.set(Field::Asleep, dice.roll()));
            let _ = liar.take();
        })
    ),
    misbehaviour!(
        "lent.mapping",
        "maps pools and does not, all the time",
        ANY,
        "",
        |_: &mut Scene| Ok(()),
        Some(|liar: &Liar| {
            let mut dice = dice();
            let _ =
                liar.mine().and_then(|ring| ring.set(Field::MaxShared, dice.roll() >> (dice.roll() % 64)));
            let _ = liar.take();
        })
    ),
    misbehaviour!("lent.closed", "maps pools, and takes no descriptor", ANY, "", |s: &mut Scene| {
        mapping(s)?;
        Ok(rustix::net::shutdown(&s.liar.fd, rustix::net::Shutdown::Read)?)
    }),
];
