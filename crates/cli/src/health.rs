//! `onecopy health`: asks a program of ours how it is, for what restarts or routes by an exit status (HEALTHCHECK of a container, exec
//! probes). An image with this program needs no other one for that.

use anyhow::{Context, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::units;

/// No answer is longer.
const LONGEST: u64 = 16 << 10;

/// Flags of `onecopy health`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What --metrics of `serve` or `proxy` has.
    #[arg(value_name = "IP:PORT", value_parser = units::place)]
    address: SocketAddr,
    /// How long each step may take: to connect, to be asked, and to answer.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::span)]
    timeout: Duration,
}

/// Runs `onecopy health`.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let Args { address, timeout } = *args;
    anyhow::ensure!(!timeout.is_zero(), "--timeout: nobody answers in no time");
    let silent =
        || format!("nobody tells its health at {address}: start `serve` or `proxy` with --metrics {address}");
    let mut tcp = TcpStream::connect_timeout(&address, timeout).with_context(silent)?;
    tcp.set_read_timeout(Some(timeout))?;
    tcp.set_write_timeout(Some(timeout))?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    tcp.write_all(request.as_bytes()).with_context(silent)?;
    let mut answer = Vec::new();
    tcp.take(LONGEST).read_to_end(&mut answer).with_context(silent)?;
    let head = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    match String::from_utf8_lossy(head).as_ref() {
        "HTTP/1.1 200 OK" => Ok(()),
        "HTTP/1.1 503 Service Unavailable" => bail!("the one at {address} is stopping"),
        other => bail!("the one at {address} is none of ours: it says {other:?}"),
    }
}
