//! Names and their numbers, as Linux has them (include/uapi): asm-generic/errno.h, asm-generic/socket.h, linux/tcp.h and others.

use crate::script::Value;

const NUMBERS: [(&str, i64); 76] = [
    ("AF_INET", 2),
    ("SOCK_STREAM", 1),
    ("SOCK_NONBLOCK", 0o4000),
    ("IPPROTO_IP", 0),
    ("IPPROTO_TCP", 6),
    ("SOL_IP", 0),
    ("SOL_TCP", 6),
    ("SOL_SOCKET", 1),
    ("SO_REUSEADDR", 2),
    ("SO_ERROR", 4),
    ("SO_SNDBUF", 7),
    ("SO_RCVBUF", 8),
    ("SO_KEEPALIVE", 9),
    ("SO_OOBINLINE", 10),
    ("SO_LINGER", 13),
    ("SO_RCVLOWAT", 18),
    ("IP_TOS", 1),
    ("IP_TTL", 2),
    ("TCP_NODELAY", 1),
    ("TCP_MAXSEG", 2),
    ("TCP_CORK", 3),
    ("TCP_KEEPIDLE", 4),
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 6),
    ("TCP_SYNCNT", 7),
    ("TCP_LINGER2", 8),
    ("TCP_DEFER_ACCEPT", 9),
    ("TCP_WINDOW_CLAMP", 10),
    ("TCP_QUICKACK", 12),
    ("TCP_CONGESTION", 13),
    ("TCP_USER_TIMEOUT", 18),
    ("TCP_FASTOPEN", 23),
    ("TCP_FASTOPEN_CONNECT", 30),
    ("TCP_NOTSENT_LOWAT", 25),
    ("O_RDWR", 2),
    ("O_NONBLOCK", 0o4000),
    ("F_GETFL", 3),
    ("F_SETFL", 4),
    ("SHUT_RD", 0),
    ("SHUT_WR", 1),
    ("SHUT_RDWR", 2),
    ("MSG_PEEK", 2),
    ("MSG_DONTWAIT", 0x40),
    ("MSG_EOR", 0x80),
    ("MSG_NOSIGNAL", 0x4000),
    ("MSG_MORE", 0x8000),
    ("MSG_FASTOPEN", 0x2000_0000),
    ("SIOCINQ", 0x541b),
    ("POLLIN", 1),
    ("POLLPRI", 2),
    ("POLLOUT", 4),
    ("POLLERR", 8),
    ("POLLHUP", 0x10),
    ("POLLRDHUP", 0x2000),
    ("TCP_ESTABLISHED", 1),
    ("TCP_SYN_SENT", 2),
    ("TCP_SYN_RECV", 3),
    ("TCP_FIN_WAIT1", 4),
    ("TCP_FIN_WAIT2", 5),
    ("TCP_TIME_WAIT", 6),
    ("TCP_CLOSE", 7),
    ("TCP_CLOSE_WAIT", 8),
    ("TCP_LAST_ACK", 9),
    ("TCP_LISTEN", 10),
    ("TCP_CLOSING", 11),
    ("TCP_CA_Open", 0),
    ("TCP_CA_Disorder", 1),
    ("TCP_CA_CWR", 2),
    ("TCP_CA_Recovery", 3),
    ("TCP_CA_Loss", 4),
    ("TCPI_OPT_TIMESTAMPS", 1),
    ("TCPI_OPT_SACK", 2),
    ("TCPI_OPT_WSCALE", 4),
    ("TCPI_OPT_ECN", 8),
    ("TCPI_OPT_ECN_SEEN", 16),
    ("TCPI_OPT_SYN_DATA", 32),
];

const ERRNOS: [(&str, i32); 25] = [
    ("EBADF", 9),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EINVAL", 22),
    ("EPIPE", 32),
    ("EDESTADDRREQ", 89),
    ("EMSGSIZE", 90),
    ("EPROTOTYPE", 91),
    ("ENOPROTOOPT", 92),
    ("EPROTO", 71),
    ("EOPNOTSUPP", 95),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETUNREACH", 101),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("EINPROGRESS", 115),
    ("EFAULT", 14),
];

pub(crate) fn number(name: &str) -> Option<i64> {
    NUMBERS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

pub(crate) fn errno(name: &str) -> Option<i32> {
    ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// The name of an errno, or its number.
pub(crate) fn errno_name(errno: i32) -> String {
    let known = ERRNOS.iter().find(|(_, number)| *number == errno);
    known.map_or_else(|| format!("errno {errno}"), |(name, _)| (*name).to_owned())
}

impl Value {
    /// The number that it is.
    pub fn number(&self) -> Result<i64, String> {
        match self {
            Value::Number(number) => Ok(*number),
            Value::Name(name) => number(name).ok_or_else(|| format!("nobody knows {name}")),
            Value::Either(all) => all.iter().try_fold(0, |bits, one| Ok(bits | one.number()?)),
            Value::List(list) if list.len() == 1 => list[0].number(),
            other => Err(format!("{other:?} is no number")),
        }
    }
}
