//! Readiness that never lies, for programs as users write them: pools of idle connections, chats, edges.

use std::os::fd::AsFd;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::case::Source::{Both, Linux};
use crate::case::{Case, Ctx};
use crate::cases::ready::{client, fresh, listener};
use crate::impls::{Conn, End, Listening, Rx, Tx};
use crate::stop::{Outcome, Stop};
use crate::tools::{Epoll, NOW, SOON, asleep, readable, rx, tx};

pub const CASES: &[Case] = &[
    Case::same(
        "ready.pool",
        "32 idle connections, of which one is spoken to: a poll over all tells of exactly this one",
        Both,
        "none, none; 17, none; 17, none; 3 30, 30, none",
        pool,
    ),
    Case::same(
        "ready.chat",
        "a client that polls its standard input and its socket, and then reads what is ready, blocking",
        Both,
        "\"hi\" was sent, \"ho\" came, 0 waits for nothing",
        chat,
    ),
    Case::same(
        "ready.listening_client",
        "a server that polls and reads what is ready, blocking, and a client that only listens",
        Both,
        "\"news\" came, 0 waits for nothing",
        listening_client,
    ),
    Case::same(
        "ready.edge",
        "edge: no edge without news, one for the first byte and one for each after it",
        Both,
        "nothing nothing, 12 x one edge, and none for who sent",
        edge,
    ),
    Case::same(
        "ready.edge_before_accept",
        "edge, watched before the accept: nothing by the accept, and an edge by the first byte",
        Both,
        "nothing, nothing, IN, nothing",
        edge_before_accept,
    ),
    Case::same(
        "ready.edge_in_and_out",
        "edge, both directions watched before the accept: room is told once, and then nothing before the first byte",
        Linux,
        "OUT, nothing, IN+OUT, nothing",
        edge_in_and_out,
    ),
];

/// A wait for nothing ends after this: a case that fails is to fail, and not to hang.
const IN_VAIN: Duration = Duration::from_millis(300);

fn pool(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let mut ends = Vec::new();
    for _ in 0..32 {
        let client = client(cx)?;
        ends.push((client, listener.accept()?));
    }
    let (clients, servers): (Vec<Conn>, Vec<Conn>) = ends.into_iter().unzip();
    let told = |ends: &[Conn]| -> Outcome {
        let which: Vec<_> = readable(ends.iter().map(|end| &**end))?.iter().map(usize::to_string).collect();
        Ok(if which.is_empty() { "none".into() } else { which.join(" ") })
    };
    let mut all = vec![format!("{}, {}", told(&clients)?, told(&servers)?)];
    tx(&*clients[17], b"x")?;
    let asked = told(&servers)?;
    rx(&*servers[17], 9, Rx::default())?;
    all.push(format!("{asked}, {}", told(&servers)?));
    tx(&*servers[17], b"y")?;
    let answered = told(&clients)?;
    rx(&*clients[17], 9, Rx::default())?;
    all.push(format!("{answered}, {}", told(&clients)?));
    tx(&*servers[3], b"z")?;
    tx(&*servers[30], b"z")?;
    let two = told(&clients)?;
    rx(&*clients[3], 9, Rx::default())?;
    let one = told(&clients)?;
    rx(&*clients[30], 9, Rx::default())?;
    all.push(format!("{two}, {one}, {}", told(&clients)?));
    Ok(all.join("; "))
}

/// What poll says of each within [`SOON`]: whether it can be read from.
fn wait_for(fds: &[&dyn AsFd]) -> Result<Vec<bool>, Stop> {
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    let mut polled: Vec<_> = borrowed.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let soon = Timespec { tv_sec: (SOON / 1000) as i64, tv_nsec: 0 };
    if rustix::event::poll(&mut polled, Some(&soon))? == 0 {
        return Err(Stop::broken("nothing came"));
    }
    Ok(polled.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// As users of std write it: poll, then a read that may block, which it never does where poll tells the truth. Ends when the
/// server has answered; what came, and how often a read waited for nothing.
fn chat_client(stdin: impl AsFd, socket: &dyn End) -> Result<(String, usize), Stop> {
    let mut in_vain = 0;
    loop {
        let ready = wait_for(&[&stdin, &socket.fd()])?;
        if ready[0] {
            let mut line = [0; 80];
            let n = rustix::io::read(&stdin, &mut line)?;
            tx(socket, &line[..n])?;
        }
        if ready[1] {
            match rx(socket, 80, Rx::default())?.as_str() {
                "EAGAIN" => in_vain += 1,
                came => return Ok((came.to_owned(), in_vain)),
            }
        }
    }
}

fn chat(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    client.set_read_timeout(Some(IN_VAIN))?;
    server.set_read_timeout(Some(Duration::from_millis(SOON)))?;
    let (stdin, typed) = rustix::pipe::pipe()?;
    std::thread::scope(|s| {
        let chat = asleep(s, || chat_client(&stdin, &*client));
        rustix::io::write(&typed, b"hi")?;
        let sent = rx(&*server, 80, Rx::default())?;
        tx(&*server, b"ho")?;
        let (came, in_vain) = chat.join().map_err(|_| Stop::broken("the client panicked"))??;
        Ok(format!("{sent} was sent, {came} came, {in_vain} waits for nothing"))
    })
}

/// Passes on what any client says to all others, until one goes; how often a read waited for nothing.
fn chat_server(listener: &dyn Listening, accepted: &Sender<()>) -> Result<usize, Stop> {
    let (mut conns, mut in_vain) = (Vec::<Conn>::new(), 0);
    loop {
        let (listening, fds) = (listener.fd(), conns.iter().map(|conn| conn.fd()).collect::<Vec<_>>());
        let all = std::iter::once(&listening as &dyn AsFd).chain(fds.iter().map(|fd| fd as &dyn AsFd));
        let ready = wait_for(&all.collect::<Vec<_>>())?;
        for (from, _) in ready[1..].iter().enumerate().filter(|(_, ready)| **ready) {
            let mut buf = [0; 80];
            match conns[from].recv(&mut buf, Rx::default()) {
                Ok(0) => return Ok(in_vain),
                Ok(n) => {
                    for (_, other) in conns.iter().enumerate().filter(|(to, _)| *to != from) {
                        other.send(&buf[..n], Tx::default())?;
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => in_vain += 1,
                Err(e) => return Err(e.into()),
            }
        }
        if ready[0] {
            let conn = listener.accept()?;
            conn.set_read_timeout(Some(IN_VAIN))?;
            conns.push(conn);
            let _ = accepted.send(());
        }
    }
}

fn listening_client(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let (listens, talks) = (client(cx)?, client(cx)?);
    listens.set_read_timeout(Some(Duration::from_millis(SOON)))?;
    let (accepted, accepts) = mpsc::channel();
    std::thread::scope(|s| {
        let server = s.spawn(|| {
            let accepted = accepted;
            chat_server(&*listener, &accepted)
        });
        for _ in 0..2 {
            accepts.recv().map_err(|_| Stop::broken("the server ended"))?;
        }
        let ear = asleep(s, || rx(&*listens, 80, Rx::default()));
        tx(&*talks, b"news")?;
        let heard = ear.join().map_err(|_| Stop::broken("the client panicked"))??;
        drop(talks);
        let in_vain = server.join().map_err(|_| Stop::broken("the server panicked"))??;
        Ok(format!("{heard} came, {in_vain} waits for nothing"))
    })
}

const IN: EventFlags = EventFlags::IN;
const EDGE: EventFlags = EventFlags::ET;

fn edge(cx: &Ctx<'_>) -> Outcome {
    let (client, server) = fresh(cx)?;
    let ends = [&*client, &*server];
    let epolls = [Epoll::watching(ends[0], IN | EDGE)?, Epoll::watching(ends[1], IN | EDGE)?];
    let before = format!("{} {}", epolls[0].wait(20)?, epolls[1].wait(20)?);
    for i in 0..12 {
        // Either speaks twice in a row at times.
        let from = [0, 0, 1, 1, 0, 1][i % 6];
        tx(ends[from], b"x")?;
        let to = 1 - from;
        let told = format!("{} {} {}", epolls[to].wait(SOON)?, epolls[to].wait(0)?, epolls[from].wait(0)?);
        let got = format!("{} {}", rx(ends[to], 9, NOW)?, rx(ends[to], 9, NOW)?);
        let after = format!("{} {}", epolls[to].wait(0)?, epolls[from].wait(0)?);
        if [&*told, &*got, &*after] != ["IN nothing nothing", "\"x\" EAGAIN", "nothing nothing"] {
            return Ok(format!("{before}, {i}: {told}, received {got}, {after}"));
        }
    }
    Ok(format!("{before}, 12 x one edge, and none for who sent"))
}

fn edge_before_accept(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let client = client(cx)?;
    let epoll = Epoll::watching(&*client, IN | EDGE)?;
    let before = epoll.wait(20)?;
    let server = listener.accept()?;
    let accepted = epoll.wait(20)?;
    tx(&*server, b"x")?;
    Ok(format!("{before}, {accepted}, {}, {}", epoll.wait(SOON)?, epoll.wait(20)?))
}

fn edge_in_and_out(cx: &Ctx<'_>) -> Outcome {
    let listener = listener(cx)?;
    let client = client(cx)?;
    let epoll = Epoll::watching(&*client, IN | EventFlags::OUT | EDGE)?;
    let before = epoll.wait(SOON)?;
    let server = listener.accept()?;
    let accepted = epoll.wait(20)?;
    tx(&*server, b"x")?;
    Ok(format!("{before}, {accepted}, {}, {}", epoll.wait(SOON)?, epoll.wait(20)?))
}
