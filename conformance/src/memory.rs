//! Rings, written down a second time: shared memory is read and written by pread and pwrite on its memfd.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags};

/// Bytes before the data of a ring.
pub const HEADER_LEN: u64 = 2560;
/// Where each ring begins: a multiple of this.
const PAGE: u64 = 4096;
/// The seals that memory of rings must carry.
pub const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// The first word of what the header says of its ring.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ONECOPY1");

/// The fields of a ring's header, by their place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Sender: bytes published.
    Head,
    /// Sender: 1 + the byte at which it left the kernel.
    SwitchAt,
    /// Receiver: bytes given back.
    Tail,
    /// Receiver: 1 when it receives no more.
    Shut,
    /// 1 when the next byte must ring.
    Armed,
    /// Receiver: the byte from which on it wants to be rung for.
    ArmedAt,
    /// 0 free, 1 a filler under way, 2 parked.
    Parked,
    /// Bytes of the filler.
    Filler,
    /// Room that the parked sender waits for.
    Wanted,
    /// Which memory may be that of a connection's rings: a memfd that does not begin so is the program's.
    Magic,
    /// Bytes of data room.
    Capacity,
    /// Sender: marks laid.
    Marks,
    /// Receiver: bytes of the sender's pools that it maps.
    MaxShared,
    /// Receiver: changes ask the sender to say who it is.
    AsksWho,
    /// The first half of the nonce that the client has invited with.
    NonceFirst,
    /// The second half of it.
    NonceSecond,
    /// In the first of two rings, of who was handed them: 1, it receives from it; 2, it wants larger ones.
    Joined,
    /// Of who was handed two rings: data room that it wants instead.
    Larger,
    /// Receiver: pages given back, the first 64 slots.
    Returned,
    /// Sender: 1 while it sleeps for pages.
    Asleep,
}

impl Field {
    /// All of them.
    pub const ALL: [Field; 20] = [
        Field::Head,
        Field::SwitchAt,
        Field::Tail,
        Field::Shut,
        Field::Armed,
        Field::ArmedAt,
        Field::Parked,
        Field::Filler,
        Field::Wanted,
        Field::Magic,
        Field::Capacity,
        Field::Marks,
        Field::MaxShared,
        Field::AsksWho,
        Field::NonceFirst,
        Field::NonceSecond,
        Field::Joined,
        Field::Larger,
        Field::Returned,
        Field::Asleep,
    ];

    /// Its place, and whether it has four bytes instead of eight.
    fn place(self) -> (u64, bool) {
        match self {
            Field::Head => (0, false),
            Field::SwitchAt => (8, false),
            Field::Armed => (16, true),
            Field::Marks => (24, false),
            Field::Tail => (128, false),
            Field::Wanted => (136, false),
            Field::Parked => (144, true),
            Field::Filler => (148, true),
            Field::ArmedAt => (160, false),
            Field::Magic => (256, false),
            Field::Capacity => (264, false),
            Field::MaxShared => (272, false),
            Field::Shut => (280, true),
            Field::AsksWho => (284, true),
            Field::NonceFirst => (288, false),
            Field::NonceSecond => (296, false),
            Field::Joined => (304, true),
            Field::Larger => (312, false),
            Field::Returned => (384, false),
            Field::Asleep => (448, true),
        }
    }
}

/// A ring by its memfd.
#[derive(Debug)]
pub struct Memory {
    /// The memfd.
    pub file: File,
    /// Where its header begins.
    pub at: u64,
    /// Bytes of data room.
    pub capacity: u64,
}

impl Memory {
    /// A ring as it should be, armed, in a memfd of its own.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's, fcntl's.
    pub fn honest(capacity: u64) -> io::Result<Memory> {
        let memory = Memory::unsealed(capacity)?;
        rustix::fs::fcntl_add_seals(&memory.file, SEALS)?;
        Ok(memory)
    }

    /// A ring without its seals.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's.
    pub fn unsealed(capacity: u64) -> io::Result<Memory> {
        let memory = Memory { file: memfd(HEADER_LEN + capacity, MemfdFlags::empty())?, at: 0, capacity };
        memory.set(Field::Armed, 1)?;
        Ok(memory)
    }

    /// A field of its header.
    ///
    /// # Errors
    ///
    /// pread's.
    pub fn get(&self, field: Field) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let (at, short) = field.place();
        self.read(&mut bytes[..if short { 4 } else { 8 }], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Sets a field of its header.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn set(&self, field: Field, value: u64) -> io::Result<()> {
        let (at, short) = field.place();
        self.write(&value.to_le_bytes()[..if short { 4 } else { 8 }], at)
    }

    /// Bytes from `at` on, counted from its header.
    ///
    /// # Errors
    ///
    /// pread's.
    pub fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(bytes, self.at + at)
    }

    /// Writes bytes from `at` on, counted from its header.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, self.at + at)
    }

    /// Whether who has published up to `head` must ring: then it is taken for rung.
    ///
    /// # Errors
    ///
    /// pread's, pwrite's.
    pub fn rings(&self, head: u64) -> io::Result<bool> {
        let must = self.get(Field::Armed)? == 1 && self.get(Field::ArmedAt)? != head;
        if must {
            self.set(Field::Armed, 0)?;
        }
        Ok(must)
    }

    /// Punches a hole: header, data, or both.
    ///
    /// # Errors
    ///
    /// fallocate's.
    pub fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        use rustix::fs::FallocateFlags;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, self.at + at, len)?)
    }

    /// Says of itself what a ring of a connection does.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn label(&self, nonce: [u8; 16]) -> io::Result<()> {
        self.set(Field::Magic, MAGIC)?;
        self.set(Field::Capacity, self.capacity)?;
        let [first, second] = halves(nonce);
        self.set(Field::NonceFirst, first)?;
        self.set(Field::NonceSecond, second)?;
        self.set(Field::Armed, 1)
    }

    fn again(&self) -> io::Result<Memory> {
        Ok(Memory { file: self.file.try_clone()?, ..*self })
    }
}

/// Of a nonce, as the header has them.
pub fn halves(nonce: [u8; 16]) -> [u64; 2] {
    let [mut first, mut second] = [[0; 8]; 2];
    first.copy_from_slice(&nonce[..8]);
    second.copy_from_slice(&nonce[8..]);
    [first, second].map(u64::from_le_bytes)
}

/// A memfd of `len` bytes that can be sealed.
///
/// # Errors
///
/// memfd_create's, ftruncate's.
pub fn memfd(len: u64, flags: MemfdFlags) -> io::Result<File> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create("onecopy-liar", flags)?;
    rustix::fs::ftruncate(&fd, len)?;
    Ok(File::from(fd))
}

/// The rings of both directions of a connection, in one memfd.
#[derive(Debug)]
pub struct Rings {
    /// From which who is handed them receives.
    pub first: Memory,
    /// Into which who is handed them sends.
    pub second: Memory,
}

impl Rings {
    /// As they should be.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's, fcntl's.
    pub fn honest(capacities: [u64; 2], nonce: [u8; 16]) -> io::Result<Rings> {
        let rings = Rings::unsealed(capacities, nonce)?;
        rings.seal(SEALS)?;
        Ok(rings)
    }

    /// Without their seals.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's.
    pub fn unsealed(capacities: [u64; 2], nonce: [u8; 16]) -> io::Result<Rings> {
        Rings::of_len(Rings::len(capacities), capacities, nonce)
    }

    /// In a memfd of any size, as far as they have room there.
    ///
    /// # Errors
    ///
    /// memfd_create's, ftruncate's.
    pub fn of_len(len: u64, capacities: [u64; 2], nonce: [u8; 16]) -> io::Result<Rings> {
        Rings::in_file(memfd(len, MemfdFlags::empty())?, capacities, nonce)
    }

    /// In that memory, of whichever kind: both headers are written, as far as they have room.
    ///
    /// # Errors
    ///
    /// pwrite's.
    pub fn in_file(file: File, [first, second]: [u64; 2], nonce: [u8; 16]) -> io::Result<Rings> {
        let first = Memory { file, at: 0, capacity: first };
        let second = Memory { at: Rings::second(first.capacity), capacity: second, ..first.again()? };
        let len = first.file.metadata()?.len();
        for ring in [&first, &second] {
            if ring.at + HEADER_LEN <= len {
                ring.label(nonce)?;
            }
        }
        Ok(Rings { first, second })
    }

    /// Those that a victim has made. None where the memory is not that of two rings with that nonce.
    ///
    /// # Errors
    ///
    /// pread's, fcntl's.
    pub fn open(fd: OwnedFd, nonce: [u8; 16]) -> io::Result<Option<Rings>> {
        let first = Memory { file: File::from(fd), at: 0, capacity: 0 };
        let sealed = rustix::fs::fcntl_get_seals(&first.file).is_ok_and(|seals| seals.contains(SEALS));
        let len = first.file.metadata()?.len();
        if !sealed || len < HEADER_LEN || !first.is_labelled(nonce)? {
            return Ok(None);
        }
        let capacity = first.get(Field::Capacity)?;
        let second = Memory { at: Rings::second(capacity), ..first.again()? };
        if second.at + HEADER_LEN > len || !second.is_labelled(nonce)? {
            return Ok(None);
        }
        let rest = second.get(Field::Capacity)?;
        let fits = len == Rings::len([capacity, rest]);
        Ok(fits.then_some(Rings {
            first: Memory { capacity, ..first },
            second: Memory { capacity: rest, ..second },
        }))
    }

    /// Where the second one begins.
    pub fn second(first: u64) -> u64 {
        HEADER_LEN.saturating_add(first).checked_next_multiple_of(PAGE).unwrap_or(u64::MAX)
    }

    /// Bytes of both.
    pub fn len([first, second]: [u64; 2]) -> u64 {
        Rings::second(first) + HEADER_LEN + second
    }

    /// Seals their memory.
    ///
    /// # Errors
    ///
    /// fcntl's.
    pub fn seal(&self, seals: SealFlags) -> io::Result<()> {
        Ok(rustix::fs::fcntl_add_seals(self.first.file.as_fd(), seals)?)
    }
}

impl Memory {
    fn is_labelled(&self, nonce: [u8; 16]) -> io::Result<bool> {
        let [first, second] = halves(nonce);
        let wanted = [(Field::Magic, MAGIC), (Field::NonceFirst, first), (Field::NonceSecond, second)];
        for (field, value) in wanted {
            if self.get(field)? != value {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
