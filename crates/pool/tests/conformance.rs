//! What every provider must do, run over each of them: a provider is unfinished until it is listed here.
#![cfg(not(loom))]

use onecopy_pool::provider::{DmaBuf, Got, Heap, Hugepage, Memfd, Opaque};
use onecopy_pool::{AllocError, DeviceId, DeviceMemory, MemoryProvider, Page, PagePool, PoolConfig};
use onecopy_sys::map::Mapping;
use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::Arc;

/// A provider, and how a test gets bytes in and out of its pages.
trait Kind {
    fn name(&self) -> &'static str;
    fn provider(&self) -> Arc<dyn MemoryProvider>;
    fn write(&self, page: &mut Page, bytes: &[u8]) {
        page.bytes_mut().expect("unique host page")[..bytes.len()].copy_from_slice(bytes);
    }
    fn read(&self, page: &Page, len: usize) -> Vec<u8> {
        page.bytes().expect("host page")[..len].to_vec()
    }
}

struct OnHeap;
impl Kind for OnHeap {
    fn name(&self) -> &'static str {
        "heap"
    }
    fn provider(&self) -> Arc<dyn MemoryProvider> {
        Heap::new()
    }
}

struct OnHuge;
impl Kind for OnHuge {
    fn name(&self) -> &'static str {
        "hugepage"
    }
    fn provider(&self) -> Arc<dyn MemoryProvider> {
        Hugepage::new()
    }
}

struct OnMemfd;
impl Kind for OnMemfd {
    fn name(&self) -> &'static str {
        "memfd"
    }
    fn provider(&self) -> Arc<dyn MemoryProvider> {
        Memfd::new()
    }
}

/// Keeps the provider that the pool uses: it is the one that can copy.
struct OnDevice(Arc<Opaque>);
impl Kind for OnDevice {
    fn name(&self) -> &'static str {
        "opaque"
    }
    fn provider(&self) -> Arc<dyn MemoryProvider> {
        self.0.clone()
    }
    fn write(&self, page: &mut Page, bytes: &[u8]) {
        self.0.copy_in(page, 0, bytes.to_vec()).unwrap().wait().unwrap();
    }
    fn read(&self, page: &Page, len: usize) -> Vec<u8> {
        self.0.copy_out(page, 0, len).unwrap().wait().unwrap()
    }
}

/// As a driver would give it: of the memory of another device.
struct OnDmaBuf(DeviceMemory);
impl OnDmaBuf {
    /// Of 16 MiB; None, with what is lacking on stdout, where the machine makes no dma-buf.
    fn new() -> Option<OnDmaBuf> {
        let memory = DeviceMemory::opaque(4096, DeviceId(3)).unwrap();
        memory.dma_buf().map_err(|why| println!("lacking: /dev/udmabuf ({why})")).ok()?;
        Some(OnDmaBuf(memory))
    }
}
impl Kind for OnDmaBuf {
    fn name(&self) -> &'static str {
        "dma-buf"
    }
    fn provider(&self) -> Arc<dyn MemoryProvider> {
        DmaBuf::take(self.0.dma_buf().unwrap(), DeviceId(4)).unwrap()
    }
    fn write(&self, page: &mut Page, bytes: &[u8]) {
        let device = page.provider().as_device().expect("a device");
        device.write_at(page.place(), &[IoSlice::new(bytes)]).unwrap();
    }
    fn read(&self, page: &Page, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        page.copy_out(0, &mut bytes).unwrap();
        bytes
    }
}

/// Runs a case with each kind, afresh.
fn each(case: impl Fn(&dyn Kind)) {
    let shared = OnDmaBuf::new();
    let kinds: [&dyn Kind; 4] = [&OnHeap, &OnHuge, &OnMemfd, &OnDevice(Opaque::new(DeviceId(3)))];
    for kind in kinds.into_iter().chain(shared.iter().map(|kind| kind as &dyn Kind)) {
        println!("provider {}", kind.name());
        case(kind);
    }
}

fn open(kind: &dyn Kind, config: PoolConfig) -> (PagePool, Arc<dyn MemoryProvider>) {
    let provider = kind.provider();
    (PagePool::new(config, provider.clone()).unwrap(), provider)
}

#[test]
fn it_says_what_it_is_and_its_pages_agree() {
    each(|kind| {
        let (pool, provider) = open(kind, PoolConfig::new().limit(4));
        let about = provider.about();
        assert_eq!(about.name, kind.name());
        assert!(!about.how.is_empty() && format!("{pool:?}").contains(&about.how));
        let page = pool.alloc().unwrap();
        assert_eq!(page.is_readable(), about.readable);
        assert_eq!(page.netmem().is_device(), !about.readable);
        assert_eq!(page.bytes().is_some(), about.readable);
        assert_eq!(page.span(0, 1).is_some(), about.readable);
        assert_eq!(page.device(), about.device);
        assert_eq!(provider.fd().is_some(), about.shareable);
        assert_eq!(page.pool_id(), pool.id());
    });
}

#[test]
fn it_gives_each_page_once_up_to_the_limit_and_again_when_it_came_back() {
    each(|kind| {
        for order in [0, 2] {
            let (pool, _) = open(kind, PoolConfig::new().limit(150).ring(32).order(order));
            for round in 0..3 {
                let pages: Vec<Page> = (0..150).map(|_| pool.alloc().unwrap()).collect();
                let different: HashSet<_> = pages.iter().map(Page::netmem).collect();
                assert_eq!(different.len(), 150, "round {round}");
                assert!(pages.iter().all(|page| page.len() == 4096 << order && page.index() < 150));
                assert_eq!(pool.alloc().unwrap_err(), AllocError::Exhausted { limit: 150 });
                assert_eq!(pool.stats().in_flight, 150);
                // More than cache and ring hold: the rest goes back to the provider.
                for page in pages {
                    pool.recycle(page);
                }
            }
            let stats = pool.stats();
            assert_eq!((stats.in_cache, stats.trouble.provider_lied), (128, 0));
            assert!(if order == 0 { stats.alloc.slow } else { stats.alloc.slow_high_order } > 0);
        }
    });
}

#[test]
fn its_pages_keep_their_bytes_apart() {
    each(|kind| {
        let (pool, _) = open(kind, PoolConfig::new().limit(40).order(1));
        let mut pages: Vec<Page> = (0..40).map(|_| pool.alloc().unwrap()).collect();
        let pattern = |page: &Page| vec![page.index() as u8 ^ 0xa5; page.len()];
        for page in &mut pages {
            assert_eq!(kind.read(page, 16), [0; 16], "fresh memory holds zeroes");
            let bytes = pattern(page);
            kind.write(page, &bytes);
        }
        for page in &pages {
            assert_eq!(kind.read(page, page.len()), pattern(page));
        }
    });
}

#[test]
fn its_pages_come_home_from_any_thread_after_the_pool_is_gone() {
    each(|kind| {
        let (pool, provider) = open(kind, PoolConfig::new().limit(100));
        let pages: Vec<Page> = (0..100).map(|_| pool.alloc().unwrap()).collect();
        let monitor = pool.shutdown();
        assert_eq!(monitor.in_flight(), 100);
        std::thread::scope(|scope| {
            let mut pages = pages.into_iter();
            for _ in 0..4 {
                let some: Vec<Page> = pages.by_ref().take(25).collect();
                scope.spawn(move || {
                    for mut page in some {
                        kind_write(kind_of(&page), &mut page);
                        drop(page);
                    }
                });
            }
        });
        assert_eq!(monitor.in_flight(), 0);
        drop(monitor);
        assert_eq!(Arc::strong_count(&provider), 1 + usize::from(kind.name() == "opaque"));
    });
}

fn kind_of(page: &Page) -> bool {
    page.is_readable()
}

fn kind_write(readable: bool, page: &mut Page) {
    if readable {
        page.bytes_mut().unwrap().fill(9);
    }
}

#[test]
fn it_serves_one_pool_at_a_time() {
    each(|kind| {
        let (pool, provider) = open(kind, PoolConfig::new().limit(2));
        let second = PagePool::new(PoolConfig::new().limit(2), provider.clone()).unwrap_err();
        assert_eq!(second.errno(), rustix::io::Errno::BUSY, "{second}");
        // The first one is none the worse for it.
        let mut page = pool.alloc().unwrap();
        kind.write(&mut page, b"still here");
        assert_eq!(kind.read(&page, 10), b"still here");
    });
}

#[test]
fn an_impossible_size_is_refused_with_nothing_left_behind() {
    each(|kind| {
        let huge = PoolConfig::new().order(18).limit(1 << 30);
        let error = PagePool::new(huge, kind.provider()).unwrap_err();
        assert!(error.to_string().contains("lower the limit"), "{error}");
        if kind.name() != "memfd" {
            // The same provider can serve a pool that is possible.
            open(kind, PoolConfig::new().limit(1)).0.alloc().unwrap();
        }
    });
}

#[test]
fn a_memfds_pages_are_read_by_others_and_written_by_nobody_else() {
    let provider = Memfd::new();
    let pool = PagePool::new(PoolConfig::new().limit(4), provider.clone()).unwrap();
    let mut page = pool.alloc().unwrap();
    page.bytes_mut().unwrap().fill(0x5a);
    let fd = provider.fd().unwrap();
    onecopy_sys::memfd::verify(fd, 4 * 4096).unwrap();
    assert!(Mapping::new(fd, 4 * 4096).is_err());
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err());
    // A hole would change the bytes under a slice of ours.
    use rustix::fs::{FallocateFlags, fallocate};
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(fd, hole, 0, 4096), Err(rustix::io::Errno::PERM));
    let reader = Mapping::read_only(fd, 4 * 4096).unwrap();
    let mut seen = [0; 4];
    rustix::io::pread(fd, &mut seen, u64::from(page.index()) * 4096).unwrap();
    assert_eq!(seen, [0x5a; 4]);
    assert_eq!(reader.len(), 4 * 4096);
}

#[test]
fn huge_pages_say_what_they_are() {
    let provider = Hugepage::new();
    assert_eq!(provider.got(), Got::Nothing);
    let pool = PagePool::new(PoolConfig::new().limit(1024), provider.clone()).unwrap();
    let said = provider.got();
    let free = std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap();
    match &said {
        Got::Nothing => panic!("it has memory"),
        Got::Explicit => assert_ne!(free.trim(), "0"),
        Got::Transparent { instead } => assert!(instead.contains("reserved"), "{instead}"),
        Got::Plain { instead } => assert!(instead.contains("transparent"), "{instead}"),
    }
    assert_eq!(pool.about().how, said.to_string());
    assert!(format!("{pool:?}").contains(&said.to_string()));
}

#[test]
fn opaque_memory_is_mapped_nowhere() {
    onecopy_testing::alone!();
    let provider = Opaque::new(DeviceId(0));
    let pool = PagePool::new(PoolConfig::new().limit(8), provider.clone()).unwrap();
    let page = pool.alloc().unwrap();
    provider.copy_in(&page, 100, b"secret".to_vec()).unwrap().wait().unwrap();
    assert_eq!(onecopy_testing::mappings("onecopy-opaque"), 0);
    assert_eq!(provider.copy_out(&page, 99, 8).unwrap().wait().unwrap(), b"\0secret\0");
}

#[test]
fn a_copy_keeps_its_page_and_refuses_what_it_must() {
    let provider = Opaque::new(DeviceId(0));
    let pool = PagePool::new(PoolConfig::new().limit(8), provider.clone()).unwrap();
    let page = pool.alloc().unwrap();
    for (offset, len) in [(0, 4097), (4096, 1), (usize::MAX, 2), (1, usize::MAX)] {
        assert!(provider.copy_out(&page, offset, len).is_err(), "{offset} {len}");
    }
    assert!(provider.copy_in(&page, 4095, vec![1, 2]).is_err());
    let other = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap().alloc().unwrap();
    assert!(provider.copy_in(&other, 0, vec![1]).is_err());
    // All the references that are left are the copies'.
    let monitor = pool.shutdown();
    let tickets: Vec<_> = (0..50).map(|i| provider.copy_in(&page, i, vec![i as u8; 1000]).unwrap()).collect();
    let last = provider.copy_out(&page, 0, 60).unwrap();
    drop(page);
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    let bytes = last.wait().unwrap();
    assert!((0..50).all(|i| bytes[i] == i as u8));
    assert_eq!(monitor.in_flight(), 0);
}
