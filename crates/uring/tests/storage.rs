//! Files to a device's memory and back: the bytes, how they went, and what is refused.

use onecopy_chain::Chain;
use onecopy_pool::provider::Heap;
use onecopy_pool::{DeviceId, DeviceMemory, PagePool, PoolConfig};
use onecopy_uring::Refused;
use onecopy_uring::storage::{Extent, Storage, StorageError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{IoSlice, Write};
use std::path::PathBuf;

/// None where io_uring is forbidden: said, and nothing is tried.
fn storage() -> Option<Storage> {
    match Storage::new() {
        Err(Refused::Setup(errno)) => {
            println!("lacking: io_uring ({})", Refused::Setup(errno));
            None
        }
        storage => Some(storage.unwrap()),
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A file that is gone with the test.
struct Temp(PathBuf);

impl Temp {
    fn new(name: &str, bytes: &[u8]) -> Temp {
        let path = std::env::temp_dir().join(format!("onecopy-storage-{}-{name}", std::process::id()));
        File::create(&path).unwrap().write_all(bytes).unwrap();
        Temp(path)
    }

    fn open(&self, flags: OFlags) -> rustix::io::Result<File> {
        rustix::fs::open(&self.0, flags | OFlags::CLOEXEC, Mode::empty()).map(File::from)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn read(memory: &DeviceMemory, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read_at(at, &mut bytes).unwrap();
    bytes
}

/// All pages are home: the kernel has none, and neither has anybody else.
fn idle(storage: &Storage) {
    let stats = storage.pool().stats();
    assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring, "{stats:?}");
}

#[test]
fn a_file_comes_into_the_memory_and_the_memory_goes_into_a_file() {
    let Some(mut storage) = storage() else { return };
    let data = pattern(5_000_003);
    let (from, to) = (Temp::new("from", &data), Temp::new("to", b""));
    let memory = DeviceMemory::opaque(2048, DeviceId(0)).unwrap();
    for (begin, at, len) in [(0, 0, data.len()), (77, 4095, 3_000_000), (5_000_002, 9, 1), (3, 5, 0)] {
        let extent = Extent { at, len: len as u64 };
        let moved = storage.read(File::open(&from.0).unwrap(), begin as u64, &memory, extent).unwrap();
        // There is no address that io_uring could read to.
        assert_eq!((moved.bytes, moved.landed), (len as u64, len as u64));
        assert_eq!(moved.registered, storage.is_registered());
        assert!(read(&memory, at, len) == data[begin..begin + len], "{len} from {begin} at {at}");
        idle(&storage);
    }
    // Of several places, in an order of their own, more than fill a page.
    memory.write_at(0, &[IoSlice::new(&data)]).unwrap();
    let extents = [(1_000_000, 700_001), (5, 1), (0, 0), (2_500_000, 300_000)];
    let extents = extents.map(|(at, len)| Extent { at, len });
    let whole: Vec<u8> =
        extents.iter().flat_map(|one| &data[one.at as usize..(one.at + one.len) as usize]).copied().collect();
    let moved = storage.write(&memory, &extents, to.open(OFlags::WRONLY).unwrap(), 11).unwrap();
    assert_eq!((moved.bytes, moved.landed), (whole.len() as u64, whole.len() as u64));
    let written = std::fs::read(&to.0).unwrap();
    assert!(written[11..] == whole && written[..11] == [0; 11]);
    idle(&storage);
}

#[test]
fn to_pages_straight_and_from_there() {
    let Some(mut storage) = storage() else { return };
    let data = pattern(1_000_003);
    let (from, to) = (Temp::new("straight", &data), Temp::new("straight-to", b""));
    let (chain, moved) = storage.read_chain(File::open(&from.0).unwrap(), 3, 1_000_000).unwrap();
    assert_eq!((moved.bytes, moved.landed), (1_000_000, 0));
    assert!(chain.host().unwrap().to_vec() == data[3..]);
    let moved = storage.write_chain(&chain, to.open(OFlags::WRONLY).unwrap(), 0).unwrap();
    assert_eq!((moved.bytes, moved.landed), (1_000_000, 0));
    assert!(std::fs::read(&to.0).unwrap() == data[3..]);
    // They are the chains', so that there are none for a third one.
    let (second, _) = storage.read_chain(File::open(&from.0).unwrap(), 0, 1_000_003).unwrap();
    assert!(second.host().unwrap().to_vec() == data);
    let third = storage.read_chain(File::open(&from.0).unwrap(), 0, 1).map(|(chain, _)| chain.len());
    assert_eq!(third, Err(StorageError::NoMemory));
    drop(second);
    drop(chain);
    idle(&storage);
    let pool = PagePool::new(PoolConfig::new().limit(4), Heap::new()).unwrap();
    let mut small = Storage::with(pool).unwrap();
    let too_much = small.read_chain(File::open(&from.0).unwrap(), 0, 16385).map(|(chain, _)| chain.len());
    assert_eq!(too_much, Err(StorageError::NoMemory));
    assert_eq!(small.read_chain(File::open(&from.0).unwrap(), 0, 16384).unwrap().0.len(), 16384);
}

#[test]
fn without_the_page_cache() {
    let Some(mut storage) = storage() else { return };
    let data = pattern(1_000_003);
    let (from, to) = (Temp::new("direct", &data), Temp::new("direct-to", b""));
    let open = |file: &Temp, flags| match file.open(flags | OFlags::DIRECT) {
        Err(Errno::INVAL) => None,
        file => Some(file.unwrap()),
    };
    let (Some(file), Some(out)) = (open(&from, OFlags::RDONLY), open(&to, OFlags::WRONLY)) else {
        return println!("lacking: O_DIRECT in the file system of {}", std::env::temp_dir().display());
    };
    let memory = DeviceMemory::opaque(512, DeviceId(0)).unwrap();
    // To its end, which is no whole block.
    let extent = Extent { at: 1, len: data.len() as u64 - 4096 };
    storage.read(&file, 4096, &memory, extent).unwrap();
    assert!(read(&memory, 1, extent.len as usize) == data[4096..]);
    let unaligned = |what, value| Err(StorageError::Unaligned { what, value, by: 512 });
    let one = Extent { at: 0, len: 4096 };
    assert_eq!(storage.read(&file, 100, &memory, one), unaligned("the offset in the file", 100));
    assert_eq!(storage.write(&memory, &[one], &out, 7), unaligned("the offset in the file", 7));
    let odd = Extent { at: 0, len: 1000 };
    assert_eq!(storage.write(&memory, &[odd], &out, 0), unaligned("the number of bytes", 1000));
    assert_eq!(storage.write(&memory, &[one], &out, 4096).unwrap().bytes, 4096);
    assert!(std::fs::read(&to.0).unwrap()[4096..] == read(&memory, 0, 4096));
    let words = storage.read(&file, 100, &memory, one).unwrap_err();
    assert!(words.to_string().contains("O_DIRECT: align it") && words.errno() == Errno::INVAL, "{words}");
    idle(&storage);
}

#[test]
fn what_cannot_be_is_said_and_nothing_is_lost() {
    let Some(mut storage) = storage() else { return };
    let data = pattern(700_000);
    let from = Temp::new("short", &data);
    let memory = DeviceMemory::opaque(256, DeviceId(0)).unwrap();
    let file = File::open(&from.0).unwrap();
    // The file is shorter: what there is has come.
    let extent = Extent { at: 0, len: 1_000_000 };
    assert_eq!(
        storage.read(&file, 50, &memory, extent),
        Err(StorageError::Short { wanted: 1_000_000, had: 699_950 })
    );
    assert!(read(&memory, 0, 699_950) == data[50..], "what there was is there");
    assert_eq!(
        storage.read(&file, 1 << 40, &memory, Extent { at: 0, len: 1 }),
        Err(StorageError::Short { wanted: 1, had: 0 }),
        "behind its end"
    );
    // The memory is too small.
    for (at, len) in [(0, (1 << 20) + 1), (1 << 20, 1), (u64::MAX, 2)] {
        let outside = StorageError::Outside { at, len, memory: 1 << 20 };
        let extent = Extent { at, len };
        assert_eq!(storage.read(&file, 0, &memory, extent), Err(outside));
        assert_eq!(storage.write(&memory, &[extent], &file, 0), Err(outside));
        assert!(outside.to_string().contains("make it larger") && outside.errno() == Errno::FAULT);
    }
    // Not open for that; a folder.
    let one = Extent { at: 0, len: 4096 };
    assert_eq!(storage.write(&memory, &[one], &file, 0), Err(StorageError::Io(Errno::BADF)));
    let folder = File::open(std::env::temp_dir()).unwrap();
    assert_eq!(storage.read(&folder, 0, &memory, one), Err(StorageError::Io(Errno::ISDIR)));
    // A device's bytes have no address to be written from.
    let mut chain = Chain::new();
    for part in memory.alloc(4096).unwrap() {
        chain.append(part.into()).unwrap();
    }
    assert_eq!(storage.write_chain(&chain, &file, 0), Err(StorageError::Unreadable));
    drop(chain);
    // A pool without addresses serves nobody.
    let pool = PagePool::new(PoolConfig::new().limit(4), onecopy_pool::provider::Opaque::new(DeviceId(0)));
    assert!(matches!(Storage::with(pool.unwrap()), Err(Refused::NoMemory)));
    idle(&storage);
    // And it goes on.
    assert_eq!(storage.read(&file, 0, &memory, one).unwrap().bytes, 4096);
    assert!(read(&memory, 0, 4096) == data[..4096]);
}
