//! Who sent what comes (SCM_CREDENTIALS): the rows of the table are in `ancillary`.

use crate::case::Ctx;
use crate::cases::descriptors::{QUIET, give};
use crate::impls::{End, Rx, Who};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, WAITALL, said, tx};

fn own() -> Who {
    let who = onecopy_sys::scm::Ucred::own();
    (who.pid, who.uid, who.gid)
}

/// Who sent, in a word.
pub fn whose(end: &dyn End, max: usize, flags: Rx) -> Result<String, Stop> {
    let (pid, uid, gid) = own();
    said(end.recv_with(&mut vec![0; max], flags).map(|came| {
        let who = match came.who {
            None => "without".to_owned(),
            Some((0, 65534, 65534)) => "nobody".to_owned(),
            Some(who) if who == (pid, uid, gid) => "own".to_owned(),
            Some(who) if who == (pid, OTHER, OTHER) => "other".to_owned(),
            Some(who) => format!("{who:?}"),
        };
        let with = if came.fds.is_empty() { String::new() } else { format!(" with {}", came.fds.len()) };
        format!("{} {who}{with}", came.len)
    }))
}

/// A user that nobody is.
const OTHER: u32 = 47_110;

pub fn passed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"a")?;
    let first = whose(&*b, 9, NOW)?;
    tx(&*a, b"bc")?;
    Ok(format!("{first}, {}, {}", whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?))
}

pub fn passed_off(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let mut all = Vec::new();
    for on in [false, true, false] {
        b.set_pass_credentials(on)?;
        tx(&*a, b"abc")?;
        all.push(whose(&*b, 9, NOW)?);
    }
    Ok(all.join(", "))
}

pub fn asked_late(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}", whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?))
}

pub fn creds_waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}", whose(&*b, 6, WAITALL)?, whose(&*b, 3, WAITALL)?))
}

pub fn creds_peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", whose(&*b, 9, PEEK)?, whose(&*b, 9, NOW)?))
}

/// Runs `f` in a thread without privileges, if it had any.
fn unprivileged<T: Send>(f: impl FnOnce() -> Result<T, Stop> + Send) -> Result<T, Stop> {
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            if rustix::process::geteuid().is_root() {
                become_other()?;
            }
            f()
        });
        thread.join().map_err(|_| Stop::broken("a thread panicked"))?
    })
}

/// This thread's user is another from here on.
fn become_other() -> Result<(), Stop> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(OTHER), rustix::fs::Gid::from_raw(OTHER));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

pub fn forged(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let (a, b) = (&*a, &*b);
    b.set_pass_credentials(true)?;
    let mut all = unprivileged(|| {
        let (pid, uid, gid) = own();
        [(1, uid, gid), (pid, uid + 1, gid), (pid, uid, gid + 1)]
            .into_iter()
            .map(|who| said(a.send_as(b"abc", who, QUIET)))
            .collect::<Result<Vec<_>, _>>()
    })?;
    all.push(whose(b, 9, NOW)?);
    Ok(all.join(", "))
}

pub fn claimed(cx: &Ctx<'_>) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Stop::Lacking("the privilege to claim another user"));
    }
    let (a, b) = cx.pair()?;
    b.set_pass_credentials(true)?;
    tx(&*a, b"abc")?;
    a.send_as(b"def", (own().0, OTHER, OTHER), QUIET)?;
    tx(&*a, b"ghi")?;
    Ok(format!("{}, {}, {}", whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?))
}

pub fn changed(cx: &Ctx<'_>) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Err(Stop::Lacking("the privilege to change its user"));
    }
    let (a, b) = cx.pair()?;
    let a = &*a;
    b.set_pass_credentials(true)?;
    tx(a, b"abc")?;
    std::thread::scope(|s| {
        let thread = s.spawn(|| {
            become_other()?;
            tx(a, b"def")
        });
        thread.join().map_err(|_| Stop::broken("a thread panicked"))?
    })?;
    Ok(format!("{}, {}", whose(&*b, 9, NOW)?, whose(&*b, 9, NOW)?))
}

pub fn creds_with_fds(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_pass_credentials(true)?;
    give(&*a, b"abc", &[a.fd()])?;
    whose(&*b, 9, NOW)
}

pub fn creds_before_accept(cx: &Ctx<'_>) -> Outcome {
    let server = cx.imp.listen(cx.kind, &cx.path("s"), None)?;
    let client = cx.imp.connect(cx.kind, &cx.path("s"))?;
    tx(&*client, b"abc")?;
    let conn = server.accept()?;
    conn.set_pass_credentials(true)?;
    whose(&*conn, 9, NOW)
}
