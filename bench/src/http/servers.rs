//! Daemon and proxy as child processes: ours in all their ways, and nginx.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::tls::Certificate;
use crate::proc::Launcher;

/// Longest wait for a server to be there, to tell its counters, or to end. A machine with too much to do keeps one from its CPU
/// for seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Where the bytes of the bodies come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Files, in the page cache.
    File,
    /// The daemon's own memory.
    Memory,
}

/// A server process; stopped when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
}

impl Server {
    fn start(command: &mut Command) -> Result<Server> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", command.get_program().display()))?;
        let (sender, lines) = channel();
        let err = child.stderr.take();
        std::thread::spawn(move || {
            for line in err.into_iter().flat_map(|err| BufReader::new(err).lines()).map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Server { child, lines })
    }

    /// The next line of its standard error that begins with `start`, without it.
    fn line(&self, start: &str) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix(start) {
                    Some(rest) => return Ok(rest.to_owned()),
                    None => last = line,
                },
                Err(RecvTimeoutError::Timeout) => bail!("a server did not say {start:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("a server ended: {last}"),
            }
        }
    }

    /// What it has said and nobody has read.
    fn last_words(&self) -> String {
        Vec::from_iter(self.lines.try_iter()).join("; ")
    }

    /// The counters of one of our servers: it writes them at SIGUSR1.
    pub fn counters(&self) -> Result<Value> {
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.child),
            rustix::process::Signal::USR1,
        )?;
        Ok(serde_json::from_str(&self.line("stats ")?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon with a proxy in front of it.
#[derive(Debug)]
pub struct Servers {
    // The proxy ends first: the daemon then has nobody to wait for.
    proxy: Server,
    daemon: Server,
    /// Where clients connect.
    pub address: SocketAddr,
    /// Whether both are ours, and have counters.
    pub counted: bool,
    socket: PathBuf,
}

/// The flags of an engine: the daemon's and the proxy's. None: not one of ours.
fn flags(engine: &str) -> Option<(&'static str, &'static str)> {
    Some(match engine {
        "kernel" => ("--transport kernel", "--transport kernel"),
        "kernel-splice" => ("--transport kernel", "--transport kernel --forward splice"),
        "kernel-sendfile" => {
            ("--transport kernel --file-send sendfile", "--transport kernel --forward splice")
        }
        "direct" => ("--direct", "--direct --trust-backend"),
        "auto" | "log" | "log-json" => ("--policy auto", ""),
        "lend-never" => ("--policy auto --lend never", ""),
        "lend-sendfile" => ("", "--send-lent sendfile"),
        "lend-splice" => ("", "--send-lent splice"),
        "lend-map" => ("", "--send-lent map"),
        "cached" => ("--policy cached --lend never", ""),
        "nt" => ("--policy nt --lend never", ""),
        _ => return None,
    })
}

/// The form of the lines that an engine's proxy writes for each request. None: it writes none.
fn log_form(engine: &str) -> Option<&'static str> {
    match engine {
        "log" => Some("combined"),
        "log-json" => Some("json"),
        _ => None,
    }
}

/// What is started, and on what.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// The `onecopy` program.
    pub program: &'a Path,
    /// What ties foreign servers to this process.
    pub launcher: &'a Launcher,
    /// The folder that is served.
    pub root: &'a Path,
    /// A folder for sockets and configurations.
    pub work: &'a Path,
    /// Whence the bytes come.
    pub source: Source,
    /// Flags for the daemon alone.
    pub daemon: &'a [String],
    /// Flags for the proxy alone.
    pub proxy: &'a [String],
    /// What the proxy shows to clients that come over TLS; None: they come without.
    pub tls: Option<&'a Certificate>,
}

impl Servers {
    /// Starts the servers of `engine` and waits until they are there.
    pub fn start(engine: &str, setup: &Setup<'_>) -> Result<Servers> {
        let id = format!("{engine}-{}", unique());
        // Short: with a deep folder for temporary files there is little left of the 108 bytes (unix(7)).
        let socket = setup.work.join(&id[id.len().saturating_sub(8)..]);
        let nginx = engine.starts_with("nginx");
        let log = setup.work.join("access.log");
        let daemon = if nginx && setup.source == Source::File {
            let listen =
                format!("server {{ listen unix:{}; root {}; }}", socket.display(), setup.root.display());
            start_nginx(&format!("{id}-backend"), setup, &listen)?
        } else {
            let (daemon, _) =
                flags(if nginx { "kernel" } else { engine }).context("there is no such engine")?;
            let mut command = ours(setup.program, "serve");
            command
                .arg("--root")
                .arg(setup.root)
                .arg("--listen")
                .arg(unix(&socket))
                .args(daemon.split_whitespace());
            if setup.source == Source::Memory {
                command.args(["--cache", "256M"]);
            }
            Server::start(command.args(setup.daemon))?
        };
        let (proxy, address) = if nginx {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
            let tls = setup.tls.map_or(String::new(), |tls| {
                format!(
                    "ssl_protocols TLSv1.3; ssl_certificate {}; ssl_certificate_key {};",
                    tls.certificate.display(),
                    tls.key.display()
                )
            });
            let ssl = if setup.tls.is_some() { " ssl" } else { "" };
            // Gathered, as ours are.
            let log = match engine {
                "nginx-log" => format!("access_log {} combined buffer=64k flush=1s;", log.display()),
                _ => String::new(),
            };
            let listen = format!(
                "upstream backend {{ server unix:{}; keepalive 64; keepalive_requests 100000000; }}\n\
                 server {{ listen {address} reuseport{ssl}; {tls} {log} location / {{ proxy_pass http://backend; proxy_http_version 1.1; \
                 proxy_set_header Connection \"\"; proxy_buffer_size 64k; proxy_buffers 8 256k; \
                 proxy_busy_buffers_size 512k; proxy_max_temp_file_size 0; }} }}",
                socket.display()
            );
            (start_nginx(&format!("{id}-proxy"), setup, &listen)?, address)
        } else {
            daemon.line("onecopy serve: ")?;
            let (_, flags) = flags(engine).context("there is no such engine")?;
            let mut command = ours(setup.program, "proxy");
            command.args(["--listen", "127.0.0.1:0", "--backend"]).arg(unix(&socket));
            if let Some(tls) = setup.tls {
                command.arg("--tls-cert").arg(&tls.certificate).arg("--tls-key").arg(&tls.key);
            }
            if let Some(form) = log_form(engine) {
                command.arg("--access-log").arg(&log).args(["--access-log-format", form]);
            }
            let proxy = Server::start(command.args(flags.split_whitespace()).args(setup.proxy))?;
            let scheme = if setup.tls.is_some() { "https" } else { "http" };
            let line = proxy.line(&format!("onecopy proxy: {scheme}://"))?;
            (proxy, line.split(' ').next().unwrap_or_default().parse()?)
        };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() || !socket.exists() {
            if Instant::now() > deadline {
                bail!("{engine} did not come up on {address}: {}", proxy.last_words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Servers { proxy, daemon, address, counted: !nginx, socket })
    }

    /// CPU seconds that both have used.
    pub fn cpu_seconds(&self) -> Result<f64> {
        let of = |server: &Server| crate::proc::cpu_seconds_of(server.child.id());
        Ok(of(&self.daemon)? + of(&self.proxy)?)
    }

    /// The counters of the daemon and of the proxy.
    pub fn counters(&self) -> Result<(Value, Value)> {
        Ok((self.daemon.counters()?, self.proxy.counters()?))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket); // nginx leaves it, and so would a daemon that had to be killed
    }
}

fn unique() -> String {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    format!("{}-{:x}", std::process::id(), now.tv_sec * 1_000_000_000 + now.tv_nsec)
}

fn unix(path: &Path) -> String {
    format!("unix:{}", path.display())
}

fn ours(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args([role, "--die-with-parent", &std::process::id().to_string()]);
    command
}

/// A port that is free now. (nginx cannot take port 0 and tell which it got.)
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Where nginx is, if it is installed. (It lies in no user's PATH on some distributions.)
pub fn nginx() -> Option<&'static str> {
    ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx", "/usr/local/bin/nginx"]
        .into_iter()
        .find(|path| Path::new(path).exists())
}

fn start_nginx(name: &str, setup: &Setup<'_>, server: &str) -> Result<Server> {
    let work = setup.work;
    let path = nginx().context("nginx is not installed (apt-get install nginx)")?;
    let (dir, conf) = (work.display(), work.join(format!("{name}.conf")));
    // A worker for each CPU with a queue of its own, sendfile and keep-alive on, logs off: the way it is fastest here.
    // Workers are somebody else than root unless told.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let text = format!(
        "daemon off; worker_processes auto; {user} pid {dir}/{name}.pid; error_log /dev/null;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_timeout 300; \
         keepalive_requests 100000000; open_file_cache max=1000; client_body_temp_path {dir}/{name}.body; \
         proxy_temp_path {dir}/{name}.proxy; fastcgi_temp_path {dir}/{name}.fcgi; uwsgi_temp_path {dir}/{name}.uwsgi; \
         scgi_temp_path {dir}/{name}.scgi;\n{server}\n}}\n"
    );
    std::fs::write(&conf, text)?;
    let conf = conf.to_str().context("the folder for temporary files has a name that is not UTF-8")?;
    let prefix = work.to_str().unwrap_or_default();
    Server::start(&mut setup.launcher.tied(path, &["-c", conf, "-p", prefix, "-e", "/dev/null"]))
}
