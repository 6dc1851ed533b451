//! Lies about who one is and what one offers.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

use super::{ANY, BOTH, HARMLESS, Lie, OVER, REFUSED, Role, Scene};
use crate::liar::{Field, HEADER_LEN, Hello, Memory, SEALS};

const ROOM: u64 = 64 << 10;

macro_rules! lie {
    ($name:literal, $what:literal, $roles:expr, $allowed:expr, $must:literal, $tell:expr) => {
        Lie {
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

/// An offer that is refused: found out at once, whatever the victim does next.
macro_rules! offer {
    ($name:literal, $what:literal, $make:expr) => {
        lie!($name, $what, BOTH, REFUSED, "EPROTO", |s: &mut Scene| {
            let fd = $make()?;
            s.offer(ROOM, &[fd.as_fd()])
        })
    };
}

/// An announcement of another size than the memory has.
macro_rules! announce {
    ($name:literal, $what:literal, $capacity:expr) => {
        lie!($name, $what, BOTH, REFUSED, "EPROTO", |s: &mut Scene| {
            let memory = Memory::honest(ROOM)?;
            s.offer($capacity, &[memory.file.as_fd()])
        })
    };
}

pub const LIES: &[Lie] = &[
    lie!("hello.no_memfd", "a hello without a descriptor", BOTH, REFUSED, "EPROTO", |s| s.offer(ROOM, &[])),
    offer!("hello.pipe", "a pipe instead of a memfd", || Ok::<_, io::Error>(rustix::pipe::pipe()?.0)),
    offer!("hello.socket", "a socket instead of a memfd", || {
        Ok::<_, io::Error>(OwnedFd::from(std::os::unix::net::UnixStream::pair()?.0))
    }),
    offer!("hello.folder", "a folder instead of a memfd", || File::open("/")),
    offer!("hello.device", "/dev/zero instead of a memfd", || {
        File::options().read(true).write(true).open("/dev/zero")
    }),
    offer!("hello.file", "a file on disk instead of a memfd, of the right size", || nameless("/var/tmp")),
    offer!("hello.shm_file", "a file in /dev/shm instead of a memfd, of the right size", || nameless(
        "/dev/shm"
    )),
    offer!("hello.unsealed", "a memfd without seals", || Ok::<_, io::Error>(Memory::unsealed(ROOM)?.file)),
    offer!("hello.shrinkable", "a memfd that can shrink", || sealed(SealFlags::GROW | SealFlags::SEAL)),
    offer!("hello.growable", "a memfd that can grow", || sealed(SealFlags::SHRINK | SealFlags::SEAL)),
    offer!("hello.sealable", "a memfd whose seals are not final", || sealed(
        SealFlags::SHRINK | SealFlags::GROW
    )),
    offer!("hello.write_sealed", "a memfd that cannot be written", || sealed(SEALS | SealFlags::WRITE)),
    offer!("hello.read_only", "a memfd, opened again for reading only", || {
        use std::os::fd::AsRawFd;
        let memory = Memory::honest(ROOM)?;
        File::open(format!("/proc/self/fd/{}", memory.file.as_raw_fd()))
    }),
    offer!("hello.hugetlb", "a memfd of huge pages, which can fault", || {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let refused = |_| io::Error::from(io::ErrorKind::Unsupported);
        let fd = rustix::fs::memfd_create("onecopy-liar", flags).map_err(refused)?;
        // No multiple of a huge page fits what is announced: it must be refused for what it is all the same.
        rustix::fs::ftruncate(&fd, 2 << 20).map_err(refused)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(refused)?;
        Ok::<_, io::Error>(File::from(fd))
    }),
    lie!(
        "hello.hugetlb_sized",
        "a memfd of huge pages, of the announced size",
        BOTH,
        REFUSED,
        "EPROTO",
        |s| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            let refused = |_| io::Error::from(io::ErrorKind::Unsupported);
            let fd = rustix::fs::memfd_create("onecopy-liar", flags).map_err(refused)?;
            rustix::fs::ftruncate(&fd, 2 << 20).map_err(refused)?;
            rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(refused)?;
            s.offer((2 << 20) - HEADER_LEN, &[fd.as_fd()])
        }
    ),
    announce!("hello.larger", "announces more than there is", 2 * ROOM),
    announce!("hello.smaller", "announces less than there is", ROOM / 2),
    announce!("hello.zero", "announces no room at all", 0),
    announce!("hello.tiny", "announces less room than the least", 64),
    announce!("hello.odd", "announces a room that is no multiple of a line", ROOM + 1),
    announce!("hello.huge", "announces more than max_ring", 1 << 37),
    announce!("hello.endless", "announces 2^64 - 1 bytes", u64::MAX),
    announce!("hello.negative", "announces what is negative as a signed number", 1 << 63),
    announce!("hello.overflow", "announces a size that wraps with the header added", u64::MAX - 4095),
    lie!("hello.five_memfds", "five descriptors at once", BOTH, ANY, "", |s| {
        let memory = Memory::honest(ROOM)?;
        s.offer(ROOM, &[memory.file.as_fd(); 5])
    }),
    lie!("hello.hundred_memfds", "a hundred descriptors at once", BOTH, ANY, "", |s| {
        let memory = Memory::honest(ROOM)?;
        s.offer(ROOM, &[memory.file.as_fd(); 100])
    }),
    lie!("hello.own_ring", "the victim's own ring back to it", &[Role::Client], ANY, "", |s| {
        s.liar.receive_hello()?;
        let theirs = s.liar.theirs()?.file.try_clone()?;
        let capacity = s.liar.theirs()?.capacity;
        s.liar.switch()?;
        s.liar.send_with(&s.liar.hello(capacity).encode(), &[theirs.as_fd()]).map(drop)
    }),
    lie!("hello.nonce", "a hello with another nonce", BOTH, REFUSED, "", |s| {
        s.twisted(|h| h.nonce[3] ^= 1)
    }),
    lie!("hello.magic", "a hello with another magic", BOTH, REFUSED, "", |s| s.twisted(|h| h.magic[0] ^= 1)),
    lie!("hello.version", "a hello of the next version", BOTH, REFUSED, "", |s| s
        .twisted(|h| h.magic[7] += 1)),
    lie!("hello.half", "half a hello, and silence", BOTH, REFUSED, "", |s| s.half(false)),
    lie!("hello.half_closed", "half a hello, then closes", BOTH, OVER, "", |s| s.half(true)),
    lie!("hello.two_halves", "a hello in two sends", BOTH, REFUSED, "", |s| {
        let memory = Memory::honest(ROOM)?;
        s.begin()?;
        let wire = s.liar.hello(ROOM).encode();
        s.liar.send_with(&wire[..20], &[memory.file.as_fd()])?;
        s.liar.send_with(&wire[20..], &[])?;
        Ok(())
    }),
    lie!("hello.garbage", "64 bytes of garbage instead of a hello", BOTH, REFUSED, "", |s| {
        s.begin()?;
        s.liar.send_with(&[0xa5; 64], &[]).map(drop)
    }),
    lie!("hello.twice", "a second hello after the upgrade", BOTH, ANY, "", |s| {
        s.upgrade()?;
        let memory = Memory::honest(ROOM)?;
        s.liar.send_with(&s.liar.hello(ROOM).encode(), &[memory.file.as_fd()]).map(drop)
    }),
    lie!("hello.never", "an invitation, and then nothing", BOTH, HARMLESS, "", |_| Ok(())),
    lie!("hello.plain_data", "an invitation, and then a plain conversation", BOTH, HARMLESS, "", |s| {
        s.liar.send_over_kernel(&[b'p'; 1000])
    }),
    lie!(
        "switch.past",
        "switches at a byte that the victim has received",
        &[Role::Client],
        REFUSED,
        "EPROTO",
        |s| {
            s.liar.receive_hello()?;
            s.liar.send_over_kernel(&[b'p'; 1000])?;
            let _ = s.victim.recv(&mut [0; 500], onecopy::unix::RecvFlags::empty());
            s.liar.theirs()?.set(Field::SwitchAt, 101)
        }
    ),
    lie!("switch.without_hello", "switches, and sends no hello", &[Role::Client], HARMLESS, "", |s| {
        s.liar.receive_hello()?;
        s.liar.switch()
    }),
    lie!(
        "switch.data_for_hello",
        "switches, and sends data for a hello",
        &[Role::Client],
        REFUSED,
        "EPROTO",
        |s| {
            s.liar.receive_hello()?;
            s.liar.switch()?;
            s.liar.send_over_kernel(&[b'p'; 1000])
        }
    ),
    lie!("switch.future", "switches at a byte that it never sends", &[Role::Client], HARMLESS, "", |s| {
        s.liar.receive_hello()?;
        s.liar.theirs()?.set(Field::SwitchAt, u64::MAX)?;
        s.liar.send_over_kernel(&[b'p'; 1000])
    }),
    lie!("switch.early_hello", "a hello before the switch", &[Role::Client], ANY, "", |s| {
        s.liar.receive_hello()?;
        let memory = Memory::honest(ROOM)?;
        s.liar.send_with(&s.liar.hello(ROOM).encode(), &[memory.file.as_fd()])?;
        s.nudge();
        s.liar.switch()
    }),
    lie!("close.at_once", "closes without a word", BOTH, OVER, "", |s| s.hang_up()),
    lie!("close.after_their_hello", "closes after the victim's hello", &[Role::Client], OVER, "", |s| {
        s.liar.receive_hello()?;
        s.hang_up()
    }),
    lie!("close.after_switch", "switches, sends no hello, closes", &[Role::Client], OVER, "", |s| {
        s.liar.receive_hello()?;
        s.liar.switch()?;
        s.hang_up()
    }),
    lie!("close.after_hello", "sends its hello and closes", BOTH, OVER, "", |s| {
        let memory = Memory::honest(ROOM)?;
        s.offer(ROOM, &[memory.file.as_fd()])?;
        s.hang_up()
    }),
    lie!("close.after_upgrade", "closes right after the upgrade", BOTH, OVER, "", |s| {
        s.upgrade()?;
        s.hang_up()
    }),
];

impl Scene {
    /// What comes before a hello: a client reads the victim's and notes its switch.
    fn begin(&mut self) -> io::Result<()> {
        if self.liar.client {
            self.liar.receive_hello()?;
            self.liar.switch()?;
        }
        Ok(())
    }

    /// A hello that announces `capacity`, with these descriptors.
    fn offer(&mut self, capacity: u64, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.begin()?;
        self.liar.send_with(&self.liar.hello(capacity).encode(), fds).map(drop)
    }

    /// An honest offer whose hello was changed.
    fn twisted(&mut self, twist: fn(&mut Hello)) -> io::Result<()> {
        self.begin()?;
        let memory = Memory::honest(ROOM)?;
        let mut hello = self.liar.hello(ROOM);
        twist(&mut hello);
        self.liar.send_with(&hello.encode(), &[memory.file.as_fd()]).map(drop)
    }

    fn half(&mut self, close: bool) -> io::Result<()> {
        self.begin()?;
        let memory = Memory::honest(ROOM)?;
        self.liar.send_with(&self.liar.hello(ROOM).encode()[..32], &[memory.file.as_fd()])?;
        if close { self.hang_up() } else { Ok(()) }
    }

    /// Closes the liar's control socket.
    pub fn hang_up(&mut self) -> io::Result<()> {
        // Something else takes its place, so that the scene stays whole.
        self.liar.fd = OwnedFd::from(File::open("/dev/null")?);
        Ok(())
    }
}

fn sealed(seals: SealFlags) -> io::Result<File> {
    let memory = Memory::unsealed(ROOM)?;
    rustix::fs::fcntl_add_seals(&memory.file, seals)?;
    Ok(memory.file)
}

/// A file without a name in `folder`.
fn nameless(folder: &str) -> io::Result<File> {
    use rustix::fs::{Mode, OFlags};
    let fd = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from(0o600));
    let file = File::from(fd.map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?);
    file.set_len(HEADER_LEN + ROOM)?;
    Ok(file)
}
