//! Peers that lie, and what comes of it: an error on their own connection, and nothing anywhere else.
//!
//! A [`Misbehaviour`] is told to a victim, by a client and by a server, while the victim receives, sends, polls and borrows
//! (a fresh connection for each). The victim must end each of them in one of the allowed ways and in time; an
//! honest connection beside it, and new ones to the same listener, must not notice; and no descriptor or mapping
//! may be left.

mod crossing;
mod header;
mod marks;
mod misbehaviour;
mod rings;

pub use misbehaviour::{Misbehaviour, Role};

use std::io;
use std::time::{Duration, Instant};

use onecopy::unix::{self, Listener, Stream};
use onecopy::{RecvFlags, SendFlags};
use onecopy_testing::LONG;
use rustix::event::PollFlags;

use crate::impls::{Kind, Name};
use crate::liar::Liar;
use crate::run::Seen;
use crate::stop::Stop;
use crate::tools;
use misbehaviour::Scene;

/// All lies.
pub fn all() -> Vec<&'static Misbehaviour> {
    rings::LIES.iter().chain(crossing::LIES).chain(header::LIES).chain(marks::LIES).collect()
}

/// Uses a stream until something ends it or patience does, and says what that was.
type Activity = fn(&Stream) -> &'static str;

/// What a victim does.
const ACTIVITIES: [(&str, Activity); 4] =
    [("receiving", receiving), ("sending", sending), ("polling", polling), ("borrowing", borrowing)];

/// What a victim does besides, of a lie about how the two meet: their names begin so. Then it is closed at once, too.
const MEETING: [(&str, Activity); 3] = [("peeking", peeking), ("taking", taking), (LEAVING, receiving)];
const OF_MEETING: [&str; 6] = ["rings.", "switch.", "close.", "crossing.", "joined.", "small."];
/// Closes its socket instead.
const LEAVING: &str = "leaving";

/// What a victim does besides, of a lie about pages: their names begin so, and those that are lent so.
const CHAINING: [(&str, Activity); 1] = [("chaining", chaining)];
const OF_PAGES: [&str; 4] = ["lent.", "reference.", "pool.", "mark."];
const LENDING: [(&str, Activity); 1] = [("lending", lending)];
const OF_LENT_PAGES: [&str; 1] = ["lent."];

/// All that a victim of a lie does.
fn activities(misbehaviour: &Misbehaviour) -> Vec<(&'static str, Activity)> {
    let is_of = |begins: &[&str]| begins.iter().any(|begin| misbehaviour.name.starts_with(begin));
    let mut all = ACTIVITIES.to_vec();
    if is_of(&OF_MEETING) {
        all.extend(MEETING);
    }
    if is_of(&OF_LENT_PAGES) {
        all.extend(LENDING);
    }
    if is_of(&OF_PAGES) {
        all.extend(CHAINING);
    }
    all
}

const PATIENCE: Duration = Duration::from_millis(100);

fn fate(e: &onecopy::Error) -> &'static str {
    match tools::errno(&io::Error::from_raw_os_error(e.raw_os_error())).as_str() {
        "EAGAIN" => "waits",
        "EPROTO" => "EPROTO",
        "EPIPE" => "EPIPE",
        "ECONNRESET" => "ECONNRESET",
        other => Box::leak(other.to_owned().into_boxed_str()),
    }
}

fn receiving(victim: &Stream) -> &'static str {
    let _ = victim.set_read_timeout(Some(PATIENCE));
    let mut buf = vec![0; 40_000];
    for i in 0..200 {
        let flags = if i % 3 == 1 { RecvFlags::PEEK } else { RecvFlags::empty() };
        match victim.recv_with_flags(&mut buf, flags) {
            Ok(0) => return "end",
            Ok(_) => {}
            Err(e) => return fate(&e),
        }
    }
    "carries on"
}

/// Looks twice before it receives.
fn peeking(victim: &Stream) -> &'static str {
    let mut buf = vec![0; 40_000];
    for _ in 0..2 {
        match victim.recv_with_flags(&mut buf, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(e) if !e.would_block() => return fate(&e),
            _ => {}
        }
    }
    receiving(victim)
}

/// Has room for descriptors.
fn taking(victim: &Stream) -> &'static str {
    let _ = victim.set_read_timeout(Some(PATIENCE));
    let mut buf = vec![0; 40_000];
    let mut came = 0;
    for _ in 0..200 {
        match victim.recv_fds_with_flags(&mut buf, RecvFlags::empty()) {
            Ok((0, _)) => return "end",
            Ok((_, with)) => came += with.fds.len(),
            Err(e) if e.would_block() && came > 0 => return "descriptors",
            Err(e) => return fate(&e),
        }
    }
    if came > 0 { "descriptors" } else { "carries on" }
}

fn sending(victim: &Stream) -> &'static str {
    let _ = victim.set_write_timeout(Some(PATIENCE));
    for _ in 0..40 {
        if let Err(e) = victim.send_with_flags(&[7; 30_000], SendFlags::empty()) {
            return fate(&e);
        }
    }
    "carries on"
}

fn polling(victim: &Stream) -> &'static str {
    let until = Instant::now() + PATIENCE;
    let mut buf = [0; 5_000];
    let mut last = "waits";
    while Instant::now() < until {
        let _ = tools::poll(victim, PollFlags::IN | PollFlags::OUT, 5);
        let _ = victim.readable_bytes();
        let _ = victim.unread_bytes();
        match victim.recv_with_flags(&mut buf, RecvFlags::DONTWAIT) {
            Ok(0) => return "end",
            Ok(_) => last = "carries on",
            Err(e) if e.would_block() => {}
            Err(e) => return fate(&e),
        }
        match victim.send_with_flags(&buf, SendFlags::DONTWAIT) {
            Ok(_) => last = "carries on",
            Err(e) if e.would_block() => {}
            Err(e) => return fate(&e),
        }
    }
    last
}

fn borrowing(victim: &Stream) -> &'static str {
    let _ = victim.set_read_timeout(Some(PATIENCE));
    let _ = victim.set_write_timeout(Some(PATIENCE));
    let mut held = Vec::new();
    let mut buf = [0; 3_000];
    for _ in 0..20 {
        match victim.reserve_with_flags(20_000, SendFlags::empty()) {
            Ok(mut slot) => {
                slot.copy_from(&[7; 20_000]);
                if let Err(e) = slot.commit() {
                    return fate(&e);
                }
            }
            Err(e) if e.would_block() => break,
            Err(e) => return fate(&e),
        }
    }
    for _ in 0..20 {
        match victim.recv_borrowed(3_000) {
            Ok(view) if view.is_empty() => return "end",
            Ok(view) => {
                view.copy_to(&mut buf);
                held.push(view);
                held.truncate(4);
            }
            Err(e) => return fate(&e),
        }
    }
    "carries on"
}

fn lending(victim: &Stream) -> &'static str {
    let _ = victim.set_write_timeout(Some(PATIENCE));
    let Ok(pool) = unix::SharedPool::new(4096, 8) else { return "no pool" };
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let mut loan = match pool.loan_within(4000, PATIENCE / 4) {
            Ok(loan) => loan,
            Err(e) => return fate(&e),
        };
        loan.fill(7);
        if let Err(not) = victim.send_loan(loan) {
            return fate(&not.error);
        }
    }
    "carries on"
}

/// Sends and receives chains, and gives back late and out of order what came by reference.
fn chaining(victim: &Stream) -> &'static str {
    use onecopy::advanced::chain::Chain;
    let _ = victim.set_write_timeout(Some(PATIENCE));
    let Ok(pool) = unix::SharedPool::new(4096, 8) else { return "no pool" };
    let mut kept = Vec::new();
    let mut copy = [0; 10_000];
    let began = Instant::now();
    let mut last = "waits";
    while began.elapsed() < PATIENCE {
        match victim.recv_chain_with_flags(3_000, RecvFlags::DONTWAIT) {
            Ok(chain) if chain.is_empty() => return "end",
            Ok(chain) => {
                if let Ok(peer) = chain.peer() {
                    let _ = peer.copy_to(0, &mut copy[..chain.len()], onecopy::advanced::copy::Hint::AUTO);
                }
                last = "carries on";
                kept.insert(0, chain);
                kept.truncate(5);
            }
            Err(e) if e.would_block() => {}
            Err(e) => return fate(&e),
        }
        let mut chain = Chain::new();
        if pool.writer().append(&mut chain, &[7; 9_000]).is_err() {
            if let Err(e) = pool.reclaim_within(PATIENCE / 10) {
                return fate(&e);
            }
            continue;
        }
        match victim.send_chain_with_flags(chain, SendFlags::DONTWAIT) {
            Ok(_) => last = "carries on",
            Err(not) if not.error.would_block() => {}
            Err(not) => return fate(&not.error),
        }
    }
    last
}

/// Why a lie cannot be told on this machine. `huge` says whether there are memfds of huge pages.
pub fn lacking(misbehaviour: &Misbehaviour, huge: impl FnOnce() -> rustix::io::Result<()>) -> Option<String> {
    if !misbehaviour.name.contains("hugetlb") {
        return None;
    }
    huge().err().map(|errno| format!("this kernel makes no memfd of huge pages: {errno}"))
}

/// Makes a memfd of huge pages, as the lies about them do. None of the pages is touched, so none has to be there.
///
/// # Errors
///
/// memfd_create's, ftruncate's, fcntl's.
pub fn huge_memfd() -> rustix::io::Result<()> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let fd = rustix::fs::memfd_create("onecopy-liar", flags)?;
    rustix::fs::ftruncate(&fd, 2 << 20)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)
}

fn open_files() -> (usize, usize) {
    tools::what_stays();
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    (fds, maps.lines().filter(|l| l.contains("/memfd:")).count())
}

/// A round trip between honest ends.
fn talk(a: &Stream, b: &Stream) -> Result<(), Stop> {
    for (from, to) in [(a, b), (b, a)] {
        from.set_write_timeout(Some(LONG)).map_err(Stop::broken)?;
        to.set_read_timeout(Some(LONG)).map_err(Stop::broken)?;
        from.send_with_flags(b"honest", SendFlags::empty()).map_err(Stop::broken)?;
        let mut buf = [0; 9];
        let n = to.recv_with_flags(&mut buf, RecvFlags::empty()).map_err(Stop::broken)?;
        if &buf[..n] != b"honest" {
            return Err(Stop::broken(format!("an honest connection got {:?}", &buf[..n])));
        }
    }
    Ok(())
}

fn connected(listener: &Listener, at: &unix::SocketAddr) -> Result<(Stream, Stream), Stop> {
    let client = Stream::connect(at).map_err(Stop::broken)?;
    let (server, _) = listener.accept().map_err(Stop::broken)?;
    for _ in 0..3 {
        talk(&client, &server)?;
    }
    Ok((client, server))
}

/// Tells `misbehaviour` in `role`, here and now. The value tells what each activity came to.
pub fn here(misbehaviour: &Misbehaviour, role: Role) -> Seen {
    let before = open_files();
    match play(misbehaviour, role) {
        Err(Stop::Broken(what)) => Seen::Broken(what),
        Err(Stop::Lacking(what)) => Seen::Lacking(what.to_owned()),
        Err(Stop::NotOffered(what)) => Seen::NotOffered(what.to_owned()),
        Ok(_) if open_files() != before => {
            Seen::Broken(format!("descriptors and mappings: {before:?} before, {:?} after", open_files()))
        }
        Ok(value) => Seen::Value(value),
    }
}

fn play(misbehaviour: &Misbehaviour, role: Role) -> Result<String, Stop> {
    let pid = std::process::id();
    let ours = format!("onecopy-honest-{pid}");
    let at = unix::SocketAddr::from_abstract_name(&ours).map_err(Stop::broken)?;
    let listener = Listener::bind(&at).map_err(Stop::broken)?;
    let witness = connected(&listener, &at)?;
    let (mut fates, mut told) = (Vec::new(), String::new());
    for (activity, act) in activities(misbehaviour) {
        let step = |e: io::Error| match e.kind() {
            io::ErrorKind::Unsupported => Stop::Lacking("this kernel refuses the means of the lie"),
            _ => Stop::broken(format!("{activity}: the lie could not be told: {e}")),
        };
        let mut scene = if role.calls() {
            let liar = Liar::call(Kind::Stream, &Name::Abstract(ours.clone().into_bytes())).map_err(step)?;
            Scene::new(liar, listener.accept().map_err(Stop::broken)?.0, role, None)
        } else {
            // (A name of which nobody remembers whether it has a rendezvous.)
            let theirs = format!("onecopy-liar-{pid}-{activity}");
            let name = Name::Abstract(theirs.clone().into_bytes());
            let server = Liar::listen(Kind::Stream, &name).map_err(step)?;
            let rendezvous = role.joins().then(|| Liar::rendezvous(Kind::Stream, &name));
            let victim = unix::SocketAddr::from_abstract_name(&theirs)
                .and_then(Stream::connect)
                .map_err(Stop::broken)?;
            let liar = Liar::accept(&server).map_err(step)?;
            if role.joins() {
                // (A client keeps its rings for its second message.)
                victim.send_with_flags(b"f", SendFlags::empty()).map_err(Stop::broken)?;
                let came = liar.receive().map_err(step)?;
                if came.bytes != b"f" || !came.fds.is_empty() {
                    return Err(Stop::broken(format!("{activity}: the first message is {came:?}")));
                }
            }
            Scene::new(liar, victim, role, rendezvous.transpose().map_err(step)?)
        };
        (misbehaviour.tell)(&mut scene).map_err(step)?;
        if activity == LEAVING {
            drop(scene.victim);
            let events = tools::poll(&scene.liar.fd, PollFlags::IN, tools::SOON)?;
            if !misbehaviour.name.contains("close") && !events.contains("HUP") {
                return Err(Stop::broken(format!("the victim closed, and the liar polls {events}")));
            }
            talk(&witness.0, &witness.1)?;
            continue;
        }
        let Scene { liar, victim, .. } = &scene;
        let (fate, slept) = std::thread::scope(|s| {
            if let Some(meanwhile) = misbehaviour.meanwhile {
                s.spawn(move || {
                    let until = Instant::now() + PATIENCE;
                    while Instant::now() < until {
                        meanwhile(liar);
                    }
                });
            }
            onecopy_testing::slept(|| act(victim))
        });
        // (A machine with much to do lets it take any time, but not sleep.)
        if slept > Duration::from_secs(10) {
            return Err(Stop::broken(format!("{activity} slept for {slept:?}")));
        }
        let stats = victim.stats();
        if fate == "EPROTO" && stats.protocol_errors == 0 {
            return Err(Stop::broken(format!("{activity}: EPROTO, but no protocol error is counted")));
        }
        if fate == "EPROTO" {
            // From then on nothing works, and the liar is told too.
            let again =
                victim.recv_with_flags(&mut [0; 1], RecvFlags::DONTWAIT).map_err(|e| tools::errno(&e.into()));
            if again != Err("EPROTO".to_owned()) {
                return Err(Stop::broken(format!("{activity}: EPROTO, then {again:?}")));
            }
            let events = tools::poll(&liar.fd, PollFlags::IN, 100)?;
            if !misbehaviour.name.contains("close") && !events.contains("HUP") {
                return Err(Stop::broken(format!("{activity}: EPROTO, and the liar polls {events}")));
            }
        }
        if !misbehaviour.allowed.contains(&fate) {
            return Err(Stop::broken(format!(
                "{activity} came to {fate}, allowed is {:?}",
                misbehaviour.allowed
            )));
        }
        told.push_str(&format!("{}{activity} {fate}", if told.is_empty() { "" } else { ", " }));
        fates.push(fate);
        talk(&witness.0, &witness.1)?;
        drop(connected(&listener, &at)?);
    }
    if !misbehaviour.must.is_empty() && !fates.contains(&misbehaviour.must) {
        return Err(Stop::broken(format!("nobody saw {}: {told}", misbehaviour.must)));
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lie_that_the_kernel_refuses_to_help_with_is_skipped_and_no_other() {
        let refused = || Err(rustix::io::Errno::OPNOTSUPP);
        let skipped: Vec<_> =
            all().into_iter().filter(|misbehaviour| lacking(misbehaviour, refused).is_some()).collect();
        let names: Vec<_> = skipped.iter().map(|misbehaviour| misbehaviour.name).collect();
        assert_eq!(names, ["rings.hugetlb", "pool.hugetlb"]);
        assert!(lacking(skipped[0], refused).is_some_and(|why| why.contains("huge pages")));
        assert!(skipped.iter().all(|misbehaviour| lacking(misbehaviour, || Ok(())).is_none()));
    }
}
