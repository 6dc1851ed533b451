//! Beside a plain model: sockets as a list, looked through for each datagram.

use crate::world::*;
use onecopy_inet::stack::slab::Id;
use onecopy_inet::udp::{Envelope, Error};
use onecopy_link::Medium;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug)]
enum Call {
    Open,
    Bind {
        at: usize,
        address: usize,
        port: u16,
        reuse: bool,
    },
    Connect {
        at: usize,
        port: u16,
    },
    Disconnect {
        at: usize,
    },
    Receive {
        at: usize,
    },
    Close {
        at: usize,
    },
    /// From this port of A's host: so many bytes, as a train where it says so.
    Send {
        port: u16,
        address: usize,
        to: u16,
        len: usize,
        gso: u16,
    },
}

fn call() -> impl Strategy<Value = Call> {
    let at = 0..6usize;
    prop_oneof![
        1 => Just(Call::Open),
        4 => (at.clone(), 0..4usize, 0..3u16, any::<bool>())
            .prop_map(|(at, address, port, reuse)| Call::Bind { at, address, port, reuse }),
        2 => (at.clone(), 0..2u16).prop_map(|(at, port)| Call::Connect { at, port }),
        1 => at.clone().prop_map(|at| Call::Disconnect { at }),
        3 => at.clone().prop_map(|at| Call::Receive { at }),
        1 => at.prop_map(|at| Call::Close { at }),
        8 => (0..2u16, 0..4usize, 0..3u16, 0..300usize, prop_oneof![2 => Just(0), 1 => 50..150u16])
            .prop_map(|(port, address, to, len, gso)| Call::Send { port, address, to, len, gso }),
    ]
}

const ADDRESSES: [IpAddr; 4] = [B, B2, ANY, ALL];
const PORTS: u16 = 700;
const BUFFER: u64 = 20_000;

/// A socket, as plain as can be.
struct Plain {
    id: Id,
    /// Where, once it has a port, and since when: of equals the newest gets it.
    local: Option<SocketAddr>,
    since: u64,
    reuse: bool,
    asked: Option<SocketAddr>,
    remote: Option<SocketAddr>,
    /// Bytes, sender, and cost.
    queue: VecDeque<(Vec<u8>, SocketAddr, u64)>,
}

#[derive(Default)]
struct Model {
    sockets: Vec<Plain>,
    time: u64,
    full: u64,
    nobody: u64,
}

impl Model {
    fn stamp(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn may_bind(&self, address: IpAddr, port: u16, reuse: bool) -> bool {
        let meet = |local: SocketAddr| {
            local.port() == port
                && (local.ip() == address || local.ip().is_unspecified() || address.is_unspecified())
        };
        let shares = |other: &Plain| reuse && other.reuse;
        self.sockets.iter().all(|other| other.local.is_none_or(|local| !meet(local) || shares(other)))
    }

    /// Whether it fits.
    fn give(&mut self, index: usize, part: &[u8], from: SocketAddr, pages: u64) -> bool {
        let queue = &mut self.sockets[index].queue;
        let cost = pages + 768;
        let used: u64 = queue.iter().map(|(_, _, cost)| cost).sum();
        let fits = queue.is_empty() || used + cost <= BUFFER;
        if fits {
            queue.push_back((part.to_vec(), from, cost));
        }
        fits
    }

    fn arrive(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8], gso: u16) {
        let parts: Vec<&[u8]> = match usize::from(gso) {
            0 => vec![bytes],
            size if bytes.len() <= size => vec![bytes],
            size => bytes.chunks(size).collect(),
        };
        // How near it is: connected, of that address, of any.
        let rank = |socket: &Plain| {
            let local = socket.local?;
            let (here, any) = (local == to, local.ip().is_unspecified() && local.port() == to.port());
            match socket.remote {
                Some(remote) => (here && remote == from).then_some(3),
                None if here => Some(2),
                None => any.then_some(1),
            }
        };
        let mut ranked: Vec<_> = (0..self.sockets.len())
            .filter_map(|index| Some((rank(&self.sockets[index])?, self.sockets[index].since, index)))
            .collect();
        ranked.sort_unstable();
        let all = to.ip() == ALL;
        let getters: Vec<usize> = match all {
            true => ranked.iter().filter(|(rank, ..)| *rank < 3).map(|(.., index)| *index).collect(),
            false => ranked.last().map(|(.., index)| *index).into_iter().collect(),
        };
        if getters.is_empty() {
            self.nobody += parts.len() as u64;
        }
        for index in getters {
            let mut fits = true;
            for part in &parts {
                // Bytes lie on one page, which the parts share.
                let pages = if bytes.is_empty() {
                    0
                } else {
                    (4096 * part.len() as u64).div_ceil(bytes.len() as u64)
                };
                fits = fits && self.give(index, part, from, pages);
                self.full += u64::from(!fits);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sockets_do_what_the_model_does(calls in prop::collection::vec(call(), 1..120), ethernet in any::<bool>()) {
        let mut world = World::new(if ethernet { Medium::Ethernet } else { Medium::Ip });
        world.acquaint();
        let senders = [0, 1].map(|port| world.a.bound(A, 1000 + port));
        for id in senders {
            world.a.stack.udp_set(id, |settings| settings.broadcast = true).unwrap();
        }
        let mut model = Model::default();
        let mut number = 0u8;
        for call in calls {
            let stack = &mut world.b.stack;
            let count = model.sockets.len();
            match call {
                Call::Open if count < 6 => {
                    let id = stack.udp_open().unwrap();
                    stack.udp_set(id, |settings| settings.receive_buffer = Some(BUFFER as u32)).unwrap();
                    model.sockets.push(Plain {
                        id, local: None, since: 0, reuse: false, asked: None, remote: None, queue: VecDeque::new(),
                    });
                }
                Call::Bind { at: index, address, port, reuse } if index < count => {
                    let wanted = at(ADDRESSES[address], PORTS + port);
                    let may = model.may_bind(wanted.ip(), wanted.port(), reuse);
                    let since = model.stamp();
                    let socket = &mut model.sockets[index];
                    let want = if socket.local.is_some() {
                        Err(Error::Invalid)
                    } else if may {
                        (socket.local, socket.asked, socket.reuse, socket.since) = (Some(wanted), Some(wanted), reuse, since);
                        Ok(())
                    } else {
                        Err(Error::AddressInUse)
                    };
                    prop_assert_eq!(stack.udp_bind(socket.id, wanted, reuse), want);
                }
                Call::Connect { at: index, port } if index < count => {
                    let since = model.stamp();
                    let socket = &mut model.sockets[index];
                    let to = at(A, 1000 + port);
                    prop_assert_eq!(stack.udp_connect(socket.id, to), Ok(()));
                    let local = stack.udp_addresses(socket.id).local.unwrap();
                    // Its own port and address, where it had them.
                    let had = socket.local.unwrap_or(at(ANY, local.port()));
                    let address = if had.ip().is_unspecified() { B } else { had.ip() };
                    prop_assert_eq!(local, at(address, had.port()));
                    (socket.local, socket.remote, socket.since) = (Some(local), Some(to), since);
                }
                Call::Disconnect { at: index } if index < count => {
                    let since = model.stamp();
                    let socket = &mut model.sockets[index];
                    prop_assert_eq!(stack.udp_disconnect(socket.id), Ok(()));
                    if socket.remote.take().is_some() {
                        (socket.local, socket.since) = (socket.asked, since);
                    }
                    prop_assert_eq!(stack.udp_addresses(socket.id).local, socket.local);
                }
                Call::Receive { at: index } if index < count => {
                    let socket = &mut model.sockets[index];
                    let got = stack.udp_receive(socket.id).map(|one| (bytes(&one), one.from));
                    let want = socket.queue.pop_front().map(|(bytes, from, _)| (bytes, from));
                    prop_assert_eq!(got, want.ok_or(Error::WouldBlock));
                }
                Call::Close { at: index } if index < count => {
                    stack.udp_close(model.sockets.remove(index).id);
                }
                Call::Send { port, address, to, len, gso } => {
                    number = number.wrapping_add(1);
                    let to = at(if address == 2 { B } else { ADDRESSES[address] }, PORTS + to);
                    let sent: Vec<u8> = (0..len).map(|at| number.wrapping_add(at as u8)).collect();
                    let envelope = Envelope::to(to).gso(gso);
                    prop_assert_eq!(world.send(senders[usize::from(port)], &envelope, &sent), Ok(len));
                    world.go();
                    model.arrive(at(A, 1000 + port), to, &sent, gso);
                }
                _ => {}
            }
            let stats = world.b.stack.udp_stats();
            prop_assert_eq!((stats.buffer_full, stats.no_port + stats.unheard), (model.full, model.nobody));
            let waiting = model.sockets.iter().map(|socket| socket.queue.len() as u64).sum();
            world.b.assert_balanced(waiting);
        }
        for socket in &model.sockets {
            let want: Vec<_> = socket.queue.iter().map(|(bytes, from, _)| (bytes.clone(), *from)).collect();
            prop_assert_eq!(world.b.all(socket.id), want);
            world.b.stack.udp_close(socket.id);
        }
        prop_assert!(world.b.stack.is_empty());
        let stats = world.pool.stats();
        prop_assert_eq!(stats.in_flight, stats.in_cache + stats.in_ring);
    }
}
