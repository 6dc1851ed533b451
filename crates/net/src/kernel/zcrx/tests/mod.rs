//! Connections whose bytes a ring tells of, over the loopback, with a test in the place of the ring and of the NIC: no machine of ours has one that can.

mod played;

use super::*;
use crate::carrier::tcp::{Connection as _, Endpoint as _, Options as _, Taking};
use crate::carrier::{Event, Frags, RefillRing, TokenRange};
use crate::kernel::connection::{Goes, Phase};
use crate::kernel::landing::NotRead;
use crate::kernel::placed::Calls;
use crate::kernel::socket::Stream;
use crate::kernel::submitter::For;
use crate::view::View;
use crate::{RecvFlags, Stack, Transport};
use onecopy_pool::DeviceId;
use onecopy_socket::Result;
use onecopy_sys::devmem::Control;
use onecopy_testing::LONG;
use onecopy_uring::zcrx::{End, Requests};
use played::{MORE, Played, Script};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

struct World {
    /// Goes before its stack, which waits for it.
    stream: Stream,
    peer: TcpStream,
    stack: Stack,
    memory: DeviceMemory,
    script: Arc<Mutex<Script>>,
    id: u32,
}

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|n| ((n * 31) >> 3) as u8).collect()
}

impl World {
    /// With memory of so many pages. None, and said why, where there is no io_uring.
    fn new(pages: u32) -> Option<World> {
        let stack = Stack::builder().transport(Transport::Kernel).build();
        let stack = stack.inspect_err(|why| println!("lacking: io_uring ({why})")).ok()?;
        stack.set_queues(2).unwrap();
        let memory = DeviceMemory::opaque(pages, DeviceId(1)).unwrap();
        let script: Arc<Mutex<Script>> = Arc::default();
        let (there, told) = (memory.clone(), Arc::clone(&script));
        let bound = Bound::start(None, move |wake| {
            let played = Played::new(there, wake, told);
            let refill = Arc::clone(&played.refill);
            Ok((played, refill))
        });
        let devices = &stack.kernel().unwrap().shared().devices;
        let id = devices.bind_pretended_by_ring(&memory, bound.unwrap_or_else(|why| panic!("{why:?}")), &[1]);
        let (stream, peer) = opened(&stack);
        Some(World { stream, peer, stack, memory, script, id })
    }

    fn frags(&self, n: usize, most: usize, flags: RecvFlags) -> Result<Frags> {
        self.stream.recv_frags(n, most, flags)
    }

    /// What fragments say, and what lies there.
    fn bytes(&self, frags: &Frags) -> Vec<u8> {
        let mut all = Vec::new();
        for frag in frags.device() {
            assert_eq!(frag.binding, self.id);
            let mut piece = vec![0; frag.len as usize];
            self.memory.read_at(frag.offset, &mut piece).unwrap();
            all.extend(piece);
        }
        all
    }

    /// Receives so many bytes, wherever they lie; how many of them were in the memory.
    fn all(&self, len: usize) -> (Vec<u8>, usize) {
        let (mut all, mut device) = (Vec::new(), 0);
        while all.len() < len {
            let frags = self.frags(len - all.len(), 1000, RecvFlags::empty()).unwrap();
            assert!(!frags.is_empty(), "the end, behind {}", all.len());
            match frags.linear() {
                Some(view) => all.extend(view.to_vec()),
                None => {
                    let bytes = self.bytes(&frags);
                    device += bytes.len();
                    all.extend(bytes);
                }
            }
        }
        (all, device)
    }

    fn counter(&self, name: &str) -> u64 {
        self.stack.link_counters().iter().find(|(known, _)| *known == name).unwrap().1
    }

    /// Waits until the kernel's side looks so.
    fn until(&self, what: &str, mut is: impl FnMut(&Script) -> bool) {
        let began = Instant::now();
        while !is(&self.script.lock()) {
            assert!(began.elapsed() < LONG, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn event(&self) -> Option<Event> {
        self.stack.kernel().unwrap().shared().devices.event(self.id)
    }
}

/// A connection that comes to the bound queue, and its peer.
fn opened(stack: &Stack) -> (Stream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    stack.steer(at, 1).unwrap();
    let peer = TcpStream::connect(at).unwrap();
    let fd = OwnedFd::from(listener.accept().unwrap().0);
    let settings = crate::kernel::options::begin(&fd, None).unwrap();
    let submitter = stack.kernel().unwrap().submitters().next(For::Made);
    let stream = Stream::new(submitter, fd, Phase::Open, false, settings);
    stream.common().settings().set_read_timeout(Some(LONG));
    stream.begin();
    // So that a receive that does not wait finds out.
    let began = Instant::now();
    while matches!(stream.connection().lock().goes, Goes::Undecided) {
        assert!(began.elapsed() < LONG, "nobody decides where it receives");
        thread::sleep(Duration::from_millis(1));
    }
    (stream, peer)
}

fn is_readable(fd: impl AsFd) -> bool {
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&NOW)).unwrap() > 0
}

fn wait_readable(fd: impl AsFd) {
    let patience = Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)), Ok(1));
}

#[test]
fn bytes_lie_in_the_memory_in_order_and_pages_go_back_by_the_ring() {
    let Some(world) = World::new(64) else { return };
    let sent = pattern(0, 1 << 20);
    let sender = world.peer.try_clone().unwrap();
    let (got, device) = thread::scope(|scope| {
        scope.spawn(|| (&sender).write_all(&sent).unwrap());
        world.all(sent.len())
    });
    assert!(got == sent);
    let script = world.script.lock();
    assert_eq!((device as u64, script.strange), (script.placed, 0));
    assert!(device > 0, "not all of it is the host's");
    drop(script);
    let linear = world.counter("nic_linear_bytes");
    assert_eq!(linear, (sent.len() - device) as u64);
    for name in ["nic_bytes", "nic_ring_bytes"] {
        assert_eq!(world.counter(name), device as u64, "{name}");
    }
    let counters = world.stream.counters();
    assert_eq!((counters.received.get(), counters.kernel_copied.get()), (sent.len() as u64, linear));
    // The end, again and again; and all pages are the kernel's.
    world.peer.shutdown(Shutdown::Both).unwrap();
    for _ in 0..2 {
        assert!(world.frags(10, 9, RecvFlags::empty()).unwrap().is_empty());
    }
    let placed = world.counter("nic_frags") as usize;
    // The kernel looks when something happens.
    let (other, _others_peer) = opened(&world.stack);
    assert!(other.recv_frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    world.until("all fragments are back", |script| script.back.len() == placed);
    assert_eq!(world.counter("nic_tokens_kept"), 0);
}

#[test]
fn fragments_are_looked_at_divided_thrown_away_and_given_back() {
    let Some(mut world) = World::new(64) else { return };
    assert!(world.frags(10, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    world.peer.write_all(&pattern(0, 100)).unwrap();
    let seen = world.frags(10, 9, RecvFlags::PEEK).unwrap();
    assert_eq!((world.bytes(&seen), seen.device()[0].token), (pattern(0, 10), 0));
    assert_eq!(world.frags(5, 0, RecvFlags::empty()).unwrap_err().raw_os_error(), 525);
    let how = Taking { dont_wait: false, before: false, device: false, least: usize::MAX };
    assert_eq!(world.stream.take(10, how).unwrap_err().raw_os_error(), 14, "no buffer gets it");
    let one = world.frags(30, 9, RecvFlags::empty()).unwrap().into_device();
    let two = world.frags(30, 9, RecvFlags::empty()).unwrap().into_device();
    assert_eq!((one[0].len, two[0].offset), (30, one[0].offset + 30), "a page is divided");
    assert_eq!(world.frags(15, 9, RecvFlags::TRUNC).unwrap().len(), 15);
    assert_eq!(world.stream.readable_bytes(), 25);
    let rest = world.frags(100, 9, RecvFlags::empty()).unwrap();
    assert_eq!(world.bytes(&rest), pattern(75, 25));
    drop(rest);
    let tokens = world.stream.device_tokens();
    assert_eq!(tokens.give_back(&[TokenRange { start: one[0].token, count: 1 }]), 1);
    assert!(world.script.lock().back.is_empty(), "the page is somebody's still");
    assert_eq!(tokens.give_back(&[TokenRange { start: two[0].token, count: 5 }]), 1);
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    // The kernel hears of it when it looks, without a call; here with the next thing that happens.
    world.peer.write_all(b"!").unwrap();
    world.until("it is back", |script| script.back == [(one[0].offset, 100)]);
    // A ring of the program's own gives back to that one.
    let frags = world.frags(10, 9, RecvFlags::empty()).unwrap().into_device();
    RefillRing::open(world.stream.device_tokens(), 8).unwrap().push_all(&frags);
    world.peer.write_all(b"!").unwrap();
    world.until("so is that", |script| script.back.len() == 2);
}

#[test]
fn a_program_that_does_not_receive_has_the_peer_wait() {
    let Some(world) = World::new(2048) else { return };
    let sent = pattern(0, 6 << 20);
    let sender = world.peer.try_clone().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| (&sender).write_all(&sent).unwrap());
        let first = world.frags(1, 1, RecvFlags::empty()).unwrap();
        assert_eq!(world.bytes(&first), sent[..1]);
        // It is over with so many bytes, and nobody asks for more.
        world.until("a MiB has come", |script| script.placed >= 1 << 20);
        let placed = world.script.lock().placed;
        assert!((1 << 20..(1 << 20) + 4096).contains(&placed), "{placed}");
        assert_eq!(world.script.lock().asked, [1 << 20]);
        drop(first);
        let (rest, device) = world.all(sent.len() - 1);
        assert!(rest == sent[1..] && device == rest.len());
    });
    let asked = &world.script.lock().asked;
    assert!(asked.iter().all(|most| (1..=1 << 20).contains(most)), "{asked:?}");
}

#[test]
fn bytes_that_find_no_page_are_the_host_s_until_there_is_one() {
    let Some(mut world) = World::new(16) else { return };
    world.peer.write_all(&pattern(0, 16 * 4096)).unwrap();
    // All of the memory's pages.
    let mut kept = Vec::new();
    while kept.iter().map(Frags::len).sum::<usize>() < 16 * 4096 {
        kept.push(world.frags(1 << 20, 100, RecvFlags::empty()).unwrap());
    }
    assert!(kept.iter().all(|frags| frags.linear().is_none()));
    world.peer.write_all(&pattern(0, 5000)).unwrap();
    let (got, device) = world.all(5000);
    assert_eq!((got == pattern(0, 5000), device), (true, 0));
    assert_eq!(world.event(), None, "nothing waits for a page");
    drop(kept);
    // That took all there was, so the next bytes find one.
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    world.peer.write_all(&pattern(0, 100)).unwrap();
    assert_eq!(world.all(100), (pattern(0, 100), 100));
}

#[test]
fn bytes_that_cannot_be_brought_there_are_the_host_s() {
    let Some(mut world) = World::new(16) else { return };
    world.script.lock().refuses = Some(Errno::FAULT);
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    world.peer.write_all(&pattern(0, 5000)).unwrap();
    wait_readable(&fd);
    let (got, device) = world.all(5000);
    assert_eq!((got == pattern(0, 5000), device), (true, 0));
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    assert_eq!(world.counter("nic_linear_bytes"), 5000);
    // The next ones are.
    world.script.lock().refuses = None;
    world.peer.write_all(&pattern(0, 100)).unwrap();
    wait_readable(&fd);
    let (got, device) = world.all(100);
    assert_eq!((got == pattern(0, 100), device), (true, 100));
}

/// The kernel's own words to a socket, which no socket here says: what is next lies where only a ring tells of it.
#[test]
fn bytes_that_neither_way_brings_wait_for_a_page_or_say_why() {
    let Some(world) = World::new(16) else { return };
    let Goes::Device(landing, _) = &world.stream.connection().lock().goes else {
        panic!("its rule names the queue")
    };
    let hub = Arc::clone(landing.nic().unwrap().hub().unwrap());
    let flow = |end| {
        let flow = Flow::new(&hub, &world.stream.connection().fd, || {});
        assert!(flow.has_ended(end));
        flow
    };
    let fault = || Err(Errno::FAULT);
    // A page is waited for, and then the ring is asked again.
    let starves = flow(End::NoPage);
    let starved = starves.has_come_as_any(fault(), 10, Some(Errno::NOMEM));
    assert!(matches!(starved, Err(NotRead::Starved)) && !Calls::is_readable(&starves));
    let elsewhere = flow(End::Elsewhere);
    let untold = elsewhere.has_come_as_any(fault(), 10, Some(Errno::FAULT));
    assert!(matches!(untold, Err(NotRead::Untold(Errno::FAULT))));
    // Behind something that it has brought the ring's turn has come.
    let goes_on = flow(End::Elsewhere);
    assert!(Calls::is_readable(&goes_on));
    assert_eq!(goes_on.has_come_as_any(Ok(10), 10, Some(Errno::FAULT)).ok().unwrap().bytes, 10);
    let next = goes_on.has_come_as_any(fault(), 10, Some(Errno::FAULT));
    assert!(matches!(next, Err(NotRead::Coming)) && !Calls::is_readable(&goes_on));
    // Without a ring nobody tells of it any more.
    let gone = flow(End::Again);
    gone.is_gone();
    assert!(matches!(gone.has_come_as_any(fault(), 10, None), Err(NotRead::Lost)));
    assert!(matches!(gone.has_come_as_any(Ok(0), 10, None), Ok(received) if received.bytes == 0));
}

#[test]
fn a_receive_that_the_kernel_gives_up_begins_again() {
    let Some(mut world) = World::new(16) else { return };
    // No room for completions, a signal; each as the next thing that it says.
    for errno in [Errno::NOSPC, Errno::INTR, Errno::AGAIN, Errno::CANCELED] {
        world.script.lock().says.push_back((-errno.raw_os_error(), 0, 0));
        world.peer.write_all(&pattern(0, 5000)).unwrap();
        let (got, device) = world.all(5000);
        assert_eq!((got == pattern(0, 5000), device), (true, 5000), "{errno}");
    }
    // What the socket says ends the connection, once.
    world.script.lock().says.push_back((-104, 0, 0));
    world.peer.write_all(b"!").unwrap();
    assert_eq!(world.frags(1, 1, RecvFlags::empty()).unwrap_err().raw_os_error(), 104);
    assert!(world.frags(1, 1, RecvFlags::empty()).unwrap().is_empty());
}

#[test]
fn whoever_polls_hears_of_what_the_socket_does_not_tell_of() {
    let Some(mut world) = World::new(16) else { return };
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    assert!(!is_readable(&fd));
    for n in 0..3 {
        assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
        world.peer.write_all(&pattern(n, 100)).unwrap();
        wait_readable(&fd);
        // Once it is in the memory, too.
        world.until("it is there", |script| script.placed == (n as u64 + 1) * 100);
        let (got, device) = world.all(40);
        assert!(got == pattern(n, 40) && device == 40 && is_readable(&fd));
        assert_eq!(world.all(60), (pattern(n + 40, 60), 60));
    }
    world.peer.shutdown(Shutdown::Write).unwrap();
    wait_readable(&fd);
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap().is_empty() && is_readable(&fd));
}

#[test]
fn completions_that_cannot_be_end_their_connection_and_nothing_else() {
    for (result, flags, off) in [
        (1, MORE, 16 * 4096),
        (4097, MORE, 15 * 4096),
        (i32::MAX, MORE, 0),
        (1, MORE, 1 << 48),
        (1, MORE, u64::MAX),
        (0, MORE, 0),
        (1, 0, 0),
        (i32::MIN, 0, 0),
    ] {
        let Some(mut world) = World::new(16) else { return };
        let (other, mut others_peer) = opened(&world.stack);
        world.peer.write_all(&pattern(0, 5000)).unwrap();
        let first = world.frags(10, 9, RecvFlags::empty()).unwrap();
        assert_eq!(world.bytes(&first), pattern(0, 10));
        world.script.lock().says.push_back((result, flags, off));
        world.peer.write_all(&pattern(5000, 100)).unwrap();
        // What had come before is received before.
        let (rest, _) = world.all(4990);
        assert!(rest == pattern(10, 4990));
        let broken = world.frags(100, 9, RecvFlags::empty()).unwrap_err();
        assert!(broken.raw_os_error() == 71 && broken.reason().is_some(), "{broken}");
        world.until("its receive is over", |script| script.active == 0);
        // Fragments of it are as good as before; the other connection goes on.
        assert_eq!(world.bytes(&first), pattern(0, 10));
        others_peer.write_all(&pattern(0, 100)).unwrap();
        let frags = other.recv_frags(100, 9, RecvFlags::empty()).unwrap();
        assert_eq!(world.bytes(&frags), pattern(0, 100));
        assert_eq!(world.script.lock().strange, 0, "no page goes back that was not somebody's");
    }
}

#[test]
fn a_closed_connection_s_fragments_stay_and_what_it_left_goes_back() {
    let Some(mut world) = World::new(16) else { return };
    world.peer.write_all(&pattern(0, 3 * 4096)).unwrap();
    let kept = world.frags(4096, 1, RecvFlags::empty()).unwrap();
    let hold = world.stream.device_tokens().hold(kept.device()[0].token).unwrap();
    world.until("all of it has come", |script| script.placed == 3 * 4096);
    let (next, _next_peer) = opened(&world.stack);
    drop(std::mem::replace(&mut world.stream, next));
    // With something unread: RFC 2525, section 2.17.
    assert_eq!(world.peer.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    world.until("what was unread is back", |script| script.back.len() == 2);
    world.until("its receive is over", |script| script.active == 0);
    assert_eq!(world.bytes(&kept), pattern(0, 4096));
    drop(hold);
    assert!(world.frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    world.until("so is that", |script| script.back.len() == 3 && script.strange == 0);
}

#[test]
fn what_had_come_to_a_binding_that_ends_is_received_and_what_comes_is_the_host_s() {
    let Some(mut world) = World::new(1024) else { return };
    world.peer.write_all(&pattern(0, 100)).unwrap();
    let kept = world.frags(10, 1, RecvFlags::empty()).unwrap();
    // Of a second one, which receives nothing now, more than may wait.
    let (second, second_peer) = opened(&world.stack);
    assert!(second.recv_frags(1, 1, RecvFlags::DONTWAIT).unwrap_err().would_block());
    let sent = pattern(0, 2 << 20);
    thread::scope(|scope| {
        scope.spawn(|| (&second_peer).write_all(&sent).unwrap());
        world.until("a MiB has come", |script| script.placed >= 1 << 20);
        world.stack.kernel_devices().unwrap().unbind(world.id);
        // All that was there was asked for before.
        assert!(world.script.lock().asked.contains(&0));
        let mut got = Vec::new();
        while got.len() < sent.len() {
            let frags = second.recv_frags(1 << 20, 1000, RecvFlags::empty()).unwrap();
            match frags.linear() {
                Some(view) => got.extend(view.to_vec()),
                None => got.extend(world.bytes(&frags)),
            }
        }
        assert!(got == sent);
    });
    let fd = world.stream.fd().unwrap().try_clone_to_owned().unwrap();
    assert!(is_readable(&fd));
    assert_eq!(world.all(90), (pattern(10, 90), 90));
    world.peer.write_all(b"ordinary").unwrap();
    wait_readable(&fd);
    assert_eq!(world.all(8), (b"ordinary".to_vec(), 0));
    assert_eq!((world.bytes(&kept), world.counter("nic_tokens_kept")), (pattern(0, 10), 0));
    // One that has never received does so as any.
    drop((kept, second));
    world.peer.shutdown(Shutdown::Write).unwrap();
    assert!(world.frags(1, 1, RecvFlags::empty()).unwrap().is_empty());
    let World { stream, memory, stack, .. } = world;
    drop((stream, stack));
    assert_eq!(memory.free(), memory.len(), "its pages are anybody's again");
}

#[test]
fn a_ring_that_fails_tells_whoever_waits() {
    let Some(world) = World::new(16) else { return };
    thread::scope(|scope| {
        let waits = scope.spawn(|| world.frags(1, 1, RecvFlags::empty()).map(drop));
        world.until("it waits", |script| script.asked.len() == 1);
        world.script.lock().fails = true;
        (&world.peer).write_all(b"!").unwrap();
        // What the receive has taken nobody knows.
        assert_eq!(waits.join().unwrap().unwrap_err().raw_os_error(), 103);
    });
    // Who begins behind that receives as any.
    let (next, mut next_peer) = opened(&world.stack);
    next_peer.write_all(b"ordinary").unwrap();
    let frags = next.recv_frags(100, 9, RecvFlags::empty()).unwrap();
    assert_eq!(frags.linear().map(View::to_vec).unwrap(), b"ordinary");
}

/// A ring that tells of what a test has told it.
struct Tells(Vec<Arrival>);

impl Rx for Tells {
    fn receive(&mut self, _: &Arc<OwnedFd>, _: u64, _: u32) -> Key {
        panic!("nobody asks")
    }
    fn cancel(&mut self, _: Key) {
        panic!("nothing is under way")
    }
    fn wait(&mut self, _: Option<Duration>) -> std::io::Result<bool> {
        Ok(false)
    }
    fn event(&mut self) -> Option<Arrival> {
        self.0.pop()
    }
}

#[test]
fn what_comes_for_a_connection_that_is_gone_goes_back_at_once() {
    let (wake, refill) = (Arc::new(EventFd::new().unwrap()), Arc::new(Refill::pretended(8)));
    let hub = Hub { inbox: Mutex::default(), wake, refill, names: AtomicU64::new(0) };
    let hub = Arc::new(hub);
    let fd = Arc::new(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
    let flow = Flow::new(&hub, &fd, || {});
    Calls::close(&flow);
    let mut running =
        Running { hub: &hub, flows: HashMap::from([(flow.token(), Arc::clone(&flow))]), told: Vec::new() };
    let placed = |token, at| Arrival::Placed { token, at, len: 10 };
    let unwanted = Arrival::Unwanted { at: 8192, len: 10 };
    assert!(running.look(&mut Tells(vec![unwanted, placed(flow.token(), 4096), placed(99, 0)]), None));
    assert_eq!(hub.refill.taken(9), [[0, 10], [4096, 10], [8192, 10]]);
    assert!(running.flows.is_empty() && running.told.is_empty());
}

/// A ring that notes what it is asked for.
struct Notes {
    requests: Requests,
    cancelled: Vec<Key>,
}

impl Rx for Notes {
    fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        self.requests.begin(fd, token, most)
    }
    fn cancel(&mut self, key: Key) {
        self.cancelled.push(key);
    }
    fn wait(&mut self, _: Option<Duration>) -> std::io::Result<bool> {
        panic!("nobody waits")
    }
    fn event(&mut self) -> Option<Arrival> {
        None
    }
}

#[test]
fn a_receive_is_cancelled_once_for_many_fragments_and_for_a_close() {
    let (wake, refill) = (Arc::new(EventFd::new().unwrap()), Arc::new(Refill::pretended(8)));
    let hub = Arc::new(Hub { inbox: Mutex::default(), wake, refill, names: AtomicU64::new(0) });
    let fd = Arc::new(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
    let mut ring = Notes { requests: Requests::new(4096, 0), cancelled: Vec::new() };
    let many = Flow::new(&hub, &fd, || {});
    many.turn(&mut ring, true);
    for n in 1..1200 {
        assert!(many.has_come(0, 1, &mut ring));
        assert_eq!(ring.cancelled.len(), usize::from(n >= 1024), "{n}");
    }
    let closed = Flow::new(&hub, &fd, || {});
    closed.turn(&mut ring, true);
    closed.turn(&mut ring, false);
    assert_eq!(ring.cancelled.len(), 1);
    Calls::close(&closed);
    for _ in 0..2 {
        closed.turn(&mut ring, false);
        assert!(ring.cancelled.len() == 2 && !closed.is_forgotten(), "its last word comes yet");
    }
    assert!(!closed.has_ended(End::Cancelled) && closed.is_forgotten());
}

#[test]
fn fragments_that_find_no_room_go_back_when_there_is_some() {
    let Some(mut world) = World::new(256) else { return };
    // More of them than the refill ring has entries.
    let mut kept = Vec::new();
    for n in 0..100 {
        world.peer.write_all(b"!").unwrap();
        kept.push(world.frags(1, 1, RecvFlags::empty()).unwrap());
        assert_eq!((kept[n].device().len(), world.script.lock().back.len()), (1, 0));
    }
    world.until("its thread waits", |script| script.active == 1);
    drop(kept);
    world.stream.device_tokens().give_back(&[]);
    // Nothing else happens.
    world.until("all are back", |script| script.back.len() >= 64);
    assert_eq!(world.script.lock().strange, 0);
}

#[test]
fn who_asks_while_the_binding_ends_is_answered() {
    let (wake, refill) = (Arc::new(EventFd::new().unwrap()), Arc::new(Refill::pretended(8)));
    let hub = Arc::new(Hub { inbox: Mutex::default(), wake, refill, names: AtomicU64::new(0) });
    let fd = Arc::new(OwnedFd::from(TcpListener::bind("127.0.0.1:0").unwrap()));
    let flow = Flow::new(&hub, &fd, || {});
    let asks = thread::spawn(move || flow.recv(&mut [0; 10], 1, &mut Control::default()).is_err());
    let began = Instant::now();
    while hub.inbox.lock().wanting.is_empty() {
        assert!(began.elapsed() < LONG, "it asks");
        thread::sleep(Duration::from_millis(1));
    }
    hub.inbox.lock().stop = true;
    hub.run(Ends(Requests::new(4096, 0)));
    while !asks.is_finished() {
        assert!(began.elapsed() < LONG, "it is answered");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(asks.join().unwrap(), "a socket that listens has nothing to receive");
}

/// A ring of which each receive is over at once.
struct Ends(Requests);

impl Rx for Ends {
    fn receive(&mut self, fd: &Arc<OwnedFd>, token: u64, most: u32) -> Key {
        let key = self.0.begin(fd, token, most);
        self.0.complete(key.user_data(), -Errno::AGAIN.raw_os_error(), 0, [0; 2]);
        key
    }
    fn cancel(&mut self, _: Key) {}
    fn wait(&mut self, _: Option<Duration>) -> std::io::Result<bool> {
        Ok(false)
    }
    fn event(&mut self) -> Option<Arrival> {
        self.0.event()
    }
}

#[test]
fn a_forks_child_leaves_the_ring_to_its_parent() {
    let (wake, refill) = (Arc::new(EventFd::new().unwrap()), Arc::new(Refill::pretended(8)));
    let hub = Arc::new(Hub { inbox: Mutex::default(), wake, refill, names: AtomicU64::new(0) });
    let thread = Some(thread::spawn(|| {}));
    // A queue of an interface that there is not would be known to be let go.
    let bound = Bound { hub, thread, queue: Some((u32::MAX >> 1, 0)), pid: std::process::id() + 1 };
    assert!(!bound.end());
}

#[test]
fn a_ring_that_cannot_be_made_says_so() {
    let made = Bound::start::<Played>(None, |_| Err(NotMade::Refused(Errno::EXIST)));
    assert!(matches!(made, Err(NotMade::Refused(Errno::EXIST))));
}
