//! Lies about the rings that one offers: what they are, whose, how large, and when they come.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use onecopy::{RecvFlags, SendFlags};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::misbehaviour::{
    ALL, ANY, ATTACHING, CAUGHT, FOREIGN, HARMLESS, JOINING, Misbehaviour, OVER, RECEIVER_SEES, ROOM, Role,
    Scene,
};
use crate::liar::{Field, HEADER_LEN, Liar, Rings, SEALS};
use crate::memory::{MAGIC, halves, memfd};

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

/// A descriptor that is no rings, by which nobody is fooled: the program gets it.
macro_rules! foreign {
    ($name:literal, $what:literal, $make:expr) => {
        misbehaviour!($name, $what, ATTACHING, FOREIGN, "descriptors", |s: &mut Scene| {
            let fd = $make(&s.liar)?;
            s.liar.say(b"h", &[fd.as_fd()])
        })
    };
}

/// Honest rings that were changed before they were sent: found out at once, whatever the victim does next.
macro_rules! changed {
    ($name:literal, $what:literal, $change:expr) => {
        misbehaviour!($name, $what, ATTACHING, CAUGHT, "EPROTO", |s: &mut Scene| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            $change(&rings)?;
            s.attach(rings)
        })
    };
}

/// Rings of which one says that it has another size than there is.
macro_rules! announce {
    ($name:literal, $what:literal, $which:ident, $capacity:expr) => {
        changed!($name, $what, |rings: &Rings| rings.$which.set(Field::Capacity, $capacity))
    };
}

/// Rings in memory that is not what such memory must be.
macro_rules! memory {
    ($name:literal, $what:literal, $allowed:expr, $make:expr) => {
        misbehaviour!($name, $what, ATTACHING, $allowed, "", |s: &mut Scene| {
            let rings = $make(s.liar.nonce)?;
            s.attach(rings)
        })
    };
}

/// No lie at all: everything is where it is thought to be, or the lies below mean nothing.
fn honest(s: &mut Scene) -> io::Result<()> {
    fn is<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, expected: T) -> io::Result<()> {
        if seen == expected {
            Ok(())
        } else {
            Err(io::Error::other(format!("{what} is {seen:?}, not {expected:?}")))
        }
    }
    let most = 256 << 20;
    if s.role.joins() {
        s.theirs()?;
        for (what, ring) in [("its first ring", s.liar.mine()?), ("its second ring", s.liar.theirs()?)] {
            let said = [Field::Magic, Field::NonceFirst, Field::NonceSecond, Field::Capacity, Field::Armed]
                .map(|field| ring.get(field));
            let said = said.into_iter().collect::<io::Result<Vec<_>>>()?;
            let [first, second] = halves(s.liar.nonce);
            // (A client of ours wishes for nothing in particular; this one has said in its name what it takes.)
            let capacity = if s.role == Role::JoiningClient { ROOM } else { 256 << 10 };
            is(what, said, vec![MAGIC, first, second, capacity, 1])?;
            for field in [Field::Head, Field::SwitchAt, Field::Marks, Field::Tail, Field::Joined] {
                is(what, ring.get(field)?, 0)?;
            }
        }
        s.liar.join()?;
        s.nudge();
        // (Behind one message of a server's, and two of a client's.)
        let switch = if s.role == Role::JoiningServer { 3 } else { 2 };
        is("the victim's switch", s.liar.mine()?.get(Field::SwitchAt)?, switch)?;
    } else {
        s.meet()?;
        is("the victim's switch", s.liar.mine()?.get(Field::SwitchAt)?, 1)?;
    }
    is("what it maps", s.liar.theirs()?.get(Field::MaxShared)?, most)?;
    // In between, bytes of both directions go where each one is.
    s.liar.say(b"over the kernel", &[])?;
    let mut buf = [0; 40];
    is("sent", s.victim.send_with_flags(b"in memory", SendFlags::empty()).ok(), Some(9))?;
    is("taken", s.liar.take()?, b"in memory".to_vec())?;
    s.liar.switch()?;
    s.liar.publish(b", then in memory")?;
    let mut got = 0;
    while let Ok(n @ 1..) = s.victim.recv_with_flags(&mut buf[got..], RecvFlags::DONTWAIT) {
        got += n;
    }
    is("received", String::from_utf8_lossy(&buf[..got]).as_ref(), "over the kernel, then in memory")?;
    s.shared()
}

/// Rings come with the fifth message, of which the victim has received four.
fn late(s: &mut Scene) -> io::Result<()> {
    for _ in 0..4 {
        s.liar.say(b"p", &[])?;
        s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
    }
    let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
    s.attach(rings)
}

/// The limit of a resource of this process is `limit`, while `then` is done.
fn limited<T>(resource: Resource, limit: u64, then: impl FnOnce() -> T) -> io::Result<T> {
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(limit), ..before })?;
    let done = then();
    setrlimit(resource, before)?;
    Ok(done)
}

/// The victim receives the byte that the rings came with, and nothing happens.
fn unmoved(s: &Scene, resource: Resource, limit: u64) -> io::Result<()> {
    let seen = limited(resource, limit, || {
        let sent = s.victim.send_with_flags(b"v", SendFlags::DONTWAIT);
        (sent.ok(), s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT).ok())
    })?;
    match (seen, s.liar.theirs()?.get(Field::Joined)?) {
        ((Some(1), Some(1)), 0) => Ok(()),
        other => Err(io::Error::other(format!("sent, received and joined: {other:?}"))),
    }
}

/// Descriptors that this process has at least, and with that limit at most: it can open no other.
fn all_in_use() -> io::Result<u64> {
    // (The kernel gives out the lowest number that is free.)
    Ok(File::open("/dev/null")?.as_raw_fd().unsigned_abs().into())
}

/// Bytes of addresses in use.
fn addresses() -> io::Result<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    Ok(pages * rustix::param::page_size() as u64)
}

pub const LIES: &[Misbehaviour] = &[
    misbehaviour!("rings.honest", "no lie", ALL, HARMLESS, "", honest),
    misbehaviour!(
        "rings.odd_sizes",
        "no lie: rings whose sizes are no whole pages",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let rings = Rings::honest([ROOM + 64, ROOM + 4032], s.liar.nonce)?;
            s.attach(rings)?;
            s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
            s.liar.switch()?;
            s.shared()
        }
    ),
    foreign!("rings.pipe", "a pipe instead of rings", |_: &Liar| Ok::<_, io::Error>(rustix::pipe::pipe()?.0)),
    foreign!("rings.socket", "a socket instead of rings", |_: &Liar| {
        Ok::<_, io::Error>(OwnedFd::from(std::os::unix::net::UnixStream::pair()?.0))
    }),
    foreign!("rings.folder", "a folder instead of rings", |_: &Liar| File::open("/")),
    foreign!("rings.device", "/dev/zero instead of rings", |_: &Liar| {
        File::options().read(true).write(true).open("/dev/zero")
    }),
    foreign!("rings.file", "a file on disk with the rings in it", |liar: &Liar| in_file("/var/tmp", liar)),
    foreign!("rings.shm_file", "a file in /dev/shm with the rings in it", |liar: &Liar| in_file(
        "/dev/shm", liar
    )),
    foreign!("rings.empty", "sealed memory of no bytes", |_: &Liar| sealed(0)),
    foreign!("rings.short", "sealed memory that ends before it says what it is", |_: &Liar| sealed(300)),
    foreign!("rings.blank", "sealed memory of the right size, all zeroes", |_: &Liar| {
        sealed(Rings::len([ROOM; 2]))
    }),
    foreign!("rings.hugetlb", "memory of huge pages, which can fault, of the right size", |_: &Liar| {
        let refused = |_| io::Error::from(io::ErrorKind::Unsupported);
        let file = memfd(2 << 20, MemfdFlags::HUGETLB).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(|errno| refused(errno.into()))?;
        Ok::<_, io::Error>(file)
    }),
    foreign!("rings.unsealed", "rings in memory without seals", |liar: &Liar| partly(
        liar,
        SealFlags::empty()
    )),
    foreign!("rings.shrinkable", "rings in memory that can shrink", |liar: &Liar| {
        partly(liar, SealFlags::GROW | SealFlags::SEAL)
    }),
    foreign!("rings.growable", "rings in memory that can grow", |liar: &Liar| {
        partly(liar, SealFlags::SHRINK | SealFlags::SEAL)
    }),
    foreign!("rings.sealable", "rings in memory whose seals are not final", |liar: &Liar| {
        partly(liar, SealFlags::SHRINK | SealFlags::GROW)
    }),
    foreign!("rings.magic", "rings that do not say that they are such", |liar: &Liar| {
        let rings = Rings::honest([ROOM; 2], liar.nonce)?;
        rings.first.set(Field::Magic, MAGIC ^ 1)?;
        Ok::<_, io::Error>(rings.first.file)
    }),
    foreign!("rings.nonce", "rings with another nonce", |liar: &Liar| {
        let mut nonce = liar.nonce;
        nonce[3] ^= 1;
        Ok::<_, io::Error>(Rings::honest([ROOM; 2], nonce)?.first.file)
    }),
    foreign!("rings.half_nonce", "rings with half of the nonce", |liar: &Liar| {
        let mut nonce = liar.nonce;
        nonce[8..].fill(0);
        Ok::<_, io::Error>(Rings::honest([ROOM; 2], nonce)?.first.file)
    }),
    memory!("rings.second_nonce", "rings of which the second has another nonce", HARMLESS, |nonce| {
        let rings = Rings::honest([ROOM; 2], nonce)?;
        rings.second.set(Field::NonceFirst, 1)?;
        Ok::<_, io::Error>(rings)
    }),
    memory!("rings.write_sealed", "rings in memory that cannot be written", CAUGHT, |nonce| {
        let rings = Rings::unsealed([ROOM; 2], nonce)?;
        rings.seal(SEALS | SealFlags::WRITE)?;
        Ok::<_, io::Error>(rings)
    }),
    memory!("rings.no_new_writer", "rings in memory that only its maker can write to", CAUGHT, |nonce| {
        let rings = Rings::unsealed([ROOM; 2], nonce)?;
        rings.seal(SEALS | SealFlags::FUTURE_WRITE)?;
        Ok::<_, io::Error>(rings)
    }),
    memory!("rings.read_only", "rings in memory that was opened again for reading only", CAUGHT, |nonce| {
        let mut rings = Rings::honest([ROOM; 2], nonce)?;
        rings.first.file = File::open(format!("/proc/self/fd/{}", rings.first.file.as_raw_fd()))?;
        Ok::<_, io::Error>(rings)
    }),
    memory!("rings.one_page", "one header, and no more", CAUGHT, |nonce| sized(HEADER_LEN, nonce)),
    memory!("rings.one_ring", "one ring, and no other", CAUGHT, |nonce| sized(HEADER_LEN + ROOM, nonce)),
    memory!("rings.no_data", "two headers, and no data", CAUGHT, |nonce| {
        let rings = Rings::unsealed([0; 2], nonce)?;
        rings.seal(SEALS)?;
        Ok::<_, io::Error>(rings)
    }),
    memory!("rings.cut", "a line less than both say", CAUGHT, |nonce| sized(
        Rings::len([ROOM; 2]) - 64,
        nonce
    )),
    memory!("rings.more", "a line more than both say", CAUGHT, |nonce| sized(
        Rings::len([ROOM; 2]) + 64,
        nonce
    )),
    memory!("rings.odd", "a byte more than both say", CAUGHT, |nonce| sized(
        Rings::len([ROOM; 2]) + 1,
        nonce
    )),
    announce!("rings.first_larger", "the first ring says that it is larger", first, 2 * ROOM),
    announce!(
        "rings.first_line_larger",
        "the first ring says that it reaches a line into the second",
        first,
        Rings::second(ROOM) - HEADER_LEN + 64
    ),
    announce!("rings.first_smaller", "the first ring says that it is smaller", first, ROOM / 2),
    announce!("rings.first_zero", "the first ring says that it has no room", first, 0),
    announce!("rings.first_tiny", "the first ring says that it has less than the least room", first, 64),
    announce!("rings.first_odd", "the first ring says that it ends in a line", first, ROOM + 1),
    announce!("rings.first_huge", "the first ring says that it is larger than max_ring", first, 1 << 37),
    announce!("rings.first_endless", "the first ring says that it has 2^64 - 1 bytes", first, u64::MAX),
    announce!("rings.first_negative", "the first ring says what is a negative number", first, 1 << 63),
    announce!("rings.first_wraps", "the first ring's size wraps with its header", first, u64::MAX - 4095),
    announce!("rings.first_wraps_line", "the first ring's size wraps when it is rounded", first, !63),
    announce!("rings.second_larger", "the second ring says that it is larger", second, 2 * ROOM),
    announce!("rings.second_smaller", "the second ring says that it is smaller", second, ROOM / 2),
    announce!("rings.second_zero", "the second ring says that it has no room", second, 0),
    announce!("rings.second_odd", "the second ring says that it ends in a line", second, ROOM + 1),
    announce!("rings.second_endless", "the second ring says that it has 2^64 - 1 bytes", second, u64::MAX),
    memory!("rings.too_large", "rings of 1 GiB, more than the victim takes", HARMLESS, |nonce| {
        Rings::honest([1 << 30; 2], nonce)
    }),
    memory!(
        "rings.second_too_large",
        "a second ring that is larger than the victim takes",
        HARMLESS,
        |nonce| { Rings::honest([ROOM, 17 << 20], nonce) }
    ),
    misbehaviour!(
        "rings.full_of_lies",
        "rings whose headers are full of garbage when they come",
        ATTACHING,
        ANY,
        "",
        |s| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            let fixed =
                [Field::Magic, Field::Capacity, Field::NonceFirst, Field::NonceSecond, Field::SwitchAt];
            for field in Field::ALL.into_iter().filter(|field| !fixed.contains(field)) {
                rings.first.set(field, 0x5555_5555_5555)?;
                rings.second.set(field, 0x5555_5555_5555)?;
            }
            rings.second.set(Field::SwitchAt, 77)?;
            s.attach(rings)
        }
    ),
    misbehaviour!(
        "rings.with_others",
        "rings behind 252 descriptors, which the program gets",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let null = File::open("/dev/null")?;
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            s.liar.attach(b"h", &[null.as_fd(); 252], rings)?;
            let (n, with) = s.victim.recv_fds_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
            s.liar.switch()?;
            match (n, with.fds.len(), with.truncated) {
                (1, 252, false) => s.shared(),
                other => Err(io::Error::other(format!("bytes, descriptors, some lost: {other:?}"))),
            }
        }
    ),
    misbehaviour!(
        "rings.before_others",
        "rings before a descriptor: they are the program's",
        ATTACHING,
        FOREIGN,
        "descriptors",
        |s| {
            let null = File::open("/dev/null")?;
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            s.liar.say(b"h", &[rings.first.file.as_fd(), null.as_fd()])
        }
    ),
    misbehaviour!(
        "rings.many_at_once",
        "rings a hundred times at once",
        ATTACHING,
        FOREIGN,
        "descriptors",
        |s| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            let more = rings.first.file.try_clone()?;
            s.liar.attach(b"h", &[more.as_fd(); 99], rings)
        }
    ),
    misbehaviour!(
        "rings.again",
        "rings with the first byte, and others with the second",
        ATTACHING,
        FOREIGN,
        "",
        |s| {
            for _ in 0..2 {
                let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
                s.attach(rings)?;
            }
            Ok(())
        }
    ),
    misbehaviour!(
        "rings.late",
        "no lie: a client's rings with its fifth message, which attaches when it can",
        &[Role::Client],
        HARMLESS,
        "",
        |s| {
            late(s)?;
            s.victim.recv_with_flags(&mut [0; 9], RecvFlags::DONTWAIT)?;
            s.liar.switch()?;
            s.shared()
        }
    ),
    misbehaviour!(
        "rings.late_server",
        "a server's rings with its fifth message: they are the program's",
        &[Role::Server],
        FOREIGN,
        "descriptors",
        late
    ),
    misbehaviour!("rings.twice", "rings after the upgrade", ALL, RECEIVER_SEES, "", |s| {
        s.upgrade()?;
        let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
        s.liar.send_with(b"h", &[rings.first.file.as_fd()]).map(drop)
    }),
    misbehaviour!("rings.theirs", "the victim's own rings back to it", JOINING, ANY, "", |s| {
        s.theirs()?;
        let theirs = s.liar.mine()?.file.try_clone()?;
        s.liar.say(b"h", &[theirs.as_fd()])
    }),
    misbehaviour!(
        "rings.no_descriptor_left",
        "no lie, but the victim can open no descriptor",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            s.attach(rings)?;
            unmoved(s, Resource::Nofile, all_in_use()?)
        }
    ),
    misbehaviour!(
        "rings.no_address_left",
        "no lie, but the victim has no address space left",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let rings = Rings::honest([16 << 20; 2], s.liar.nonce)?;
            s.attach(rings)?;
            unmoved(s, Resource::As, addresses()? + (4 << 20))
        }
    ),
    misbehaviour!(
        "rings.never",
        "an invitation or a rendezvous, and then nothing",
        ALL,
        HARMLESS,
        "",
        |_| Ok(())
    ),
    misbehaviour!(
        "rings.plain",
        "an invitation or a rendezvous, and then a plain conversation",
        ALL,
        HARMLESS,
        "",
        |s| { s.liar.send_over_kernel(&[b'p'; 1000]) }
    ),
    misbehaviour!(
        "switch.past",
        "switches at a byte that the victim has received",
        ALL,
        RECEIVER_SEES,
        "EPROTO",
        |s| {
            s.meet()?;
            s.liar.send_over_kernel(&[b'p'; 1000])?;
            s.victim.recv_with_flags(&mut [0; 500], RecvFlags::DONTWAIT)?;
            s.liar.theirs()?.set(Field::SwitchAt, 101)
        }
    ),
    misbehaviour!(
        "switch.and_on",
        "switches, and goes on over the kernel",
        ALL,
        RECEIVER_SEES,
        "EPROTO",
        |s| {
            s.meet()?;
            s.liar.switch()?;
            s.liar.send_over_kernel(&[b'p'; 1000])
        }
    ),
    misbehaviour!("switch.future", "switches at a byte that it never sends", ALL, HARMLESS, "", |s| {
        s.meet()?;
        s.liar.theirs()?.set(Field::SwitchAt, u64::MAX)?;
        s.liar.send_over_kernel(&[b'p'; 1000])
    }),
    misbehaviour!("switch.unjoined", "switches in rings that it does not join", JOINING, HARMLESS, "", |s| {
        s.theirs()?;
        s.liar.switch()?;
        s.liar.publish(&[b'u'; 1000]).map(drop)
    }),
    misbehaviour!(
        "switch.before_join",
        "switches in rings that the victim has not seen yet",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            rings.first.set(Field::SwitchAt, 2)?;
            s.attach(rings)?;
            s.liar.publish(&[b'u'; 1000]).map(drop)
        }
    ),
    misbehaviour!(
        "switch.bells_before_join",
        "rings bells before the victim has joined: they are bytes",
        ATTACHING,
        HARMLESS,
        "",
        |s| {
            let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
            s.attach(rings)?;
            s.liar.doorbell(3)
        }
    ),
    misbehaviour!("close.at_once", "closes without a word", ALL, OVER, "", |s| s.hang_up()),
    misbehaviour!(
        "close.unread",
        "closes with the victim's rings in its queue",
        JOINING,
        OVER,
        "ECONNRESET",
        |s| {
            s.victim.send_with_flags(b"v", SendFlags::empty())?;
            s.hang_up()
        }
    ),
    misbehaviour!("close.unjoined", "takes the victim's rings, and closes", JOINING, OVER, "", |s| {
        s.theirs()?;
        s.hang_up()
    }),
    misbehaviour!(
        "close.after_switch",
        "switches in rings that it does not join, and closes",
        JOINING,
        OVER,
        "",
        |s| {
            s.theirs()?;
            s.liar.switch()?;
            s.hang_up()
        }
    ),
    misbehaviour!("close.after_join", "joins, and closes", ALL, OVER, "", |s| {
        s.meet()?;
        s.hang_up()
    }),
    misbehaviour!("close.after_rings", "sends rings, and closes", ATTACHING, OVER, "", |s| {
        let rings = Rings::honest([ROOM; 2], s.liar.nonce)?;
        s.attach(rings)?;
        s.hang_up()
    }),
    misbehaviour!("close.after_upgrade", "closes right after the upgrade", ALL, OVER, "", |s| {
        s.upgrade()?;
        s.hang_up()
    }),
];

impl Scene {
    /// Closes the liar's control socket.
    pub fn hang_up(&mut self) -> io::Result<()> {
        // Something else takes its place, so that the scene stays whole.
        self.liar.fd = OwnedFd::from(File::open("/dev/null")?);
        Ok(())
    }
}

/// Two rings in sealed memory of another size.
fn sized(len: u64, nonce: [u8; 16]) -> io::Result<Rings> {
    let rings = Rings::of_len(len, [ROOM; 2], nonce)?;
    rings.seal(SEALS)?;
    Ok(rings)
}

/// Sealed memory with nothing in it.
fn sealed(len: u64) -> io::Result<File> {
    let file = memfd(len, MemfdFlags::empty())?;
    rustix::fs::fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Rings in memory with some seals only.
fn partly(liar: &Liar, seals: SealFlags) -> io::Result<File> {
    let rings = Rings::unsealed([ROOM; 2], liar.nonce)?;
    rings.seal(seals)?;
    Ok(rings.first.file)
}

/// Rings in a file without a name in `folder`.
fn in_file(folder: &str, liar: &Liar) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let fd = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from(0o600));
    let file = File::from(fd.map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?);
    file.set_len(Rings::len([ROOM; 2]))?;
    Ok(Rings::in_file(file, [ROOM; 2], liar.nonce)?.first.file)
}
