//! The rows, and what several of them use.

use crate::row::{Row, WorkerFn};

mod bare;
pub mod bytes;
pub mod conn;
mod connect;
mod copy;
mod dgram;
mod fan_in;
mod feed;
mod hot_set;
mod http;
mod ping_pong;
mod pool;
mod records;
mod reference;
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
    &http::ROW,
];

/// What the worker of that role does.
pub fn worker(role: &str) -> Option<WorkerFn> {
    let mut roles = ROWS.iter().flat_map(|row| row.workers);
    roles.find(|(name, _)| *name == role).map(|(_, run)| *run)
}

/// A size as in the names of cases: `64`, `4K`, `1M`; whole units only.
pub fn size_name(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => format!("{}G", b >> 30),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_in_the_records() {
        let names: Vec<String> = [64, 8000, 4096, 128 << 10, 256 << 20].map(size_name).to_vec();
        assert_eq!(names, ["64", "8000", "4K", "128K", "256M"]);
    }

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
