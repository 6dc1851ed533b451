//! Checks every path to a CUDA device against sums that the CPU computes, and prints a row for each as JSON: what `cargo xtask gpu-check` runs.
//!
//! Without a driver or a device it says what is needed, and exits with 1 (where it is started with `--need-gpu`; else with 0, as an
//! example that has nothing to do).

use std::io::IoSlice;
use std::net::{Shutdown, SocketAddr};
use std::process::ExitCode;
use std::time::Instant;

use onecopy::advanced::link::Tap;
use onecopy::advanced::pool::provider::Heap;
use onecopy::advanced::pool::{DeviceMemory, PagePool, Part, PoolConfig};
use onecopy::cuda::{Cuda, Driver, Report, Settings, Way};
use onecopy::{Stack, tcp};

type Checked<T> = Result<T, Box<dyn std::error::Error>>;

/// A path: checks that so many bytes arrive in the memory, and says how many seconds they took.
type Check = fn(&DeviceMemory, usize) -> Checked<f64>;

const CHECKS: [(&str, Check); 3] = [("pages", pages), ("write and read", direct), ("TCP", tcp)];

/// Bytes of the device's memory.
const PAGES: u32 = 2048;

/// What each path carries.
const BYTES: usize = 32 << 20;

fn main() -> ExitCode {
    let need = std::env::args().any(|argument| argument == "--need-gpu");
    let quick = std::env::args().any(|argument| argument == "--quick");
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("no GPU was checked: {error}");
            return if need { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    let bytes = if quick { BYTES / 16 } else { BYTES };
    let mut failed = 0;
    for device in 0..driver.devices() {
        let settings = || Settings::new(device).driver(driver.clone());
        let ways = Way::ALL.map(|way| (way.to_string(), settings().way(way)));
        let ways = [("calibrated".to_owned(), settings())].into_iter().chain(ways);
        for (name, settings) in ways {
            for (path, check) in CHECKS {
                let began = Instant::now();
                let done = Cuda::open(settings.clone()).map_err(Into::into).and_then(|cuda| {
                    let memory = DeviceMemory::new(PoolConfig::new().limit(PAGES), cuda.clone())?;
                    let took = check(&memory, bytes)?;
                    Ok::<_, Box<dyn std::error::Error>>((took, cuda.report()))
                });
                match done {
                    Ok((took, report)) => row(device, &name, path, bytes, took, &report),
                    Err(error) => {
                        failed += 1;
                        let text = error.to_string().replace(['"', '\\'], "'");
                        println!(
                            r#"{{"device":{device},"way":"{name}","path":"{path}","ok":false,"error":"{text}"}}"#
                        );
                    }
                }
                eprintln!("device {device}, {name}, {path}: {:.1} s", began.elapsed().as_secs_f64());
            }
        }
        match Cuda::open(settings()) {
            Ok(cuda) => eprintln!("{}", cuda.report().costs),
            Err(error) => eprintln!("{error}"),
        }
    }
    if failed > 0 {
        eprintln!("{failed} checks failed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn row(device: u32, name: &str, path: &str, bytes: usize, took: f64, report: &Report) {
    let Report { device: model, driver: (major, minor), pageable, launches, copies, waited, redone, .. } =
        report;
    let [copied, gathered, spanned] = report.bytes;
    println!(
        r#"{{"device":{device},"model":"{model}","driver":"{major}.{minor}","way":"{name}","path":"{path}","ok":true,"bytes":{bytes},"gbps":{:.3},"by_copies":{copied},"by_gather":{gathered},"by_span":{spanned},"pageable":{pageable},"copies":{copies},"launches":{launches},"waited":{waited},"redone":{redone}}}"#,
        bytes as f64 * 8.0 / took / 1e9
    );
}

/// Bytes that depend on where they are.
fn pattern(from: usize, len: usize) -> Vec<u8> {
    (from as u64..(from + len) as u64).map(|n| (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// A sum that sees an exchange of two bytes, too.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn same(what: &str, got: &[u8], wanted: &[u8]) -> Checked<()> {
    let (got, wanted) = (sum(got), sum(wanted));
    if got == wanted {
        Ok(())
    } else {
        Err(format!("{what}: the sum is {got:016x} and not {wanted:016x}").into())
    }
}

/// Pinned pages of the host's, in parts of odd lengths at odd places, to places that are aligned and that are not.
fn pages(memory: &DeviceMemory, bytes: usize) -> Checked<f64> {
    let host = PagePool::new(PoolConfig::new().order(2).limit(1024), Heap::new())?;
    let len = memory.len() as usize;
    let mut model = pattern(0, len);
    memory.write_at(0, &[IoSlice::new(&model)])?;
    let (mut at, mut done, mut took) = (0, 0, 0.0);
    let sizes = [4096, 16384, 1448, 1, 8948, 16, 100, 12288];
    let mut index = 0_usize;
    while done < bytes {
        let size = sizes[index % sizes.len()];
        let offset = [0, 16, 64, 3][index / sizes.len() % 4].min(16384 - size);
        index += 1;
        if at + size > len {
            at = [0, 16, 1][index % 3];
        }
        let mut page = host.alloc()?;
        let fresh = pattern(done * 3 + index, size);
        page.bytes_mut().ok_or("a page of one's own")?[offset..offset + size].copy_from_slice(&fresh);
        model[at..at + size].copy_from_slice(&fresh);
        let part = Part::new(page, offset, size).map_err(|_| "it is inside")?;
        let began = Instant::now();
        memory.submit(at as u64, vec![part])?;
        took += began.elapsed().as_secs_f64();
        at += size;
        done += size;
    }
    let began = Instant::now();
    memory.settle()?;
    took += began.elapsed().as_secs_f64();
    let mut got = vec![0; len];
    memory.read_at(0, &mut got)?;
    same("pages", &got, &model)?;
    Ok(took)
}

/// What is written and read at once.
fn direct(memory: &DeviceMemory, bytes: usize) -> Checked<f64> {
    let data = pattern(7, bytes.min(memory.len() as usize - 3));
    let began = Instant::now();
    let slices: Vec<IoSlice<'_>> = data.chunks(100_003).map(IoSlice::new).collect();
    memory.write_at(3, &slices)?;
    let took = began.elapsed().as_secs_f64();
    let mut got = vec![0; data.len()];
    memory.read_at(3, &mut got)?;
    same("write and read", &got, &data)?;
    Ok(took)
}

/// Payload of TCP, between two stacks on a cable.
fn tcp(memory: &DeviceMemory, bytes: usize) -> Checked<f64> {
    let server: SocketAddr = "10.0.0.2:80".parse()?;
    let (a, b) = Tap::cable(9000)?;
    let near = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    let far = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    far.set_queues(2)?;
    far.steer(server, 1)?;
    let _binding = far.bind_rx(memory, &[1])?;
    let listener = tcp::Listener::bind(&far, server)?;
    let sender = tcp::Stream::connect(&near, server)?;
    let receiver = listener.accept()?.0;
    let data = pattern(11, bytes);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            sender.send(&data)?;
            sender.shutdown(Shutdown::Write)
        });
        let (mut got, mut took) = (Vec::with_capacity(bytes), 0.0);
        loop {
            let frags = receiver.recv_frags(1 << 20)?;
            if frags.is_empty() {
                break;
            }
            took = began.elapsed().as_secs_f64();
            if frags.linear().is_some() {
                return Err("payload came to the host's memory".into());
            }
            for frag in frags.device() {
                let at = got.len();
                got.resize(at + frag.len as usize, 0);
                memory.read_at(frag.offset, &mut got[at..])?;
            }
        }
        sending.join().map_err(|_| "the sender has panicked")??;
        same("TCP", &got, &data)?;
        Ok(took)
    })
}
