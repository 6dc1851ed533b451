//! Copies of payload counted from outside of what copies: by the addresses that the kernel was given. It puts a packet's bytes somewhere, and the
//! device takes them from somewhere; where these are the same addresses, byte by byte, nobody in between has copied anything. What is sent goes the other
//! way: the device puts bytes somewhere, and the kernel takes them from there. Where the kernel takes them from the device's memory itself, nothing of that is
//! mapped, and the device is asked for nothing: nobody here can have copied them.

use super::device::Device as Tap;
use super::header::{self, Header};
use super::receive::{Pools, Receiver};
use super::stats::Stats;
use super::tests::{Made, bytes, capabilities};
use super::transmit::{BATCH, Transmitter};
use crate::capabilities::{Capabilities, Medium};
use crate::packet::{Gso, Packet, Train};
use crate::registered::Registered;
use crate::rx::{Queues, Rule, Sorted};
use onecopy_chain::{Chain, Checksum, Fragment};
use onecopy_pool::provider::{CopyError, Heap, Opaque};
use onecopy_pool::{
    About, Area, Batch, Copied, Device, DeviceId, DeviceMemory, MemoryProvider, Need, PagePool, PoolConfig,
    ProviderError,
};
use onecopy_sync::Mutex;
use onecopy_sys::map::{Mapping, Span};
use onecopy_sys::spans::read_scattered;
use onecopy_uring::Unmapped;
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

/// A device that notes where it was told to take bytes from, and where to put them.
struct Watching {
    inner: Arc<Opaque>,
    /// Its memory is a file, and may be registered.
    is_file: bool,
    taken: Mutex<Places>,
    put: Mutex<Places>,
}

impl Watching {
    fn new(is_file: bool) -> Arc<Watching> {
        let (taken, put) = Default::default();
        Arc::new(Watching { inner: Opaque::new(DeviceId(0)), is_file, taken, put })
    }
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
        self.put.lock().push((into.as_ptr().addr(), into.len()));
        self.inner.read_at(at, into)
    }
    fn file(&self) -> Option<Arc<OwnedFd>> {
        self.inner.file().filter(|_| self.is_file)
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
    let device = Watching::new(false);
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

/// A TAP that notes where the kernel took from what it wrote, one packet after the other.
struct Taking {
    made: Made,
    took: Vec<Places>,
    /// It does not take what is to be cut apart.
    cuts: bool,
    /// Whether any of this file was mapped when the kernel took payload from its pages.
    file: Option<Arc<OwnedFd>>,
    mapped: usize,
}

impl Taking {
    fn new(cuts: bool, file: Option<Arc<OwnedFd>>) -> Taking {
        let mut made = Made::new();
        made.gathers = true;
        if !cuts {
            made.refuses = |header| header.gso_type != 0;
        }
        Taking { made, took: Vec::new(), cuts, file, mapped: 0 }
    }

    /// Payload of all packets, and its addresses, without headers of so many bytes.
    fn payload(&self, head: usize) -> (Vec<u8>, Vec<usize>) {
        let written = self.made.written.iter().flat_map(|(_, bytes)| bytes[head..].iter().copied());
        let skipped = |places| addresses(places).skip(header::LEN + head);
        (written.collect(), self.took.iter().flat_map(skipped).collect())
    }
}

impl Tap for Taking {
    fn read(&mut self, _: &[Span<'_>]) -> Result<usize, Errno> {
        Err(Errno::BADF)
    }

    fn gather(&mut self, pages: &mut Unmapped, became: impl FnMut(Result<(), Errno>)) {
        self.mapped += self.file.as_ref().map_or(0, |file| mappings(file));
        self.made.gather(pages, became);
    }

    fn write(&mut self, from: &[Span<'_>]) -> Result<(), Errno> {
        self.made.write(from)?;
        self.took.push(from.iter().map(|span| (span.as_ptr().addr(), span.len())).collect());
        Ok(())
    }
}

/// Mappings that this process has of a file.
fn mappings(file: &OwnedFd) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let inode = rustix::fs::fstat(file).unwrap().st_ino.to_string();
    maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&inode)).count()
}

/// Ranges of a device's memory, which are one packet each, in several fragments where they are several.
const SENDS: [&[(usize, usize)]; 8] = [
    &[(0, 1)],
    &[(4095, 2)],
    &[(5000, 1448)],
    &[(77, 4096)],
    &[(1, 4097)],
    &[(8191, 20_000)],
    &[(100, 65_000)],
    &[(3, 5), (40_000, 9001), (2, 1), (12_288, 4096)],
];

/// Sends each of [`SENDS`] out of the memory of `device`. `each` is told its bytes, and what the TAP and the link have seen.
fn sent(device: &Arc<Watching>, cuts: bool, mut each: impl FnMut(&[u8], &Taking, &Stats)) {
    let memory = DeviceMemory::new(PoolConfig::new().limit(64), device.clone()).unwrap();
    let data = bytes(64 * 4096);
    memory.write_at(0, &[IoSlice::new(&data)]).unwrap();
    device.taken.lock().clear();
    let pages = memory.alloc_all().unwrap();
    for ranges in SENDS {
        let mut transmitter = Transmitter::new(Capabilities { unreadable: true, ..capabilities() }, BATCH);
        if device.is_file {
            match Registered::new(&memory) {
                Ok(registered) => transmitter.gather_from(registered),
                Err(why) => return println!("lacking: registered buffers of io_uring ({why})"),
            }
        }
        let (mut tap, mut stats) = (Taking::new(cuts, device.file()), Stats::default());
        let (mut chain, mut expected) = (Chain::new(), Vec::new());
        for (at, len) in ranges {
            let (mut at, end) = (*at, at + len);
            expected.extend_from_slice(&data[at..end]);
            while at < end {
                let page = pages.iter().rfind(|page| page.place() <= at as u64).unwrap();
                let within = at - page.place() as usize;
                let len = (page.len() - within).min(end - at);
                chain.append(Fragment::new(page.clone(), within, len).unwrap()).unwrap();
                at += len;
            }
        }
        let mut packet = Packet::new(&head(3, expected.len()), chain).unwrap();
        packet.set_checksum(Checksum::Partial { start: 34, offset: 16 }).unwrap();
        if expected.len() > 1448 {
            packet.set_gso(Some(Gso { train: Train::Tcp, size: 1448, network: 14 }));
        }
        device.put.lock().clear();
        transmitter.transmit(&mut tap, &mut stats, packet);
        transmitter.flush(&mut tap, &mut stats);
        each(&expected, &tap, &stats);
        assert!(pages.iter().all(|page| page.is_unique()), "the send is over, and has no page");
        assert!(device.taken.lock().is_empty(), "nothing was put into the memory");
    }
}

#[test]
fn the_kernel_takes_each_byte_from_where_the_device_put_it() {
    // Whole, and cut into segments here.
    for cuts in [true, false] {
        let device = Watching::new(false);
        sent(&device, cuts, |expected, tap, stats| {
            let (payload, took) = tap.payload(66);
            let put: Vec<usize> = addresses(&device.put.lock()).collect();
            assert!(payload == expected && put == took, "{} bytes: {:?}", expected.len(), tap.took);
            assert_eq!((stats.staged_bytes, stats.gathered_bytes), (expected.len() as u64, 0));
            let packets = if tap.cuts { 1 } else { expected.len().div_ceil(1448) };
            assert_eq!(tap.took.len(), packets);
        });
    }
}

#[test]
fn what_the_kernel_takes_from_the_devices_memory_itself_nobody_here_can_have_copied() {
    let device = Watching::new(true);
    sent(&device, true, |expected, tap, stats| {
        assert!(tap.payload(66).0 == expected, "{} bytes", expected.len());
        assert_eq!((stats.staged_bytes, stats.gathered_bytes), (0, expected.len() as u64));
        // Neither is there an address of it, nor was anybody given its bytes, nor was anything of the host's written.
        assert_eq!((tap.mapped, device.put.lock().len(), tap.took.len()), (0, 0, 0));
        let file = tap.file.as_ref().unwrap();
        let mapping = Mapping::fronted(&**file, 65_536, 4096).unwrap();
        assert_eq!(mappings(file), 1, "a mapping would have been seen");
        drop(mapping);
    });
}
