//! Bodies that the daemon lends (its side and the rules are in `serve/lend.rs`): the kernel sends them from where they lie.

use super::tcp::{send_all, wait_writable};
use super::trouble::{Patience, Trouble};
use super::turns::Turns;
use crate::counters::Counters;
use rustix::fd::OwnedFd;
use rustix::fs::FileType;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Bytes that one call sends at most: other clients wait meanwhile.
const STEP: u64 = 1 << 20;

/// Whether it is a file, be it in memory alone, and `length` bytes lie in it from `at`: anything else that has a descriptor
/// could keep who sends it waiting for ever.
pub fn check(lent: &OwnedFd, at: u64, length: u64) -> Result<(), Trouble> {
    let bad = |why: String| Trouble::Bad(format!("the backend lent what cannot be passed on: {why}"));
    let stat = rustix::fs::fstat(lent).map_err(|error| bad(error.to_string()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(bad("it is not a file".into()));
    }
    match at.checked_add(length) {
        Some(end) if end <= stat.st_size as u64 => Ok(()),
        _ => Err(bad(format!("{length} bytes from {at} of {}", stat.st_size))),
    }
}

/// Sends `head` and then `length` bytes from `at`. After an error the client has a head that promises more than came.
pub async fn pass(
    lent: &OwnedFd,
    mut at: u64,
    head: &[u8],
    length: u64,
    client: &TcpStream,
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    send_all(client, head, length > 0, patience).await?;
    let end = at + length;
    let mut turns = Turns::default();
    while at < end {
        let most = (end - at).min(STEP) as usize;
        let send = || Ok(rustix::fs::sendfile(client, lent, Some(&mut at), most)?);
        match client.try_io(Interest::WRITABLE, send) {
            Ok(0) => return Err(Trouble::Cut("the file became shorter while it was being sent".to_owned())),
            Ok(n) => {
                counters.referenced += n as u64;
                counters.body_bytes += n as u64;
                turns.take(n).await;
            }
            Err(error) => wait_writable(client, error, patience.client).await?,
        }
    }
    Ok(())
}
