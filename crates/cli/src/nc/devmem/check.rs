//! `--check`: what device memory has to refuse, by the kernel's errno, and what has to work; each on memory, queues and connections of
//! its own. (run_devmem_tests() of ncdevmem.c, and the cases of tools/testing/selftests/drivers/net/hw/devmem.py.)

use super::super::Args;
use super::peer::{Door, Far, PATIENCE, Peer};
use super::send::ranges;
use anyhow::{Context, ensure};
use onecopy::advanced::pool::provider::Opaque;
use onecopy::advanced::pool::{DeviceId, DeviceMemory, PoolConfig};
use onecopy::devmem::{Binding, Frag, TokenRange, TxRange};
use onecopy::{RecvFlags, Result as Call, Stack, Transport, tcp};
use serde_json::{Value, json};
use std::fmt::Debug;
use std::io::{IoSlice, Read};
use std::net::{SocketAddr, TcpListener};

/// Pages of a scenario's memory.
const PAGES: u32 = 256;

/// What one scenario came to.
struct Outcome {
    name: &'static str,
    /// What was seen, or what was wrong.
    said: Result<String, String>,
}

/// All that a scenario uses.
struct Scene {
    stack: Stack,
    peer: Peer,
}

type Scenario = (&'static str, fn(&Scene) -> anyhow::Result<String>);

/// In the order they run.
const SCENARIOS: &[Scenario] = &[
    ("bind without a queue", |scene| scene.no_bind(&[], (22, "rx_no_queue"))),
    ("bind to a queue that is not there", |scene| scene.no_bind(&[1, 7], (34, "rx_no_such_queue"))),
    ("bind to one queue twice", |scene| scene.no_bind(&[1, 1], (17, "rx_bound"))),
    ("bind all queues", |scene| scene.no_bind(&[0, 1, 2], (22, "rx_none_left"))),
    ("bind with headers not split", no_split),
    ("bind memory that is too small", small),
    ("bind memory of larger pages", large_pages),
    ("bind a queue that is bound", bound),
    ("deactivate a bound queue", deactivate),
    ("switch header split off while bound", split_off),
    ("bind memory that is sent from", sent_from),
    ("receive without the flag", no_flag),
    ("receive without room for a fragment", no_room),
    ("look, and throw away: no tokens", peek_and_throw),
    ("tokens that are unknown, returned or another socket's", bad_tokens),
    ("the limits of giving back", limits),
    ("send what is not inside of the memory", outside),
    ("send from a binding of another stack", foreign),
    ("bind two queues, a flow to each", two_queues),
    ("unbind with fragments outstanding", unbind),
    ("headers are split off from 1 byte to 8 KiB", sweep),
    ("send whole lines", |scene| lines(scene, None)),
    ("send in chunks of 3 bytes", |scene| lines(scene, Some(3))),
    ("send over the kernel's TCP", kernel),
];

/// Runs all of them, and tells each.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let scene = Scene::new(args)?;
    let mut outcomes = Vec::new();
    if !args.json {
        crate::terminal::print(&format!(
            "device memory: {}\npeer: {}\n",
            super::report::STAND_IN,
            scene.peer.name()
        ))?;
    }
    for (name, scenario) in SCENARIOS {
        scene.reset().with_context(|| format!("before {name:?}"))?;
        let said = scenario(&scene).map_err(|error| format!("{error:#}"));
        if !args.json {
            let (mark, said) = match &said {
                Ok(said) => ("ok", said),
                Err(why) => ("FAIL", why),
            };
            crate::terminal::print(&format!("{mark:<5}{name}: {said}\n"))?;
        }
        outcomes.push(Outcome { name, said });
    }
    let failed = outcomes.iter().filter(|outcome| outcome.said.is_err()).count();
    if args.json {
        crate::terminal::print(&format!("{}\n", object(&scene, &outcomes)))?;
    }
    ensure!(
        failed == 0,
        "{failed} of {} checks failed; that is a fault of the stack: please report it, with these lines",
        outcomes.len()
    );
    Ok(())
}

fn object(scene: &Scene, outcomes: &[Outcome]) -> Value {
    let checks = outcomes.iter().map(|outcome| {
        let (ok, said) = match &outcome.said {
            Ok(said) => (true, said),
            Err(why) => (false, why),
        };
        json!({"check": outcome.name, "ok": ok, "said": said})
    });
    json!({"devmem": "opaque", "stand_in": true, "about": super::report::STAND_IN, "peer": scene.peer.name(), "checks": checks.collect::<Vec<_>>()})
}

/// That a call was refused as it should be.
fn refused<T: Debug>(call: Call<T>, errno: i32) -> anyhow::Result<String> {
    let error = match call {
        Ok(done) => anyhow::bail!("it was not refused: {done:?}"),
        Err(error) => error,
    };
    ensure!(
        error.raw_os_error() == errno,
        "it was refused by {}, not by {errno}: {error}",
        error.raw_os_error()
    );
    ensure!(error.reason().is_some(), "the error does not say what to do: {error}");
    Ok(format!("refused: {error}"))
}

/// The same, and that it moved one counter of that stack's by one, and no other.
fn counted<T: Debug>(
    stack: &Stack,
    (errno, counter): (i32, &str),
    call: impl FnOnce() -> Call<T>,
) -> anyhow::Result<String> {
    let before = stack.device_refusals();
    let said = refused(call(), errno)?;
    let both = before.each().zip(stack.device_refusals().each());
    let moved: Vec<(&str, u64)> =
        both.map(|((name, before), (_, now))| (name, now - before)).filter(|(_, by)| *by > 0).collect();
    ensure!(moved == [(counter, 1)], "it moved the counters {moved:?}, not {counter} by 1");
    Ok(format!("{said} (counted: {counter})"))
}

fn memory(pages: u32) -> anyhow::Result<DeviceMemory> {
    Ok(DeviceMemory::opaque(pages, DeviceId(0))?)
}

/// Bytes that differ from their neighbours.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// What lies in fragments.
fn read(memory: &DeviceMemory, frags: &[Frag]) -> anyhow::Result<Vec<u8>> {
    let mut all = Vec::new();
    for frag in frags {
        let at = all.len();
        all.resize(at + frag.len as usize, 0);
        memory.read_at(frag.offset, &mut all[at..])?;
    }
    Ok(all)
}

/// Receives `len` bytes, all of them in the device's memory; their fragments are the caller's.
fn receive(stream: &tcp::Stream, len: usize) -> anyhow::Result<Vec<Frag>> {
    let (mut all, mut got) = (Vec::new(), 0);
    while got < len {
        let frags = stream.recv_frags(len - got)?;
        ensure!(!frags.is_empty(), "the stream ended after {got} of {len} bytes");
        ensure!(
            frags.linear().is_none(),
            "{} bytes came that were not split from their headers",
            frags.len()
        );
        got += frags.len();
        all.extend(frags.into_device());
    }
    Ok(all)
}

fn tokens(frags: &[Frag]) -> Vec<TokenRange> {
    frags.iter().map(|frag| (*frag).into()).collect()
}

fn give_back(stream: &tcp::Stream, frags: &[Frag]) -> anyhow::Result<()> {
    for part in tokens(frags).chunks(128) {
        let freed = stream.dont_need(part)?;
        ensure!(freed == part.len(), "{freed} of {} tokens were taken back", part.len());
    }
    Ok(())
}

/// Memory that is bound to queue 1, and a connection to it.
struct Flow {
    memory: DeviceMemory,
    binding: Binding,
    far: Far,
    near: tcp::Stream,
}

impl Scene {
    fn new(args: &Args) -> anyhow::Result<Scene> {
        if !args.own.is_some() {
            let (near, far) = super::cable()?;
            return Ok(Scene { stack: far, peer: Peer::Stack(near) });
        }
        let kernel = args.own.kernel_address()?;
        let (stack, _, about) = args.own.open_named()?.context("--tap was looked for before")?;
        if args.verbose {
            tell!("onecopy nc: {about}");
        }
        Ok(Scene { stack, peer: Peer::Kernel(kernel) })
    }

    /// Three queues, nothing steered.
    fn reset(&self) -> anyhow::Result<()> {
        for port in 0..2 {
            self.stack.unsteer(self.port(port)?);
        }
        self.stack.set_header_split(true)?;
        Ok(self.stack.set_queues(3)?)
    }

    /// Where a flow comes to.
    fn port(&self, number: u16) -> anyhow::Result<SocketAddr> {
        let own = self.stack.addresses();
        let own = own.first().context("the stack has no address")?;
        Ok(SocketAddr::new(own.address(), 5201 + number))
    }

    /// Binds memory to queues, which is refused and counted.
    fn no_bind(&self, queues: &[u32], how: (i32, &str)) -> anyhow::Result<String> {
        self.no_bind_of(&memory(PAGES)?, queues, how)
    }

    fn no_bind_of(&self, memory: &DeviceMemory, queues: &[u32], how: (i32, &str)) -> anyhow::Result<String> {
        let said = counted(&self.stack, how, || self.stack.bind_rx(memory, queues))?;
        ensure!(memory.free() == memory.len(), "what was refused has taken pages of the memory");
        Ok(said)
    }

    fn flow(&self) -> anyhow::Result<Flow> {
        let memory = memory(PAGES)?;
        self.stack.steer(self.port(0)?, 1)?;
        let binding = self.stack.bind_rx(&memory, &[1])?;
        let (far, near) = self.connect(0)?;
        Ok(Flow { memory, binding, far, near })
    }

    fn connect(&self, port: u16) -> anyhow::Result<(Far, tcp::Stream)> {
        let listener = tcp::Listener::bind(&self.stack, self.port(port)?)?;
        let far = self.peer.connect(listener.local_addr()?)?;
        listener.set_accept_timeout(Some(PATIENCE))?;
        let (near, _) = listener.accept()?;
        near.set_read_timeout(Some(PATIENCE))?;
        near.set_write_timeout(Some(PATIENCE))?;
        Ok((far, near))
    }
}

fn no_split(scene: &Scene) -> anyhow::Result<String> {
    scene.stack.set_header_split(false)?;
    scene.no_bind(&[1], (22, "rx_not_split"))
}

fn small(scene: &Scene) -> anyhow::Result<String> {
    scene.no_bind_of(&memory(15)?, &[1], (22, "rx_too_small"))
}

fn large_pages(scene: &Scene) -> anyhow::Result<String> {
    let large = DeviceMemory::new(PoolConfig::new().order(1).limit(PAGES), Opaque::new(DeviceId(0)))?;
    scene.no_bind_of(&large, &[1], (7, "rx_page_size"))
}

fn bound(scene: &Scene) -> anyhow::Result<String> {
    let _first = scene.stack.bind_rx(&memory(PAGES)?, &[1])?;
    scene.no_bind(&[1], (17, "rx_bound"))
}

fn deactivate(scene: &Scene) -> anyhow::Result<String> {
    let _first = scene.stack.bind_rx(&memory(PAGES)?, &[1])?;
    refused(scene.stack.set_queues(1), 22)
}

fn split_off(scene: &Scene) -> anyhow::Result<String> {
    let _first = scene.stack.bind_rx(&memory(PAGES)?, &[1])?;
    refused(scene.stack.set_header_split(false), 22)
}

fn sent_from(scene: &Scene) -> anyhow::Result<String> {
    let memory = memory(PAGES)?;
    let first = scene.stack.bind_tx(&memory)?;
    let said = counted(&scene.stack, (16, "rx_busy"), || scene.stack.bind_rx(&memory, &[1]))?;
    drop(first);
    let _second = scene.stack.bind_rx(&memory, &[1])?;
    counted(&scene.stack, (16, "tx_busy"), || scene.stack.bind_tx(&memory))?;
    Ok(said)
}

fn no_flag(scene: &Scene) -> anyhow::Result<String> {
    let mut flow = scene.flow()?;
    let data = pattern(5000);
    flow.far.send(&data)?;
    let mut buffer = [0; 100];
    let said = refused(flow.near.recv(&mut buffer), 14)?;
    let frags = receive(&flow.near, data.len())?;
    ensure!(read(&flow.memory, &frags)? == data, "what was refused is not what came afterwards");
    give_back(&flow.near, &frags)?;
    Ok(said)
}

fn no_room(scene: &Scene) -> anyhow::Result<String> {
    let mut flow = scene.flow()?;
    flow.far.send(b"bytes")?;
    let said = refused(flow.near.recv_frags_with_flags(100, 0, RecvFlags::empty()), 525)?;
    give_back(&flow.near, &receive(&flow.near, 5)?)?;
    Ok(said)
}

fn peek_and_throw(scene: &Scene) -> anyhow::Result<String> {
    let mut flow = scene.flow()?;
    flow.far.send(&pattern(3000))?;
    let seen = flow.near.recv_frags_with_flags(100, usize::MAX, RecvFlags::PEEK)?;
    ensure!(seen.device().iter().all(|frag| frag.token == 0), "what was only looked at has tokens: {seen:?}");
    let mut thrown = 0;
    while thrown < 3000 {
        let gone = flow.near.recv_frags_with_flags(3000 - thrown, usize::MAX, RecvFlags::TRUNC)?;
        ensure!(gone.device().is_empty() && !gone.is_empty(), "{gone:?} was not thrown away");
        thrown += gone.len();
    }
    ensure!(flow.near.tokens_held() == 0, "{} tokens are out", flow.near.tokens_held());
    Ok(format!("{} bytes looked at, {thrown} thrown away, no token out", seen.len()))
}

fn bad_tokens(scene: &Scene) -> anyhow::Result<String> {
    let (mut flow, before) = (scene.flow()?, scene.stack.device_refusals());
    flow.far.send(&pattern(5000))?;
    let frags = receive(&flow.near, 5000)?;
    let (_other_far, other) = scene.connect(0)?;
    ensure!(other.dont_need(&tokens(&frags))? == 0, "another socket's tokens were taken back");
    let unknown = TokenRange { start: 1 << 30, count: 100 };
    ensure!(flow.near.dont_need(&[unknown])? == 0, "tokens were taken back that nobody was given");
    give_back(&flow.near, &frags)?;
    ensure!(flow.near.dont_need(&tokens(&frags))? == 0, "tokens were taken back twice");
    let (after, n) = (scene.stack.device_refusals(), frags.len() as u64);
    let moved = (after.tokens_unknown - before.tokens_unknown, after.tokens_stale - before.tokens_stale);
    ensure!(
        moved == (n + 100, n),
        "of {} unknown and {n} stale tokens {} and {} were counted",
        n + 100,
        moved.0,
        moved.1
    );
    let free = flow.memory.free() + u64::from(flow.memory.page_len());
    ensure!(free >= flow.memory.len(), "pages of the memory are not home");
    Ok(format!("passed over and counted; the {n} that were right were taken back once"))
}

fn limits(scene: &Scene) -> anyhow::Result<String> {
    let flow = scene.flow()?;
    let many = [TokenRange { start: 1, count: 1 }; 129];
    let how = (22, "token_calls");
    let said = counted(&scene.stack, how, || flow.near.dont_need(&many))?;
    counted(&scene.stack, how, || flow.near.dont_need_bytes(&[0; 7]))?;
    // 1,024 are looked at, those that are not there among them: the right one behind them is not reached.
    let mut flow = flow;
    flow.far.send(b"bytes")?;
    let frags = receive(&flow.near, 5)?;
    let behind = [TokenRange { start: 1 << 30, count: 1024 }, frags[0].into()];
    ensure!(flow.near.dont_need(&behind)? == 0, "a call looked at more than 1024 tokens");
    give_back(&flow.near, &frags)?;
    Ok(format!("{said}; a length of 7 bytes likewise; a call looks at 1024 tokens"))
}

fn outside(scene: &Scene) -> anyhow::Result<String> {
    let (memory, flow) = (memory(PAGES)?, scene.flow()?);
    let binding = scene.stack.bind_tx(&memory)?;
    let range = TxRange { offset: memory.len() - 1, len: 2 };
    counted(&scene.stack, (14, "send_outside"), || flow.near.send_device(&binding, &[range]))
}

fn foreign(scene: &Scene) -> anyhow::Result<String> {
    let (other, _far) = super::cable()?;
    let (memory, flow) = (memory(PAGES)?, scene.flow()?);
    let binding = other.bind_tx(&memory)?;
    let one = [TxRange { offset: 0, len: 1 }];
    counted(&scene.stack, (19, "send_foreign"), || flow.near.send_device(&binding, &one))
}

fn two_queues(scene: &Scene) -> anyhow::Result<String> {
    let memory = memory(2 * PAGES)?;
    for queue in [1_u16, 2] {
        scene.stack.steer(scene.port(queue - 1)?, u32::from(queue))?;
    }
    let placed = |queue| scene.stack.queue_stats(queue).map_or(0, |stats| stats.placed_bytes);
    let before = [placed(1), placed(2)];
    let binding = scene.stack.bind_rx(&memory, &[1, 2])?;
    for port in [0, 1] {
        let (mut far, near) = scene.connect(port)?;
        let data = pattern(20_000);
        far.send(&data)?;
        let frags = receive(&near, data.len())?;
        ensure!(frags.iter().all(|frag| frag.binding == binding.id()), "a fragment is of another binding");
        ensure!(read(&memory, &frags)? == data, "queue {} has other bytes", port + 1);
        give_back(&near, &frags)?;
    }
    let came = [placed(1) - before[0], placed(2) - before[1]];
    ensure!(came.iter().all(|bytes| *bytes >= 20_000), "{came:?} bytes were placed by the two queues");
    Ok(format!("{} and {} bytes were placed", came[0], came[1]))
}

fn unbind(scene: &Scene) -> anyhow::Result<String> {
    let mut flow = scene.flow()?;
    let data = pattern(9000);
    flow.far.send(&data)?;
    let frags = receive(&flow.near, data.len())?;
    drop(flow.binding);
    flow.far.send(b"ordinary")?;
    let mut buffer = [0; 8];
    let mut got = 0;
    while got < 8 {
        got += flow.near.recv(&mut buffer[got..])?;
    }
    ensure!(&buffer == b"ordinary", "the queue does not go on with ordinary pages");
    ensure!(read(&flow.memory, &frags)? == data, "what is held has changed");
    give_back(&flow.near, &frags)?;
    Ok(format!("the queue went on, {} tokens stayed valid", frags.len()))
}

fn sweep(scene: &Scene) -> anyhow::Result<String> {
    let mut flow = scene.flow()?;
    let (mut sizes, mut pieces) = (0, 0);
    let around = |size: usize| [size - 1, size, size + 1];
    let mut all: Vec<usize> =
        (0..=13).flat_map(|power| around(1 << power)).filter(|size| *size > 0).collect();
    all.sort_unstable();
    all.dedup();
    for size in all {
        let data = pattern(size);
        flow.far.send(&data)?;
        // (Fails where any of it is not in the device's memory.)
        let frags = receive(&flow.near, size).with_context(|| format!("of {size} bytes"))?;
        ensure!(read(&flow.memory, &frags)? == data, "{size} bytes came as others");
        give_back(&flow.near, &frags)?;
        (sizes, pieces) = (sizes + 1, pieces + frags.len());
    }
    flow.far.finish()?;
    ensure!(flow.near.recv_frags(1)?.is_empty(), "there is more than was sent");
    Ok(format!("{sizes} sizes, {pieces} fragments, nothing linear"))
}

fn lines(scene: &Scene, chunk: Option<u64>) -> anyhow::Result<String> {
    let memory = memory(PAGES)?;
    let binding = scene.stack.bind_tx(&memory)?;
    let door: Door = scene.peer.listen()?;
    let near = tcp::Stream::connect_timeout(&scene.stack, door.address()?, PATIENCE)?;
    let mut far = door.accept()?;
    let text = [
        "hello\n".to_owned(),
        "x".repeat(100) + "\n",
        String::from_utf8_lossy(&[b'y'; 9000]).into_owned() + "\n",
    ];
    let mut sends = 0;
    for (number, line) in text.iter().enumerate() {
        // At places that are no page's beginning.
        let place = number as u64 * 100_000 + 4095;
        memory.write_at(place, &[IoSlice::new(line.as_bytes())])?;
        let parts = ranges(place, line.len() as u64, chunk);
        sends += parts.len();
        let (_, how) = near.send_device(&binding, &parts)?.wait();
        ensure!(!how.dropped, "the connection ended before a line was acknowledged");
        ensure!(far.receive(line.len())? == line.as_bytes(), "line {number} came as another");
    }
    ensure!(
        near.stats().user_copied() == 0,
        "{} bytes were copied by this program",
        near.stats().user_copied()
    );
    Ok(format!("3 lines in {sends} ranges, no copy in user space"))
}

/// Over the loopback, where there is one, and a kernel that does it.
fn kernel(_: &Scene) -> anyhow::Result<String> {
    let stack = match Stack::builder().transport(Transport::Kernel).build() {
        Ok(stack) => stack,
        Err(error) => return Ok(format!("there is no such stack here to ask: {error}")),
    };
    let memory = memory(PAGES)?;
    let binding = match stack.bind_tx(&memory) {
        Err(error) if error.raw_os_error() == 95 => return Ok(format!("not with this kernel: {error}")),
        binding => binding?,
    };
    let (listener, near) = match loopback(&stack) {
        Ok(made) => made,
        Err(error) => return Ok(format!("there is no loopback here to send over: {error:#}")),
    };
    let data = pattern(memory.len() as usize);
    memory.write_at(0, &[IoSlice::new(&data)])?;
    let (mut far, _) = listener.accept()?;
    far.set_read_timeout(Some(PATIENCE))?;
    near.set_write_timeout(Some(PATIENCE))?;
    let mut got = vec![0; data.len()];
    let how = std::thread::scope(|scope| -> anyhow::Result<_> {
        let reader = scope.spawn(|| far.read_exact(&mut got));
        let sent = near.send_device(&binding, &ranges(0, data.len() as u64, Some(65_537)))?;
        reader.join().map_err(|_| anyhow::anyhow!("the receiving thread panicked"))??;
        Ok(sent.wait().1)
    })?;
    ensure!(got == data, "what arrived is not what lies in the memory");
    ensure!(how.copied && !how.dropped, "the kernel copies, and it was told otherwise: {how:?}");
    let (copied, out) = (near.stats().user_copied(), memory.copied().out);
    ensure!(copied + out == 0, "{copied} bytes were copied by this program, and {out} by the device");
    Ok(format!("{} bytes, by the kernel's one copy", data.len()))
}

fn loopback(stack: &Stack) -> anyhow::Result<(TcpListener, tcp::Stream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = tcp::Stream::connect(stack, listener.local_addr()?)?;
    Ok((listener, stream))
}
