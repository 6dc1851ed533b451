//! TCP's payload into a device's memory, over a cable between two stacks: nothing of the stack knows that it is CUDA's.

use onecopy_cuda::{Cuda, Driver, Settings, Way};
use onecopy_cuda_stand_in::Control;
use onecopy_link::Tap;
use onecopy_net::Stack;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_pool::{DeviceMemory, PoolConfig};
use onecopy_testing::alone;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const EIO: i32 = 5;

fn server() -> SocketAddr {
    "10.0.0.2:80".parse().unwrap()
}

struct World {
    control: Control,
    cuda: Arc<Cuda>,
    memory: DeviceMemory,
    far: Stack,
    _near: Stack,
    sender: Stream,
    receiver: Stream,
    _binding: onecopy_net::devmem::Binding,
    _listener: Listener,
}

fn world(way: Option<Way>) -> World {
    let settings = Settings::new(0).driver(Driver::open_at(Control::path()).unwrap());
    let cuda = Cuda::open(way.map_or(settings.clone(), |way| settings.way(way))).unwrap();
    let control = Control::open();
    // A span reads what lies between its pieces, too, into which packets come meanwhile.
    control.set("watch", u64::from(way.is_some_and(|way| way != Way::Span)));
    let memory = DeviceMemory::new(PoolConfig::new().limit(256), cuda.clone()).unwrap();
    let (a, b) = Tap::cable(1500).unwrap();
    let build = |tap, address| Stack::builder().link(tap).address(address).build().unwrap();
    let (near, far) = (build(a, "10.0.0.1/24"), build(b, "10.0.0.2/24"));
    far.set_queues(2).unwrap();
    far.steer(server(), 1).unwrap();
    let binding = far.bind_rx(&memory, &[1]).unwrap();
    let listener = Listener::bind(&far, server()).unwrap();
    let sender = Stream::connect(&near, server()).unwrap();
    let receiver = listener.accept().unwrap().0;
    receiver.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    sender.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
    World {
        control,
        cuda,
        memory,
        far,
        _near: near,
        sender,
        receiver,
        _binding: binding,
        _listener: listener,
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

#[test]
fn payload_comes_into_the_devices_memory_by_every_way() {
    alone!();
    for way in [None, Some(Way::Copies), Some(Way::Gather), Some(Way::Span), Some(Way::Batch)] {
        let world = world(way);
        let data = pattern(3 << 20);
        let got = std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(world.sender.send(&data).unwrap(), data.len());
                world.sender.shutdown(Shutdown::Write).unwrap();
            });
            // By the device's own clock something else goes wrong now and then, too: it is done again.
            world.control.fail("execute", 20, 1, 999);
            let mut got = Vec::new();
            loop {
                let frags = world.receiver.recv_frags(200_000).unwrap();
                if frags.is_empty() {
                    return got;
                }
                assert!(frags.linear().is_none(), "all of it was split");
                for frag in frags.device() {
                    let mut bytes = vec![0; frag.len as usize];
                    let mut read = || world.memory.read_at(frag.offset, &mut bytes);
                    // Where it was this that went wrong it says so, and the next one does not.
                    read().or_else(|_| read()).unwrap();
                    got.extend(bytes);
                }
            }
        });
        assert!(got == data);
        let (report, queue) = (world.cuda.report(), world.far.queue_stats(1).unwrap());
        assert_eq!((queue.placed_bytes >= data.len() as u64, queue.failed), (true, 0));
        assert_eq!(report.bytes.iter().sum::<u64>(), queue.placed_bytes, "{report}");
        assert_eq!((report.pageable, world.control.get("torn")), (0, 0), "{report}");
        if let Some(way) = way.filter(|way| *way != Way::Span) {
            // What TCP has thrown away leaves its place to the next, and where both are in one batch they are copied.
            let copied = if way == Way::Copies { 0 } else { report.by(Way::Copies) };
            assert_eq!(report.by(way) + copied, queue.placed_bytes, "{report}");
            assert!(report.by(way) > 0);
        }
        assert_eq!(world.receiver.stats().user_copied_out, 0);
    }
}

#[test]
fn a_device_that_is_gone_is_eio_and_a_count() {
    alone!();
    let world = world(Some(Way::Gather));
    world.sender.send(b"hello, device").unwrap();
    let frags = world.receiver.recv_frags(64).unwrap();
    assert_eq!(frags.len(), 13);
    drop(frags);
    world.control.set("gone", 719);
    world.sender.send(b"lost").unwrap();
    // What was placed before it went is lost; what comes later is dropped, so the receive may have nothing to tell.
    let counted = |world: &World| world.far.queue_stats(1).unwrap().failed > 0;
    world.receiver.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let began = std::time::Instant::now();
    loop {
        match world.receiver.recv_frags(64) {
            Err(error) if error.raw_os_error() == EIO => {
                assert!(error.reason().unwrap().contains("open the device again"), "{error}");
                break;
            }
            Err(_) if counted(&world) => break,
            other => assert!(began.elapsed() < Duration::from_secs(60), "{other:?}"),
        }
    }
    assert!(world.cuda.report().lost.is_some());
    world.control.set("gone", 0);
}
