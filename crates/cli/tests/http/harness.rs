//! Starts daemon and proxy, and talks to them byte by byte.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for something that must come.
pub const SOON: Duration = onecopy_testing::LONG;

/// A child process whose standard error is kept line by line; killed when dropped.
pub struct Running {
    pub child: Child,
    /// The program itself, where the child is another one that looks on.
    behind: Option<rustix::process::Pid>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Running {
    pub fn start(args: &[&str]) -> Running {
        Running::of(Command::new(env!("CARGO_BIN_EXE_onecopy")).args(args))
    }

    /// Starts the program under `tracer`, a command that runs what follows it.
    pub fn traced(tracer: &mut Command, args: &[&str]) -> Running {
        // A program that is traced says itself who it is: whose child it is depends on the tracer.
        let script = ["sh", "-c", "echo \"pid $$\" >&2; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_onecopy")];
        let mut running = Running::of(tracer.args(script).args(args));
        let pid = running.line("pid ").strip_prefix("pid ").and_then(|pid| pid.parse().ok());
        running.behind = pid.and_then(rustix::process::Pid::from_raw);
        assert!(running.behind.is_some(), "the shell says its number first");
        running
    }

    fn of(command: &mut Command) -> Running {
        Running::with_input(command, Stdio::null())
    }

    /// A program with a standard input of its own.
    pub fn with_input(command: &mut Command, input: Stdio) -> Running {
        Running::fed(command.stdout(Stdio::null()), input)
    }

    /// The same, with its standard output where `command` has it.
    pub fn fed(command: &mut Command, input: Stdio) -> Running {
        let mut child = command.stdin(input).stderr(Stdio::piped()).spawn().expect("the program starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (from, to) = (child.stderr.take().unwrap(), lines.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                to.lock().unwrap().push(line);
            }
        });
        Running { child, behind: None, lines }
    }

    /// The first line that has `what` in it, waited for.
    pub fn line(&self, what: &str) -> String {
        let start = Instant::now();
        loop {
            let lines = self.lines.lock().unwrap();
            if let Some(line) = lines.iter().find(|line| line.contains(what)) {
                return line.clone();
            }
            assert!(start.elapsed() < SOON, "no line with {what:?}: {lines:?}");
            drop(lines);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether there is a line with `what` in it.
    pub fn said(&self, what: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(what))
    }

    /// How many lines have `what` in them.
    pub fn count(&self, what: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(what)).count()
    }

    /// What it says to SIGUSR1, once that is `settled`: a request is counted after its answer, which has come by then.
    pub fn stats(&self, settled: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let before = self.count("stats {");
            self.signal(rustix::process::Signal::USR1);
            until("statistics", || self.count("stats {") > before);
            let lines = self.lines.lock().unwrap();
            let last = lines.iter().rev().find_map(|line| line.strip_prefix("stats ")).unwrap();
            let stats = serde_json::from_str(last).unwrap();
            if settled(&stats) {
                return stats;
            }
            assert!(start.elapsed() < SOON, "{stats:#}");
        }
    }

    pub fn pid(&self) -> rustix::process::Pid {
        self.behind.unwrap_or_else(|| rustix::process::Pid::from_child(&self.child))
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("it runs");
    }

    /// Stops it until SIGCONT, each of its threads.
    pub fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        until("all its threads stand still", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
            let stats = tasks
                .map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default());
            // Behind the name, which may have anything in it, but in brackets.
            stats.into_iter().all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
        });
    }

    /// Waits for the end; the exit code.
    pub fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < SOON, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    pub fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().count()
    }

    /// Bytes that it has read so far by any call (proc(5), rchar).
    pub fn bytes_read(&self) -> u64 {
        let io = std::fs::read_to_string(format!("/proc/{}/io", self.child.id())).unwrap();
        io.lines().find_map(|l| l.strip_prefix("rchar: ")).unwrap().parse().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A tracer that is killed leaves what it traced running; one whose program ends, ends. (Only while the tracer is not
        // waited for, the number is sure to be the program's.)
        if let (Some(behind), Ok(None)) = (self.behind, self.child.try_wait()) {
            let _ = rustix::process::kill_process(behind, rustix::process::Signal::KILL);
        } else {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// A daemon with a folder of its own and a proxy in front of it.
pub struct Pair {
    pub dir: TempDir,
    pub daemon: Running,
    pub proxy: Running,
    pub addr: SocketAddr,
}

/// The ways that the bytes can take: flags of the daemon, flags of the proxy.
pub const WAYS: [(&str, &str); 8] = [
    ("", ""),
    ("--cache 64M", ""),
    ("--lend never", ""),
    ("--cache 64M --lend never --policy nt", "--threads 2"),
    ("--cache 64M --lend memory", "--threads 2"),
    ("--transport kernel", "--transport kernel"),
    ("--transport kernel --file-send sendfile", "--transport kernel --forward splice"),
    ("", "--transport kernel --forward splice"),
];

impl Pair {
    pub fn start(daemon: &str, proxy: &str) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        let daemon = start_daemon(dir.path(), daemon);
        let (proxy, addr) = start_proxy(dir.path(), proxy);
        Pair { dir, daemon, proxy, addr }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("files").join(name)
    }

    /// Makes a file of seeded noise; its content.
    pub fn file(&self, name: &str, length: usize) -> Vec<u8> {
        let content = noise(length, name.len() as u64 + length as u64);
        std::fs::write(self.path(name), &content).unwrap();
        content
    }

    /// Has its last change lie so long ago that its date is its own.
    pub fn age(&self, name: &str) {
        let file = std::fs::File::options().write(true).open(self.path(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }

    pub fn client(&self) -> Client {
        Client::connect(self.addr)
    }

    /// One request on a connection of its own.
    pub fn get(&self, path: &str, fields: &str) -> Response {
        let mut client = self.client();
        client.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n"));
        client.response("GET")
    }

    /// The same of a proxy whose limits may end what is honest, where this machine has much to do: the answer, unless the connection
    /// ended before one, or in it.
    pub fn try_get(&self, path: &str) -> Option<Response> {
        let mut client = self.client();
        client.tcp.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
        client.try_response("GET").filter(|response| !response.short)
    }

    /// Raw bytes on a connection of its own; everything that comes back.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut client = self.client();
        client.tcp.write_all(bytes).unwrap();
        let _ = client.tcp.shutdown(std::net::Shutdown::Write);
        client.rest()
    }

    /// The status of what comes back.
    pub fn status(&self, bytes: &str) -> u16 {
        status_of(&self.raw(bytes.as_bytes()))
    }

    /// Waits until these counters of the daemon are what they should be, all at once. (A request is counted after its answer,
    /// which has come by then.)
    pub fn counts(&self, should: &[(&str, u64)]) {
        let start = Instant::now();
        loop {
            let stats = self.daemon_stats();
            if should.iter().all(|(name, count)| stats[name].as_u64() == Some(*count)) {
                return;
            }
            assert!(start.elapsed() < SOON, "not {should:?}: {stats:#}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A counter of the daemon.
    pub fn daemon_counter(&self, name: &str) -> u64 {
        self.daemon_stats()[name].as_u64().unwrap()
    }

    /// All of them, asked on its own socket.
    pub fn daemon_stats(&self) -> Value {
        let mut stream = UnixStream::connect(self.dir.path().join("s")).unwrap();
        stream.write_all(b"GET /.onecopy/stats HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let json = text.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(json).unwrap()
    }
}

pub fn status_of(text: &str) -> u16 {
    text.get(9..12).and_then(|s| s.parse().ok()).unwrap_or(0)
}

/// Limits that end nothing in a test that does not say that they should: `flags`, and those of `limits` that are not among them. (What a file
/// says would not change what these say.)
fn patient<'f>(flags: &'f str, limits: &[&'static str]) -> Vec<&'f str> {
    let mut all: Vec<_> = flags.split_whitespace().collect();
    if !flags.contains("--config") {
        for limit in limits.iter().filter(|limit| !flags.contains(**limit)) {
            all.extend([limit, "10m"]);
        }
    }
    all
}

pub fn start_daemon(dir: &Path, flags: &str) -> Running {
    start_daemon_by(Running::start, dir, flags)
}

/// The same, by another way to start a program.
pub fn start_daemon_by(start: impl FnOnce(&[&str]) -> Running, dir: &Path, flags: &str) -> Running {
    let (root, listen) = (dir.join("files"), format!("unix:{}", dir.join("s").display()));
    let mut args = vec!["serve", "--root", root.to_str().unwrap(), "--listen", &listen, "--stats"];
    if !flags.contains("--revalidate") {
        args.extend(["--revalidate", "0"]);
    }
    args.extend(patient(flags, &["--idle-timeout", "--head-timeout", "--send-timeout"]));
    let daemon = start(&args);
    daemon.line("onecopy serve:");
    daemon
}

pub fn start_proxy(dir: &Path, flags: &str) -> (Running, SocketAddr) {
    start_proxy_by(Running::start, dir, flags)
}

/// One that may open only so many files.
pub fn start_limited_proxy(dir: &Path, flags: &str, files: usize) -> (Running, SocketAddr) {
    let start = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -n {files} && exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_onecopy"),
        ]);
        Running::of(command.args(args))
    };
    start_proxy_by(start, dir, flags)
}

/// The same, by another way to start a program.
pub fn start_proxy_by(
    start: impl FnOnce(&[&str]) -> Running,
    dir: &Path,
    flags: &str,
) -> (Running, SocketAddr) {
    let backend = format!("unix:{}", dir.join("s").display());
    let mut args = vec!["proxy", "--listen", "127.0.0.1:0", "--backend", &backend];
    let limits = ["--idle-timeout", "--head-timeout", "--send-timeout", "--backend-timeout"];
    args.extend(patient(flags, &limits));
    let proxy = start(&args);
    let line = proxy.line("onecopy proxy: http");
    let addr = line.split("://").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    (proxy, addr)
}

pub fn noise(length: usize, mut seed: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(length + 8);
    seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    while out.len() < length {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        out.extend_from_slice(&seed.to_le_bytes());
    }
    out.truncate(length);
    out
}

/// A client that says exactly what it is told to.
pub struct Client<S = TcpStream> {
    pub tcp: S,
    inbox: Vec<u8>,
    /// The connection ended without the word that TLS has for it.
    pub cut: bool,
}

#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
    /// The connection ended before all of the body had come.
    pub short: bool,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .filter_map(|l| l.split_once(": "))
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v)
    }
}

impl Client {
    pub fn connect(addr: SocketAddr) -> Client {
        let tcp = TcpStream::connect(addr).unwrap();
        tcp.set_read_timeout(Some(SOON)).unwrap();
        Client::over(tcp)
    }
}

impl<S: Read + Write> Client<S> {
    pub fn over(tcp: S) -> Client<S> {
        Client { tcp, inbox: Vec::new(), cut: false }
    }

    pub fn send(&mut self, text: &str) {
        self.tcp.write_all(text.as_bytes()).unwrap();
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
        self.response("GET")
    }

    fn fill(&mut self) -> usize {
        let mut buf = vec![0; 256 << 10];
        let got = match self.tcp.read(&mut buf) {
            Ok(got) => got,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.cut = true;
                0
            }
            Err(error) => panic!("{error}"),
        };
        self.inbox.extend_from_slice(&buf[..got]);
        got
    }

    /// Reads the head of a response.
    pub fn head(&mut self) -> (u16, String) {
        let head = self.try_head();
        head.unwrap_or_else(|| {
            panic!("the connection ended in a head: {:?}", String::from_utf8_lossy(&self.inbox))
        })
    }

    /// The same, or nothing if the connection ends in it.
    pub fn try_head(&mut self) -> Option<(u16, String)> {
        loop {
            if let Some(end) = self.inbox.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = String::from_utf8(self.inbox.drain(..end + 4).collect()).unwrap();
                return Some((status_of(&head), head));
            }
            if self.fill() == 0 {
                return None;
            }
        }
    }

    /// Reads one response to `method`.
    pub fn response(&mut self, method: &str) -> Response {
        let head = self.head();
        self.body(method, head)
    }

    /// The same, or nothing if the connection ends in its head.
    pub fn try_response(&mut self, method: &str) -> Option<Response> {
        let head = self.try_head()?;
        Some(self.body(method, head))
    }

    fn body(&mut self, method: &str, (status, head): (u16, String)) -> Response {
        let mut response = Response { status, head, body: Vec::new(), short: false };
        let length: usize = match (method, status) {
            ("HEAD", _) | (_, 304 | 204) => 0,
            _ => response.field("Content-Length").expect("a length").parse().unwrap(),
        };
        while self.inbox.len() < length && !response.short {
            response.short = self.fill() == 0;
        }
        response.body = self.inbox.drain(..length.min(self.inbox.len())).collect();
        response
    }

    /// Reads so many bytes.
    pub fn some(&mut self, length: usize) -> Vec<u8> {
        let came = self.some_or_end(length);
        assert!(came.len() == length, "the connection ended");
        came
    }

    /// The same, or what comes up to the end.
    pub fn some_or_end(&mut self, length: usize) -> Vec<u8> {
        while self.inbox.len() < length && self.fill() > 0 {}
        self.inbox.drain(..length.min(self.inbox.len())).collect()
    }

    /// How many bytes come until the end.
    pub fn count(&mut self) -> usize {
        let mut count = std::mem::take(&mut self.inbox).len();
        while self.fill() > 0 {
            count += std::mem::take(&mut self.inbox).len();
        }
        count
    }

    /// Everything until the end.
    pub fn rest(&mut self) -> String {
        while self.fill() > 0 {}
        String::from_utf8_lossy(&std::mem::take(&mut self.inbox)).into_owned()
    }

    /// Whether the other side has ended the connection, waited for.
    pub fn ended(&mut self) -> bool {
        self.inbox.is_empty() && self.fill() == 0
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
