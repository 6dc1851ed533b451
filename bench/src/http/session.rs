//! One engine serving one size of object, made ready for its rounds.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::load::{Client, drive};
use super::servers::{Servers, Setup, Source};
use super::tls::{self, Certificate};
use crate::row::{Context, Metric, Sample, Session};
use crate::temp::TempDir;

/// Bodies through the proxy, in 10^9 bytes a second.
pub const RATE: Metric = Metric { name: "rate", unit: "GB/s", larger: true };
/// Time from a request to the last byte of its answer: the median.
pub const P50: Metric = Metric { name: "p50", unit: "ms", larger: false };
/// The same: 99 of 100 are faster.
pub const P99: Metric = Metric { name: "p99", unit: "ms", larger: false };
/// CPU time of daemon and proxy for each request.
pub const EACH: Metric = Metric { name: "request cpu", unit: "us/request", larger: false };
/// Copies of each byte by daemon and proxy in user space, as they counted them.
pub const USER: Metric = Metric { name: "user copies", unit: "per byte", larger: false };
/// Copies of each byte by the kernel in those calls of daemon and proxy that copy, as they counted them. Missing where sendfile
/// and splice did it all: what they copy, the kernel does not tell.
pub const KERNEL: Metric = Metric { name: "kernel copies", unit: "per byte", larger: false };
/// How often each byte went through sendfile or splice.
pub const MOVED: Metric = Metric { name: "by reference", unit: "per byte", larger: true };
/// How many times slower a walk over the daemon's own working set is right after a body than before.
pub const HOT: Metric = Metric { name: "hot set", unit: "x slower", larger: false };

/// Connections of the load.
pub const CLIENTS: usize = 4;

/// Files to serve, by name below a root.
#[derive(Debug)]
pub struct Tree {
    /// The folder.
    pub root: PathBuf,
    /// Path of each file relative to the root, its length, its checksum.
    pub files: Vec<(String, u64, u64)>,
    _made: Option<TempDir>,
}

impl Tree {
    /// Makes `count` files of `size` bytes of seeded noise.
    pub fn make(size: u64, count: u64) -> Result<Tree> {
        let dir = TempDir::new("files")?;
        let mut files = Vec::new();
        for i in 0..count {
            let content = noise(size as usize, i + size);
            let name = format!("{i}.bin");
            std::fs::write(dir.path().join(&name), &content)?;
            files.push((name, size, checksum(0, &content)));
        }
        Ok(Tree { root: dir.path().to_owned(), files, _made: Some(dir) })
    }

    /// Takes the regular files of a folder, links not followed, up to `most` bytes in all.
    pub fn of(root: &Path, most: u64) -> Result<Tree> {
        let root = root.canonicalize().with_context(|| format!("--root {}", root.display()))?;
        let (mut files, mut folders, mut total) = (Vec::new(), vec![PathBuf::new()], 0);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let (path, kind) = (folder.join(entry.file_name()), entry.file_type()?);
                // Names that would need escaping in a request are left out.
                let Some(name) = path
                    .to_str()
                    .filter(|n| n.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b)))
                else {
                    continue;
                };
                if kind.is_dir() {
                    folders.push(path);
                } else if kind.is_file() && total < most {
                    let Ok(content) = std::fs::read(root.join(&path)) else { continue };
                    if !content.is_empty() {
                        total += content.len() as u64;
                        files.push((name.to_owned(), content.len() as u64, checksum(0, &content)));
                    }
                }
            }
        }
        ensure!(!files.is_empty(), "--root {}: there is no file to serve in it", root.display());
        Ok(Tree { root, files, _made: None })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, length, _)| length).sum()
    }
}

/// A tree that is made when the first engine of a case asks for it, and shared by all of them.
pub fn shared(make: impl Fn() -> Result<Tree>) -> impl Fn() -> Result<Rc<Tree>> {
    let made = OnceCell::new();
    move || match made.get() {
        Some(tree) => Ok(Rc::clone(tree)),
        None => {
            let tree = Rc::new(make()?);
            Ok(Rc::clone(made.get_or_init(|| tree)))
        }
    }
}

/// Seeded bytes that no compressor, and no luck, makes equal.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(length + 8);
    while out.len() < length {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(length);
    out
}

/// FNV-1a over the bytes, going on from `sum` (0 to begin).
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    let start = if sum == 0 { 0xCBF2_9CE4_8422_2325 } else { sum };
    bytes.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// What a session is asked to be.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is served.
    pub tree: Rc<Tree>,
    /// Whence.
    pub source: Source,
    /// A working set of the daemon of this many bytes, walked around each body.
    pub hot_set: Option<usize>,
    /// Whether the clients come over TLS.
    pub tls: bool,
    /// Whether each round begins with a request for every object that does not count.
    pub lead_in: bool,
}

/// Servers up, clients connected.
#[derive(Debug)]
pub struct Http {
    servers: Servers,
    clients: Vec<Client>,
    job: Job,
    turn: u64,
    _work: TempDir,
}

impl Http {
    /// Starts `engine` for `job`.
    pub fn open(context: &Context, engine: &str, job: &Job) -> Result<Http> {
        let program = program(context)?;
        let work = TempDir::new("run")?;
        let (mut daemon, mut proxy) = (Vec::new(), Vec::new());
        if let Some(bytes) = job.hot_set {
            // The daemon has a core of its own, so that what evicts its working set is what it does itself.
            let [first, second] = context.cpus.map(|cpu| cpu.to_string());
            daemon = vec!["--hot-set".into(), bytes.to_string(), "--cpu".into(), first];
            // It walks around each body; one that it has lent the proxy would send again without asking.
            daemon.extend(["--revalidate".into(), "0".into()]);
            proxy = vec!["--cpu".into(), second];
        }
        let tls = job.tls.then(|| Certificate::make(work.path())).transpose()?;
        let setup = Setup {
            program: &program,
            launcher: &context.launcher,
            root: &job.tree.root,
            work: work.path(),
            source: job.source,
            daemon: &daemon,
            proxy: &proxy,
            tls: tls.as_ref(),
        };
        let servers = Servers::start(engine, &setup)?;
        let clients = if job.hot_set.is_some() { 1 } else { CLIENTS };
        let connect = |_| Client::connect(servers.address, tls.as_ref());
        let clients = (0..clients).map(connect).collect::<Result<_>>()?;
        Ok(Http { servers, clients, job: job.clone(), turn: 0, _work: work })
    }
}

/// The `onecopy` program: this one, whatever it is called, or the one beside the smoke tests' worker.
fn program(context: &Context) -> Result<PathBuf> {
    let this = &context.launcher.program;
    if !context.launcher.args.is_empty() {
        return Ok(this.clone()); // `onecopy bench --worker`
    }
    let beside = this.with_file_name("onecopy");
    ensure!(beside.exists(), "the onecopy program is not built (cargo build); it is the server of this row");
    Ok(beside)
}

fn sum(counters: &(Value, Value), name: &str) -> f64 {
    counters.0[name].as_f64().unwrap_or(0.0) + counters.1[name].as_f64().unwrap_or(0.0)
}

/// What is known of the kernel's copies of a byte: nothing, where sendfile and splice moved it all. (A few bytes of heads went
/// beside it.)
fn known_copies(copied: f64, moved: f64) -> Option<f64> {
    (copied >= 0.005 || moved == 0.0).then_some(copied)
}

fn kernel_words(known: Option<f64>, moved: f64) -> String {
    match known {
        Some(copies) if moved == 0.0 => format!("kernel {copies:.2}"),
        Some(copies) => format!("kernel {copies:.2} and what sendfile and splice copied, which nobody knows"),
        None => "kernel not known: sendfile and splice do not tell".to_owned(),
    }
}

impl Session for Http {
    fn verify(&mut self) -> Result<()> {
        let tree = self.job.tree.clone();
        for (i, (name, length, expected)) in tree.files.iter().enumerate().take(64) {
            let client = i % self.clients.len();
            let mut seen = 0;
            let got = self.clients[client].get(&format!("/{name}"), |bytes| seen = checksum(seen, bytes))?;
            ensure!(got == *length && seen == *expected, "{name} differs from the file");
        }
        Ok(())
    }

    fn run(&mut self, work: u64) -> Result<Sample> {
        let files = &self.job.tree.files;
        let requests = (work * files.len() as u64).div_ceil(self.job.tree.bytes()).max(1);
        if self.job.lead_in {
            drive(&mut self.clients, files.len() as u64, |i| format!("/{}", files[i as usize].0))?;
        }
        let turn = self.turn;
        self.turn += requests;
        let before = if self.servers.counted { Some(self.servers.counters()?) } else { None };
        let cpu = self.servers.cpu_seconds()?;
        let path = |i: u64| format!("/{}", files[((turn + i) % files.len() as u64) as usize].0);
        let outcome = drive(&mut self.clients, requests, path)?;
        let cpu = self.servers.cpu_seconds()? - cpu;
        let gigabytes = outcome.bytes as f64 / 1e9;
        let ms = |quantile: f64| outcome.latency.value_at_quantile(quantile) as f64 / 1e3;
        let mut values = vec![
            (RATE.name, gigabytes / outcome.seconds),
            (crate::row::CPU_PER_GB.name, cpu / gigabytes),
            (EACH.name, cpu / requests as f64 * 1e6),
            (P50.name, ms(0.5)),
            (P99.name, ms(0.99)),
        ];
        let mut settings = vec![("connections".to_owned(), self.clients.len().to_string())];
        if self.job.tls {
            settings.push(("cipher".to_owned(), tls::SUITE.to_owned()));
        }
        if let Some(before) = before {
            let after = self.servers.counters()?;
            let diff = |name: &str| sum(&after, name) - sum(&before, name);
            let per = |name: &str| diff(name) / outcome.bytes as f64;
            let kernel = known_copies(per("kernel_copied"), per("referenced"));
            values.push((USER.name, per("user_copied")));
            values.extend(kernel.map(|copies| (KERNEL.name, copies)));
            values.push((MOVED.name, per("referenced")));
            if diff("hot_lines") > 0.0 {
                values.push((HOT.name, diff("hot_after_ns") / diff("hot_before_ns")));
            }
            let cpu = diff("reader_cpu") / (diff("reader_cpu") + diff("reader_none")).max(1.0);
            settings.push(("told to be read by a CPU".to_owned(), format!("{:.0}%", 100.0 * cpu)));
            settings.push((
                "copies per byte".to_owned(),
                format!(
                    "user {:.2} (non-temporal {:.2}), {}",
                    per("user_copied"),
                    per("user_copied_nt"),
                    kernel_words(kernel, per("referenced"))
                ),
            ));
            // What a line costs is no figure where there were none.
            let dropped = diff("log_dropped");
            ensure!(dropped == 0.0, "the access log left out {dropped} lines of {requests} requests");
            let upgraded = after.1["upgraded"].as_u64().unwrap_or(0);
            settings.push(("shared memory".to_owned(), if upgraded > 0 { "yes" } else { "no" }.to_owned()));
        }
        Ok(Sample { seconds: outcome.seconds, values, settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_is_no_nought() {
        assert_eq!(known_copies(0.0, 0.0), Some(0.0));
        assert_eq!((known_copies(0.001, 1.0), known_copies(1.0, 1.0)), (None, Some(1.0)));
        assert_eq!(kernel_words(Some(2.0), 0.0), "kernel 2.00");
        assert!(kernel_words(Some(1.0), 1.0).starts_with("kernel 1.00 and what "));
        assert!(kernel_words(None, 2.0).starts_with("kernel not known"));
    }
}
