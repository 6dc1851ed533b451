//! The kernel sends and receives, over a TAP: it needs root and /dev/net/tun, and says so where it has neither.

use crate::world::pattern;
use onecopy_link::tap::{Tap, TapConfig};
use onecopy_net::Stack;
use onecopy_net::devmem::TxRange;
use onecopy_net::tcp::{Listener, Stream};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::netns::Namespace;
use onecopy_uring::Unmapped;
use rustix::io::Errno;
use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

fn namespace() -> Option<Namespace> {
    match Namespace::new() {
        Err(Errno::PERM) => {
            println!("lacking: a network namespace (root, CAP_SYS_ADMIN)");
            None
        }
        namespace => Some(namespace.unwrap()),
    }
}

#[test]
fn what_the_kernel_sends_lands_in_the_memory_whatever_is_left_to_it() {
    let Some(namespace) = namespace() else { return };
    let configs = [
        ("all", TapConfig::new("devmem0")),
        ("whole packets", TapConfig::new("devmem1").segmentation(false)),
        // Sums are taken of what landed, before it is out of reach.
        ("nothing", TapConfig::new("devmem2").checksum(false)),
    ];
    for (index, (name, config)) in configs.into_iter().enumerate() {
        let device = format!("devmem{index}");
        let tap = match namespace.run(|| Tap::open(config)).unwrap() {
            Err(error)
                if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) =>
            {
                println!("lacking: a TAP ({error})");
                return;
            }
            tap => tap.unwrap(),
        };
        let (kernel, ours) = (format!("10.9{index}.0.1/24"), format!("10.9{index}.0.2/24"));
        for line in [format!("addr add {kernel} dev {device}"), format!("link set {device} up")] {
            let run = || Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(namespace.run(run).unwrap().success(), "ip {line}");
        }
        let stack = Stack::builder().link(tap).address(&ours).build().unwrap();
        let at = format!("10.9{index}.0.2:80").parse().unwrap();
        let memory = DeviceMemory::opaque(512, DeviceId(0)).unwrap();
        stack.set_queues(2).unwrap();
        stack.steer(at, 1).unwrap();
        let binding = stack.bind_rx(&memory, &[1]).unwrap();
        let listener = Listener::bind(&stack, at).unwrap();
        let data = pattern(3 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut client = namespace.run(|| TcpStream::connect(at)).unwrap().unwrap();
                client.write_all(&data).unwrap();
            });
            let (stream, _) = listener.accept().unwrap();
            let mut got = 0;
            loop {
                let frags = stream.recv_frags(200_000).unwrap();
                if frags.is_empty() {
                    break;
                }
                assert!(frags.linear().is_none(), "{name}: all of it was split");
                for frag in frags.device() {
                    let mut bytes = vec![0; frag.len as usize];
                    memory.read_at(frag.offset, &mut bytes).unwrap();
                    assert!(bytes == data[got..got + bytes.len()], "{name}: {} bytes at {got}", bytes.len());
                    got += bytes.len();
                }
            }
            assert_eq!(got, data.len(), "{name}");
            assert_eq!(stream.stats().user_copied_out, 0);
        });
        let stats = stack.queue_stats(1).unwrap();
        // (What the kernel sent twice was placed twice.)
        assert!(stats.placed_bytes >= 3 << 20, "{name}: {stats:?}");
        assert_eq!((stats.starved, stats.unsplit, stats.failed), (0, 0, 0), "{name}");
        // Super-segments are long enough to be put there by the kernel itself, where io_uring can.
        let lands = Unmapped::new(&*memory.file().unwrap(), memory.len() as usize);
        if let Err(refused) = &lands {
            println!("lacking: io_uring ({refused})");
        }
        assert_eq!(stats.landed > 0, name == "all" && lands.is_ok(), "{name}: {stats:?}");
        drop(binding);
        assert!(memory.free() + 4096 >= memory.len());
    }
}

#[test]
fn the_kernel_gets_what_lies_in_a_devices_memory() {
    let Some(namespace) = namespace() else { return };
    for (index, segmentation) in [true, false].into_iter().enumerate() {
        let device = format!("devtx{index}");
        let config = TapConfig::new(&device).segmentation(segmentation);
        let tap = match namespace.run(|| Tap::open(config)).unwrap() {
            Err(error)
                if [Errno::NOENT, Errno::NODEV, Errno::ACCESS, Errno::PERM].contains(&error.errno()) =>
            {
                println!("lacking: a TAP ({error})");
                return;
            }
            tap => tap.unwrap(),
        };
        for line in [format!("addr add 10.95.{index}.1/24 dev {device}"), format!("link set {device} up")] {
            let run = || Command::new("ip").args(line.split(' ')).status().unwrap();
            assert!(namespace.run(run).unwrap().success(), "ip {line}");
        }
        let listener = namespace.run(|| TcpListener::bind(format!("10.95.{index}.1:0"))).unwrap().unwrap();
        let stack = Stack::builder().link(tap).address(&format!("10.95.{index}.2/24")).build().unwrap();
        let memory = DeviceMemory::opaque(768, DeviceId(0)).unwrap();
        let data = pattern(memory.len() as usize);
        memory.write_at(0, &[IoSlice::new(&data)]).unwrap();
        let binding = stack.bind_tx(&memory).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut all = Vec::new();
                listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
                all
            });
            let stream = Stream::connect(&stack, listener.local_addr().unwrap()).unwrap();
            let sent = stream.send_device(&binding, &[TxRange { offset: 0, len: memory.len() }]).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(!sent.wait().1.dropped);
            assert!(reader.join().unwrap() == data, "segmentation {segmentation}");
            assert_eq!(stream.stats().user_copied_in, 0);
        });
    }
}
