//! What cases of datagrams are written with.

use crate::case::{Case, Ctx, Source};
use crate::cases::setup::raw;
use crate::impls::{Kind, Name, Socket, Sockets};
use crate::stop::{Outcome, Stop};

pub const fn same(
    name: &'static str,
    rule: &'static str,
    source: Source,
    expect: &'static str,
    run: fn(&Ctx<'_>) -> Outcome,
) -> Case {
    Case::same(name, rule, source, expect, run).of(Kind::Dgram)
}

pub fn dg(cx: &Ctx<'_>) -> Result<Box<dyn Socket>, Stop> {
    raw(cx, Kind::Dgram)
}

pub fn bound(cx: &Ctx<'_>, name: &str) -> Result<Box<dyn Socket>, Stop> {
    let socket = dg(cx)?;
    socket.bind(&cx.path(name))?;
    Ok(socket)
}

/// A name as the last part of its path.
pub fn short(name: &Name) -> String {
    match name {
        Name::Unnamed => "unnamed".to_owned(),
        Name::Path(p) => format!("/{}", p.file_name().map(|n| n.to_string_lossy()).unwrap_or_default()),
        Name::Abstract(n) => format!("@{}", String::from_utf8_lossy(n)),
    }
}

/// Two sockets with names that are connected to each other, in whatever way the implementation does it.
pub fn named_pair(cx: &Ctx<'_>) -> Result<Sockets, Stop> {
    cx.imp
        .datagrams(&cx.path("a"), &cx.path("b"))
        .map_err(|e| Stop::broken(format!("cannot connect two datagram sockets to each other: {e}")))
}
