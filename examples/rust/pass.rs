//! Descriptors and credentials over a socket: a server opens files for clients that may not, says who asks, and passes
//! what it has opened. Over a stream and over records.
//!
//! ```console
//! $ cargo run -p onecopy --example pass
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::thread;

use onecopy::unix::{Ancillary, Config, Credentials, Listener, SocketAddr};
use onecopy::unix::{SeqListener, SeqPacket, Stream};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Files that a client asks for.
const FILES: usize = 50;

fn main() -> Result<()> {
    let name = SocketAddr::from_abstract_name(format!("onecopy-pass-{}", std::process::id()))?;
    // The server is told who sends, from the first byte on.
    let config = Config { pass_credentials: true, ..Config::default() };

    let listener = Listener::bind_with(&name, &config)?;
    let server = thread::spawn(move || -> Result<Credentials> {
        let (stream, _) = listener.accept()?;
        serve(
            |buffer| Ok(stream.recv_fds(buffer)?),
            |answer, file| Ok(stream.send_fds(answer, &[file.as_fd()]).map(drop)?),
        )
    });
    let stream = Stream::connect(&name)?;
    for i in 0..FILES {
        stream.send(format!("file {i}").as_bytes())?;
        let mut answer = [0; 64];
        let (n, with) = stream.recv_fds(&mut answer)?;
        check(i, &answer[..n], with)?;
    }
    println!("{FILES} files came over a stream, {:?}", stream.path().receive);
    drop(stream);
    is_us(server.join().expect("the server does not panic")?)?;

    let listener = SeqListener::bind_with(&name, &config)?;
    let server = thread::spawn(move || -> Result<Credentials> {
        let (socket, _) = listener.accept()?;
        serve(
            |buffer| Ok(socket.recv_fds(buffer).map(|(got, with)| (got.len, with))?),
            |answer, file| Ok(socket.send_fds(answer, &[file.as_fd()]).map(drop)?),
        )
    });
    let socket = SeqPacket::connect(&name)?;
    // A record has its borders, so all can be asked for at once.
    for i in 0..FILES {
        socket.send(format!("file {i}").as_bytes())?;
    }
    for i in 0..FILES {
        let mut answer = [0; 64];
        let (got, with) = socket.recv_fds(&mut answer)?;
        check(i, &answer[..got.len], with)?;
    }
    println!("{FILES} files came with records, {:?}", socket.path().receive);
    drop(socket);
    is_us(server.join().expect("the server does not panic")?)
}

/// Answers until the client has gone. Who that was: all of it must be of one process.
fn serve(
    mut next: impl FnMut(&mut [u8]) -> Result<(usize, Ancillary)>,
    mut answer: impl FnMut(&[u8], &File) -> Result<()>,
) -> Result<Credentials> {
    let mut client = None;
    let mut buffer = [0; 64];
    loop {
        let (n, with) = next(&mut buffer)?;
        if n == 0 {
            return client.ok_or_else(|| "nobody came".into());
        }
        let who = with.credentials.ok_or("nobody said who asks")?;
        if *client.get_or_insert(who) != who {
            return Err(format!("{who:?} asks on the connection of {client:?}").into());
        }
        // A real server would look into `who` now, and open what he asks for. This one makes it.
        let path = std::env::temp_dir().join(format!("onecopy-pass-{}", std::process::id()));
        let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
        std::fs::remove_file(path)?;
        file.write_all(&buffer[..n])?;
        answer(&buffer[..n], &file)?;
    }
}

/// The file that came must hold what was asked for, and come with the answer to just that.
fn check(i: usize, answer: &[u8], with: Ancillary) -> Result<()> {
    let wanted = format!("file {i}");
    let [fd] =
        <[_; 1]>::try_from(with.fds).map_err(|fds| format!("{} descriptors for {wanted}", fds.len()))?;
    let mut file = File::from(fd);
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if answer == wanted.as_bytes() && text == wanted && !with.truncated {
        Ok(())
    } else {
        Err(format!("{wanted} was answered by {:?} and {text:?}", String::from_utf8_lossy(answer)).into())
    }
}

fn is_us(client: Credentials) -> Result<()> {
    println!("asked by process {}, user {}, group {}", client.pid, client.uid, client.gid);
    if client == Credentials::own() { Ok(()) } else { Err("that is not this process".into()) }
}
