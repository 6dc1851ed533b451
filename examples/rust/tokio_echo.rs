//! The echo server and many clients at once, in a tokio runtime.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example tokio_echo             # 100 clients
//! $ cargo run -p onecopy --features tokio --example tokio_echo -- 1000
//! ```

use std::env;
use std::error::Error;
use std::io;

use onecopy::unix::SocketAddr;
use onecopy::unix::tokio::{Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

/// Bytes that each client sends: more than fits any buffer, so that both directions have to flow at once.
const BYTES: usize = 1 << 20;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let clients: u32 = env::args().nth(1).map_or(Ok(100), |count| count.parse())?;
    let name = SocketAddr::from_abstract_name(format!("onecopy-tokio-echo-{}", std::process::id()))?;
    let listener = Listener::bind(&name)?;
    let server = tokio::spawn(async move {
        let mut streams = JoinSet::new();
        for _ in 0..clients {
            let (mut reader, mut writer) = listener.accept().await?.0.into_split();
            streams.spawn(async move {
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
        while let Some(ended) = streams.join_next().await {
            ended??;
        }
        io::Result::Ok(())
    });

    let mut calls = JoinSet::new();
    for seed in 0..clients {
        let name = name.clone();
        calls.spawn(async move { call(&name, seed).await });
    }
    while let Some(ended) = calls.join_next().await {
        ended??;
    }
    server.await??;
    println!("{clients} clients got back the {BYTES} bytes that each of them sent");
    Ok(())
}

async fn call(name: &SocketAddr, seed: u32) -> io::Result<()> {
    let sent: Vec<u8> =
        (0..BYTES as u32).map(|n| ((n ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut reader, mut writer) = Stream::connect(name).await?.into_split();
    let (write, read) = tokio::join!(
        async {
            writer.write_all(&sent).await?;
            writer.shutdown().await
        },
        async {
            let mut back = Vec::with_capacity(BYTES);
            reader.read_to_end(&mut back).await.map(|_| back)
        }
    );
    write?;
    if read? != sent {
        return Err(io::Error::other(format!("client {seed} got back something else")));
    }
    Ok(())
}
