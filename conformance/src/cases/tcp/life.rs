//! What a connection carries, and how it ends.

use std::net::Shutdown;
use std::time::Duration;

use rustix::event::epoll::EventFlags;

use super::{error_of, recv, reset};
use crate::case::Ctx;
use crate::impls::{Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Epoll, NOW, PEEK, WAITALL, errno, ok, poll_now, readiness, rx, said, tx};

pub fn half_close(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"request")?;
    a.shutdown(Shutdown::Write)?;
    let asked = format!("{}, {}", recv(&*b)?, recv(&*b)?);
    let sent = tx(&*b, b"answer")?;
    b.shutdown(Shutdown::Write)?;
    Ok(format!("{asked}, {sent}, {}, {}", recv(&*a)?, recv(&*a)?))
}

pub fn close_unread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"unread")?;
    drop(b);
    Ok(format!("{}, {}", recv(&*a)?, recv(&*a)?))
}

pub fn linger_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    reset(b)?;
    let polled = poll_now(&*a)?;
    Ok(format!("{polled}, {}, {}, {}", recv(&*a)?, recv(&*a)?, tx(&*a, b"x")?))
}

pub fn linger_zero_unread(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*b, b"early")?;
    reset(b)?;
    Ok(format!("{}, {}", recv(&*a)?, recv(&*a)?))
}

pub fn linger_zero_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    reset(b)?;
    Ok(format!("{}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?))
}

pub fn so_error_reset(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    reset(b)?;
    Ok(format!("{}, {}, {}", error_of(&*a)?, error_of(&*a)?, recv(&*a)?))
}

pub fn send_to_closed(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    Ok(format!("{}, {}, {}", tx(&*a, b"x")?, tx(&*a, b"x")?, recv(&*a)?))
}

pub fn error_by_send(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    drop(b);
    tx(&*a, b"x")?;
    let polled = poll_now(&*a)?;
    Ok(format!("{polled}, {}, {}", error_of(&*a)?, poll_now(&*a)?))
}

pub fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let seen = rx(&*b, 20, PEEK)?;
    let left = said(b.readable_bytes())?;
    Ok(format!("{seen}, {left}, {}, {}", recv(&*b)?, rx(&*b, 20, Rx { peek: true, ..NOW })?))
}

pub fn peek_end(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    Ok(format!("{}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?))
}

pub fn trunc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let mut buf = [b'?'; 3];
    let n = said(b.recv(&mut buf, Rx { trunc: true, ..NOW }))?;
    let untouched = if buf == [b'?'; 3] { "untouched" } else { "written" };
    Ok(format!("{n}, {untouched}, {}", recv(&*b)?))
}

pub fn trunc_peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let n = said(b.recv(&mut [0; 3], Rx { trunc: true, peek: true, ..NOW }))?;
    Ok(format!("{n}, {}", recv(&*b)?))
}

pub fn waitall_segments(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let sender = s.spawn(|| (0..50).try_for_each(|_| tx(&*a, &[b'w'; 100]).map(drop)));
        let mut buf = vec![0; 5000];
        let got = said(b.recv(&mut buf, WAITALL))?;
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        let whole = buf.iter().all(|byte| *byte == b'w');
        Ok(if whole { format!("{got} bytes") } else { format!("{got} bytes, garbled") })
    })
}

pub fn waitall_fin(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    drop(a);
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

pub fn rcvtimeo(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.set_read_timeout(Some(Duration::from_millis(30)))?;
    let late = rx(&*b, 9, Rx::default())?;
    tx(&*a, b"x")?;
    Ok(format!("{late}, {}", rx(&*b, 9, Rx::default())?))
}

pub fn dontwait_timeo(cx: &Ctx<'_>) -> Outcome {
    let (_a, b) = cx.pair()?;
    b.set_read_timeout(Some(Duration::from_secs(3600)))?;
    recv(&*b)
}

pub fn own_shut_rd(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    b.shutdown(Shutdown::Read)?;
    let first = recv(&*b)?;
    let sent = tx(&*a, b"hi")?;
    let polled = poll_now(&*b)?;
    Ok(format!("{first}, {sent}, {polled}, {}, {}", recv(&*b)?, recv(&*b)?))
}

pub fn shut_again(cx: &Ctx<'_>) -> Outcome {
    let (a, _b) = cx.pair()?;
    let shut = |how| ok(a.shutdown(how));
    Ok(format!("{}, {}, {}", shut(Shutdown::Write)?, shut(Shutdown::Write)?, shut(Shutdown::Read)?))
}

pub fn shut_after_reset(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    reset(b)?;
    ok(a.shutdown(Shutdown::Write))
}

pub fn shut_both_peer(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Both)?;
    Ok(format!("{}, {}, {}", recv(&*b)?, tx(&*b, b"x")?, tx(&*b, b"x")?))
}

pub fn both_shut(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    a.shutdown(Shutdown::Write)?;
    b.shutdown(Shutdown::Write)?;
    Ok(format!("{} {}", readiness(&*a)?, readiness(&*b)?))
}

pub fn steps(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let both = || -> Outcome { Ok(format!("{} {}", readiness(&*a)?, readiness(&*b)?)) };
    let mut all = vec![both()?];
    tx(&*a, b"x")?;
    all.push(both()?);
    recv(&*b)?;
    all.push(both()?);
    b.shutdown(Shutdown::Write)?;
    all.push(both()?);
    a.shutdown(Shutdown::Write)?;
    all.push(both()?);
    Ok(all.join(", "))
}

pub fn steps_edge(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
    let ep = Epoll::watching(&*b, flags)?;
    let mut all = vec![ep.wait(0)?];
    for _ in 0..2 {
        tx(&*a, b"x")?;
        all.push(ep.wait(0)?);
        recv(&*b)?;
        recv(&*b)?;
    }
    a.shutdown(Shutdown::Write)?;
    all.push(ep.wait(0)?);
    b.shutdown(Shutdown::Write)?;
    all.push(ep.wait(0)?);
    Ok(all.join(", "))
}

pub fn edge_reset(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let ep = Epoll::watching(&*a, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)?;
    let before = ep.wait(0)?;
    reset(b)?;
    Ok(format!("{before}, {}", ep.wait(0)?))
}

pub fn unacknowledged(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let before = said(a.unacknowledged_bytes())?;
    // (The answer acknowledges what came before it.)
    tx(&*a, b"x")?;
    recv(&*b)?;
    tx(&*b, b"y")?;
    Ok(format!("{before}, {}", said(a.unacknowledged_bytes())?))
}

pub fn closed_window(cx: &Ctx<'_>) -> Outcome {
    const SUM: usize = 24 << 20;
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let sender = s.spawn(|| -> Outcome {
            let sent = said(a.send(&vec![b'w'; SUM], Tx { nosignal: true, ..Tx::default() }))?;
            a.shutdown(Shutdown::Write)?;
            Ok(sent)
        });
        let (got, error) = crate::tools::drain_to_end(&*b);
        let sent = sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        let end = error.map_or("end".to_owned(), |error| errno(&error));
        Ok(match got {
            SUM => format!("all of it, {end}"),
            _ => format!("{got} of {sent}, {end}"),
        })
    })
}
