//! What a NIC is asked for where the kernel carries the bytes, and what is done where it refuses: no interface of ours has one that can.

use crate::world::{errno, pattern};
use onecopy_net::devmem::{NotByNic, Path, ask_nic};
use onecopy_net::tcp::Listener;
use onecopy_net::{BuildError, Stack, Transport};
use onecopy_pool::provider::{CopyError, Opaque};
use onecopy_pool::{About, Area, Batch, Copied, Device, MemoryProvider, Need, PoolConfig, ProviderError};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::netns::Namespace;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

/// Memory that says it has a dma-buf, on machines where none can be made: the kernel looks at the device before it looks at that.
struct Pretends(Arc<Opaque>);

impl MemoryProvider for Pretends {
    fn init(&self, need: &Need) -> Result<Area, ProviderError> {
        self.0.init(need)
    }
    fn alloc_netmems(&self, batch: &mut Batch<'_>) -> Result<(), ProviderError> {
        self.0.alloc_netmems(batch)
    }
    fn release_netmem(&self, index: u32) {
        self.0.release_netmem(index);
    }
    fn destroy(&self) {
        self.0.destroy();
    }
    fn about(&self) -> About {
        self.0.about()
    }
    fn as_device(&self) -> Option<&dyn Device> {
        Some(self)
    }
}

impl Device for Pretends {
    fn write_at(&self, at: u64, from: &[IoSlice<'_>]) -> Result<(), CopyError> {
        self.0.write_at(at, from)
    }
    fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), CopyError> {
        self.0.read_at(at, into)
    }
    fn file(&self) -> Option<Arc<OwnedFd>> {
        self.0.file()
    }
    fn dma_buf(&self) -> Result<OwnedFd, ProviderError> {
        Ok(std::fs::File::open("/dev/null").unwrap().into())
    }
    fn copied(&self) -> Copied {
        self.0.copied()
    }
}

fn pretends() -> DeviceMemory {
    DeviceMemory::new(PoolConfig::new().limit(64), Arc::new(Pretends(Opaque::new(DeviceId(1))))).unwrap()
}

/// A stack that asks the NIC of `interface`. None, and said why, where there is no io_uring.
fn stack(interface: &str) -> Option<Stack> {
    let builder = Stack::builder().transport(Transport::Kernel).interface(interface);
    match builder.build() {
        Err(BuildError::Uring(why)) => {
            println!("lacking: io_uring ({why})");
            None
        }
        built => Some(built.unwrap()),
    }
}

/// Why not by device memory TCP, and why not by a ring.
fn both(why: NotByNic) -> (NotByNic, NotByNic) {
    match why {
        NotByNic::Neither { devmem, ring } => (*devmem, *ring),
        one => panic!("{one}"),
    }
}

/// Whether the kernel was asked for a ring, and refuses, as of lo and a veth: or has none.
fn is_refused(ring: &NotByNic) -> bool {
    match ring {
        NotByNic::RingRefused(Errno::OPNOTSUPP) => true,
        NotByNic::RingRefused(Errno::PERM) => {
            eprintln!("asked without CAP_NET_ADMIN: {ring}");
            true
        }
        // Before Linux 6.15.
        NotByNic::RingRefused(Errno::INVAL) | NotByNic::NoRing(_) => {
            eprintln!("too old: {ring}");
            true
        }
        _ => false,
    }
}

/// Binds memory as without a NIC, for the reason that is returned. None where nothing can be bound here, which says so.
fn copied(stack: &Stack, memory: &DeviceMemory) -> Option<NotByNic> {
    stack.set_queues(2).unwrap();
    let path = match stack.bind_rx(memory, &[1]) {
        Ok(binding) => binding.path(),
        Err(error) => {
            // Where io_uring registers no memory, nothing is left.
            assert!(error.raw_os_error() == 95 && error.reason().unwrap().contains("neither"), "{error}");
            println!("lacking: device memory by io_uring ({error})");
            return None;
        }
    };
    assert_eq!(memory.free(), memory.len(), "nothing is bound any more");
    match path {
        Path::Direct(Some(why)) => {
            assert!(Path::Direct(Some(why.clone())).to_string().contains("not by the NIC"));
            Some(why)
        }
        other => panic!("{other}"),
    }
}

#[test]
fn an_interface_is_the_kernel_s_and_has_to_be_there() {
    let none = Stack::builder().transport(Transport::Kernel).interface("no-such-nic").build();
    assert!(
        matches!(&none, Err(BuildError::Interface { name, errno: Errno::NODEV }) if name == "no-such-nic"),
        "{none:?}"
    );
    let own = Stack::builder().interface("lo").address("10.0.0.1/24").build();
    assert!(matches!(own, Err(BuildError::NotOfOwn("interface"))), "{own:?}");
    for error in [none.unwrap_err(), own.unwrap_err()] {
        assert!(error.to_string().contains("`ip link`") || error.to_string().contains("Transport::Kernel"));
    }
}

#[test]
fn a_nic_that_refuses_leaves_the_bytes_to_the_kernel_s_copy() {
    let Some(stack) = stack("lo") else { return };
    let memory = pretends();
    let listener = Listener::bind(&stack, "127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let Some(why) = copied(&stack, &memory) else { return };
    assert!(why.to_string().contains("device memory TCP: ") && why.to_string().contains("zero copy Rx: "));
    let (why, ring) = both(why);
    assert!(is_refused(&ring), "{ring}");
    match &why {
        NotByNic::Refused { errno: Errno::OPNOTSUPP, .. } => {
            assert!(why.to_string().contains("use a NIC whose driver does"), "{why}");
        }
        NotByNic::Refused { errno: Errno::PERM, .. } => eprintln!("asked without CAP_NET_ADMIN: {why}"),
        // Before Linux 6.12 there is no such command, or no such family.
        NotByNic::Refused { errno: Errno::INVAL, .. } | NotByNic::Unasked(_) => eprintln!("too old: {why}"),
        _ => panic!("{why}"),
    }
    stack.steer(at, 1).unwrap();
    let _binding = stack.bind_rx(&memory, &[1]).unwrap();
    let mut sender = TcpStream::connect(at).unwrap();
    let receiver = listener.accept().unwrap().0;
    let bytes = pattern(1000);
    sender.write_all(&bytes).unwrap();
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        let frags = receiver.recv_frags(1000).unwrap();
        for frag in frags.device() {
            let mut piece = vec![0; frag.len as usize];
            memory.read_at(frag.offset, &mut piece).unwrap();
            got.extend(piece);
        }
    }
    assert!(got == bytes);
    let nic = stack.link_counters().into_iter().filter(|(name, _)| name.starts_with("nic_"));
    assert_eq!(nic.map(|(_, count)| count).collect::<Vec<_>>(), [0; 5]);
    // What is wrong in the call itself is no reason to go another way.
    assert_eq!(errno(stack.bind_rx(&pretends(), &[2])), Errno::RANGE.raw_os_error());
    assert_eq!(errno(stack.bind_rx(&pretends(), &[1])), Errno::EXIST.raw_os_error());
}

#[test]
fn memory_that_no_nic_can_have_says_so() {
    let Some(stack) = stack("lo") else { return };
    let memory = DeviceMemory::opaque(64, DeviceId(1)).unwrap();
    let made = memory.dma_buf();
    let why = copied(&stack, &memory).map(both);
    // A ring takes a memfd as it is.
    assert!(why.as_ref().is_none_or(|(_, ring)| is_refused(ring)), "{why:?}");
    match (why.map(|(devmem, _)| devmem), made) {
        (None, _) => return,
        // This machine makes dma-bufs: it is the loopback that cannot.
        (Some(NotByNic::Refused { .. } | NotByNic::Unasked(_)), Ok(_)) => {}
        (Some(NotByNic::Memory(why)), Err(made)) => assert_eq!(why, made),
        (why, made) => panic!("{why:?}, {made:?}"),
    }
    // Somebody has a page, which the NIC would write to.
    let memory = pretends();
    let page = memory.alloc(10).unwrap();
    stack.set_queues(2).unwrap();
    let path = stack.bind_rx(&memory, &[1]).unwrap().path();
    match path {
        Path::Direct(Some(NotByNic::Shared)) => {}
        other => panic!("{other}"),
    }
    drop(page);
    // A ring is of one queue.
    stack.set_queues(3).unwrap();
    match stack.bind_rx(&pretends(), &[1, 2]).unwrap().path() {
        Path::Direct(Some(why)) => assert_eq!(both(why).1, NotByNic::Queues(2)),
        other => panic!("{other}"),
    }
    // Without an interface nobody is asked.
    let plain = Stack::builder().transport(Transport::Kernel).build().unwrap();
    plain.set_queues(2).unwrap();
    assert_eq!(plain.bind_rx(&pretends(), &[1]).unwrap().path(), Path::Direct(None));
}

#[test]
fn a_veth_is_asked_in_its_own_namespace_and_refuses() {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => return println!("lacking: a network namespace (root, CAP_SYS_ADMIN)"),
        namespace => namespace.expect("a network namespace"),
    };
    let inside = || {
        let made = ["link", "add", "nic0", "type", "veth", "peer", "name", "nic1"];
        if !Command::new("ip").args(made).status().is_ok_and(|made| made.success()) {
            return println!("lacking: ip (iproute2), or veth devices");
        }
        let Some(stack) = stack("nic0") else { return };
        // Asked beforehand it says the same.
        let says = ask_nic("nic0").unwrap();
        assert!(says.ring.as_ref().is_some_and(is_refused) && says.devmem.is_some(), "{says:?}");
        assert_eq!(ask_nic("nic9").unwrap_err().raw_os_error(), Errno::NODEV.raw_os_error());
        let why = copied(&stack, &pretends()).map(both);
        assert_eq!(why.as_ref().map(|(_, ring)| ring), says.ring.as_ref().filter(|_| why.is_some()));
        assert!(why.as_ref().is_none_or(|(_, ring)| is_refused(ring)), "{why:?}");
        match why {
            None | Some((NotByNic::Unasked(_), _)) => {}
            Some((NotByNic::Refused { errno, .. }, _)) => {
                assert!([Errno::OPNOTSUPP, Errno::INVAL].contains(&errno), "{errno}");
            }
            Some((other, _)) => panic!("{other}"),
        }
    };
    namespace.run(inside).unwrap();
}
