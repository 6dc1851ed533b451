//! Copies of payload counted from outside of what copies: by the addresses that the kernel was given. It puts a packet's bytes somewhere, and the
//! device takes them from somewhere; where these are the same addresses, byte by byte, nobody in between has copied anything.

use super::device::Device as Tap;
use super::header::{self, Header};
use super::receive::{Pools, Receiver};
use super::stats::Stats;
use crate::capabilities::Medium;
use crate::rx::{Queues, Rule, Sorted};
use onecopy_pool::provider::{CopyError, Heap, Opaque};
use onecopy_pool::{
    About, Area, Batch, Copied, Device, DeviceId, DeviceMemory, MemoryProvider, Need, PagePool, PoolConfig,
    ProviderError,
};
use onecopy_sync::Mutex;
use onecopy_sys::map::Span;
use onecopy_sys::spans::read_scattered;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where bytes lie: address and length.
type Places = Vec<(usize, usize)>;

/// A TAP that notes where the kernel put what it read.
struct Watched {
    near: OwnedFd,
    put: Places,
}

impl Tap for Watched {
    fn read(&mut self, into: &[Span<'_>]) -> Result<usize, Errno> {
        let len = read_scattered(&self.near, into)?;
        let mut left = len;
        for span in into {
            let part = left.min(span.len());
            self.put.push((span.as_ptr().addr(), part));
            left -= part;
        }
        Ok(len)
    }

    fn write(&mut self, _: &[Span<'_>]) -> Result<(), Errno> {
        Err(Errno::BADF)
    }
}

/// A device that notes where it was told to take bytes from.
struct Watching {
    inner: Arc<Opaque>,
    taken: Mutex<Places>,
}

impl MemoryProvider for Watching {
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

impl Device for Watching {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.taken.lock().extend(from.iter().map(|slice| (slice.as_ptr().addr(), slice.len())));
        self.inner.write_at(at, from)
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.inner.read_at(at, into)
    }
    fn copied(&self) -> Copied {
        self.inner.copied()
    }
}

/// Each byte's address.
fn addresses(places: &Places) -> impl Iterator<Item = usize> {
    places.iter().flat_map(|(at, len)| *at..at + len)
}

/// Headers to 10.0.0.2 port 80, with so many words of TCP's options. (Three have timestamps.)
fn head(options: usize, payload: usize) -> Vec<u8> {
    let mut head = vec![0; 54 + 4 * options];
    (head[12], head[14], head[20], head[23], head[46]) = (8, 0x45, 0x40, 6, (5 + options as u8) << 4);
    let whole = head.len() - 14 + payload;
    head[16..18].copy_from_slice(&(whole as u16).to_be_bytes());
    head[30..34].copy_from_slice(&[10, 0, 0, 2]);
    head[36..38].copy_from_slice(&80_u16.to_be_bytes());
    head
}

#[test]
fn the_device_takes_each_byte_from_where_the_kernel_put_it() {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let mut tap = Watched { near, put: Vec::new() };
    let pool = PagePool::new(PoolConfig::new().limit(64), Heap::new()).unwrap();
    let mut receiver = Receiver::new(Medium::Ethernet, 65536 + 22, Pools::of(pool));
    let device = Arc::new(Watching { inner: Opaque::new(DeviceId(0)), taken: Mutex::default() });
    let memory = DeviceMemory::new(PoolConfig::new().limit(64), device.clone()).unwrap();
    let mut queues = Queues::new(Medium::Ethernet);
    queues.set_len(2).unwrap();
    queues.steer(Rule { to: "10.0.0.2:80".parse().unwrap(), queue: 1 }).unwrap();
    queues.bind(&memory, &[1]).unwrap();
    let mut stats = Stats::default();
    let packets = [1, 2, 63, 1448, 4096, 4097, 20_000, 65_000, 1448].map(|payload| (3, payload));
    // Of headers that are shorter than those of the packet before, what was taken for headers is copied in front of the rest: 12 bytes.
    for (options, payload, copied) in packets
        .map(|(options, payload)| (options, payload, 0))
        .into_iter()
        .chain([(0, 1460, 12), (0, 1460, 0), (3, 1448, 0)])
    {
        let data: Vec<u8> =
            (0..payload as u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
        let head = head(options, payload);
        let mut record = Header::default().to_bytes().to_vec();
        record.extend(&head);
        record.extend(&data);
        assert_eq!(rustix::io::write(&far, &record), Ok(record.len()));
        tap.put.clear();
        device.taken.lock().clear();
        let before = stats.moved_bytes;
        let packet = receiver.receive(&mut tap, &mut stats).unwrap();
        let Sorted::Bound(1, packet) = queues.sort(packet) else { panic!("it was not placed") };
        // The headers are copied, as they should be; of the rest so many bytes, which the link counts as well.
        let put: Vec<usize> = addresses(&tap.put).skip(header::LEN + head.len()).collect();
        let taken: Vec<usize> = addresses(&device.taken.lock()).collect();
        assert_eq!((put.len(), taken.len()), (payload, payload));
        let elsewhere = put.iter().zip(&taken).filter(|(put, taken)| put != taken).count();
        assert_eq!(elsewhere, copied, "{payload} bytes: {:?} became {:?}", tap.put, device.taken.lock());
        assert_eq!(stats.moved_bytes - before, copied as u64);
        // And they came where the chain says.
        let mut all = Vec::new();
        for fragment in packet.payload().payload().fragments() {
            let at = memory.place_of(fragment.page(), fragment.offset()).unwrap();
            let begin = all.len();
            all.resize(begin + fragment.len(), 0);
            memory.read_at(at, &mut all[begin..]).unwrap();
        }
        assert!(all == data, "{payload} bytes");
    }
}
