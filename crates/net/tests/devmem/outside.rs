//! Who copies what is sent, counted from outside of who does: by the device, which is asked for each byte that leaves its memory otherwise than by the kernel, and by
//! what the process has mapped of that memory. Where the one is nothing and the other is never anything, only the kernel can have taken the bytes.
//! (`crates/link/src/tap/outside.rs` goes by addresses, packet by packet.)

use crate::tx::range;
use crate::world::{World, errno, pattern};
use onecopy_net::devmem::Path;
use onecopy_net::tcp::Stream;
use onecopy_pool::provider::{CopyError, Opaque};
use onecopy_pool::{
    About, Area, Batch, Copied, Device, DeviceId, DeviceMemory, MemoryProvider, Need, PoolConfig,
    ProviderError,
};
use onecopy_sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A device that counts what it is asked for.
struct Asked {
    inner: Arc<Opaque>,
    /// Its memory is a file that may be registered.
    is_file: bool,
    put_out: AtomicU64,
}

impl Asked {
    /// With memory full of a pattern.
    fn new(is_file: bool) -> (Arc<Asked>, DeviceMemory, Vec<u8>) {
        let inner = Opaque::new(DeviceId(6));
        let device = Arc::new(Asked { inner, is_file, put_out: AtomicU64::default() });
        let memory = DeviceMemory::new(PoolConfig::new().limit(PAGES), device.clone()).unwrap();
        let data = pattern(memory.len() as usize);
        memory.write_at(0, &[IoSlice::new(&data)]).unwrap();
        (device, memory, data)
    }

    fn put_out(&self) -> u64 {
        self.put_out.load(Relaxed)
    }
}

const PAGES: u32 = 512;

impl MemoryProvider for Asked {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        self.inner.init(need)
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.inner.alloc_netmems(batch)
    }
    fn release_netmem(&self, index: u32) {
        self.inner.release_netmem(index);
    }
    fn destroy(&self) {
        self.inner.destroy();
    }
    fn about(&self) -> About {
        self.inner.about()
    }
    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

impl Device for Asked {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.inner.write_at(at, from)
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.put_out.fetch_add(into.len() as u64, Relaxed);
        self.inner.read_at(at, into)
    }
    fn file(&self) -> Option<Arc<OwnedFd>> {
        self.inner.file().filter(|_| self.is_file)
    }
    fn copied(&self) -> Copied {
        self.inner.copied()
    }
}

/// Mappings that this process has of the device's memory now.
fn mappings(device: &Asked) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inode = rustix::fs::fstat(device.inner.file().unwrap()).unwrap().st_ino.to_string();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
}

fn received(stream: &Stream, len: usize) -> Vec<u8> {
    let (mut all, mut came) = (vec![0; len], 0);
    while came < len {
        let n = stream.recv(&mut all[came..]).unwrap();
        assert!(n > 0, "{came} of {len}");
        came += n;
    }
    all
}

#[test]
fn what_is_sent_leaves_the_devices_memory_by_the_kernels_hand_or_the_devices_and_nobody_elses() {
    for world in World::each(64) {
        for is_file in [true, false] {
            let (device, memory, data) = Asked::new(is_file);
            if world.is_kernels() && !is_file {
                assert_eq!(errno(world.near.bind_tx(&memory)), 95, "it asks no device");
                continue;
            }
            let tx = world.near.bind_tx(&memory).unwrap();
            let (sender, receiver) = world.connect();
            // Bytes that the link has had the device copy, and that the kernel took itself.
            let counters = || {
                let all = world.near.link_counters();
                let of = |name| all.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count);
                (of("staged_bytes"), of("gathered_bytes"))
            };
            let before = counters();
            let mut mapped = 0;
            std::thread::scope(|scope| {
                let got = scope.spawn(|| received(&receiver, data.len()));
                // In pieces, of which some are not pages, and looked at while they are under way.
                let mut under_way = Vec::new();
                let mut at = 0;
                for len in [1, 4095, 30_001, 100_000, 300_000, data.len() as u64].into_iter() {
                    let len = len.min(data.len() as u64 - at);
                    under_way.push(sender.send_device(&tx, &[range(at, len)]).unwrap());
                    mapped += mappings(&device);
                    at += len;
                }
                for sent in under_way {
                    assert!(!sent.wait().1.dropped);
                    mapped += mappings(&device);
                }
                assert!(got.join().unwrap() == data);
            });
            assert_eq!(mapped, 0);
            let (all, now) = (data.len() as u64, counters());
            let (staged, gathered) = (now.0 - before.0, now.1 - before.1);
            match tx.path() {
                Path::Direct(_) => {
                    assert!(is_file && gathered >= all, "{gathered} of {all}");
                    assert_eq!((staged, device.put_out()), (0, 0));
                }
                path => {
                    if is_file {
                        println!("lacking: registered buffers of io_uring ({path})");
                    }
                    assert!(staged >= all, "{staged} of {all}");
                    assert_eq!((gathered, device.put_out()), (0, staged));
                }
            }
            let stats = sender.stats();
            assert_eq!((stats.sent, stats.user_copied_in), (all, 0));
        }
    }
}
