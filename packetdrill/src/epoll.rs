//! poll(2) and epoll(7) over sockets of ours, as fs/eventpoll.c has them: what is ready is looked at when asked for, and who waits for edges
//! hears only of sockets that were told of since.

use crate::errno::{Errno, Outcome, Stop};
use crate::memory::User;
use crate::watched::{Entry, Epoll, PRIVATE};
use crate::world::{self, File, World};

/// What is told whether asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// What an exclusive entry may ask for (EPOLLEXCLUSIVE_OK_BITS).
const EXCLUSIVE: u32 =
    PRIVATE & !(libc::EPOLLONESHOT as u32) | (libc::EPOLLIN | libc::EPOLLOUT) as u32 | ALWAYS;

/// Where `data` is in a `struct epoll_event`.
const DATA: usize = std::mem::offset_of!(libc::epoll_event, u64);

fn epoll(world: &mut World, fd: i32) -> Outcome<&mut Epoll> {
    match world.files.get_mut(&fd) {
        Some(File::Epoll(epoll)) => Ok(epoll),
        Some(File::Socket(_)) => Err(Errno(libc::EINVAL)),
        None => Err(Errno(libc::EBADF)),
    }
}

/// epoll_ctl(2).
pub(crate) fn control(fd: i32, op: i32, target: i32, event: User) -> Outcome<isize> {
    world::call(|world| {
        let (events, data) = match op {
            libc::EPOLL_CTL_DEL => (0, 0),
            _ => (event.int()? as u32, event.at(DATA).word()?),
        };
        epoll(world, fd)?;
        if !world.has_socket(target) {
            return Err(Errno(if world.files.contains_key(&target) { libc::EINVAL } else { libc::EPERM }));
        }
        let exclusive = events & libc::EPOLLEXCLUSIVE as u32 != 0;
        if exclusive && (op == libc::EPOLL_CTL_MOD || events & !EXCLUSIVE != 0) {
            return Err(Errno(libc::EINVAL));
        }
        let there = epoll(world, fd)?.entries.iter().position(|entry| entry.fd == target);
        match (op, there) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Errno(libc::EEXIST)),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Errno(libc::ENOENT)),
            (libc::EPOLL_CTL_DEL, Some(_)) => {
                epoll(world, fd)?.forget(target);
                return Ok(0);
            }
            (libc::EPOLL_CTL_ADD, None) => {
                let entry = Entry { fd: target, events: events | ALWAYS, data, listed: false };
                epoll(world, fd)?.entries.push(entry);
            }
            (libc::EPOLL_CTL_MOD, Some(place)) => {
                let entry = &mut epoll(world, fd)?.entries[place];
                if entry.events & libc::EPOLLEXCLUSIVE as u32 != 0 {
                    return Err(Errno(libc::EINVAL));
                }
                (entry.events, entry.data) = (events | ALWAYS, data);
            }
            _ => return Err(Errno(libc::EINVAL)),
        }
        let ready = mask(world, target);
        let epoll = epoll(world, fd)?;
        epoll.notify(target, ready);
        world.touch();
        Ok(0)
    })
}

/// epoll_wait(2).
pub(crate) fn wait(fd: i32, events: User, most: i32, timeout: i32) -> Outcome<isize> {
    world::blocking(
        |world| {
            if most <= 0 {
                return Err(Errno(libc::EINVAL));
            }
            epoll(world, fd)?;
            Ok(until(world, timeout))
        },
        |world, late| {
            let mut told = 0;
            for target in std::mem::take(&mut epoll(world, fd)?.list) {
                let ready = mask(world, target);
                let epoll = epoll(world, fd)?;
                let Some(entry) = epoll.entries.iter_mut().find(|entry| entry.fd == target) else { continue };
                let ready = ready & entry.events;
                let full = told == most as usize;
                if ready != 0 && !full {
                    let place = events.at(told * size_of::<libc::epoll_event>());
                    place.put_int(ready as i32)?;
                    place.at(DATA).write(&entry.data.to_le_bytes())?;
                    told += 1;
                    if entry.events & libc::EPOLLONESHOT as u32 != 0 {
                        entry.events &= PRIVATE;
                    }
                }
                // Who wants levels stays listed as long as it is ready.
                let level = entry.events & (libc::EPOLLET | libc::EPOLLONESHOT) as u32 == 0;
                entry.listed = full || ready != 0 && level;
                if entry.listed {
                    epoll.list.push(target);
                }
            }
            match told {
                0 if !late => Err(Stop::Wait),
                _ => Ok(told as isize),
            }
        },
    )
}

/// poll(2).
pub(crate) fn poll(fds: User, count: usize, timeout: i32) -> Outcome<isize> {
    let mut seen = None;
    world::blocking(
        |world| Ok(until(world, timeout)),
        |world, late| {
            let news: u64 = (0..count).map(|each| news_of(world, fds.at(8 * each))).sum();
            if !late && seen == Some(news) {
                return Err(Stop::Wait);
            }
            seen = Some(news);
            let mut told = 0;
            for each in 0..count {
                let place = fds.at(8 * each);
                let fd = place.int()?;
                let asked = place.at(4).read(2)?;
                let asked = u32::from(u16::from_le_bytes([asked[0], asked[1]])) | ALWAYS;
                let ready = match world.files.contains_key(&fd) {
                    _ if fd < 0 => 0,
                    false => libc::POLLNVAL as u32,
                    true => mask(world, fd) & asked,
                };
                place.at(6).write(&(ready as u16).to_le_bytes())?;
                told += isize::from(ready != 0);
            }
            match told {
                0 if !late => Err(Stop::Wait),
                _ => Ok(told),
            }
        },
    )
}

/// How often who waits for what a pollfd asks for was told of something.
fn news_of(world: &mut World, place: User) -> u64 {
    let (Ok(fd), Ok(asked)) = (place.int(), place.at(4).int()) else { return 0 };
    world.socket(fd).map_or(0, |socket| socket.told.of(asked as u32 & 0xffff | ALWAYS))
}

/// What is ready at a descriptor.
fn mask(world: &mut World, fd: i32) -> u32 {
    let World { files, tcp, .. } = world;
    match files.get_mut(&fd) {
        Some(File::Socket(socket)) => socket.poll(tcp),
        _ => 0,
    }
}

/// When a timeout in milliseconds is over.
fn until(world: &World, timeout: i32) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| world.now + ms * 1_000_000)
}
