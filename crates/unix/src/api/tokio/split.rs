//! The two halves of a stream, borrowed or owned.

use crate::addr::SocketAddr;
use crate::api::tokio::stream::Stream;

onecopy_socket::tokio_halves!(SocketAddr);
