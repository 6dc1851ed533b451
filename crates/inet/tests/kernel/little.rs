//! The kernel sends bytes one by one to a program that reads late.

use crate::programs::{check, pattern};
use crate::world::{Host, Program, Setup, World, ours};
use onecopy_chain::Writer;
use onecopy_inet::stack::Event;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::tcp::{Received, SendFlags};
use std::io::{Read, Write};
use std::net::TcpStream;

const COUNT: u64 = 2000;
const BUFFER: u32 = 16 << 10;
const PAGE: u64 = 4096;

/// Answers each byte, so that the next one comes in a segment of its own, and reads once all are there.
struct Late {
    listener: Id,
    answered: u64,
    most: u64,
}

impl Program for Late {
    fn turn(&mut self, host: &mut Host, events: &[Event]) -> bool {
        for event in events {
            // What came before it was accepted nobody is told of.
            let accepted =
                (event.id == self.listener).then(|| host.stack.tcp_accept(event.id).ok()).flatten();
            let id = accepted.map_or(event.id, |(id, _)| id);
            let Some(connection) = host.stack.tcp_connection(id) else { continue };
            let (there, held) = (connection.receiver().available(), connection.receiver().held());
            self.most = self.most.max(held);
            let writer = Writer::new(&host.pool);
            for at in self.answered..there {
                let answer = pattern(2, at, 1);
                let sent = host.stack.tcp_send_bytes(host.now, id, answer, &writer, SendFlags::empty());
                assert_eq!(sent, Ok(1));
            }
            self.answered = self.answered.max(there);
            if there < COUNT {
                continue;
            }
            let mut at = 0;
            while let Ok(Received::Data(data)) = host.stack.tcp_receive(host.now, id, usize::MAX) {
                let bytes = data.payload().host().unwrap().to_vec();
                check(1, at, &bytes);
                at += bytes.len() as u64;
            }
            assert_eq!(at, COUNT);
            host.stack.tcp_close(host.now, id);
            host.stack.tcp_close(host.now, self.listener);
            return true;
        }
        false
    }
}

#[test]
fn the_kernels_single_bytes_share_pages_until_they_are_read() {
    let Some(mut world) = World::new(Setup::all(1500)) else { return };
    let listener = world.host.stack.tcp_open().unwrap();
    world.host.stack.tcp_bind(listener, ours(7), false).unwrap();
    world.host.stack.tcp_listen(listener, 1).unwrap();
    world.host.stack.tcp_set(0, listener, |set| set.receive_buffer = Some(BUFFER)).unwrap();
    let client = world.kernel(|| {
        let mut socket = TcpStream::connect(ours(7)).unwrap();
        socket.set_nodelay(true).unwrap();
        for at in 0..COUNT {
            socket.write_all(pattern(1, at, 1)).unwrap();
            let mut answer = [0];
            socket.read_exact(&mut answer).unwrap();
            check(2, at, &answer);
        }
        assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    });
    let mut late = Late { listener, answered: 0, most: 0 };
    world.run(&mut late);
    let stats = *world.host.stack.tcp_stats();
    assert!(late.most <= u64::from(BUFFER) + PAGE, "{} bytes of pages", late.most);
    assert!(stats.collapsed >= COUNT / 8, "{stats:?}");
    assert_eq!((stats.no_memory, stats.pruned), (0, 0), "{stats:?}");
    world.finish();
    client.join();
}
