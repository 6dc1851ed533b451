//! The two halves of a stream, borrowed or owned.

use super::Stream;
use std::net::SocketAddr;

onecopy_socket::tokio_halves!(SocketAddr);
