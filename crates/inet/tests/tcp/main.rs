//! Two stacks over a pair of links, in virtual time.

mod as_linux;
mod counted;
mod device;
mod fast_open;
mod fast_open_hostile;
mod hands;
mod info;
mod kinds;
mod little;
mod local_congestion;
mod net;
mod notify;
mod pacing;
mod settings;
mod shrink;
mod slow_start;
mod strangers;
mod transfer;
