//! Messages, whether records or datagrams: what each of the two tables asks of its own kind with the same calls.

use std::io::{IoSlice, IoSliceMut};
use std::net::Shutdown;

use crate::case::Ctx;
use crate::impls::{End, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{NOW, PEEK, WAITALL, asleep, poll_now, rx, said, tx};

/// Receives, and tells whether the record was cut.
pub fn whole(end: &dyn End, max: usize, flags: Rx) -> Outcome {
    let mut buf = vec![0; max];
    said(end.recv_flags(&mut buf, flags).map(|(n, said)| {
        format!("{n} {}{}", if said.trunc { "cut" } else { "whole" }, if said.eor { ", the end" } else { "" })
    }))
}

pub fn msg_trunc(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abcdef")?;
    let flags = Rx { trunc: true, ..Rx::default() };
    let peeked = whole(&*b, 3, Rx { peek: true, ..flags })?;
    Ok(format!("{peeked}, {}", whole(&*b, 3, flags)?))
}

pub fn peek(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let peeked = format!("{}, {}", rx(&*b, 20, PEEK)?, rx(&*b, 20, PEEK)?);
    Ok(format!("{peeked}, {}, {}", rx(&*b, 20, Rx::default())?, rx(&*b, 20, Rx::default())?))
}

pub fn waitall(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    Ok(format!("{}, {}", rx(&*b, 9, WAITALL)?, rx(&*b, 9, WAITALL)?))
}

pub fn zero_length(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, b"")?;
    let events = poll_now(&*b)?;
    let empty = whole(&*b, 9, Rx::default())?;
    tx(&*a, b"x")?;
    let next = rx(&*b, 9, Rx::default())?;
    Ok(format!("{sent}, {events}, {empty}, {next}, {}, {}", rx(&*b, 9, NOW)?, poll_now(&*b)?))
}

pub fn recv_zero(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    Ok(format!("{}, {}", whole(&*b, 0, Rx::default())?, rx(&*b, 9, NOW)?))
}

pub fn too_long(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let sent = tx(&*a, &vec![1; 16 << 20])?;
    let none = rx(&*b, 9, NOW)?;
    tx(&*a, b"x")?;
    Ok(format!("{sent}, {none}, {}", rx(&*b, 9, Rx::default())?))
}

pub fn vectored(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let pieces = [IoSlice::new(b"abc"), IoSlice::new(&[]), IoSlice::new(b"d"), IoSlice::new(b"ef")];
    let sent = said(a.send_vectored(&pieces))?;
    let (mut x, mut y) = ([0; 2], [0; 9]);
    let got =
        b.recv_vectored(&mut [IoSliceMut::new(&mut x), IoSliceMut::new(&mut []), IoSliceMut::new(&mut y)])?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ok(format!("{sent}, {got}, \"{}\", \"{}\"", text(&x), text(&y[..got.saturating_sub(2)])))
}

pub fn poll_data(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    tx(&*a, b"abc")?;
    tx(&*a, b"def")?;
    let first = poll_now(&*b)?;
    rx(&*b, 2, Rx::default())?;
    let second = poll_now(&*b)?;
    rx(&*b, 9, Rx::default())?;
    Ok(format!("{first}, {second}, {}", poll_now(&*b)?))
}

pub fn sleeper(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        let reader = asleep(s, || rx(&*b, 9, Rx::default()));
        tx(&*a, b"abc")?;
        reader.join().map_err(|_| Stop::broken("the reader panicked"))?
    })
}

pub fn no_interleave(cx: &Ctx<'_>) -> Outcome {
    const EACH: u32 = 1000;
    let (a, b) = cx.pair()?;
    std::thread::scope(|s| {
        for t in 0..4u8 {
            let a = &a;
            s.spawn(move || {
                for i in 0..EACH {
                    let mut record = vec![t; 5 + i as usize % 500];
                    record[1..5].copy_from_slice(&i.to_le_bytes());
                    if a.send(&record, Tx { nosignal: true, ..Tx::default() }).is_err() {
                        return;
                    }
                }
            });
        }
        let mut next = [0u32; 4];
        let mut buf = [0; 600];
        for _ in 0..4 * EACH {
            let n = b.recv(&mut buf, Rx::default())?;
            let t = usize::from(buf[0]);
            let number = u32::from_le_bytes([buf[1], buf[2], buf[3], buf[4]]);
            let right = t < 4 && n == 5 + number as usize % 500 && buf[5..n].iter().all(|b| *b == buf[0]);
            if !right || number != next[t] {
                let _ = b.shutdown(Shutdown::Both);
                return Err(Stop::broken(format!("record {number} of {t} with {n} bytes")));
            }
            next[t] += 1;
        }
        Ok(format!("{} messages, whole and in order", 4 * EACH))
    })
}

pub fn many(cx: &Ctx<'_>) -> Outcome {
    let (a, b) = cx.pair()?;
    let bytes = crate::tools::Pattern(77).bytes(0, 40_000);
    let size = |i: usize| if i.is_multiple_of(7) { 0 } else { i * 7919 % 20_001 };
    let (bytes, count) = (&bytes, 2000);
    std::thread::scope(|s| {
        let sender = s.spawn(move || {
            (0..count).try_for_each(|i| {
                a.send(&bytes[i..i + size(i)], Tx { nosignal: true, ..Tx::default() }).map(drop)
            })
        });
        let mut buf = vec![0; 20_001];
        for i in 0..count {
            let n = b.recv(&mut buf, Rx::default())?;
            if buf[..n] != bytes[i..i + size(i)] {
                return Err(Stop::broken(format!("record {i} has {n} bytes, or others than were sent")));
            }
        }
        sender.join().map_err(|_| Stop::broken("the sender panicked"))??;
        Ok(format!("{count} messages, intact"))
    })
}
