//! The cases, a file per part of the checklist.

mod ancillary;
mod credentials;
mod datagrams;
mod descriptors;
mod dgram;
mod dgram_many;
mod dgram_names;
mod dgram_rights;
mod epoll;
mod fork;
mod interop;
mod messages;
mod nonblocking;
mod poll;
mod ready;
mod ready_dgram;
mod ready_programs;
mod records;
mod seqpacket;
mod setup;
mod shutdown;
mod stream;
mod tcp;
mod traffic;
mod transfer;
mod transfer_messages;
mod wait;

use std::sync::OnceLock;

use crate::case::Case;

/// Every case, in the order of the table.
pub fn all() -> Vec<&'static Case> {
    static RECORDS: OnceLock<Vec<Case>> = OnceLock::new();
    let records = RECORDS.get_or_init(|| {
        // What is said of readiness, waiting and control messages holds for records as for bytes.
        let same = [setup::CASES, wait::CASES, ancillary::CASES, shutdown::CASES, poll::CASES, epoll::CASES];
        let same =
            same.into_iter().chain([ready::CASES, ready_programs::CASES, nonblocking::CASES]).flatten();
        let same = same.filter(|case| !nonblocking::NOT_OF_RECORDS.contains(&case.name));
        same.filter(|case| !seqpacket::NOT_AGAIN.contains(&case.name)).map(seqpacket::again).collect()
    });
    static PIECES: OnceLock<Vec<Case>> = OnceLock::new();
    let pieces = PIECES.get_or_init(|| {
        let same =
            [wait::CASES, transfer::CASES, interop::CASES, ancillary::CASES, shutdown::CASES, poll::CASES];
        let more = [epoll::CASES, ready::CASES, ready_programs::CASES, traffic::CASES, nonblocking::CASES];
        let same = same.into_iter().chain(more).flatten();
        same.filter(|case| !records::NOT_AGAIN.contains(&case.name)).map(records::again).collect()
    });
    static MESSAGES: OnceLock<Vec<Case>> = OnceLock::new();
    let messages = MESSAGES.get_or_init(|| transfer_messages::cases().collect());
    static DATAGRAMS: OnceLock<Vec<Case>> = OnceLock::new();
    let datagrams = DATAGRAMS.get_or_init(|| {
        let same = [ancillary::CASES, shutdown::CASES, poll::CASES, epoll::CASES].into_iter();
        let same = same.chain([nonblocking::CASES]).flatten();
        let same = same.filter(|case| !nonblocking::NOT_OF_DATAGRAMS.contains(&case.name));
        same.filter(|case| !dgram::NOT_AGAIN.contains(&case.name)).map(dgram::again).collect()
    });
    static TCP: OnceLock<Vec<Case>> = OnceLock::new();
    let over_tcp = TCP.get_or_init(|| {
        let same =
            [stream::CASES, wait::CASES, transfer::CASES, interop::CASES, shutdown::CASES, poll::CASES];
        let more = [epoll::CASES, ready::CASES, ready_programs::CASES, traffic::CASES];
        let same = same.into_iter().chain(more).flatten();
        same.filter(|case| !tcp::NOT_AGAIN.contains(&case.name)).map(tcp::again).collect()
    });
    [
        setup::CASES,
        stream::CASES,
        wait::CASES,
        nonblocking::CASES,
        transfer::CASES,
        interop::CASES,
        ancillary::CASES,
        shutdown::CASES,
        poll::CASES,
        epoll::CASES,
        ready::CASES,
        ready_programs::CASES,
        traffic::CASES,
        fork::CASES,
        seqpacket::CASES,
        records,
        records::CASES,
        pieces,
        dgram_names::CASES,
        dgram::CASES,
        dgram_many::CASES,
        dgram_rights::CASES,
        ready_dgram::CASES,
        datagrams,
        messages,
        tcp::CASES,
        over_tcp,
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
