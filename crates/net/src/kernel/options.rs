//! What is set of the kernel's sockets: by setsockopt(2), what has changed of the settings.

use onecopy_inet::tcp::Settings;
use onecopy_inet::tcp::congestion::Algorithm;
use onecopy_inet::udp;
use onecopy_socket::{Error, Op};
use onecopy_sys::datagram::{UDP_GRO, UDP_SEGMENT};
use onecopy_sys::sockopt::set_int;
use rustix::io::{Errno, Result};
use rustix::net::sockopt;
use std::os::fd::{AsFd, BorrowedFd};

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

/// Has `fd` be as `new` says, where that differs from `now`, which has what was set, also where a later option is refused.
pub(super) fn apply(fd: impl AsFd, ipv6: bool, now: &mut Settings, new: &Settings) -> Result<()> {
    let fd = fd.as_fd();
    put!(now, new, nodelay, sockopt::set_tcp_nodelay(fd, new.nodelay));
    put!(now, new, cork, sockopt::set_tcp_cork(fd, new.cork));
    put!(now, new, keepalive, sockopt::set_socket_keepalive(fd, new.keepalive));
    // (None leaves what the kernel has.)
    let given = |time: Option<_>, set: fn(_, _) -> Result<()>| time.map_or(Ok(()), |time| set(fd, time));
    put!(now, new, keepalive_time, given(new.keepalive_time, sockopt::set_tcp_keepidle));
    put!(now, new, keepalive_interval, given(new.keepalive_interval, sockopt::set_tcp_keepintvl));
    let probes = |probes: u8| sockopt::set_tcp_keepcnt(fd, probes.into());
    put!(now, new, keepalive_probes, new.keepalive_probes.map_or(Ok(()), probes));
    let limit = new.user_timeout.map_or(0, |limit| limit.as_millis());
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    put!(now, new, user_timeout, sockopt::set_tcp_user_timeout(fd, limit));
    put!(now, new, linger, sockopt::set_socket_linger(fd, new.linger));
    let bytes = |bytes: u32| sockopt::set_socket_send_buffer_size(fd, bytes as usize / 2);
    put!(now, new, send_buffer, new.send_buffer.map_or(Ok(()), bytes));
    put!(now, new, receive_buffer, set_receive_buffer(fd, new.receive_buffer));
    put!(now, new, ttl, set_ttl(fd, ipv6, new.ttl));
    put!(now, new, service, set_service(fd, ipv6, new.service));
    // What else differs is not set here.
    if now == new { Ok(()) } else { Err(Errno::NOPROTOOPT) }
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
    let set = |level, option, value| {
        set_int(fd, level, option, value).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    };
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
        let new = Settings { nodelay: true, fast_open_connect: true, ..now.clone() };
        assert_eq!(apply(&socket, false, &mut now, &new), Err(Errno::NOPROTOOPT));
        assert!(now.nodelay && kernels() && !now.fast_open_connect);
        let new = Settings { nodelay: false, ..now.clone() };
        assert_eq!(apply(&socket, false, &mut now, &new), Ok(()));
        assert!(!now.nodelay && !kernels());
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
