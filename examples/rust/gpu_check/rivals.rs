//! Payload of TCP into the device's memory beside what programs do today: receive into a buffer of the host's, and copy that.
//!
//! All over a cable in this process, with the same sender, the same stacks and the same pieces, in turns. Nobody looks at the bytes in the timed rounds: sums are
//! compared before them. CPU time is that of the receiving side, all its threads: the process's less that of the sending thread and of its stack's.

use std::fmt;
use std::net::Shutdown;
use std::thread;
use std::time::Instant;

use onecopy::RecvFlags;
use rustix::time::{ClockId, clock_gettime};

use crate::Checked;
use crate::paths::{Bench, PIECE};
use crate::world::{World, pattern, same};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Fragments, whose tokens are given back at once.
    Onecopy,
    /// `torch.frombuffer(received).cuda()`: a buffer that is not pinned, and a copy that is waited for.
    FromBuffer,
    /// Two pinned buffers: one is received into while the other one is copied.
    Pinned,
}

impl Engine {
    pub const ALL: [Engine; 3] = [Engine::Onecopy, Engine::FromBuffer, Engine::Pinned];
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Onecopy => "onecopy",
            Engine::FromBuffer => "frombuffer",
            Engine::Pinned => "pinned",
        })
    }
}

/// The middle of an engine's rounds.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Bytes a second.
    pub rate: f64,
    /// Seconds of the receiving side's CPU for a byte.
    pub cpu: f64,
}

/// What onecopy must reach beside a rival.
pub struct Demand {
    pub against: Engine,
    pub what: &'static str,
    /// Of rate: at least so many times the rival's. Of CPU: at most.
    pub times: f64,
}

pub const REACH: [Demand; 4] = [
    Demand { against: Engine::FromBuffer, what: "rate", times: 1.5 },
    Demand { against: Engine::FromBuffer, what: "cpu", times: 0.5 },
    Demand { against: Engine::Pinned, what: "rate", times: 0.95 },
    Demand { against: Engine::Pinned, what: "cpu", times: 1.05 },
];

impl Demand {
    /// How many times the rival's, and whether that is enough.
    pub fn of(&self, ours: Figures, theirs: Figures) -> (f64, bool) {
        if self.what == "rate" {
            let reached = ours.rate / theirs.rate;
            return (reached, reached >= self.times);
        }
        let reached = ours.cpu / theirs.cpu;
        (reached, reached <= self.times)
    }
}

impl fmt::Display for Demand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.what == "rate" { ">=" } else { "<=" };
        write!(f, "{} {sign} {} x {}", self.what, self.times, self.against)
    }
}

/// Compares sums, then takes so many rounds in turns: the figures, in the order of [`Engine::ALL`].
pub fn measure(bench: &Bench<'_>, rounds: usize) -> Checked<[Figures; 3]> {
    for engine in Engine::ALL {
        let (mut got, data) = (Vec::new(), pattern(23, 2 * PIECE + 4097));
        pass(engine, bench, &data, 1, Some(&mut got))?;
        same(&engine.to_string(), &got, &data)?;
    }
    let data = pattern(29, 8 << 20);
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    // (The first round is for warming up.)
    for round in 0..=rounds {
        for (index, engine) in Engine::ALL.into_iter().enumerate() {
            let figures = pass(engine, bench, &data, bench.bytes.div_ceil(data.len()), None)?;
            if round > 0 {
                all[index].push(figures);
            }
        }
    }
    let middle = |figures: &[Figures], of: fn(&Figures) -> f64| {
        let mut values: Vec<f64> = figures.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok(all.map(|figures| Figures {
        rate: middle(&figures, |one| one.rate),
        cpu: middle(&figures, |one| one.cpu),
    }))
}

/// One engine, over a connection of its own: `data` so many times.
fn pass(
    engine: Engine,
    bench: &Bench<'_>,
    data: &[u8],
    times: usize,
    see: Option<&mut Vec<u8>>,
) -> Checked<Figures> {
    let world = World::new((engine == Engine::Onecopy).then_some(bench.memory))?;
    let before = seconds(ClockId::ProcessCPUTime) - world.near_cpu()?;
    let began = Instant::now();
    let (took, theirs) = thread::scope(|scope| {
        let sending = scope.spawn(|| {
            for _ in 0..times {
                world.sender.send(data)?;
            }
            world.sender.shutdown(Shutdown::Write)?;
            Ok::<_, onecopy::Error>(seconds(ClockId::ThreadCPUTime))
        });
        receive(engine, bench, &world, see)?;
        let took = began.elapsed().as_secs_f64();
        Ok::<_, Box<dyn std::error::Error>>((took, sending.join().map_err(|_| "the sender has panicked")??))
    })?;
    let cpu = seconds(ClockId::ProcessCPUTime) - world.near_cpu()? - before - theirs;
    let bytes = (data.len() * times) as f64;
    Ok(Figures { rate: bytes / took, cpu: cpu / bytes })
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Receives to the end. All is in the device's memory when this returns.
fn receive(engine: Engine, bench: &Bench<'_>, world: &World, mut see: Option<&mut Vec<u8>>) -> Checked<()> {
    let mut look = |read: &dyn Fn(&mut [u8]) -> Checked<()>, len: usize| {
        let Some(got) = see.as_deref_mut() else { return Ok(()) };
        let at = got.len();
        got.resize(at + len, 0);
        read(&mut got[at..])
    };
    if engine == Engine::Onecopy {
        loop {
            let frags = world.receiver.recv_frags(PIECE)?;
            if frags.is_empty() {
                return Ok(());
            }
            if frags.linear().is_some() {
                return Err("payload came to the host's memory".into());
            }
            for frag in frags.device() {
                look(&|into| Ok(bench.memory.read_at(frag.offset, into)?), frag.len as usize)?;
            }
        }
    }
    // As much as ours has.
    let tensor = bench.program.memory(bench.memory.len() as usize)?;
    let places = (0..tensor.len() / PIECE).map(|index| index * PIECE).cycle();
    if engine == Engine::FromBuffer {
        let mut buffer = vec![0; PIECE];
        for at in places {
            let n = world.receiver.recv_with_flags(&mut buffer, RecvFlags::WAITALL)?;
            if n == 0 {
                break;
            }
            tensor.write(at, &buffer[..n])?;
            look(&|into| tensor.read(at, into), n)?;
        }
        return Ok(());
    }
    let mut buffers = [bench.program.pinned(PIECE)?, bench.program.pinned(PIECE)?];
    for (turn, at) in places.enumerate() {
        let buffer = &mut buffers[turn % 2];
        let n = world.receiver.recv_with_flags(buffer.bytes()?, RecvFlags::WAITALL)?;
        if n == 0 {
            break;
        }
        buffer.copy_later(n, &tensor, at)?;
        look(&|into| tensor.read(at, into), n)?;
    }
    bench.program.wait()
}
