//! One server and one client for either family: unix sockets, or TCP on stacks of the program's own.
//!
//! ```console
//! $ cargo run -p onecopy --example either     # both, one after the other; the two stacks are joined by a cable in this process
//! ```

use std::error::Error;
use std::fs::File;
use std::net::Shutdown;
use std::thread;

use onecopy::advanced::link::Tap;
use onecopy::{ByteListener, ByteSlot, ByteStream, ByteView, RecvFlags, Stack, tcp, unix};

type Done = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Done {
    let name = unix::SocketAddr::from_abstract_name(format!("onecopy-either-{}", std::process::id()))?;
    let listener = unix::Listener::bind(&name)?;
    both(&listener, || Ok(unix::Stream::connect(&name)?))?;

    let (a, b) = Tap::cable(1500)?;
    let client = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    let server = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    let listener = tcp::Listener::bind(&server, "10.0.0.2:0".parse()?)?;
    let to = listener.local_addr()?;
    both(&listener, || Ok(tcp::Stream::connect(&client, to)?))
}

/// A server that accepts at `listener`, and a client that comes by `connect`.
fn both<L: ByteListener>(
    listener: &L,
    connect: impl FnOnce() -> Result<L::Stream, Box<dyn Error + Send + Sync>>,
) -> Done {
    thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener.accept()?.0));
        ask(&connect()?)?;
        server.join().expect("the server does not panic")
    })
}

/// Answers with this program's own file: read into place by the kernel, and sent from there.
fn serve(stream: &impl ByteStream) -> Done {
    let mut asked = [0; 4];
    stream.recv_with_flags(&mut asked, RecvFlags::WAITALL)?;
    assert_eq!(&asked, b"file");
    let file = File::open(std::env::current_exe()?)?;
    let mut at = 0;
    loop {
        let mut slot = stream.reserve(64 << 10)?;
        if slot.read_from(&file, at)? == 0 {
            break;
        }
        at += slot.commit()? as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(())
}

/// Asks for it, and looks at it where it lies.
fn ask(stream: &impl ByteStream) -> Done {
    stream.send(b"file")?;
    let file = File::create("/dev/null")?;
    let mut all = 0;
    loop {
        let mut view = stream.recv_borrowed(1 << 20)?;
        if view.is_empty() {
            break;
        }
        while !view.is_empty() {
            let n = view.write_to(&file)?;
            view.advance(n);
            all += n as u64;
        }
    }
    assert_eq!(all, File::open(std::env::current_exe()?)?.metadata()?.len());
    // (A unix connection begins in the kernel, and its first bytes came through a buffer.)
    let copied = stream.stats().user_copied_out;
    println!("{all} bytes came over {:?}, {copied} of them copied by the receiver", stream.path().receive);
    assert!(copied < all / 2);
    Ok(())
}
