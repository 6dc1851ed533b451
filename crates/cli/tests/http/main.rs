//! Daemon and proxy as a user runs them: the built program, real processes, raw sockets.

mod backend;
mod certificates;
mod changes;
mod clients;
mod config;
mod content;
mod counted;
mod direct;
mod harness;
mod hostile;
mod hygiene;
mod learned;
mod lent;
mod log;
mod metrics;
mod notify;
mod restart;
mod scarce;
mod shutdown;
mod ss;
mod stacked;
mod tls;
mod top;
mod user;
