//! The writer of the rows that move bytes one way.

use anyhow::Result;
use serde_json::{Value, json};

use super::bytes;
use super::conn::{Aligned, Conn, Setup, whole};
use crate::proc;

/// Sends `warm` bytes in pieces of `piece`, waits for the reader's sign, sends `bytes` (so the buffer is empty when the
/// clock starts) and waits for the sign that all have come. With a seed the bytes are those of its stream.
pub fn writer(job: &Value, piece: usize) -> Result<Value> {
    let mut conn = Setup::from_job(job)?.connect()?;
    let mut buffer = Aligned::new(piece, 0x5a);
    feed(&mut conn, &mut buffer, whole(job, "warm")?, None)?;
    conn.wait_sign()?;
    let (start, cpu) = (proc::now(), proc::cpu_seconds());
    feed(&mut conn, &mut buffer, whole(job, "bytes")?, job["seed"].as_u64())?;
    let cpu = proc::cpu_seconds() - cpu;
    let effective = conn.effective()?;
    conn.wait_sign()?;
    Ok(json!({
        "start": start, "cpu": cpu, "effective": effective,
        "path": conn.path(), "work": conn.work()
    }))
}

fn feed(conn: &mut Conn, buffer: &mut [u8], total: u64, seed: Option<u64>) -> Result<()> {
    let mut at = 0;
    while at < total {
        let n = (total - at).min(buffer.len() as u64) as usize;
        if let Some(seed) = seed {
            bytes::fill(&mut buffer[..n], seed, at);
        }
        conn.send_all(&buffer[..n])?;
        at += n as u64;
    }
    Ok(())
}
