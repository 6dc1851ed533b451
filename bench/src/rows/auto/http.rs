//! `http`: what daemon and proxy choose by themselves, beside each of the ways that they can be told to go.

use crate::http::servers::Source;
use crate::row::{Case, Scale};
use crate::rows::http;

/// Bodies whose cases are always the same: whence, how large, whether over TLS.
const BODIES: [(Source, u64, bool); 11] = [
    // The least that is lent.
    (Source::File, 16 << 10, false),
    (Source::File, 64 << 10, false),
    (Source::File, 1 << 20, false),
    (Source::File, 16 << 20, false),
    (Source::Memory, 16 << 10, false),
    (Source::Memory, 64 << 10, false),
    (Source::Memory, 1 << 20, false),
    (Source::Memory, 16 << 20, false),
    (Source::File, 1 << 20, true),
    (Source::Memory, 64 << 10, true),
    (Source::Memory, 1 << 20, true),
];

/// The ways: copied with either kind of stores or with what --policy auto makes of it, or lent and then sent by each call. (--lend memory
/// is --lend never for a file, and --lend auto for memory. A file is never mapped. What is encrypted is not lent.)
fn ways(source: Source, tls: bool) -> &'static [&'static str] {
    match source {
        _ if tls => &["cached", "nt"],
        Source::File => &["cached", "nt", "lend-never", "lend-sendfile", "lend-splice"],
        Source::Memory => &["cached", "nt", "lend-never", "lend-sendfile", "lend-splice", "lend-map"],
    }
}

/// The cases, with the fixed ways of each.
pub fn cases(scale: Scale) -> Vec<(Case, &'static [&'static str])> {
    let wanted = |size: u64| match scale {
        Scale::Full => true,
        Scale::Quick => size <= 1 << 20,
        Scale::Smoke => size == 64 << 10,
    };
    let bodies = BODIES.into_iter().filter(|&(_, size, _)| wanted(size));
    bodies
        .map(|(source, size, tls)| (http::case(source, size, http::footprint(scale), tls), ways(source, tls)))
        .collect()
}
