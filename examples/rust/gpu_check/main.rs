//! Checks every path to a CUDA device, and from it, against sums that the CPU computes, and prints a row for each as JSON: what `cargo xtask gpu-check` runs.
//! Then it times the receive beside what programs do today, and says what onecopy must reach there.
//!
//! Without a driver or a device it says what is needed, and exits with 1 (where it is started with `--need-gpu`; else with 0, as an
//! example that has nothing to do). On the stand-in for a driver (testing/cuda) each row says so, and no figure has a verdict: none means anything.

mod paths;
mod program;
mod rivals;
mod world;

use std::process::ExitCode;
use std::time::Instant;

use onecopy::advanced::pool::{DeviceMemory, PoolConfig};
use onecopy::cuda::{Cuda, Driver, Report, Settings, Way};

use paths::{Bench, CHECKS};
use program::Program;
use rivals::{Engine, REACH};

type Checked<T> = Result<T, Box<dyn std::error::Error>>;

/// Pages of the device's memory.
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
    let (mut failed, mut missed, mut stand_in) = (0, 0, false);
    for device in 0..driver.devices() {
        let settings = Settings::new(device).driver(driver.clone());
        let program = match Program::new(&driver, device) {
            Ok(program) => program,
            Err(error) => {
                eprintln!("device {device} cannot be used: {error}");
                return ExitCode::FAILURE;
            }
        };
        stand_in = program.on_stand_in();
        let ways = Way::ALL.map(|way| (way.to_string(), settings.clone().way(way)));
        let ways = [("calibrated".to_owned(), settings.clone())].into_iter().chain(ways);
        for (name, settings) in ways {
            for (path, check) in CHECKS {
                let began = Instant::now();
                let head = format!(
                    r#"{{"device":{device},"stand_in":{stand_in},"way":"{name}","path":"{path}","ok""#
                );
                let done = with_memory(&settings, &program, bytes, |bench| {
                    let carried = check(bench)?;
                    Ok((carried, bench.cuda.report()))
                });
                match done {
                    Ok((carried, report)) => row(&head, carried, &report),
                    Err(error) => {
                        failed += 1;
                        println!(r#"{head}:false,"error":"{}"}}"#, quoted(&*error));
                    }
                }
                eprintln!("device {device}, {name}, {path}: {:.1} s", began.elapsed().as_secs_f64());
            }
        }
        // So that a round takes some tenths of a second on hardware.
        let (bytes, rounds) = if quick {
            (bytes, 1)
        } else if stand_in {
            (8 << 20, 1)
        } else {
            (1 << 30, 5)
        };
        match with_memory(&settings, &program, bytes, |bench| rivals::measure(bench, rounds)) {
            Ok(figures) => missed += beside(device, stand_in, rounds, &figures),
            Err(error) => {
                failed += 1;
                println!(
                    r#"{{"device":{device},"stand_in":{stand_in},"case":"pair","ok":false,"error":"{}"}}"#,
                    quoted(&*error)
                );
            }
        }
        match Cuda::open(settings) {
            Ok(cuda) => eprintln!("{}", cuda.report().costs),
            Err(error) => eprintln!("{error}"),
        }
    }
    if stand_in {
        eprintln!("this was the stand-in for a driver: sums were compared, and no figure means anything");
    } else if missed > 0 {
        eprintln!("{missed} demands were not reached");
    }
    if failed > 0 {
        eprintln!("{failed} checks failed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Does something with memory of its own on the device.
fn with_memory<R>(
    settings: &Settings,
    program: &std::rc::Rc<Program>,
    bytes: usize,
    act: impl FnOnce(&Bench<'_>) -> Checked<R>,
) -> Checked<R> {
    let cuda = Cuda::open(settings.clone())?;
    let memory = DeviceMemory::new(PoolConfig::new().limit(PAGES), cuda.clone())?;
    act(&Bench { cuda: &cuda, memory: &memory, settings, program, bytes })
}

fn quoted(error: &dyn std::error::Error) -> String {
    error.to_string().replace(['"', '\\'], "'")
}

/// What a path did, and by which ways.
fn row(head: &str, (bytes, took): (usize, f64), report: &Report) {
    let Report { device: model, driver: (major, minor), pageable, launches, copies, waited, redone, .. } =
        report;
    let [copied, gathered, spanned, batched] = report.bytes;
    println!(
        r#"{head}:true,"model":"{model}","driver":"{major}.{minor}","bytes":{bytes},"gbps":{:.3},"by_copies":{copied},"by_gather":{gathered},"by_span":{spanned},"by_batch":{batched},"pageable":{pageable},"copies":{copies},"launches":{launches},"waited":{waited},"redone":{redone}}}"#,
        bytes as f64 * 8.0 / took / 1e9
    );
}

/// The engines' rows, and what onecopy must reach beside its rivals: how often it does not. On the stand-in there is no verdict.
fn beside(device: u32, stand_in: bool, rounds: usize, figures: &[rivals::Figures; 3]) -> usize {
    for (engine, figures) in Engine::ALL.iter().zip(figures) {
        println!(
            r#"{{"device":{device},"stand_in":{stand_in},"case":"pair","engine":"{engine}","ok":true,"gbps":{:.3},"cpu_ns_per_kb":{:.1},"rounds":{rounds}}}"#,
            figures.rate * 8.0 / 1e9,
            figures.cpu * 1e12
        );
    }
    let of = |engine| figures[engine as usize];
    let mut missed = 0;
    for demand in &REACH {
        let (reached, enough) = demand.of(of(Engine::Onecopy), of(demand.against));
        missed += usize::from(!enough && !stand_in);
        let verdict = if stand_in { "null".to_owned() } else { enough.to_string() };
        println!(
            r#"{{"device":{device},"stand_in":{stand_in},"case":"pair","demand":"{demand}","times":{reached:.3},"reached":{verdict}}}"#
        );
    }
    missed
}
