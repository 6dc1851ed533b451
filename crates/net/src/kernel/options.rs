//! What is set of the kernel's sockets: by setsockopt(2), what has changed of the settings.

use super::wait::explained;
use onecopy_inet::tcp::Settings;
use onecopy_inet::tcp::congestion::Algorithm;
use onecopy_inet::udp;
use onecopy_socket::{Error, Op};
use onecopy_sync::{Mutex, MutexGuard};
use onecopy_sys::datagram::{UDP_GRO, UDP_SEGMENT};
use onecopy_sys::sockopt::{set_int, set_max_pacing_rate};
use rustix::io::{Errno, Result};
use rustix::net::sockopt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Has `fd` use the congestion control of `new`, and notes it in `now`. It is apart from [`apply`] and comes before it, since it is what
/// kernels refuse most, and the reason names the algorithm.
pub(super) fn set_congestion(
    fd: impl AsFd,
    now: &mut Settings,
    new: &Settings,
) -> onecopy_socket::Result<()> {
    if now.congestion == new.congestion {
        return Ok(());
    }
    let Some(algorithm) = new.congestion else {
        let error = Error::new(Op::Option, Errno::INVAL).about("congestion");
        return Err(error.because(
            "the kernel has no call that takes a choice back; name the algorithm that is wanted instead",
        ));
    };
    sockopt::set_tcp_congestion(fd, algorithm.name()).map_err(|errno| refused(algorithm, errno))?;
    now.congestion = new.congestion;
    Ok(())
}

/// What a socket begins with that has `congestion`, or the system's, from before it connects or listens.
pub(super) fn begin(fd: impl AsFd, congestion: Option<Algorithm>) -> onecopy_socket::Result<Settings> {
    let mut now = Settings::default();
    set_congestion(fd, &mut now, &Settings { congestion, ..Settings::default() })?;
    Ok(now)
}

/// Has `now` tell the congestion control that `fd` really has, if one was chosen: a route may have put another one there (ip-route(8),
/// congctl), and a listener's may be newer than the connection. It is none where we have no name for it.
pub(super) fn see_congestion(fd: impl AsFd, now: &mut Settings) {
    if now.congestion.is_some() {
        let name = sockopt::tcp_congestion(fd).ok();
        now.congestion = name.and_then(|name| Algorithm::named(&name));
    }
}

/// What was set, as the kernel has it now.
pub(super) fn seen<'a>(options: &'a Mutex<Settings>, fd: BorrowedFd<'_>) -> MutexGuard<'a, Settings> {
    let mut settings = options.lock();
    see_congestion(fd, &mut settings);
    settings
}

pub(super) fn changed(
    options: &Mutex<Settings>,
    fd: BorrowedFd<'_>,
    ipv6: bool,
    change: &mut dyn FnMut(&mut Settings),
) -> onecopy_socket::Result<()> {
    // It is neither closed nor a socket that does nothing yet.
    self::change(&mut seen(options, fd), false, fd, ipv6, change)
}

/// Has the kernel's socket be as `change` says, and `now` with it; `closed`: it does nothing yet.
pub(super) fn change(
    now: &mut Settings,
    closed: bool,
    fd: BorrowedFd<'_>,
    ipv6: bool,
    change: &mut dyn FnMut(&mut Settings),
) -> onecopy_socket::Result<()> {
    let mut new = now.clone();
    change(&mut new);
    new.settle(closed).map_err(|_| explained(Op::Option, Errno::INVAL))?;
    set_congestion(fd, now, &new)?;
    apply(fd, ipv6, now, &new)
}

/// Why the kernel does not take `algorithm` (tcp_set_congestion_control()).
fn refused(algorithm: Algorithm, errno: Errno) -> Error {
    macro_rules! reason {
        ($name:literal) => {
            match errno {
                Errno::NOENT => concat!(
                    "this kernel has no congestion control ", $name,
                    " (see /proc/sys/net/ipv4/tcp_available_congestion_control); load it as root, `modprobe tcp_", $name,
                    "`, or choose another one"
                ),
                Errno::PERM => concat!(
                    "not everybody may choose the congestion control ", $name,
                    " here; have root add it to /proc/sys/net/ipv4/tcp_allowed_congestion_control, run with CAP_NET_ADMIN, or see \
                     whether the route has another one locked (ip route, congctl)"
                ),
                _ => concat!(
                    "the kernel does not take the congestion control ", $name,
                    "; see /proc/sys/net/ipv4/tcp_available_congestion_control, and choose another one"
                ),
            }
        };
    }
    let why = match algorithm {
        Algorithm::Reno => reason!("reno"),
        Algorithm::Cubic => reason!("cubic"),
    };
    Error::new(Op::Option, errno).about("congestion").because(why)
}

/// Sets one option where `new` has another one than `now`, and notes it: a kernel that refuses the next one has this one.
macro_rules! put {
    ($now:ident, $new:ident, $field:ident, $set:expr) => {
        if $now.$field != $new.$field {
            $set?;
            $now.$field = $new.$field;
        }
    };
}

/// Options of TCP that rustix lacks, their values one int (include/uapi/linux/tcp.h).
mod option {
    pub const MAXSEG: i32 = 2;
    pub const SYNCNT: i32 = 7;
    pub const LINGER2: i32 = 8;
    pub const DEFER_ACCEPT: i32 = 9;
    pub const WINDOW_CLAMP: i32 = 10;
    pub const FASTOPEN: i32 = 23;
    pub const NOTSENT_LOWAT: i32 = 25;
    pub const FASTOPEN_CONNECT: i32 = 30;
    pub const FASTOPEN_NO_COOKIE: i32 = 34;
}

/// Has `fd` be as `new` says, where that differs from `now`, which has what was set, also where a later option is refused.
pub(super) fn apply(
    fd: impl AsFd,
    ipv6: bool,
    now: &mut Settings,
    new: &Settings,
) -> onecopy_socket::Result<()> {
    /// As `put`, with the option's name in the error.
    macro_rules! put_named {
        ($field:ident, $set:expr) => {
            put!(
                now,
                new,
                $field,
                $set.map_err(|errno| explained(Op::Option, errno).about(stringify!($field)))
            )
        };
    }
    let fd = fd.as_fd();
    let tcp = |option, value| set(fd, 6, option, value);
    put_named!(nodelay, sockopt::set_tcp_nodelay(fd, new.nodelay));
    put_named!(cork, sockopt::set_tcp_cork(fd, new.cork));
    put_named!(keepalive, sockopt::set_socket_keepalive(fd, new.keepalive));
    // (None leaves what the kernel has.)
    let given = |time: Option<_>, set: fn(_, _) -> Result<()>| time.map_or(Ok(()), |time| set(fd, time));
    put_named!(keepalive_time, given(new.keepalive_time, sockopt::set_tcp_keepidle));
    put_named!(keepalive_interval, given(new.keepalive_interval, sockopt::set_tcp_keepintvl));
    let probes = |probes: u8| sockopt::set_tcp_keepcnt(fd, probes.into());
    put_named!(keepalive_probes, new.keepalive_probes.map_or(Ok(()), probes));
    let limit = new.user_timeout.map_or(0, |limit| limit.as_millis());
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    put_named!(user_timeout, sockopt::set_tcp_user_timeout(fd, limit));
    // (The ring's thread closes it, and is not to wait for one peer. What was sent leaves all the same, within the stack's linger.)
    put_named!(linger, sockopt::set_socket_linger(fd, new.linger.filter(Duration::is_zero)));
    let bytes = |bytes: u32| sockopt::set_socket_send_buffer_size(fd, bytes as usize / 2);
    put_named!(send_buffer, new.send_buffer.map_or(Ok(()), bytes));
    put_named!(receive_buffer, set_receive_buffer(fd, new.receive_buffer));
    put_named!(ttl, set_ttl(fd, ipv6, new.ttl));
    put_named!(service, set_service(fd, ipv6, new.service));
    // 0 is the system's, -1 none (do_tcp_setsockopt()).
    let wait = new.fin_wait.map_or(0, |limit| if limit.is_zero() { -1 } else { seconds(limit) });
    put_named!(fin_wait, tcp(option::LINGER2, wait));
    put_named!(max_segment, tcp(option::MAXSEG, new.max_segment.unwrap_or(0).into()));
    put_named!(defer_accept, tcp(option::DEFER_ACCEPT, new.defer_accept.map_or(0, seconds)));
    // 0 is the system's.
    put_named!(notsent_lowat, tcp(option::NOTSENT_LOWAT, int(new.notsent_lowat.unwrap_or(0))));
    put_named!(fast_open_no_cookie, tcp(option::FASTOPEN_NO_COOKIE, new.fast_open_no_cookie.into()));
    let rate = |rate: Option<u64>| set_max_pacing_rate(fd, rate.unwrap_or(u64::MAX)).map_err(of_io);
    put_named!(max_pacing_rate, rate(new.max_pacing_rate));
    // The kernel has no call that takes these back.
    if let (Some(_), None) = (now.syn_retries, new.syn_retries) {
        return Err(stays(
            "syn_retries",
            "the kernel has no call that takes it back; say how many SYNs are wanted",
        ));
    }
    if let (Some(_), None) = (now.window_clamp, new.window_clamp) {
        return Err(stays(
            "window_clamp",
            "the kernel has no call that takes it back; say a large one instead",
        ));
    }
    if let (Some(_), None) = (now.fast_open_queue, new.fast_open_queue) {
        return Err(stays("fast_open_queue", "the kernel has no call that takes it back; 0 ends Fast Open"));
    }
    if now.fast_open_connect != new.fast_open_connect {
        let set = tcp(option::FASTOPEN_CONNECT, new.fast_open_connect.into());
        set.map_err(|errno| no_fast_open("fast_open_connect", errno))?;
        now.fast_open_connect = new.fast_open_connect;
    }
    // The kernel takes it all the same, and no listener's connections begin early.
    let queues = new.fast_open_queue.is_some_and(|queue| queue > 0);
    if now.fast_open_queue != new.fast_open_queue && queues && !serves_fast_open() {
        return Err(no_fast_open("fast_open_queue", Errno::OPNOTSUPP));
    }
    let tcp_of = |option, value: Option<i32>| value.map_or(Ok(()), |value| tcp(option, value));
    put_named!(syn_retries, tcp_of(option::SYNCNT, new.syn_retries.map(i32::from)));
    put_named!(window_clamp, tcp_of(option::WINDOW_CLAMP, new.window_clamp.map(int)));
    put_named!(fast_open_queue, tcp_of(option::FASTOPEN, new.fast_open_queue.map(int)));
    never_set(now, new)
}

/// What is not set of the kernel's sockets, and why: the first that differs.
fn never_set(now: &Settings, new: &Settings) -> onecopy_socket::Result<()> {
    let (option, why) = if now.receive_low_water != new.receive_low_water {
        let why = "the ring reads ahead of the program, so the kernel cannot hold bytes back; receive with RecvFlags::WAITALL to wait for so many";
        ("receive_low_water", why)
    } else if now.fast_open_keys != new.fast_open_keys {
        let why = "the kernel's listeners have the key of their network namespace; set that by sysctl (net.ipv4.tcp_fastopen_key)";
        ("fast_open_keys", why)
    } else {
        return Ok(());
    };
    Err(Error::new(Op::Option, Errno::NOPROTOOPT).about(option).because(why))
}

/// Whether listeners may take data with a SYN here: the bit 2 of net.ipv4.tcp_fastopen. True where nobody says so.
fn serves_fast_open() -> bool {
    // (Of the thread's network namespace, as sockets are.)
    let used = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_fastopen");
    used.ok().and_then(|used| used.trim().parse::<u32>().ok()).is_none_or(|used| used & 2 != 0)
}

/// Why the kernel does not take an option of Fast Open (do_tcp_setsockopt()).
fn no_fast_open(option: &'static str, errno: Errno) -> Error {
    let why = match (errno, option) {
        (Errno::OPNOTSUPP, "fast_open_connect") => {
            "this host does not connect with Fast Open: net.ipv4.tcp_fastopen lacks the bit 1; have root set it (`sysctl -w net.ipv4.tcp_fastopen=3`)"
        }
        (Errno::OPNOTSUPP, _) => {
            "this host's listeners take no data with a SYN: net.ipv4.tcp_fastopen lacks the bit 2; have root set it (`sysctl -w net.ipv4.tcp_fastopen=3`)"
        }
        (Errno::INVAL, _) => {
            "it says how a connection begins, and this one has; give it to Stream::connect_with"
        }
        _ => return explained(Op::Option, errno).about(option),
    };
    Error::new(Op::Option, errno).about(option).because(why)
}

fn stays(option: &'static str, why: &'static str) -> Error {
    Error::new(Op::Option, Errno::INVAL).about(option).because(why)
}

/// Whole seconds, which the kernel counts: those that were begun too.
fn seconds(time: Duration) -> i32 {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// As much of it as an int has.
fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

fn set(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> Result<()> {
    set_int(fd, level, option, value).map_err(of_io)
}

fn of_io(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The same, of a socket of UDP.
pub(super) fn apply_udp(
    fd: BorrowedFd<'_>,
    ipv6: bool,
    now: &mut udp::Settings,
    new: &udp::Settings,
) -> Result<()> {
    // include/uapi/linux/in.h and in6.h.
    const MTU_DISCOVER: [(i32, i32); 2] = [(0, 10), (41, 23)];
    const UDP: i32 = 17;
    let set = |level, option, value| set(fd, level, option, value);
    if new.all_errors {
        // They come by the error queue, which nobody here reads.
        return Err(Errno::NOPROTOOPT);
    }
    put!(now, new, broadcast, sockopt::set_socket_broadcast(fd, new.broadcast));
    put!(now, new, gro, set(UDP, UDP_GRO, new.gro.into()));
    put!(now, new, gso, set(UDP, UDP_SEGMENT, new.gso.into()));
    put!(now, new, service, set_service(fd, ipv6, new.service));
    put!(now, new, ttl, set_ttl(fd, ipv6, new.ttl));
    let (level, option) = MTU_DISCOVER[usize::from(ipv6)];
    // IP_PMTUDISC_DO, IP_PMTUDISC_DONT.
    put!(now, new, dont_fragment, set(level, option, if new.dont_fragment { 2 } else { 0 }));
    put!(now, new, receive_buffer, set_receive_buffer(fd, new.receive_buffer));
    *now = new.clone();
    Ok(())
}

fn set_ttl(fd: BorrowedFd<'_>, ipv6: bool, ttl: u8) -> Result<()> {
    match ipv6 {
        true => sockopt::set_ipv6_unicast_hops(fd, Some(ttl)),
        false => sockopt::set_ip_ttl(fd, ttl.into()),
    }
}

fn set_service(fd: BorrowedFd<'_>, ipv6: bool, service: u8) -> Result<()> {
    match ipv6 {
        true => sockopt::set_ipv6_tclass(fd, service.into()),
        false => sockopt::set_ip_tos(fd, service),
    }
}

/// None leaves what the kernel has. The settings have what it makes of a program's number: twice as much (socket(7)).
fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: Option<u32>) -> Result<()> {
    bytes.map_or(Ok(()), |bytes| sockopt::set_socket_recv_buffer_size(fd, bytes as usize / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn what_was_set_before_a_refusal_can_be_taken_back() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let kernels = || sockopt::tcp_nodelay(&socket).unwrap();
        let mut now = Settings::default();
        let new = Settings { nodelay: true, receive_low_water: 100, ..now.clone() };
        let error = apply(&socket, false, &mut now, &new).unwrap_err();
        assert_eq!(error.raw_os_error(), Errno::NOPROTOOPT.raw_os_error());
        assert!(now.nodelay && kernels() && now.receive_low_water == 1);
        let new = Settings { nodelay: false, ..now.clone() };
        apply(&socket, false, &mut now, &new).unwrap();
        assert!(!now.nodelay && !kernels());
    }

    /// A listener, what is set of it, and what getsockopt(2) says then.
    struct Set {
        socket: TcpListener,
        now: Settings,
    }

    impl Set {
        fn new() -> Set {
            Set { socket: TcpListener::bind("127.0.0.1:0").unwrap(), now: Settings::default() }
        }

        fn change(&mut self, change: impl FnOnce(&mut Settings)) -> onecopy_socket::Result<()> {
            let mut new = self.now.clone();
            change(&mut new);
            apply(&self.socket, false, &mut self.now, &new)
        }

        fn tcp(&self, option: i32) -> i32 {
            onecopy_sys::sockopt::int(self.socket.as_fd(), 6, option).unwrap()
        }

        fn is_refused(&mut self, option: &str, errno: Errno, change: impl FnOnce(&mut Settings)) {
            let before = self.now.clone();
            let error = self.change(change).unwrap_err();
            assert_eq!((error.raw_os_error(), error.argument()), (errno.raw_os_error(), Some(option)));
            assert!(error.reason().is_some() && self.now == before, "{error}");
        }
    }

    #[test]
    fn the_longest_segment_is_the_kernels() {
        let mut set = Set::new();
        let before = set.tcp(option::MAXSEG);
        set.change(|to| to.max_segment = Some(700)).unwrap();
        assert_eq!(set.tcp(option::MAXSEG), 700);
        set.change(|to| to.max_segment = None).unwrap();
        assert_eq!(set.tcp(option::MAXSEG), before);
        assert!(set.change(|to| to.max_segment = Some(87)).is_err() && set.now.max_segment.is_none());
    }

    #[test]
    fn syns_that_are_sent_again_are_the_kernels() {
        let mut set = Set::new();
        set.change(|to| to.syn_retries = Some(3)).unwrap();
        assert_eq!(set.tcp(option::SYNCNT), 3);
        set.is_refused("syn_retries", Errno::INVAL, |to| to.syn_retries = None);
    }

    #[test]
    fn how_long_fin_wait_lasts_is_the_kernels() {
        let mut set = Set::new();
        let before = set.tcp(option::LINGER2);
        // Seconds that were begun count.
        for (wait, kernels) in [(6_500, 7), (0, -1)] {
            set.change(|to| to.fin_wait = Some(Duration::from_millis(wait))).unwrap();
            assert_eq!(set.tcp(option::LINGER2), kernels);
        }
        set.change(|to| to.fin_wait = None).unwrap();
        assert_eq!(set.tcp(option::LINGER2), before);
    }

    #[test]
    fn how_long_accepting_waits_for_bytes_is_the_kernels() {
        let mut set = Set::new();
        set.change(|to| to.defer_accept = Some(Duration::from_secs(3))).unwrap();
        assert_eq!(set.tcp(option::DEFER_ACCEPT), 3);
        set.change(|to| to.defer_accept = None).unwrap();
        assert_eq!(set.tcp(option::DEFER_ACCEPT), 0);
    }

    #[test]
    fn the_largest_window_is_the_kernels() {
        let mut set = Set::new();
        for (clamp, kernels) in [(10_000, 10_000), (u32::MAX, i32::MAX)] {
            set.change(|to| to.window_clamp = Some(clamp)).unwrap();
            assert_eq!(set.tcp(option::WINDOW_CLAMP), kernels);
        }
        set.is_refused("window_clamp", Errno::INVAL, |to| to.window_clamp = None);
    }

    #[test]
    fn how_much_may_wait_to_be_sent_is_the_kernels() {
        let mut set = Set::new();
        set.change(|to| to.notsent_lowat = Some(16_384)).unwrap();
        assert_eq!(set.tcp(option::NOTSENT_LOWAT), 16_384);
        set.change(|to| to.notsent_lowat = None).unwrap();
        assert_eq!(set.tcp(option::NOTSENT_LOWAT), 0);
    }

    #[test]
    fn the_pace_is_the_kernels() {
        const SO_MAX_PACING_RATE: i32 = 47;
        let mut set = Set::new();
        // An int has no more than 32 bits of it.
        for (rate, kernels) in [(Some(123_456), 123_456), (Some(5 << 32), -1), (Some(7), 7), (None, -1)] {
            set.change(|to| to.max_pacing_rate = rate).unwrap();
            let told = onecopy_sys::sockopt::int(set.socket.as_fd(), 1, SO_MAX_PACING_RATE);
            assert_eq!(told.unwrap(), kernels, "{rate:?}");
        }
    }

    #[test]
    fn the_queue_of_fast_open_is_the_kernels() {
        let mut set = Set::new();
        if !serves_fast_open() {
            set.is_refused("fast_open_queue", Errno::OPNOTSUPP, |to| to.fast_open_queue = Some(5));
            return println!("lacking: Fast Open of listeners (net.ipv4.tcp_fastopen without 2)");
        }
        set.change(|to| (to.fast_open_queue, to.fast_open_no_cookie) = (Some(5), true)).unwrap();
        assert_eq!((set.tcp(option::FASTOPEN), set.tcp(option::FASTOPEN_NO_COOKIE)), (5, 1));
        set.is_refused("fast_open_queue", Errno::INVAL, |to| to.fast_open_queue = None);
        set.change(|to| (to.fast_open_queue, to.fast_open_no_cookie) = (Some(0), false)).unwrap();
        assert_eq!((set.tcp(option::FASTOPEN), set.tcp(option::FASTOPEN_NO_COOKIE)), (0, 0));
    }

    #[test]
    fn what_means_nothing_over_the_ring_is_refused_with_the_reason() {
        let mut set = Set::new();
        set.is_refused("receive_low_water", Errno::NOPROTOOPT, |to| to.receive_low_water = 100);
        // A listener has begun.
        set.is_refused("fast_open_connect", Errno::INVAL, |to| to.fast_open_connect = true);
        let keys = onecopy_inet::tcp::fast_open::Keys::new([1; 16], None);
        set.is_refused("fast_open_keys", Errno::NOPROTOOPT, |to| to.fast_open_keys = Some(keys));
    }

    #[test]
    fn a_refusal_names_the_algorithm_and_what_to_do() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
            let told = [
                (Errno::NOENT, "modprobe tcp_"),
                (Errno::PERM, "tcp_allowed_congestion_control"),
                (Errno::BUSY, "choose another one"),
            ];
            for (errno, advice) in told {
                let error = refused(algorithm, errno);
                assert_eq!(
                    (error.raw_os_error(), error.argument()),
                    (errno.raw_os_error(), Some("congestion"))
                );
                let said = error.to_string();
                assert!(said.contains(algorithm.name()) && said.contains(advice), "{said}");
            }
        }
    }
}
