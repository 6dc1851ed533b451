//! The cases, a file per part of the checklist.

mod epoll;
mod poll;
mod setup;
mod shutdown;
mod stream;
mod traffic;
mod transfer;
mod wait;

use crate::case::Case;

/// Every case, in the order of the table.
pub fn all() -> Vec<&'static Case> {
    [
        setup::CASES,
        stream::CASES,
        wait::CASES,
        transfer::CASES,
        shutdown::CASES,
        poll::CASES,
        epoll::CASES,
        traffic::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The case of that name.
pub fn by_name(name: &str) -> Option<&'static Case> {
    all().into_iter().find(|c| c.name == name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> = super::all().iter().map(|c| c.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(before, names.len());
    }
}
