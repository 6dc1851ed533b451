//! The writer of the rows that move bytes one way.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::aligned::Aligned;
use super::bytes;
use super::conn::Conn;
use super::job::whole;
use super::meet::{self, Server};
use super::setup::Setup;
use crate::proc;

/// Where the reader says how far it has got: on the connection, or beside it where it is to send nothing there.
pub struct Signs(Option<Conn>);

impl Signs {
    /// Whether a reader that sends nothing on the connection is asked for.
    fn beside(job: &Value) -> bool {
        job["one_way"].as_bool().unwrap_or_default()
    }

    /// The reader's end, and the connection's.
    pub fn accept(job: &Value) -> Result<(Conn, Signs)> {
        let setup = Setup::from_job(job)?;
        if !Signs::beside(job) {
            return Ok((meet::accept(&setup)?, Signs(None)));
        }
        let aside = setup.aside();
        // Before the writer is told that it may come.
        let door = Server::bind(&aside)?;
        let conn = meet::accept(&setup)?;
        Ok((conn, Signs(Some(door.accept(&aside)?))))
    }

    /// The writer's end, and the connection's.
    fn connect(job: &Value) -> Result<(Conn, Signs)> {
        let setup = Setup::from_job(job)?;
        let conn = meet::connect(&setup)?;
        let aside = Signs::beside(job).then(|| meet::connect(&setup.aside()));
        Ok((conn, Signs(aside.transpose().context("meeting the reader for its signs")?)))
    }

    /// Gives one.
    pub fn give(&mut self, conn: &mut Conn) -> Result<()> {
        self.0.as_mut().unwrap_or(conn).sign()
    }

    fn wait(&mut self, conn: &mut Conn) -> Result<()> {
        self.0.as_mut().unwrap_or(conn).wait_sign()
    }
}

/// Sends `warm` bytes in pieces of `piece`, waits for the reader's sign, sends `bytes` (so the buffer is empty when the
/// clock starts) and waits for the sign that all have come. With a seed the bytes are those of its stream.
pub fn writer(job: &Value, piece: usize) -> Result<Value> {
    let (mut conn, mut signs) = Signs::connect(job)?;
    let mut buffer = Aligned::new(piece, 0x5a);
    feed(&mut conn, &mut buffer, whole(job, "warm")?, None)?;
    signs.wait(&mut conn)?;
    let (start, cpu) = (proc::now(), proc::cpu_seconds());
    feed(&mut conn, &mut buffer, whole(job, "bytes")?, job["seed"].as_u64())?;
    let cpu = proc::cpu_seconds() - cpu;
    let effective = conn.effective()?;
    signs.wait(&mut conn)?;
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
