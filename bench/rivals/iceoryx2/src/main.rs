//! iceoryx2 in the bench row `reference`: round trips of loaned samples over two services, both sides busy-waiting, as
//! its own benchmark does.
//!
//! It speaks as the bench's workers do (`bench/src/proc.rs`): role and parameters as arguments, `ready` and figures
//! as lines.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use iceoryx2::prelude::*;
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [role, job] = args.as_slice() else { return Err("a worker needs a role and its parameters".into()) };
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    if let Some(cpu) = std::env::var("ONECOPY_BENCH_CPU").ok().and_then(|cpu| cpu.parse().ok()) {
        // SAFETY: all zeroes is an empty set, and the call reads it.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set);
        }
    }
    set_log_level(LogLevel::Error);
    let figures = run(role == "server", &serde_json::from_str(job)?)?;
    say(&figures.to_string())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The eight bytes at word `index` of the stream of `seed` (splitmix64), as in `bench/src/rows/bytes.rs`.
fn word(seed: u64, index: u64) -> [u8; 8] {
    let mut z = seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

fn run(server: bool, job: &Value) -> Result<Value> {
    let number = |name: &str| job[name].as_u64().ok_or(format!("no number {name}"));
    let (size, trips) = (number("size")? as usize, number("trips")?);
    let read = job["read"].as_bool().unwrap_or_default();
    let seed = job["seed"].as_u64();
    let name = job["name"].as_str().ok_or("no name")?;

    let mut config = Config::default();
    let root = job["root"].as_str().ok_or("no root")?;
    config.global.set_root_path(&Path::new(root.as_bytes())?);
    let node = NodeBuilder::new().config(&config).create::<ipc::Service>()?;
    let service = |way: &str| -> Result<_> {
        let name = format!("{name}/{way}");
        Ok(node.service_builder(&name.as_str().try_into()?).publish_subscribe::<[u8]>().open_or_create()?)
    };
    let (ping, pong) = (service("ping")?, service("pong")?);
    let (to, from) = if server { (&pong, &ping) } else { (&ping, &pong) };
    let publisher = to.publisher_builder().initial_max_slice_len(size).create()?;
    let subscriber = from.subscriber_builder().create()?;

    let send = |trip: u64| -> Result<()> {
        let sample = publisher.loan_slice_uninit(size)?;
        // SAFETY: any bytes are bytes; the memory is shared memory that the kernel has zeroed, or used before.
        let mut sample = unsafe { sample.assume_init() };
        if let Some(seed) = seed {
            for (i, byte) in sample.payload_mut().iter_mut().enumerate() {
                let at = trip * size as u64 + i as u64;
                *byte = word(seed, at / 8)[(at % 8) as usize];
            }
        }
        sample.send()?;
        Ok(())
    };
    let mut sum = 0u64;
    let mut receive = |trip: u64| -> Result<()> {
        let sample = loop {
            if let Some(sample) = subscriber.receive()? {
                break sample;
            }
        };
        if read {
            let (words, rest) = sample.payload().as_chunks::<8>();
            sum = words.iter().fold(sum, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
            sum = rest.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)));
        }
        if let Some(seed) = seed {
            for (i, byte) in sample.payload().iter().enumerate() {
                let at = trip * size as u64 + i as u64;
                if *byte != word(seed, at / 8)[(at % 8) as usize] {
                    return Err(format!("byte {at} of the stream is wrong").into());
                }
            }
        }
        Ok(())
    };
    let warmup = trips.div_ceil(10);
    if server {
        say("ready")?;
        for trip in (0..warmup).chain(0..trips) {
            receive(trip)?;
            send(trip)?;
        }
        return Ok(json!({"trips": trips, "sum": sum}));
    }
    let mut round = |trips: u64| -> Result<f64> {
        let start = Instant::now();
        for trip in 0..trips {
            send(trip)?;
            receive(trip)?;
        }
        Ok(start.elapsed().as_secs_f64())
    };
    round(warmup)?;
    let seconds = round(trips)?;
    Ok(json!({"seconds": seconds, "path": "iceoryx2", "sum": sum}))
}
