//! Memory that is a dma-buf: what is taken of a driver is received into, and sent from, as any other; what its driver maps for nobody is refused.

use crate::tx::range;
use crate::world::{World, errno, pattern};
use onecopy_pool::provider::{CopyError, Free};
use onecopy_pool::{About, Area, Batch, Copied, Device, MemoryProvider, Need, PoolConfig, ProviderError};
use onecopy_pool::{DeviceId, DeviceMemory};
use rustix::io::Errno;
use std::io::IoSlice;
use std::sync::Arc;

/// What a machine without /dev/udmabuf says.
fn lacking(why: &ProviderError) {
    let has = std::path::Path::new("/dev/udmabuf").exists();
    assert_eq!(why.errno(), if has { Errno::ACCESS } else { Errno::NOENT }, "{why}");
    println!("lacking: /dev/udmabuf ({why})");
}

#[test]
fn payload_lands_in_a_dma_buf_and_is_sent_from_one() {
    // The stand-in that both are made of sees the bytes, too.
    let [into, from] = [0, 1].map(|device| DeviceMemory::opaque(256, DeviceId(device)).unwrap());
    let (fd, source) = match (into.dma_buf(), from.dma_buf()) {
        (Ok(into), Ok(from)) => (into, from),
        (Err(why), _) | (_, Err(why)) => return lacking(&why),
    };
    let memory = DeviceMemory::of_dma_buf(fd, DeviceId(2)).unwrap();
    let source = DeviceMemory::of_dma_buf(source, DeviceId(3)).unwrap();
    let world = World { memory, ..World::new(1) };
    let binding = world.bind();
    let sending = world.near.bind_tx(&source).unwrap();
    let (sender, receiver) = world.connect();
    let bytes = pattern(200_000);
    source.write_at(5000, &[IoSlice::new(&bytes)]).unwrap();
    let sent = sender.send_device(&sending, &[range(5000, bytes.len() as u64)]).unwrap();
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        let frags = receiver.recv_frags(1 << 20).unwrap();
        assert!(frags.device().iter().all(|frag| frag.binding == binding.id()));
        let seen = world.bytes(&frags);
        for (frag, seen) in frags.device().iter().zip(frag_slices(&frags, &seen)) {
            let mut below = vec![0; frag.len as usize];
            into.read_at(frag.offset, &mut below).unwrap();
            assert!(below == seen, "both are the same memory");
        }
        got.extend(seen);
    }
    assert!(got == bytes);
    assert!(!sent.wait().1.dropped);
    assert!(world.all_home());
}

/// The bytes of each fragment, of all of them one after the other.
fn frag_slices<'a>(frags: &'a onecopy_net::devmem::Frags, all: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut at = 0;
    frags.device().iter().map(move |frag| {
        at += frag.len as usize;
        &all[at - frag.len as usize..at]
    })
}

/// Memory that devices alone have a way to.
#[derive(Default)]
struct Hidden(Free);

impl MemoryProvider for Hidden {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        self.0.start(need)?;
        Ok(Area::device(DeviceId(5), need.bytes()?))
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.0.give(batch)
    }
    fn release_netmem(&self, index: u32) {
        self.0.take_back(index);
    }
    fn about(&self) -> About {
        let (name, how, device) = ("hidden", "for devices alone".to_owned(), Some(DeviceId(5)));
        About { name, how, readable: false, pinned: false, shareable: false, device }
    }
    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

impl Device for Hidden {
    fn write_at(&self, _: u64, _: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.copies()
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<(), CopyError> {
        self.copies()
    }
    fn copies(&self) -> Result<(), CopyError> {
        Err(CopyError::Unmapped(Errno::INVAL))
    }
    fn copied(&self) -> Copied {
        Copied::default()
    }
}

/// Else each packet would be dropped, or go out as whatever there was.
#[test]
fn memory_that_nobody_can_copy_is_refused_where_it_takes_copies() {
    for world in World::each(64) {
        let memory = DeviceMemory::new(PoolConfig::new().limit(64), Arc::new(Hidden::default())).unwrap();
        assert_eq!(errno(world.far.bind_rx(&memory, &[1])), 95);
        assert_eq!(errno(world.near.bind_tx(&memory)), 95);
        // Nothing of it is bound.
        assert_eq!(memory.free(), memory.len());
        assert!(memory.claim(onecopy_pool::Purpose::Send).is_some());
        drop(world.bind());
    }
}
