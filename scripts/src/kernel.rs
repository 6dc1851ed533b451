//! The kernel of this machine as the host under test: in a network namespace of its own, over a TUN device, in real time.

use crate::host::{Host, Setting};
use crate::run;
use crate::script::Script;
use crate::wire::Family;
use crate::{MILLISECOND, defaults};
use onecopy_sys::{sockopt, tun};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, ipproto};
use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How far times may be off, at least (packetdrill's own tests of the kernel take as much for a loaded machine).
const TOLERANCE: u64 = 14 * MILLISECOND;
/// Who waits looks at the clock as often: one who was not let run then knows it.
const BEAT: u64 = 5 * MILLISECOND;
/// A script is run so often, where the machine may be why it fails.
const ATTEMPTS: usize = 5;
/// `struct virtio_net_hdr`.
const VNET: usize = 10;

/// What came of a script on the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It does what is written there.
    Passed,
    /// It does not.
    Failed(String),
    /// It could not be asked: the script or the machine is not as it should be.
    Broken(String),
    /// This machine does not let us try, or was too busy each time: what it lacks.
    Lacking(String),
}

/// Why a script could not be run at all.
#[derive(Debug)]
enum Trouble {
    /// The machine has not what it takes.
    Lacking(String),
    /// It has, and yet it went wrong: as good as a script that fails, or nobody would see that no script is tried any more.
    Broken(String),
}

impl Trouble {
    /// `what` is not to be had, as the kernel says by `error`.
    fn of(what: &str, error: rustix::io::Errno) -> Trouble {
        use rustix::io::Errno;
        let told = format!("{what}: {error}");
        match error {
            // No right to it; no such file or module; a kernel built without it.
            Errno::PERM | Errno::ACCESS | Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOSYS => {
                Trouble::Lacking(told)
            }
            _ => Trouble::Broken(told),
        }
    }
}

impl From<String> for Trouble {
    fn from(why: String) -> Trouble {
        Trouble::Broken(why)
    }
}

/// Runs `script` on this machine's kernel. A run in which this process was not let run for longer than times may be off shows nothing, and
/// is repeated; so is one that fails, a few times, since what the kernel itself does late is not seen.
pub fn on_kernel(script: &Script, family: Family) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Outcome::Lacking("a network namespace and a TUN device (root)".to_owned());
    }
    judge(|| {
        // The namespace is the thread's.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut kernel = Kernel::new(family)?;
                let result = run::run(script, &mut kernel, 0).map(|_| ());
                kernel.leave();
                Ok((result, kernel.late))
            });
            thread.join().unwrap_or_else(|_| Err(Trouble::Broken("the runner panicked".to_owned())))
        })
    })
}

/// What came of a run: what the script says of it, and by how much we were late.
type Run = (Result<(), String>, u64);

fn judge(mut run: impl FnMut() -> Result<Run, Trouble>) -> Outcome {
    let mut failed = None;
    let mut late = 0;
    for _ in 0..ATTEMPTS {
        match run() {
            Err(Trouble::Lacking(what)) => return Outcome::Lacking(what),
            Err(Trouble::Broken(why)) => {
                return Outcome::Broken(format!("the kernel could not be set up for it: {why}"));
            }
            Ok((Ok(()), _)) => return Outcome::Passed,
            Ok((Err(_), lateness)) if lateness > TOLERANCE / 2 => late += 1,
            Ok((Err(why), _)) => failed = Some(why),
        }
    }
    let busy = || Outcome::Lacking(format!("time (the machine was too busy, {late} times)"));
    failed.map_or_else(busy, Outcome::Failed)
}

struct Kernel {
    family: Family,
    begun: Instant,
    device: OwnedFd,
    sockets: Vec<Option<OwnedFd>>,
    /// By how much we were late at most.
    late: u64,
}

fn raw(error: rustix::io::Errno) -> i32 {
    error.raw_os_error()
}

fn code(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// A device of IP packets, which takes super-segments of TCP, and packets whose checksum is not finished.
fn device() -> rustix::io::Result<OwnedFd> {
    let device = tun::open()?;
    tun::attach(&device, "tun0", tun::Kind::default())?;
    tun::set_offload(&device, tun::CHECKSUM | tun::TSO4 | tun::TSO6)?;
    Ok(device)
}

impl Kernel {
    /// A namespace with a device in it that leads to the peer.
    fn new(family: Family) -> Result<Kernel, Trouble> {
        let flags = rustix::thread::UnshareFlags::NEWNET;
        #[expect(deprecated, reason = "it unshares no descriptors, of which the unsafe one warns")]
        rustix::thread::unshare(flags).map_err(|error| Trouble::of("a network namespace", error))?;
        let device = device().map_err(|error| Trouble::of("a TUN device", error))?;
        let (host, prefix, mtu) = (family.host(), family.prefix(), family.mtu());
        // (Nobody asks whether somebody has the address.)
        let (version, how) = if family == Family::V6 { ("-6", "nodad") } else { ("-4", "") };
        if family == Family::V4 {
            let _ = std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
        }
        let commands = format!(
            "link set lo up\nlink set tun0 mtu {mtu}\naddress add {host}/{prefix} dev tun0 {how}\nlink set tun0 up\nroute add default dev tun0\n"
        );
        let mut ip = Command::new("ip")
            .args([version, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("the program ip (install iproute2): {error}"))?;
        let written = ip.stdin.take().map(|mut stdin| stdin.write_all(commands.as_bytes()));
        let done = ip.wait().map_err(|error| error.to_string())?;
        if !done.success() || !matches!(written, Some(Ok(()))) {
            return Err(Trouble::Broken(format!("ip could not set up the device: {done}")));
        }
        let mut kernel = Kernel { family, begun: Instant::now(), device, sockets: Vec::new(), late: 0 };
        for (name, value) in defaults::SYSCTLS {
            kernel.sysctl(name, value)?;
        }
        // What the device sends by itself as it comes up is not the script's.
        while kernel.sent()?.is_some() {}
        kernel.begun = Instant::now();
        Ok(kernel)
    }

    /// Resets what is left, so that nothing of it lives on behind the namespace.
    fn leave(&mut self) {
        for socket in self.sockets.iter_mut().filter_map(Option::take) {
            let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }

    fn open(&mut self, socket: OwnedFd) -> usize {
        self.sockets.push(Some(socket));
        self.sockets.len() - 1
    }

    fn fd(&self, socket: usize) -> Result<BorrowedFd<'_>, i32> {
        self.sockets.get(socket).and_then(Option::as_ref).map(AsFd::as_fd).ok_or(9)
    }
}

impl Host for Kernel {
    fn family(&self) -> Family {
        self.family
    }

    fn now(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    fn pass(&mut self, until: u64) -> Result<(), String> {
        let now = self.now();
        let span = until.saturating_sub(now).min(BEAT);
        let timeout = Timespec { tv_sec: 0, tv_nsec: span as _ };
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&timeout)).map_err(|error| error.to_string())?;
        self.late = self.late.max(self.now().saturating_sub(now + span));
        Ok(())
    }

    fn sent(&mut self) -> Result<Option<(u64, Vec<u8>)>, String> {
        let mut bytes = vec![0; VNET + 65_536];
        match rustix::io::read(&self.device, &mut bytes) {
            Ok(len) => {
                let at = self.now();
                bytes.truncate(len);
                bytes.drain(..VNET.min(len));
                Ok(Some((at, bytes)))
            }
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Err(error) => Err(format!("reading from the device: {error}")),
        }
    }

    fn receive(&mut self, packet: &[u8]) -> Result<(), String> {
        let mut bytes = vec![0; VNET];
        bytes.extend_from_slice(packet);
        match rustix::io::write(&self.device, &bytes) {
            Ok(len) if len == bytes.len() => Ok(()),
            Ok(len) => Err(format!("the device took {len} bytes of {}", bytes.len())),
            Err(error) => Err(format!("writing to the device: {error}")),
        }
    }

    fn finishes_checksums(&self) -> bool {
        // The device says that it does it itself.
        false
    }

    fn tolerance(&self) -> u64 {
        TOLERANCE
    }

    fn comes_to(&mut self, target: u64) {
        self.late = self.late.max(self.now().saturating_sub(target));
    }

    fn sysctl(&mut self, name: &str, value: &str) -> Result<(), String> {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        std::fs::write(&path, value).map_err(|error| format!("{path} = {value}: {error}"))
    }

    fn socket(&mut self) -> Result<usize, i32> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = if self.family == Family::V6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let made = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP));
        made.map(|socket| self.open(socket)).map_err(raw)
    }

    fn bind(&mut self, socket: usize, port: u16) -> Result<(), i32> {
        rustix::net::bind(self.fd(socket)?, &SocketAddr::new(self.family.any(), port)).map_err(raw)
    }

    fn listen(&mut self, socket: usize, backlog: i32) -> Result<(), i32> {
        rustix::net::listen(self.fd(socket)?, backlog).map_err(raw)
    }

    fn connect(&mut self, socket: usize, port: u16) -> Result<(), i32> {
        rustix::net::connect(self.fd(socket)?, &SocketAddr::new(self.family.peer(), port)).map_err(raw)
    }

    fn accept(&mut self, socket: usize) -> Result<(usize, u16), i32> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(self.fd(socket)?, flags).map_err(raw)?;
        let peer = rustix::net::getpeername(&accepted).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Ok((self.open(accepted), peer.map_or(0, |peer| peer.port())))
    }

    fn read(&mut self, socket: usize, len: usize, flags: i32) -> Result<Vec<u8>, i32> {
        let mut bytes = vec![0; len];
        let flags = RecvFlags::from_bits_retain(flags.cast_unsigned());
        let (len, _) = rustix::net::recv(self.fd(socket)?, &mut bytes[..], flags).map_err(raw)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    fn write(&mut self, socket: usize, bytes: &[u8], flags: i32) -> Result<usize, i32> {
        let flags = SendFlags::from_bits_retain(flags.cast_unsigned()) | SendFlags::NOSIGNAL;
        rustix::net::send(self.fd(socket)?, bytes, flags).map_err(raw)
    }

    fn connect_with(&mut self, socket: usize, port: u16, bytes: &[u8], flags: i32) -> Result<usize, i32> {
        const MSG_FASTOPEN: u32 = 0x2000_0000;
        let flags = SendFlags::from_bits_retain(flags.cast_unsigned() | MSG_FASTOPEN) | SendFlags::NOSIGNAL;
        let peer = SocketAddr::new(self.family.peer(), port);
        rustix::net::sendto(self.fd(socket)?, bytes, flags, &peer).map_err(raw)
    }

    fn shutdown(&mut self, socket: usize, how: i32) -> Result<(), i32> {
        let how = match how {
            0 => Shutdown::Read,
            1 => Shutdown::Write,
            _ => Shutdown::Both,
        };
        rustix::net::shutdown(self.fd(socket)?, how).map_err(raw)
    }

    fn close(&mut self, socket: usize) {
        if let Some(socket) = self.sockets.get_mut(socket) {
            *socket = None;
        }
    }

    fn poll(&mut self, socket: usize, events: i16) -> i16 {
        let Ok(fd) = self.fd(socket) else { return 0 };
        let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::from_bits_retain(events.cast_unsigned()))];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match rustix::event::poll(&mut polled, Some(&now)) {
            Ok(_) => polled[0].revents().bits().cast_signed(),
            Err(_) => 0,
        }
    }

    fn readable(&mut self, socket: usize) -> Result<i32, i32> {
        rustix::io::ioctl_fionread(self.fd(socket)?).map(|count| count as i32).map_err(raw)
    }

    fn set(&mut self, socket: usize, level: i32, option: i32, value: Setting<'_>) -> Result<(), i32> {
        let fd = self.fd(socket)?;
        match value {
            Setting::Number(value) => sockopt::set_int(fd, level, option, value).map_err(code),
            Setting::Linger(on, time) => {
                let time = on.then(|| Duration::from_secs(time.into()));
                rustix::net::sockopt::set_socket_linger(fd, time).map_err(raw)
            }
            Setting::Text(name) => rustix::net::sockopt::set_tcp_congestion(fd, name).map_err(raw),
        }
    }

    fn get(&mut self, socket: usize, level: i32, option: i32) -> Result<i32, i32> {
        sockopt::int(self.fd(socket)?, level, option).map_err(code)
    }

    fn info(&mut self, socket: usize) -> Result<BTreeMap<&'static str, u64>, i32> {
        let mut bytes = [0; 248];
        let len = sockopt::tcp_info(self.fd(socket)?, &mut bytes).map_err(code)?;
        let whole = |at: usize, size: usize| {
            let mut word = [0; 8];
            word[..size].copy_from_slice(&bytes[at..at + size]);
            u64::from_ne_bytes(word)
        };
        let there = FIELDS.iter().filter(|(_, at, size)| at + size <= len);
        let mut fields: BTreeMap<_, _> = there.map(|(name, at, size)| (*name, whole(*at, *size))).collect();
        fields.insert("fastopen_client_fail", u64::from(bytes[7] >> 1 & 3));
        fields.insert("snd_wscale", u64::from(bytes[6] & 15));
        fields.insert("rcv_wscale", u64::from(bytes[6] >> 4));
        Ok(fields)
    }
}

/// Fields of `struct tcp_info` (include/uapi/linux/tcp.h): where, and how long.
const FIELDS: [(&str, usize, usize); 54] = [
    ("state", 0, 1),
    ("ca_state", 1, 1),
    ("retransmits", 2, 1),
    ("probes", 3, 1),
    ("backoff", 4, 1),
    ("options", 5, 1),
    ("rto", 8, 4),
    ("ato", 12, 4),
    ("snd_mss", 16, 4),
    ("rcv_mss", 20, 4),
    ("unacked", 24, 4),
    ("sacked", 28, 4),
    ("lost", 32, 4),
    ("retrans", 36, 4),
    ("last_data_sent", 44, 4),
    ("last_data_recv", 52, 4),
    ("last_ack_recv", 56, 4),
    ("pmtu", 60, 4),
    ("rcv_ssthresh", 64, 4),
    ("rtt", 68, 4),
    ("rttvar", 72, 4),
    ("snd_ssthresh", 76, 4),
    ("snd_cwnd", 80, 4),
    ("advmss", 84, 4),
    ("reordering", 88, 4),
    ("rcv_rtt", 92, 4),
    ("rcv_space", 96, 4),
    ("total_retrans", 100, 4),
    ("pacing_rate", 104, 8),
    ("max_pacing_rate", 112, 8),
    ("bytes_acked", 120, 8),
    ("bytes_received", 128, 8),
    ("segs_out", 136, 4),
    ("segs_in", 140, 4),
    ("notsent_bytes", 144, 4),
    ("min_rtt", 148, 4),
    ("data_segs_in", 152, 4),
    ("data_segs_out", 156, 4),
    ("delivery_rate", 160, 8),
    ("busy_time", 168, 8),
    ("rwnd_limited", 176, 8),
    ("sndbuf_limited", 184, 8),
    ("delivered", 192, 4),
    ("delivered_ce", 196, 4),
    ("bytes_sent", 200, 8),
    ("bytes_retrans", 208, 8),
    ("dsack_dups", 216, 4),
    ("reord_seen", 220, 4),
    ("rcv_ooopack", 224, 4),
    ("snd_wnd", 228, 4),
    ("rcv_wnd", 232, 4),
    ("total_rto", 240, 2),
    ("total_rto_recoveries", 242, 2),
    ("total_rto_time", 244, 4),
];

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_what_the_machine_lacks_lets_a_script_go_untried() {
        let of = |error| judge(|| Err(Trouble::of("a TUN device", error)));
        for error in [Errno::PERM, Errno::NOENT, Errno::NODEV] {
            assert_eq!(of(error), Outcome::Lacking(format!("a TUN device: {error}")));
        }
        for error in [Errno::MFILE, Errno::BUSY, Errno::INVAL] {
            assert!(matches!(of(error), Outcome::Broken(why) if why.contains("a TUN device")), "{error}");
        }
        let unset = judge(|| Err("/proc/sys/net/ipv4/tcp_sack = 1: it is not there".to_owned().into()));
        assert!(matches!(unset, Outcome::Broken(why) if why.contains("tcp_sack")));
    }

    #[test]
    fn who_was_late_is_asked_again() {
        let mut runs = 0;
        let mut late = |result: Result<(), String>, lateness| {
            runs = 0;
            let outcome = judge(|| {
                runs += 1;
                Ok((result.clone(), lateness))
            });
            (outcome, runs)
        };
        assert_eq!(late(Ok(()), 0), (Outcome::Passed, 1));
        assert_eq!(late(Err("no".to_owned()), 0), (Outcome::Failed("no".to_owned()), ATTEMPTS));
        let (outcome, runs) = late(Err("no".to_owned()), TOLERANCE);
        assert!(matches!(outcome, Outcome::Lacking(_)) && runs == ATTEMPTS, "{outcome:?}");
    }
}
