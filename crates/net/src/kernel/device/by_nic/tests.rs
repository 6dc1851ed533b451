//! Connections whose bytes a NIC would place: over the loopback, which puts all of them into the host's memory, and with a test in the kernel's place, which tells of
//! fragments.

use super::*;
use crate::carrier::tcp::Endpoint as _;
use crate::carrier::{RefillRing, TokenRange};
use crate::kernel::connection::Phase;
use crate::kernel::nic::BUFFER;
use crate::kernel::placed::tests::{DMABUF, Script, frag};
use crate::kernel::submitter::For;
use crate::{RecvFlags, Stack, Transport};
use onecopy_pool::{DeviceId, DeviceMemory};
use onecopy_sys::devmem::Piece;
use onecopy_testing::{LONG, begun, wait_asleep};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

struct World {
    /// Goes before its stack, which waits for it.
    stream: Stream,
    stack: Stack,
    peer: TcpStream,
    memory: DeviceMemory,
    id: u32,
}

impl World {
    /// None, and said why, where there is no io_uring.
    fn new() -> Option<World> {
        let stack = Stack::builder().transport(Transport::Kernel).build();
        let stack = stack.inspect_err(|why| println!("lacking: io_uring ({why})")).ok()?;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        stack.set_queues(3).unwrap();
        stack.steer(at, 1).unwrap();
        let memory = DeviceMemory::opaque(16, DeviceId(1)).unwrap();
        let kernel = stack.kernel().unwrap();
        let id = kernel.shared().devices.bind_pretended(&memory, DMABUF, &[1]);
        let peer = TcpStream::connect(at).unwrap();
        let fd = OwnedFd::from(listener.accept().unwrap().0);
        let settings = crate::kernel::options::begin(&fd, None).unwrap();
        let stream = Stream::new(kernel.submitters().next(For::Made), fd, Phase::Open, false, settings);
        stream.common().settings().set_read_timeout(Some(LONG));
        stream.begin();
        Some(World { stack, stream, peer, memory, id })
    }

    /// A connection that comes to a queue, and its peer.
    fn opened(&self, queue: u32) -> (Stream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        self.stack.steer(at, queue).unwrap();
        let peer = TcpStream::connect(at).unwrap();
        let fd = OwnedFd::from(listener.accept().unwrap().0);
        let settings = crate::kernel::options::begin(&fd, None).unwrap();
        let submitter = self.stack.kernel().unwrap().submitters().next(For::Made);
        let stream = Stream::new(submitter, fd, Phase::Open, false, settings);
        stream.begin();
        (stream, peer)
    }

    /// With a test in the kernel's place, as to what is received.
    fn scripted() -> Option<(World, Arc<Script>)> {
        let world = World::new()?;
        let script = Arc::new(Script::default());
        let Next::Device(landing, 1) = world.stream.next(&world.patience()).unwrap() else {
            panic!("its rule names the queue")
        };
        let placed = Placed::new(landing.nic().unwrap(), Box::new(Arc::clone(&script))).unwrap();
        assert!(world.stream.placed.set(placed).is_ok());
        Some((world, script))
    }

    fn patience(&self) -> Patience {
        Patience::new(self.stream.common(), false, Some(LONG))
    }

    fn take(&self, max: usize, device: bool) -> Result<Option<Vec<u8>>> {
        let how = Taking { dont_wait: false, before: false, device, least: usize::MAX };
        let taken = self.stream.take(max, how)?;
        Ok(taken.map(|data| View::of(data, self.stream.counts()).to_vec()))
    }

    fn frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        self.stream.recv_frags(n, most, flags)
    }

    fn counter(&self, name: &str) -> u64 {
        self.stack.link_counters().iter().find(|(known, _)| *known == name).unwrap().1
    }
}

fn is_readable(fd: impl AsFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

fn wait_readable(fd: impl AsFd) {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
}

#[test]
fn bytes_that_come_by_another_queue_are_the_host_s() {
    let Some(mut world) = World::new() else { return };
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    assert!(!is_readable(&fd));
    assert!(world.frags(10, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    world.peer.write_all(b"hello, host").unwrap();
    wait_readable(&fd);
    // Looked at, by either call; too small; and then taken, in several calls.
    let seen = world.frags(5, 9, RecvFlags::PEEK).unwrap();
    assert_eq!(seen.linear().unwrap().to_vec(), b"hello");
    assert_eq!(
        world.stream.peek(100, false, false).unwrap().unwrap().payload().len(),
        5,
        "so many were asked for"
    );
    assert_eq!(world.frags(5, 0, RecvFlags::empty()).unwrap_err().raw_os_error(), 525);
    assert_eq!(world.take(3, false).unwrap().unwrap(), b"hel");
    assert!(is_readable(&fd) && world.stream.readable_bytes() == 8);
    assert_eq!(world.frags(1, 9, RecvFlags::TRUNC).unwrap().len(), 1);
    assert_eq!(world.frags(100, 9, RecvFlags::empty()).unwrap().linear().unwrap().to_vec(), b"o");
    assert_eq!(world.take(100, true).unwrap().unwrap(), b", host");
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    assert!(!is_readable(&fd) && world.stream.readable_bytes() == 0);
    let counters = world.stream.counters();
    assert_eq!((counters.received.get(), counters.kernel_copied.get()), (11, 11));
    // So few are copied, and 15 of them once more by the views that were looked at here.
    assert_eq!(counters.user_copied_out.get(), 11 + 15);
    assert_eq!((world.counter("nic_linear_bytes"), world.counter("nic_frags")), (11, 0));
    // More than one buffer, while somebody waits for it.
    let long = vec![7; BUFFER + 5];
    std::thread::scope(|scope| {
        scope.spawn(|| world.peer.write_all(&long).unwrap());
        let mut got = 0;
        while got < long.len() {
            let frags = world.stream.recv_frags(usize::MAX, usize::MAX, RecvFlags::empty()).unwrap();
            assert!(frags.linear().unwrap().to_vec().iter().all(|byte| *byte == 7));
            got += frags.len();
        }
    });
    world.peer.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(world.frags(10, 9, RecvFlags::empty()).unwrap().is_empty());
    assert_eq!(world.take(10, false).unwrap(), None);
    assert!(is_readable(&fd));
}

#[test]
fn fragments_are_received_held_and_given_back() {
    let Some((world, script)) = World::scripted() else { return };
    world.memory.write_at(5000, &[std::io::IoSlice::new(b"by a NIC")]).unwrap();
    script.tells(&[Piece::Linear(2), frag(5000, 8, 41), frag(0, 100, 42), frag(100, 50, 43)]);
    // The host's come first, as they are the stream's first.
    assert_eq!(world.frags(1 << 20, 9, RecvFlags::empty()).unwrap().linear().unwrap().len(), 2);
    // What is a device's stays, for who cannot take it.
    for refused in [world.take(10, false).map(drop), world.stream.peek(10, false, false).map(drop)] {
        assert_eq!(refused.unwrap_err().raw_os_error(), 14);
    }
    let seen = world.frags(8, 9, RecvFlags::PEEK).unwrap();
    assert_eq!((seen.device()[0].offset, seen.device()[0].token), (5000, 0));
    let frags = world.frags(1 << 20, 2, RecvFlags::empty()).unwrap();
    let places: Vec<_> = frags.device().iter().map(|frag| (frag.offset, frag.len, frag.binding)).collect();
    assert_eq!(places, [(5000, 8, world.id), (0, 100, world.id)]);
    assert!(frags.device().iter().all(|frag| frag.token > 0));
    let mut tokens = frags.into_tokens();
    let hold = tokens[0].hold().unwrap();
    assert_eq!(hold.memory(), world.memory.id());
    let mut bytes = [0; 8];
    hold.copy_out(&mut bytes).unwrap();
    assert_eq!(&bytes, b"by a NIC");
    // The kernel's token goes back at once, when the last who has the fragment lets go.
    drop(tokens.pop());
    assert_eq!(script.returned(), [[(42, 1)]]);
    drop(tokens);
    assert!(script.returned().is_empty());
    drop(hold);
    assert_eq!(script.returned(), [[(41, 1)]]);
    // By number, as the program says; a chain, when it is dropped.
    let left = world.frags(10, 9, RecvFlags::empty()).unwrap().into_device();
    let tokens = world.stream.tokens().unwrap();
    assert_eq!(tokens.give_back(&[TokenRange::from(left[0])]), 1);
    assert!(script.returned().is_empty(), "40 bytes of it wait still");
    let how = Taking { dont_wait: false, before: false, device: true, least: usize::MAX };
    let chain = world.stream.take(100, how).unwrap().unwrap();
    assert_eq!(chain.payload().len(), 40);
    drop(chain);
    script.tells(&[frag(0, 7, 44)]);
    // Thrown away, they go back as well.
    assert_eq!(world.frags(100, 1, RecvFlags::TRUNC).unwrap().len(), 7);
    assert_eq!(script.returned(), [[(43, 1)], [(44, 1)]]);
    drop(world);
    assert_eq!(script.returned(), Vec::<Vec<_>>::new());
}

/// Nobody looks into it but the program: the kernel, which waits for pages, does not.
#[test]
fn what_is_pushed_to_a_ring_goes_back_with_the_push() {
    let Some((world, script)) = World::scripted() else { return };
    // Before there is anything to be given back.
    let mut ring = RefillRing::open(world.stream.device_tokens(), 8).unwrap();
    script.tells(&[frag(0, 10, 5), frag(10, 10, 6), frag(20, 10, 7)]);
    let frags = world.frags(100, 9, RecvFlags::empty()).unwrap().into_device();
    ring.push(frags[1].token);
    assert_eq!(script.returned(), [[(6, 1)]]);
    ring.push_all(&[frags[0], frags[1], frags[2]]);
    assert_eq!(script.returned(), [[(5, 1), (7, 1)]]);
    assert_eq!((ring.stats().taken, ring.stats().passed_over, ring.stats().starved), (4, 1, 2));
    // Until no NIC waits for pages any more.
    let other = DeviceMemory::opaque(16, DeviceId(2)).unwrap();
    let devices = &world.stack.kernel().unwrap().shared().devices;
    let second = devices.bind_pretended(&other, DMABUF + 1, &[2]);
    devices.unbind(world.id);
    script.tells(&[frag(0, 10, 8), frag(10, 10, 9)]);
    let frags = world.frags(100, 9, RecvFlags::empty()).unwrap().into_device();
    ring.push(frags[0].token);
    assert_eq!(script.returned(), [[(8, 1)]]);
    devices.unbind(second);
    ring.push(frags[1].token);
    assert!(script.returned().is_empty() && ring.stats().starved == 3);
    assert!(world.frags(100, 9, RecvFlags::DONTWAIT).unwrap_err().would_block());
    assert_eq!(script.returned(), [[(9, 1)]]);
}

#[test]
fn an_unbound_nic_s_connections_receive_what_there_is() {
    let Some((mut world, script)) = World::scripted() else { return };
    script.tells(&[frag(0, 10, 1)]);
    let frags = world.frags(10, 9, RecvFlags::empty()).unwrap();
    world.stack.kernel_devices().unwrap().unbind(world.id);
    // The ring has a look at it, and leaves what there is to the program's thread: it could not take what a NIC has placed.
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    world.peer.write_all(b"?").unwrap();
    wait_readable(&fd);
    // What had come before lies where it was, and tokens are as good as ever.
    script.tells(&[frag(10, 10, 2), Piece::Linear(4)]);
    let more = world.frags(100, 9, RecvFlags::empty()).unwrap();
    assert_eq!((frags.device()[0].offset, more.device()[0].offset), (0, 10));
    assert_eq!(world.frags(100, 9, RecvFlags::empty()).unwrap().linear().unwrap().len(), 4);
    drop((frags, more));
    assert_eq!(script.returned().concat(), [(1, 1), (2, 1)]);
}

#[test]
fn what_is_left_unread_resets_and_what_cannot_be_ends_the_connection() {
    let Some((world, script)) = World::scripted() else { return };
    let World { stream, mut peer, stack, .. } = world;
    script.tells(&[frag(0, 10, 1)]);
    assert_eq!(stream.recv_frags(5, 9, RecvFlags::empty()).unwrap().len(), 5);
    drop(stream);
    // As the kernel does to what it has: RFC 2525, section 2.17.
    assert_eq!(peer.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    drop(stack);
    assert_eq!(script.returned().concat(), [(1, 1)]);

    let Some((world, script)) = World::scripted() else { return };
    script.tells(&[frag(65536, 10, 1)]);
    let broken = world.frags(100, 9, RecvFlags::empty()).unwrap_err();
    assert!(broken.raw_os_error() == 71 && broken.reason().is_some(), "{broken}");
    assert_eq!(script.returned().concat(), [(1, 1)]);
}

#[test]
fn the_peer_of_a_closed_connection_gets_a_reset_while_somebody_has_a_fragment() {
    let Some(World { stream, mut peer, stack, .. }) = World::new() else { return };
    // As each fragment of it does.
    let held = Arc::clone(&stream.connection().fd);
    drop(stream);
    assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it was closed in order");
    peer.write_all(b"is anybody there?").unwrap();
    let hung_up = PollFlags::HUP | PollFlags::ERR;
    let patience = rustix::event::Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    let mut polled = [PollFd::new(&peer, hung_up)];
    assert_eq!(poll(&mut polled, Some(&patience)), Ok(1), "the kernel keeps what nobody will receive");
    assert!(polled[0].revents().contains(hung_up));
    assert_eq!(peer.write(b"!").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    drop((held, stack));
}

#[test]
fn an_error_behind_bytes_that_are_thrown_away_is_the_next_call_s() {
    let Some((world, script)) = World::scripted() else { return };
    script.tells(&[frag(0, 10, 1)]);
    script.fails(Errno::CONNRESET);
    assert_eq!(world.frags(100, 9, RecvFlags::TRUNC).unwrap().len(), 10);
    assert_eq!(world.frags(100, 9, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 104);
    assert!(world.frags(100, 9, RecvFlags::DONTWAIT).unwrap().is_empty(), "and once");

    // Bytes that are lost.
    let Some((world, script)) = World::scripted() else { return };
    script.tells(&[frag(0, 10, 1)]);
    script.tells(&[frag(65536, 10, 2)]);
    assert_eq!(world.frags(100, 9, RecvFlags::TRUNC).unwrap().len(), 10);
    assert_eq!(world.frags(100, 9, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 71);

    // What is of one call is no error of the connection.
    let Some((world, script)) = World::scripted() else { return };
    script.tells(&[frag(0, 10, 1)]);
    script.fails(Errno::NOMEM);
    script.tells(&[frag(10, 10, 2)]);
    assert_eq!(world.frags(100, 9, RecvFlags::TRUNC).unwrap().len(), 10);
    assert_eq!(world.frags(100, 9, RecvFlags::DONTWAIT).unwrap().len(), 10);
    // Likewise behind bytes that are taken, by a call that has some and looks for more.
    script.fails(Errno::CONNRESET);
    let how = Taking { dont_wait: false, before: true, device: false, least: usize::MAX };
    assert!(world.stream.take(10, how).unwrap().is_none());
    assert_eq!(world.take(10, false).unwrap_err().raw_os_error(), 104);
}

/// What a program keeps of one connection's stops that one alone; what it keeps of the binding's all of them.
#[test]
fn a_binding_starves_only_where_all_of_its_connections_do() {
    let Some((world, script)) = World::scripted() else { return };
    let event = || world.stack.kernel().unwrap().shared().devices.event(world.id);
    let each: Vec<_> = (0..256).map(|n| frag(u64::from(n), 1, 1 + n)).collect();
    script.tells(&each);
    let kept = world.frags(1000, 1000, RecvFlags::empty()).unwrap();
    assert_eq!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 105);
    assert_eq!(event(), None);
    // Nor does it say that another one starves no more.
    let Next::Device(landing, 1) = world.stream.next(&world.patience()).unwrap() else {
        panic!("it is bound")
    };
    landing.tell(true);
    assert_eq!(event(), Some(crate::carrier::Event::Starved));
    assert_eq!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 105);
    assert_eq!(event(), None);
    landing.tell(false);
    assert_eq!(event(), Some(crate::carrier::Event::Fed));
    drop(kept);
    let kept = [(); 64].map(|()| {
        script.tells(&[Piece::Linear(100_000)]);
        world.frags(100_000, 1, RecvFlags::empty()).unwrap()
    });
    assert_eq!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().raw_os_error(), 105);
    assert_eq!(event(), Some(crate::carrier::Event::Starved));
    drop(kept);
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    assert_eq!((event(), event()), (Some(crate::carrier::Event::Fed), None));
}

/// The NIC may put bytes there before it is known that it takes the memory, and until it has let go of it.
#[test]
fn a_connection_that_opens_while_a_nic_is_asked_waits_for_the_answer() {
    let Some(world) = World::new() else { return };
    let devices = &world.stack.kernel().unwrap().shared().devices;
    let is_decided = |stream: &Stream| stream.connection().decide(&mut stream.connection().lock());
    let memory = DeviceMemory::opaque(16, DeviceId(2)).unwrap();
    let mut opened = None;
    let id = devices.bind_pretended_behind(&memory, DMABUF + 1, &[2], || {
        let (stream, peer) = world.opened(2);
        assert!(!is_decided(&stream));
        assert!(stream.recv_frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
        // Others do not wait.
        assert!(is_decided(&world.opened(1).0));
        opened = Some((stream, peer));
    });
    let (stream, _peer) = opened.unwrap();
    let Next::Device(landing, 2) = stream.next(&world.patience()).unwrap() else { panic!("it is bound") };
    let held = landing.nic().unwrap().held();
    std::thread::scope(|scope| {
        let (unbinder, thread) = begun(scope, || devices.unbind(id));
        wait_asleep(thread);
        let (stream, mut peer) = world.opened(2);
        assert!(!is_decided(&stream));
        assert!(world.stack.bind_rx(&DeviceMemory::opaque(16, DeviceId(3)).unwrap(), &[2]).is_err());
        drop(held);
        unbinder.join().unwrap();
        peer.write_all(b"x").unwrap();
        assert!(matches!(stream.next(&world.patience()).unwrap(), Next::Host));
    });
}

/// What another thread does that has found nothing, or taken the last, while this one has received more and left some of it.
#[test]
fn a_rest_that_another_receive_has_left_is_neither_forgotten_nor_lost() {
    let Some((world, script)) = World::scripted() else { return };
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    script.tells(&[frag(0, 10, 1)]);
    assert_eq!(world.frags(4, 9, RecvFlags::empty()).unwrap().len(), 4);
    assert!(is_readable(&fd));
    world.stream.was_read(true);
    assert!(is_readable(&fd), "taken the last");
    let patience = Patience::new(world.stream.common(), true, None);
    assert!(world.stream.not_read(NotRead::Errno(Errno::AGAIN), &patience).is_err());
    assert!(is_readable(&fd), "found nothing");
    // And it is over.
    world.stream.connection().lock().fail(Errno::TIMEDOUT);
    world.stream.not_read(NotRead::Errno(Errno::AGAIN), &patience).unwrap();
    assert_eq!(world.frags(100, 9, RecvFlags::empty()).unwrap().len(), 6);
    assert_eq!(world.frags(100, 9, RecvFlags::empty()).unwrap_err().raw_os_error(), 110);
}

#[test]
fn what_a_fork_s_child_drops_is_its_parent_s() {
    onecopy_testing::alone!();
    let Some((world, script)) = World::scripted() else { return };
    script.tells(&[frag(0, 10, 1), frag(10, 10, 2)]);
    let frags = world.frags(10, 9, RecvFlags::empty()).unwrap();
    let mine = std::cell::RefCell::new(Some((world, frags)));
    let child = onecopy_sys::fork::child(|| {
        let Some((world, frags)) = mine.take() else { return 1 };
        drop(frags);
        if !world.frags(10, 9, RecvFlags::empty()).is_err_and(|error| error.raw_os_error() == 130) {
            return 2;
        }
        drop(world);
        // The socket is both processes': a token that went back would be the parent's.
        i32::from(!script.returned().is_empty()) * 3
    });
    assert_eq!(child.unwrap().wait(), onecopy_sys::fork::Ended::Returned(0));
    let (world, frags) = mine.take().unwrap();
    drop(frags);
    assert_eq!(script.returned(), [[(1, 1)]]);
    assert_eq!(world.frags(10, 9, RecvFlags::empty()).unwrap().device()[0].offset, 10);
}
