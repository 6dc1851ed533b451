//! Page pools: what a byte lies in between sockets.
