//! 500 connections at once.

use crate::harness::noise;
use crate::world::{BOTH, KERNEL, OURS, World};
use onecopy::{Stack, Wait, tcp};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::thread;

const COUNT: usize = 500;
const LEN: usize = 20_000;

/// Speaks with an echo once all others are there, too.
fn speak<S: Read + Write>(mut stream: S, shut: impl FnOnce(&S), all: &Barrier) {
    all.wait();
    let data = noise(LEN);
    stream.write_all(&data).unwrap();
    shut(&stream);
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == data, "{} bytes came back", back.len());
}

fn small<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> thread::JoinHandle<R> {
    thread::Builder::new().stack_size(256 << 10).spawn(work).unwrap()
}

#[test]
fn the_kernel_connects_to_our_echo() {
    let Some(world) = World::new(&[]) else { return };
    let mut stack = world.onecopy(&[&["stack", "--echo", "7"], &BOTH]);
    stack.line("echo at 10.77.0.2:7");
    let at: SocketAddr = format!("{OURS}:7").parse().unwrap();
    let all = Arc::new(Barrier::new(COUNT));
    let streams: Vec<_> =
        world.namespace.run(|| (0..COUNT).map(|_| TcpStream::connect(at).unwrap()).collect()).unwrap();
    let speakers: Vec<_> = streams
        .into_iter()
        .map(|stream: TcpStream| {
            let all = all.clone();
            small(move || speak(stream, |stream| stream.shutdown(Shutdown::Write).unwrap(), &all))
        })
        .collect();
    speakers.into_iter().for_each(|speaker| speaker.join().unwrap());
    stack.signal(rustix::process::Signal::TERM);
    let ended = stack.end().well();
    let said = ended.said.last().unwrap();
    assert!(said.contains("services: 500 connections, 10000000 bytes received, 10000000 sent"), "{said}");
    assert!(said.contains("copies per byte: user 0.00, kernel 1.00"), "{said}");
}

#[test]
fn we_connect_to_the_kernels_echo() {
    let Some(world) = World::new(&[]) else { return };
    let tap = world.tap();
    let at: SocketAddr = format!("{KERNEL}:7").parse().unwrap();
    let listener = world.namespace.run(|| TcpListener::bind(at).unwrap()).unwrap();
    // std asks for 128: of more at once the kernel resets some whose cookies it cannot place.
    rustix::net::listen(&listener, 2 * COUNT as i32).unwrap();
    let server = thread::spawn(move || {
        let echo = |mut stream: TcpStream| {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        };
        let echoes: Vec<_> =
            listener.incoming().take(COUNT).map(|stream| small(move || echo(stream.unwrap()))).collect();
        echoes.into_iter().for_each(|echo| echo.join().unwrap());
    });
    let stack = Stack::builder().link(tap).address("10.77.0.2/24").wait(Wait::Block).build().unwrap();
    let all = Arc::new(Barrier::new(COUNT));
    let speakers: Vec<_> = (0..COUNT)
        .map(|_| {
            let (stack, all) = (stack.clone(), all.clone());
            small(move || {
                let stream = tcp::Stream::connect(&stack, at).unwrap();
                speak(stream, |stream| stream.shutdown(Shutdown::Write).unwrap(), &all);
            })
        })
        .collect();
    speakers.into_iter().for_each(|speaker| speaker.join().unwrap());
    server.join().unwrap();
}
