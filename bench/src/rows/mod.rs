//! The rows, and what several of them use: how two workers come to have a connection (`setup`, `meet`), and what they do with it.

use crate::proc::WorkerFn;
use crate::row::Row;

mod aligned;
mod auto;
mod bare;
mod bytes;
mod conn;
mod connect;
mod copy;
mod devmem;
mod dgram;
mod fan_in;
mod feed;
mod hot_set;
mod http;
mod job;
mod meet;
mod ping_pong;
mod pinned;
mod pool;
mod records;
mod reference;
mod setup;
mod tcp;
mod udp;
mod unix_bulk;
mod unix_nt;
mod zc;

/// All rows, in the order they run.
pub const ROWS: &[&Row] = &[
    &copy::ROW,
    &hot_set::ROW,
    &unix_bulk::ROW,
    &unix_nt::ROW,
    &ping_pong::ROW,
    &connect::ROW,
    &records::ROW,
    &fan_in::ROW,
    &reference::ROW,
    &pool::ROW,
    &zc::ROW,
    &tcp::ROW,
    &udp::ROW,
    &devmem::ROW,
    &http::ROW,
    &auto::ROW,
];

/// What the worker of that role does.
pub fn worker(role: &str) -> Option<WorkerFn> {
    let mut roles = ROWS.iter().flat_map(|row| row.workers);
    roles.find(|(name, _)| *name == role).map(|(_, run)| *run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rows_and_roles_are_unique() {
        let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        names.extend(ROWS.iter().flat_map(|row| row.workers).map(|(role, _)| *role));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
