//! The copies, on the stand-in for a driver: it is late, out of order, and fails as it is told. (`testing/cuda` says what it looks at.)

use onecopy_cuda::{Cuda, Driver, Error, Settings, Way};
use onecopy_cuda_stand_in::Control;
use onecopy_pool::provider::{CopyError, Heap};
use onecopy_pool::{Device, DeviceMemory, Page, PagePool, Part, PoolConfig};
use onecopy_testing::alone;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// EIO, ENODEV, ENOMEM.
const IO: i32 = 5;
const NODEV: i32 = 19;
const NOMEM: i32 = 12;

struct World {
    control: Control,
    cuda: Arc<Cuda>,
    memory: DeviceMemory,
    host: PagePool,
    random: u64,
    /// Where the next piece may lie; None where pieces lie anywhere, one over the other, too.
    next: Option<u64>,
}

fn driver() -> Arc<Driver> {
    Driver::open_at(Control::path()).unwrap()
}

impl World {
    fn new(way: Option<Way>) -> World {
        let settings = Settings::new(0).driver(driver());
        let (settings, spans) =
            (way.map_or(settings.clone(), |way| settings.way(way)), way == Some(Way::Span));
        let cuda = Cuda::open(settings).unwrap();
        let memory = DeviceMemory::new(PoolConfig::new().limit(256), cuda.clone()).unwrap();
        let host = PagePool::new(PoolConfig::new().order(1).limit(512), Heap::new()).unwrap();
        let control = Control::open();
        // A span reads what lies between its pieces, too, which others may write, and nobody uses.
        control.set("watch", u64::from(!spans));
        World { control, cuda, memory, host, random: 7, next: Some(0) }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % below
    }

    /// A page full of bytes that depend on what was drawn.
    fn page(&mut self) -> Page {
        let mut page = self.host.alloc().unwrap();
        let seed = self.draw(251) as usize;
        for (at, byte) in page.bytes_mut().unwrap().iter_mut().enumerate() {
            *byte = (at * 31 + seed * 7 + at / 256) as u8;
        }
        page
    }

    /// A place for `len` bytes: behind the one before, with a gap, so that no two of a batch share a byte; or anywhere.
    fn place(&mut self, len: u64, unit: u64) -> u64 {
        let most = self.memory.len() - len;
        let Some(next) = self.next else { return self.draw(most / unit) * unit };
        let at = next.next_multiple_of(unit) + self.draw(100) * unit;
        let at = if at > most { 0 } else { at };
        self.next = Some(at + len);
        at
    }

    /// Submits parts of many pages, and notes in `model` what has to be where.
    fn submit(&mut self, model: &mut [u8], pieces: usize, aligned: bool) -> Result<(), CopyError> {
        for _ in 0..pieces {
            let page = self.page();
            let unit = if aligned { 16 } else { 1 };
            let offset = self.draw(4096 / unit) * unit;
            let len = 1 + self.draw(4096);
            let at = self.place(len, unit);
            let part = Part::new(page, offset as usize, len as usize).unwrap();
            let bytes = part.bytes().unwrap().to_vec();
            self.memory.submit(at, vec![part])?;
            model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    fn model(&self) -> Vec<u8> {
        let model = vec![0; self.memory.len() as usize];
        self.memory.write_at(0, &[IoSlice::new(&model)]).unwrap();
        model
    }

    fn check(&self, model: &[u8]) {
        let mut bytes = vec![1; model.len()];
        self.memory.read_at(0, &mut bytes).unwrap();
        let wrong = bytes.iter().zip(model).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{}", self.cuda.report());
        assert_eq!(self.control.get("torn"), 0, "a page was used again before the device had read it");
        assert_eq!(self.control.get("current"), 0, "each context that was entered was left");
    }

    /// Whether no page of the host's is out.
    fn all_home(&self) -> bool {
        let stats = self.host.stats();
        stats.in_flight == stats.in_cache + stats.in_ring
    }

    /// Ends all of it: nothing is left on the device.
    fn end(self) {
        let World { control, cuda, memory, host, .. } = self;
        drop((memory, host));
        drop(cuda);
        for what in ["allocations", "pinned", "streams", "events", "contexts", "waiting"] {
            assert_eq!(control.get(what), 0, "{what}");
        }
    }
}

fn errno<T: std::fmt::Debug>(result: Result<T, CopyError>) -> i32 {
    match result {
        Err(CopyError::Io(errno)) => errno.raw_os_error(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_byte_arrives_by_every_way() {
    alone!();
    for way in Way::ALL {
        for aligned in [true, false] {
            let mut world = World::new(Some(way));
            let mut model = world.model();
            let before = world.memory.copied().into;
            for _ in 0..4 {
                world.submit(&mut model, 300, aligned).unwrap();
            }
            world.memory.settle().unwrap();
            assert!(world.all_home(), "all pages are home when it is settled");
            let report = world.cuda.report();
            let taken = report.bytes.iter().sum::<u64>();
            assert_eq!(taken, world.memory.copied().into - before, "every byte went by one way: {report}");
            assert_eq!((report.pageable, report.fell_back, report.redone, report.kept), (0, 0, 0, 0));
            assert!(report.by(way) > 0 && report.lost.is_none());
            match way {
                Way::Copies | Way::Batch => assert_eq!((report.launches, report.by(way)), (0, taken)),
                Way::Gather => assert_eq!((report.copies, report.launches), (0, report.batches)),
                // What does not lie within a span is gathered.
                Way::Span => assert_eq!((report.by(Way::Copies), report.launches), (0, report.batches)),
            }
            assert_eq!(report.registered.0, 1);
            world.check(&model);
            world.end();
        }
    }
}

#[test]
fn what_shares_a_place_is_copied_in_order() {
    alone!();
    for way in Way::ALL {
        let mut world = World::new(Some(way));
        world.next = None;
        let mut model = world.model();
        for _ in 0..4 {
            world.submit(&mut model, 300, true).unwrap();
        }
        world.check(&model);
        let report = world.cuda.report();
        assert!(report.by(Way::Copies) > 0 && report.fell_back == 0, "{report}");
        // A page that is given out again at once: twice in one batch.
        for _ in 0..20 {
            let (old, new) = (world.page(), world.page());
            let last = new.bytes().unwrap()[..4096].to_vec();
            for page in [old, new] {
                world.memory.submit(8192, vec![Part::new(page, 0, 4096).unwrap()]).unwrap();
            }
            world.memory.settle().unwrap();
            let mut bytes = [0; 4096];
            world.memory.read_at(8192, &mut bytes).unwrap();
            assert!(bytes[..] == last[..], "{way}");
        }
        world.end();
    }
}

#[test]
fn pages_stay_until_their_event_and_who_settles_gets_them_back() {
    alone!();
    let mut world = World::new(Some(Way::Copies));
    let mut model = world.model();
    world.submit(&mut model, 100, false).unwrap();
    // Some are under way, others wait for more: none has been copied, since nobody has waited.
    assert!(!world.all_home());
    world.memory.settle().unwrap();
    assert!(world.all_home());
    assert!(world.cuda.report().waited > 0);
    world.check(&model);
    // So does who reads, without the lock that others submit under; then nothing is under way that it would wait for with it.
    world.submit(&mut model, 100, false).unwrap();
    let waited = world.cuda.report().waited;
    world.check(&model);
    assert!(world.cuda.report().waited > waited && world.all_home());
    // The stand-in does see a page that is written over too early. (This writes behind the pool's back.)
    let page = world.page();
    let at = page.bytes().unwrap().as_ptr().addr() as u64;
    let parts = vec![Part::new(page, 0, 8192).unwrap(); 33];
    world.memory.submit(0, parts).unwrap();
    assert!(world.control.get("waiting") > 0);
    let this = std::fs::File::options().write(true).open("/proc/self/mem").unwrap();
    this.write_all_at(b"torn", at).unwrap();
    world.memory.settle().unwrap();
    assert!(world.control.get("torn") > 0);
    world.end();
}

#[test]
fn too_much_under_way_waits_for_the_first_of_it() {
    alone!();
    let mut world = World::new(Some(Way::Gather));
    // A device that gets nowhere by itself.
    world.control.set("stir", 0);
    let page = world.page();
    for _ in 0..60 {
        world.memory.submit(0, vec![Part::new(page.clone(), 0, 8192).unwrap(); 32]).unwrap();
    }
    let waiting = world.control.get("waiting");
    assert!(waiting <= 33 * 2, "{waiting} are under way");
    assert!(world.cuda.report().waited > 0);
    world.memory.settle().unwrap();
    drop(page);
    world.end();
}

#[test]
fn what_a_call_refuses_goes_another_way_and_arrives() {
    alone!();
    for (way, symbol) in [
        (Way::Copies, "cuMemcpyHtoDAsync_v2"),
        (Way::Gather, "cuLaunchKernel"),
        (Way::Gather, "cuMemHostAlloc"),
        (Way::Span, "cuMemcpyHtoDAsync_v2"),
        (Way::Span, "cuLaunchKernel"),
        (Way::Batch, "cuMemcpyBatchAsync"),
        (Way::Batch, "execute"),
        (Way::Copies, "cuEventRecord"),
        (Way::Gather, "cuEventCreate"),
        (Way::Gather, "cuEventQuery"),
        (Way::Gather, "cuEventSynchronize"),
        (Way::Gather, "execute"),
        (Way::Copies, "execute"),
        (Way::Span, "execute"),
    ] {
        for after in [0, 1, 3] {
            let mut world = World::new(Some(way));
            let mut model = world.model();
            let before = world.memory.copied().into;
            world.control.set("seed", 99);
            world.control.fail(symbol, after, 1, 2);
            world.submit(&mut model, 500, true).unwrap();
            world.memory.settle().unwrap();
            world.check(&model);
            let report = world.cuda.report();
            assert!(report.lost.is_none() && world.all_home(), "{symbol}");
            let taken = report.bytes.iter().sum::<u64>();
            assert_eq!(taken, world.memory.copied().into - before, "{symbol}: {report}");
            world.control.fail(symbol, 0, 0, 0);
            if matches!(symbol, "execute" | "cuEventRecord") {
                assert!(report.redone > 0, "{symbol}: {report}");
            }
            if matches!(symbol, "cuLaunchKernel" | "cuMemcpyBatchAsync") {
                assert_eq!(report.fell_back, 1, "{symbol}: {report}");
            }
            world.end();
        }
    }
}

#[test]
fn what_cannot_be_pinned_is_copied_and_told_of() {
    alone!();
    let mut world = World::new(Some(Way::Gather));
    let mut model = world.model();
    world.control.fail("cuMemHostRegister_v2", 0, u32::MAX, 304);
    world.submit(&mut model, 100, false).unwrap();
    world.memory.settle().unwrap();
    world.check(&model);
    let report = world.cuda.report();
    assert_eq!((report.not_registered, report.launches), (1, 0));
    assert!(report.pageable > 0 && report.pageable == report.by(Way::Copies));
    world.end();
}

#[test]
fn without_a_kernel_all_is_copied() {
    alone!();
    let control = Control::open();
    control.fail("cuModuleLoadData", 0, u32::MAX, 222);
    let mut world = World::new(None);
    let mut model = world.model();
    world.submit(&mut model, 100, false).unwrap();
    world.memory.settle().unwrap();
    world.check(&model);
    let report = world.cuda.report();
    assert!(report.no_kernel.as_ref().unwrap().contains("newer driver"), "{report}");
    assert_eq!(report.launches, 0);
    world.end();
}

#[test]
fn a_device_that_fails_for_good_loses_the_memory_and_nothing_else() {
    alone!();
    for way in Way::ALL {
        for sticky in [true, false] {
            let mut world = World::new(Some(way));
            let mut model = world.model();
            if sticky {
                // What the device meets makes each call fail from then on.
                world.control.set("sticky", 1);
                world.control.fail("execute", 0, 1, 700);
            }
            world.submit(&mut model, 100, true).unwrap();
            if !sticky {
                world.control.set("gone", 719);
            }
            assert_eq!(errno(world.memory.settle()), IO);
            // From now on each call says so.
            let page = world.host.alloc().unwrap();
            assert_eq!(errno(world.memory.submit(0, vec![Part::new(page, 0, 1).unwrap()])), IO);
            assert_eq!(errno(world.memory.settle()), IO);
            assert_eq!(errno(world.memory.read_at(0, &mut [0])), IO);
            assert_eq!(errno(world.memory.write_at(0, &[IoSlice::new(b"x")])), IO);
            let report = world.cuda.report();
            assert!(report.lost.as_ref().unwrap().contains("CUresult"), "{report}");
            assert!(
                !sticky || report.kept > 0 && !world.all_home(),
                "the device may still read them: {report}"
            );
            // It ends, all the same.
            let World { control, cuda, memory, host, .. } = world;
            drop((memory, cuda, host));
            control.set("gone", 0);
            control.set("sticky", 0);
        }
    }
}

#[test]
fn memory_that_is_not_there_is_refused_and_the_next_one_works() {
    alone!();
    let cuda = Cuda::open(Settings::new(0).driver(driver()).way(Way::Copies)).unwrap();
    let control = Control::open();
    for (symbol, after) in [("cuMemAlloc_v2", 0), ("cuStreamCreate", 0), ("cuCtxPushCurrent_v2", 0)] {
        control.fail(symbol, after, 1, 2);
        let refused = DeviceMemory::new(PoolConfig::new().limit(64), cuda.clone()).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("CUresult 2") && text.contains("262144 bytes"), "{text}");
        assert_eq!(control.get("allocations"), 0);
    }
    let memory = DeviceMemory::new(PoolConfig::new().limit(64), cuda.clone()).unwrap();
    assert!(cuda.address().is_some());
    let second = DeviceMemory::new(PoolConfig::new().limit(64), cuda.clone());
    assert!(second.is_err(), "one provider, one pool");
    // Outside, and memory that is none of the host's.
    let host = PagePool::new(PoolConfig::new().limit(1), Heap::new()).unwrap();
    let part = Part::new(host.alloc().unwrap(), 0, 100).unwrap();
    for at in [64 * 4096 - 99, u64::MAX - 3] {
        assert!(matches!(memory.submit(at, vec![part.clone()]), Err(CopyError::Outside { .. })));
        assert!(matches!(memory.read_at(at, &mut [0; 100]), Err(CopyError::Outside { .. })));
        assert!(matches!(memory.write_at(at, &[IoSlice::new(&[0; 100])]), Err(CopyError::Outside { .. })));
    }
    let device = memory.alloc(100).unwrap();
    assert!(matches!(memory.submit(0, device), Err(CopyError::Foreign { .. })));
    drop((memory, part));
    assert_eq!(errno(cuda.settle()), 6, "ENXIO: no pool has it");
    assert_eq!((cuda.address(), control.get("allocations")), (None, 0));
}

#[test]
fn a_driver_that_is_absent_too_old_or_none_says_what_to_install() {
    alone!();
    let absent = Driver::open_at("/nowhere/libcuda.so.1").unwrap_err();
    assert!(matches!(absent, Error::Absent { .. }) && absent.errno().raw_os_error() == NODEV);
    let other = Driver::open_at("libm.so.6").unwrap_err();
    assert!(matches!(other, Error::Incomplete { symbol: "cuInit", .. }), "{other}");
    for error in [&absent, &other] {
        assert!(error.to_string().contains("install NVIDIA's driver for CUDA 11.0 or newer"), "{error}");
    }
    let control = Control::open();
    control.set("version", 10020);
    let old = Driver::open_at(Control::path()).unwrap_err();
    assert_eq!(old, Error::TooOld { found: (10, 2) });
    assert!(old.to_string().contains("supports CUDA 10.2; install one for 11.0"), "{old}");
    control.set("version", 13010);
    control.set("devices", 0);
    let none = Driver::open_at(Control::path()).unwrap_err();
    assert_eq!(none, Error::Failed { call: "cuInit", code: 100 });
    assert!(none.to_string().contains("nvidia-smi"), "{none}");
    control.set("devices", 2);
    let driver = driver();
    assert_eq!((driver.version(), driver.devices()), ((13, 1), 2));
    let beyond = Cuda::open(Settings::new(2).driver(driver.clone())).unwrap_err();
    assert_eq!(beyond, Error::NoDevice { ordinal: 2, devices: 2 });
    control.fail("cuDevicePrimaryCtxRetain", 0, 1, 2);
    let full = Cuda::open(Settings::new(1).driver(driver)).unwrap_err();
    assert_eq!(full.errno().raw_os_error(), NOMEM);
}

#[test]
fn the_way_is_what_was_the_fastest_on_the_devices_clock() {
    alone!();
    let control = Control::open();
    // Launches are dear, copies next to nothing.
    control.set("kernel_ns", 1_000_000);
    control.set("copy_ns", 10);
    let mut world = World::new(None);
    let mut model = world.model();
    world.submit(&mut model, 300, true).unwrap();
    world.memory.settle().unwrap();
    let report = world.cuda.report();
    assert_eq!((report.launches, report.costs.shapes.len()), (0, 8), "{report}");
    world.check(&model);
    world.end();
}

#[test]
fn many_pieces_are_gathered_where_each_copy_is_dear() {
    alone!();
    let control = Control::open();
    control.set("copy_ns", 100_000);
    control.set("kernel_ns", 150_000);
    let mut world = World::new(None);
    let mut model = world.model();
    world.submit(&mut model, 300, true).unwrap();
    world.memory.settle().unwrap();
    let report = world.cuda.report();
    assert!(report.by(Way::Gather) > 0 && report.by(Way::Copies) == 0, "{report}");
    // One piece is a copy.
    let page = world.page();
    let before = world.cuda.report().by(Way::Copies);
    model[..4096].copy_from_slice(&page.bytes().unwrap()[..4096]);
    world.memory.submit(0, vec![Part::new(page, 0, 4096).unwrap()]).unwrap();
    world.memory.settle().unwrap();
    assert_eq!(world.cuda.report().by(Way::Copies) - before, 4096);
    world.check(&model);
    assert!(world.cuda.report().to_string().contains("gather"), "it shows what was measured");
    world.end();
}

/// Where launches are dear, and a piece of a batch is cheaper than a copy.
fn many_copies(version: u64, refused: u32, batched: bool) {
    let control = Control::open();
    control.set("kernel_ns", 1_000_000);
    control.set("copy_ns", 5_000);
    control.set("piece_ns", 100);
    control.set("version", version);
    control.fail("cuMemcpyBatchAsync", 0, refused, 801);
    let mut world = World::new(None);
    let mut model = world.model();
    world.submit(&mut model, 300, true).unwrap();
    world.memory.settle().unwrap();
    let report = world.cuda.report();
    assert_eq!((report.by(Way::Batch) > 0, report.by(Way::Copies) > 0), (batched, !batched), "{report}");
    assert_eq!((report.fell_back, report.launches), (0, 0), "{report}");
    assert!(report.costs.shapes.iter().all(|shape| shape.ns[Way::Batch as usize].is_finite() == batched));
    world.check(&model);
    world.end();
}

#[test]
fn many_copies_are_asked_for_at_once_where_that_is_the_fastest() {
    alone!();
    many_copies(12080, 0, true);
}

#[test]
fn a_driver_that_has_no_batches_is_asked_for_each_copy() {
    alone!();
    many_copies(12070, 0, false);
}

#[test]
fn a_batch_that_the_driver_refuses_is_no_way() {
    alone!();
    many_copies(12080, u32::MAX, false);
}

#[test]
fn a_programs_stream_is_ordered_before_and_behind() {
    alone!();
    let mut world = World::new(Some(Way::Copies));
    let (stream, theirs) = (world.control.stream(), world.control.memory(4096));
    let base = world.cuda.address().unwrap();
    let (old, new) = (world.page(), world.page());
    let (old_bytes, new_bytes) =
        (old.bytes().unwrap()[..4096].to_vec(), new.bytes().unwrap()[..4096].to_vec());
    assert_ne!(old_bytes, new_bytes);
    for seed in 0..20 {
        world.control.set("seed", seed);
        world.memory.submit(0, vec![Part::new(old.clone(), 0, 4096).unwrap()]).unwrap();
        // SAFETY: the stream is of the device's context.
        unsafe { world.cuda.order_before(stream as *mut _).unwrap() };
        world.control.copy_within(theirs, base, 4096, stream);
        // The copy has not been run, and its source is given back and written anew.
        // SAFETY: as above.
        unsafe { world.cuda.order_after(stream as *mut _).unwrap() };
        world.memory.submit(0, vec![Part::new(new.clone(), 0, 4096).unwrap()]).unwrap();
        world.memory.settle().unwrap();
        assert!(world.control.read(theirs, 4096, stream) == old_bytes, "seed {seed}");
        let mut bytes = [0; 4096];
        world.memory.read_at(0, &mut bytes).unwrap();
        assert!(bytes[..] == new_bytes[..], "seed {seed}");
    }
    // Exactly into memory of the program's, piece by piece.
    // SAFETY: `theirs` has 4096 bytes.
    unsafe { world.cuda.collect(theirs, &[(100, 10), (0, 0), (4000, 96)]).unwrap() };
    let got = world.control.read(theirs, 106, stream);
    assert!(got[..10] == new_bytes[100..110] && got[10..] == new_bytes[4000..]);
    // SAFETY: it is refused.
    let outside = unsafe { world.cuda.collect(theirs, &[(256 * 4096 - 1, 2)]) };
    assert!(matches!(outside, Err(CopyError::Outside { .. })));
}

#[test]
fn the_default_stream_stands_for_all_that_are_not_apart() {
    alone!();
    let mut world = World::new(Some(Way::Copies));
    let (stream, theirs) = (world.control.stream(), world.control.memory(4096));
    let base = world.cuda.address().unwrap();
    let (old, new) = (world.page(), world.page());
    let old_bytes = old.bytes().unwrap()[..4096].to_vec();
    for seed in 0..20 {
        world.control.set("seed", seed);
        world.memory.submit(0, vec![Part::new(old.clone(), 0, 4096).unwrap()]).unwrap();
        world.memory.settle().unwrap();
        world.control.copy_within(theirs, base, 4096, stream);
        // SAFETY: null is the default stream.
        unsafe { world.cuda.order_after(std::ptr::null_mut()).unwrap() };
        world.memory.submit(0, vec![Part::new(new.clone(), 0, 4096).unwrap()]).unwrap();
        world.memory.settle().unwrap();
        assert!(world.control.read(theirs, 4096, stream) == old_bytes, "seed {seed}");
    }
}

#[test]
fn whatever_fails_at_random_nothing_is_lost_or_used_too_early() {
    alone!();
    let seeds = std::env::var("CUDA_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    for seed in 1..=seeds {
        let mut world = World::new(
            [None, Some(Way::Copies), Some(Way::Gather), Some(Way::Span), Some(Way::Batch)]
                [seed as usize % 5],
        );
        world.random = seed;
        world.next = (seed % 3 != 0).then_some(0);
        world.control.set("seed", seed);
        let mut model = world.model();
        for _ in 0..12 {
            let symbols = [
                "execute",
                "cuLaunchKernel",
                "cuMemcpyHtoDAsync_v2",
                "cuMemcpyBatchAsync",
                "cuEventRecord",
                "cuEventQuery",
                "cuEventSynchronize",
            ];
            let symbol = symbols[world.draw(7) as usize];
            // One at a time: what fails twice in a row is lost, and says so.
            let after = world.draw(30) as u32;
            world.control.fail(symbol, after, 1, 999);
            let pieces = 1 + world.draw(60) as usize;
            world
                .submit(&mut model, pieces, seed % 2 == 0)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            world.memory.settle().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            for symbol in symbols {
                world.control.fail(symbol, 0, 0, 0);
            }
        }
        assert!(world.all_home(), "seed {seed}");
        world.check(&model);
        world.end();
    }
}
