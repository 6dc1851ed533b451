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

/// Has `fd` be as `new` says, where that differs from `old`.
pub(super) fn apply(fd: impl AsFd, ipv6: bool, old: &Settings, new: &Settings) -> Result<()> {
    let fd = fd.as_fd();
    if old.nodelay != new.nodelay {
        sockopt::set_tcp_nodelay(fd, new.nodelay)?;
    }
    if old.cork != new.cork {
        sockopt::set_tcp_cork(fd, new.cork)?;
    }
    if old.keepalive != new.keepalive {
        sockopt::set_socket_keepalive(fd, new.keepalive)?;
    }
    if let Some(time) = new.keepalive_time.filter(|_| old.keepalive_time != new.keepalive_time) {
        sockopt::set_tcp_keepidle(fd, time)?;
    }
    if let Some(interval) =
        new.keepalive_interval.filter(|_| old.keepalive_interval != new.keepalive_interval)
    {
        sockopt::set_tcp_keepintvl(fd, interval)?;
    }
    if let Some(probes) = new.keepalive_probes.filter(|_| old.keepalive_probes != new.keepalive_probes) {
        sockopt::set_tcp_keepcnt(fd, probes.into())?;
    }
    if old.user_timeout != new.user_timeout {
        let limit = new.user_timeout.map_or(0, |limit| limit.as_millis());
        sockopt::set_tcp_user_timeout(fd, u32::try_from(limit).unwrap_or(u32::MAX))?;
    }
    if old.linger != new.linger {
        sockopt::set_socket_linger(fd, new.linger)?;
    }
    // The settings have what the kernel makes of a program's number: twice as much (socket(7)).
    if let Some(bytes) = new.send_buffer.filter(|_| old.send_buffer != new.send_buffer) {
        sockopt::set_socket_send_buffer_size(fd, bytes as usize / 2)?;
    }
    if let Some(bytes) = new.receive_buffer.filter(|_| old.receive_buffer != new.receive_buffer) {
        sockopt::set_socket_recv_buffer_size(fd, bytes as usize / 2)?;
    }
    if old.ttl != new.ttl {
        match ipv6 {
            true => sockopt::set_ipv6_unicast_hops(fd, Some(new.ttl))?,
            false => sockopt::set_ip_ttl(fd, new.ttl.into())?,
        }
    }
    if old.service != new.service {
        match ipv6 {
            true => sockopt::set_ipv6_tclass(fd, new.service.into())?,
            false => sockopt::set_ip_tos(fd, new.service)?,
        }
    }
    // All that was set so far is the same now; what else differs is not set here.
    let mut set = old.clone();
    set.nodelay = new.nodelay;
    set.cork = new.cork;
    set.keepalive = new.keepalive;
    set.keepalive_time = new.keepalive_time;
    set.keepalive_interval = new.keepalive_interval;
    set.keepalive_probes = new.keepalive_probes;
    set.user_timeout = new.user_timeout;
    set.linger = new.linger;
    set.send_buffer = new.send_buffer;
    set.receive_buffer = new.receive_buffer;
    set.ttl = new.ttl;
    set.service = new.service;
    if set == *new { Ok(()) } else { Err(Errno::NOPROTOOPT) }
}

/// The same, of a socket of UDP.
pub(super) fn apply_udp(
    fd: BorrowedFd<'_>,
    ipv6: bool,
    old: &udp::Settings,
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
    if old.broadcast != new.broadcast {
        sockopt::set_socket_broadcast(fd, new.broadcast)?;
    }
    if old.gro != new.gro {
        set(UDP, UDP_GRO, new.gro.into())?;
    }
    if old.gso != new.gso {
        set(UDP, UDP_SEGMENT, new.gso.into())?;
    }
    if old.service != new.service {
        match ipv6 {
            true => sockopt::set_ipv6_tclass(fd, new.service.into())?,
            false => sockopt::set_ip_tos(fd, new.service)?,
        }
    }
    if old.ttl != new.ttl {
        match ipv6 {
            true => sockopt::set_ipv6_unicast_hops(fd, Some(new.ttl))?,
            false => sockopt::set_ip_ttl(fd, new.ttl.into())?,
        }
    }
    if old.dont_fragment != new.dont_fragment {
        let (level, option) = MTU_DISCOVER[usize::from(ipv6)];
        // IP_PMTUDISC_DO, IP_PMTUDISC_DONT.
        set(level, option, if new.dont_fragment { 2 } else { 0 })?;
    }
    // The settings have what the kernel makes of a program's number: twice as much (socket(7)).
    if let Some(bytes) = new.receive_buffer.filter(|_| old.receive_buffer != new.receive_buffer) {
        sockopt::set_socket_recv_buffer_size(fd, bytes as usize / 2)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
