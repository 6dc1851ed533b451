//! A chat room in a tokio runtime: one task for each guest's lines, one for what the others say.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example chat                        # a room full of talkers, checked
//! $ cargo run -p onecopy --features tokio --example chat -- unix:/tmp/chat.sock # a room to come to...
//! $ socat - UNIX-CONNECT:/tmp/chat.sock                                         # ...over the kernel, from a terminal
//! ```

use std::collections::HashMap;
use std::env;
use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use onecopy::unix::SocketAddr;
use onecopy::unix::tokio::{Listener, Stream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;

/// Guests of the checked room, and what each has to say.
const GUESTS: usize = 8;
const LINES: usize = 100;

/// Lines that may wait for a guest. Who is further behind has left in spirit, and must not hold up the room.
const WAITING: usize = 1024;

/// Longest line, in bytes: a guest who never ends his must not fill the memory.
const LONGEST: u64 = 4096;

/// Everybody present, by number.
#[derive(Clone, Default)]
struct Room(Arc<Mutex<HashMap<u64, Sender<Arc<str>>>>>);

impl Room {
    fn say(&self, from: u64, line: &str) {
        let line: Arc<str> = line.into();
        let mut guests = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Dropping a guest's sender ends the task that writes to him, and so his connection.
        guests.retain(|guest, lines| *guest == from || lines.try_send(line.clone()).is_ok());
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let room = Room::default();
    match env::args().nth(1) {
        Some(name) => host(Listener::bind(name.parse::<SocketAddr>()?)?, room).await?,
        None => {
            let name = SocketAddr::from_abstract_name(format!("onecopy-chat-{}", std::process::id()))?;
            let host = tokio::spawn(host(Listener::bind(&name)?, room.clone()));
            let mut doors = Vec::new();
            for _ in 0..GUESTS {
                doors.push(Stream::connect(&name).await?);
            }
            // Who comes late misses what was said: all are in before the first speaks.
            while room.0.lock().unwrap_or_else(PoisonError::into_inner).len() < GUESTS {
                tokio::task::yield_now().await;
            }
            let mut guests = JoinSet::new();
            for (guest, stream) in doors.into_iter().enumerate() {
                guests.spawn(talk(guest, stream));
            }
            while let Some(heard) = guests.join_next().await {
                heard??;
            }
            host.abort();
            println!("{GUESTS} guests heard every line of each other, in order");
        }
    }
    Ok(())
}

/// Lets guests in, for ever.
async fn host(listener: Listener, room: Room) -> io::Result<()> {
    for guest in 0.. {
        let (stream, _) = listener.accept().await?;
        let (lines, mut to_say) = channel::<Arc<str>>(WAITING);
        room.0.lock().unwrap_or_else(PoisonError::into_inner).insert(guest, lines);
        let (from, mut to) = stream.into_split();
        let here = room.clone();
        tokio::spawn(async move {
            let mut from = BufReader::new(from);
            let mut line = String::new();
            // An error is a guest who left without a word, or who does not speak UTF-8.
            while let Ok(1..) = (&mut from).take(LONGEST).read_line(&mut line).await {
                here.say(guest, &line);
                line.clear();
            }
            here.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&guest);
        });
        tokio::spawn(async move {
            while let Some(line) = to_say.recv().await {
                to.write_all(line.as_bytes()).await?;
            }
            to.shutdown().await
        });
    }
    Ok(())
}

/// Says all its lines while it hears the others', and checks that none is missing or out of order.
async fn talk(guest: usize, stream: Stream) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let speak = async {
        for line in 0..LINES {
            to.write_all(format!("{guest} {line}\n").as_bytes()).await?;
            tokio::task::yield_now().await;
        }
        io::Result::Ok(())
    };
    let hear = async {
        let mut next = [0; GUESTS];
        let mut lines = BufReader::new(from).lines();
        for _ in 0..(GUESTS - 1) * LINES {
            let line = lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let (who, said) = line.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
            let who: usize = who.parse().map_err(io::Error::other)?;
            if who == guest || said != next[who].to_string() {
                return Err(io::Error::other(format!("guest {guest} heard {line:?} out of turn")));
            }
            next[who] += 1;
        }
        Ok(())
    };
    let (spoke, heard) = tokio::join!(speak, hear);
    spoke.and(heard)
}
