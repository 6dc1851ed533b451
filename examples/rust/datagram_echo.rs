//! An echo server over datagrams: first for everybody, over the kernel; then for one client that it connects back to, from
//! where on both share memory.
//!
//! ```console
//! $ cargo run -p onecopy --example datagram_echo                                    # both ends, one after the other
//! $ cargo run -p onecopy --example datagram_echo -- serve unix:/tmp/echo.dgram      # or a server for everybody
//! $ cargo run -p onecopy --example datagram_echo -- call unix:/tmp/echo.dgram hello
//! $ echo hello | socat - UNIX-SENDTO:/tmp/echo.dgram,bind=/tmp/me                   # or a client that knows only the kernel
//! ```

use std::env;
use std::error::Error;
use std::thread;

use onecopy::unix::{Datagram, SocketAddr};

/// Datagrams of the session, and bytes of each.
const COUNT: u32 = 10_000;
const BYTES: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            let name =
                SocketAddr::from_abstract_name(format!("onecopy-datagram-echo-{}", std::process::id()))?;
            let server = Datagram::bind(&name)?;
            let server = thread::spawn(move || session(&server));
            let client = Datagram::unbound()?;
            // Who has no name cannot be answered.
            client.autobind()?;
            client.connect(&name)?;
            for n in 0..COUNT {
                exchange(&client, n)?;
            }
            client.send(b"")?;
            server.join().expect("the server does not panic")?;
            let (path, stats) = (client.path(), client.stats());
            println!(
                "{COUNT} datagrams of {BYTES} bytes came back; sent over {:?}, received over {:?}; the kernel copied {} of \
                 {} bytes",
                path.send,
                path.receive,
                stats.kernel_copied,
                stats.sent + stats.received
            );
            Ok(())
        }
        ["serve", name] => {
            let server = Datagram::bind(name.parse::<SocketAddr>()?)?;
            let mut buffer = vec![0; 64 << 10];
            loop {
                let (n, client) = server.recv_from(&mut buffer)?;
                if let Err(error) = server.send_to(&buffer[..n], &client) {
                    eprintln!("echo to {client}: {error}");
                }
            }
        }
        ["call", name, text] => {
            let client = Datagram::unbound()?;
            client.autobind()?;
            client.connect(name.parse::<SocketAddr>()?)?;
            client.send(text.as_bytes())?;
            let mut buffer = [0; 64 << 10];
            let n = client.recv(&mut buffer)?;
            println!("{:?} came back", String::from_utf8_lossy(&buffer[..n]));
            Ok(())
        }
        _ => Err(
            "usage: datagram_echo [serve NAME | call NAME TEXT], with a NAME such as unix:/tmp/echo.dgram"
                .into(),
        ),
    }
}

/// Sends back what comes from the first client, until that sends a datagram of no bytes.
fn session(server: &Datagram) -> onecopy::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let (mut n, client) = server.recv_from(&mut buffer)?;
    server.connect(&client)?;
    while n > 0 {
        server.send(&buffer[..n])?;
        n = server.recv(&mut buffer)?;
    }
    Ok(())
}

/// Sends a datagram, and checks that it comes back.
fn exchange(client: &Datagram, n: u32) -> Result<(), Box<dyn Error>> {
    let sent = vec![n as u8; BYTES];
    client.send(&sent)?;
    let mut back = vec![0; BYTES + 1];
    let len = client.recv(&mut back)?;
    if back[..len] != sent {
        return Err(format!("datagram {n} came back as something else").into());
    }
    Ok(())
}
