//! An echo server and its client: what a program over std's `UnixStream` looks like here.
//!
//! ```console
//! $ cargo run -p onecopy --example echo                                    # both ends, one after the other
//! $ cargo run -p onecopy --example echo -- serve unix:/tmp/echo.sock       # or each in a terminal of its own
//! $ cargo run -p onecopy --example echo -- call unix:/tmp/echo.sock hello
//! $ echo hello | socat - UNIX-CONNECT:/tmp/echo.sock                       # or a client that knows only the kernel
//! ```

use std::env;
use std::error::Error;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;

use onecopy::unix::{Listener, SocketAddr, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => {
            // A name in the abstract namespace is free again when the listener goes, and leaves no file.
            let name = SocketAddr::from_abstract_name(format!("onecopy-echo-{}", std::process::id()))?;
            let listener = Listener::bind(&name)?;
            let server = thread::spawn(move || echo(listener.accept()?.0));
            call(&name, "hello, in place")?;
            server.join().expect("the server does not panic")?;
            Ok(())
        }
        ["serve", name] => {
            let listener = Listener::bind(name.parse::<SocketAddr>()?)?;
            loop {
                let (stream, _) = listener.accept()?;
                thread::spawn(move || echo(stream).inspect_err(|error| eprintln!("echo: {error}")));
            }
        }
        ["call", name, text] => call(&name.parse()?, text),
        _ => Err("usage: echo [serve NAME | call NAME TEXT], with a NAME such as unix:/tmp/echo.sock".into()),
    }
}

/// Sends back what comes, until the peer has sent all it had.
fn echo(mut stream: Stream) -> std::io::Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..n])?;
    }
}

/// Sends `text`, and checks that it comes back.
fn call(name: &SocketAddr, text: &str) -> Result<(), Box<dyn Error>> {
    let mut stream = Stream::connect(name)?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    let mut back = String::new();
    stream.read_to_string(&mut back)?;
    if back != text {
        return Err(format!("sent {text:?}, got {back:?}").into());
    }
    let path = stream.path();
    println!("{back:?} came back; sent over {:?}, received over {:?}", path.send, path.receive);
    Ok(())
}
