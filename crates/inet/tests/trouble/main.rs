//! Trouble: random programs, wires and peers, beside plain models of what has to come of it.

#[path = "../tcp/net.rs"]
#[allow(dead_code, reason = "its other users use the rest")]
mod net;

mod edges;
mod found;
mod hostile;
mod program;
mod world;
