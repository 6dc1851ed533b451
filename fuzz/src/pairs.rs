//! Two datagram sockets that were made as a pair, one of which is taken apart: the liar has its memory, its end of the
//! lifeline and its kernel socket, as who inherits it from a fork has, or who attaches to its process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use onecopy::unix::{Config, Datagram};
use onecopy::{RecvFlags, SendFlags};
use onecopy_conformance::liar::{Field, HEADER_LEN, Liar, Memory};
use onecopy_conformance::tools::Dice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use crate::share::of_grams;
use crate::{Peer, Socket};

/// What this process has open, by number.
fn open() -> io::Result<BTreeMap<RawFd, String>> {
    let entries = fs::read_dir("/proc/self/fd")?.flatten();
    Ok(entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            Some((number, fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        })
        .collect())
}

/// Another descriptor of the same, as a debugger gets it.
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    let me: Pid = getpid();
    let myself = pidfd_open(me, PidfdFlags::empty())?;
    Ok(pidfd_getfd(myself, number, PidfdGetfdFlags::empty())?)
}

/// Whether a pair can be taken apart here: a security filter may keep even a process from its own descriptors.
pub fn can_be_taken_apart() -> bool {
    File::open("/dev/null").is_ok_and(|file| {
        use std::os::fd::AsRawFd;
        duplicate(file.as_raw_fd()).is_ok()
    })
}

fn readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}

/// A pair, of which the victim has one half, and the peer all that the other one is.
///
/// # Errors
///
/// The sockets'; what pidfd_getfd(2) says.
pub fn pair(dice: &mut Dice, config: &Config) -> io::Result<(Peer, Socket)> {
    let missing = |what| io::Error::new(io::ErrorKind::NotFound, what);
    let before = open()?;
    // (Which keeps the descriptors of the memory, for it to be found.)
    let (victim, half) = Datagram::pair_with(&Config { passable: true, ..*config })?;
    let new = open()?.into_iter().filter(|(number, _)| !before.contains_key(number));
    let (mut rings, mut lines) = (Vec::new(), Vec::new());
    for (number, what) in new {
        if what.starts_with("/memfd:") {
            let file = File::options().read(true).write(true).open(format!("/proc/self/fd/{number}"))?;
            let capacity = file.metadata()?.len() - HEADER_LEN;
            rings.push(Memory { file, at: 0, capacity });
        } else if what.starts_with("socket:") {
            let fd = duplicate(number)?;
            if sockopt::socket_type(&fd)? == SocketType::SEQPACKET {
                lines.push(fd);
            }
        }
    }
    // Which is whose, a datagram tells that comes with a descriptor: it lies in the one ring, and in the one end of the line.
    let now = SendFlags::DONTWAIT;
    victim.send_fds_with_flags(b"x", &[File::open("/dev/null")?.as_fd()], now)?;
    let (mine, theirs): (Vec<_>, Vec<_>) =
        rings.into_iter().partition(|ring| ring.get(Field::Head).is_ok_and(|head| head > 0));
    let line = lines.into_iter().find(readable).ok_or_else(|| missing("the lifeline"))?;
    half.recv_with_flags(&mut [0; 1], RecvFlags::DONTWAIT)?;
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&dice.roll().to_le_bytes());
    let liar = Liar {
        mine: mine.into_iter().next(),
        theirs: theirs.into_iter().next(),
        channel: Some(line.try_clone()?),
        ..of_grams(half.as_fd().try_clone_to_owned()?, nonce)
    };
    if liar.mine.is_none() || liar.theirs.is_none() {
        return Err(missing("the memory of a pair"));
    }
    Ok((Peer::half(liar, half, line), Socket::Grams(victim)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use onecopy_testing::alone;

    /// What the liar has in its hands is what the victim uses: else it would lie to nobody.
    #[test]
    fn a_half_is_taken_apart_rightly() {
        alone!();
        if !can_be_taken_apart() {
            println!("not tried: pidfd_getfd(2) is refused here");
            return;
        }
        let (mut peer, socket) = pair(&mut Dice(1), &Config::default()).unwrap();
        let now = SendFlags::DONTWAIT;
        assert_eq!(socket.send_with_flags(b"to the liar", now).unwrap(), 11);
        let liar = peer.liar();
        let came = liar.take().unwrap();
        assert!(came.windows(11).any(|bytes| bytes == b"to the liar"));
        liar.publish_frame(b"from it", true).unwrap();
        let mut buffer = [0; 9];
        assert_eq!(socket.recv_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap(), 7);
        assert_eq!(&buffer[..7], b"from it");
        // With a descriptor, over the line.
        liar.put(&[File::open("/dev/null").unwrap().as_fd()]).unwrap();
        liar.publish_with(onecopy_conformance::lender::WITH, b"and more").unwrap();
        let Socket::Grams(victim) = &socket else { panic!("a pair of datagrams") };
        let (received, with, _) = victim.recv_fds_with_flags(&mut buffer, RecvFlags::DONTWAIT).unwrap();
        assert_eq!((received.len, with.fds.len()), (8, 1));
        // Its hang-up is the other's to see.
        peer.hang_up(false);
        let refused = |error: onecopy::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        let told = (0..100_000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_micros(100));
            socket.send_with_flags(b"x", now).err()
        });
        assert!(told.is_some_and(refused));
    }
}
