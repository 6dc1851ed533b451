//! Bodies for a client that came over this program's own stack: copied out of a view, or lent.

use super::loan::Loan;
use super::stacked::Stacked;
use super::tcp::{Tcp, send_all, wait_writable};
use super::trouble::{Patience, Trouble};
use super::turns::Turns;
use crate::counters::Counters;
use onecopy::SendFlags;
use onecopy::advanced::chain::Chain;
use onecopy::advanced::notify::Segment;
use onecopy::unix::View;
use tokio::io::Interest;

/// Bytes that one call hands over at most.
const STEP: usize = 256 << 10;

/// Sends a segment, as far as that goes without waiting for too long: all of it, or the client is given up.
async fn send_segment(
    (tcp, stacked): (&Tcp, &Stacked),
    segment: &mut Segment<Chain>,
    more: bool,
    patience: Patience,
) -> Result<(), Trouble> {
    let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
    while !segment.payload().is_empty() {
        let sent = stacked.try_io(Interest::WRITABLE, |stream| Ok(stream.send_some(segment, flags)?));
        if let Err(error) = sent {
            wait_writable(tcp, error, patience.client).await?;
        }
    }
    Ok(())
}

/// Copies what is in view into pages of the stack, at most a step of it, and sends them. (The backend could still write what is in view, and
/// what may have to be sent again has to stay as it was.) Bytes sent.
pub async fn pass_view(
    view: &mut View,
    to: (&Tcp, &Stacked),
    more: bool,
    patience: Patience,
) -> Result<usize, Trouble> {
    let n = view.len().min(STEP);
    let mut slot = to.1.stream().reserve(n).map_err(|_| Trouble::Broken)?;
    slot.fill_with(|room| {
        let n = view.copy_to(room);
        view.advance(n);
        n
    });
    send_segment(to, &mut slot.into_segment(), more || !view.is_empty(), patience).await?;
    Ok(n)
}

/// Sends `head` and then a body that was lent: memory from where it lies, and a file's bytes from the pages that the kernel reads
/// them into.
pub async fn pass_loan(
    loan: &Loan,
    head: &[u8],
    to: (&Tcp, &Stacked),
    patience: Patience,
    counters: &mut Counters,
) -> Result<(), Trouble> {
    let mut range = loan.range();
    send_all(to.0, head, !range.is_empty(), patience).await?;
    let mut turns = Turns::default();
    while !range.is_empty() {
        let most = (range.end - range.start).min(STEP as u64) as usize;
        let last = range.start + most as u64 == range.end;
        if last && let Err(why) = loan.still() {
            counters.changed = 1;
            return Err(Trouble::Cut(why.to_owned()));
        }
        let lent = loan.sealed().map(|memory| memory.chain(range.start as usize, most));
        let mut segment = match lent.filter(|chain| !chain.is_empty()) {
            Some(chain) => chain.into(),
            None => {
                let mut slot = to.1.stream().reserve(most).map_err(|_| Trouble::Broken)?;
                let n = slot
                    .read_from(loan.fd(), range.start)
                    .map_err(|error| Trouble::Cut(error.to_string()))?;
                if n == 0 {
                    counters.changed = 1;
                    return Err(Trouble::Cut("the file became shorter while it was being sent".to_owned()));
                }
                counters.kernel_copied += n as u64;
                slot.into_segment()
            }
        };
        let n = segment.payload().len();
        range.start += n as u64;
        send_segment(to, &mut segment, !range.is_empty(), patience).await?;
        counters.body_bytes += n as u64;
        // The link's kernel has it in memory of its own.
        counters.kernel_copied += n as u64;
        turns.take(n).await;
    }
    Ok(())
}
