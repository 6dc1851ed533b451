//! h2, unchanged, over TCP of the program's own: HTTP/2 between two stacks on one cable, several streams at once, some megabytes both ways.
//!
//! h2 takes whatever reads and writes as tokio's streams do; `onecopy::tcp::tokio::Stream` is one.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example h2_echo             # 4 streams of 4 MiB, each way
//! $ cargo run -p onecopy --features tokio --example h2_echo -- 1000000
//! ```

use std::env;
use std::error::Error;
use std::future::poll_fn;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream, client, server};
use hyper::http::{Request, Response, StatusCode};
use onecopy::Stack;
use onecopy::advanced::link::Tap;
use onecopy::tcp::tokio::{Listener, Stream};
use tokio::task::JoinSet;

type Done<R = ()> = Result<R, Box<dyn Error + Send + Sync>>;

/// Requests that are under way at once.
const STREAMS: u32 = 4;
/// Where the server's checksum of what it received stands.
const CHECKSUM: &str = "x-sha256";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let len: usize = env::args().nth(1).map_or(Ok(4 << 20), |len| len.parse())?;
    let (a, b) = Tap::cable(1500)?;
    let client_side = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    let server_side = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    let listener = Listener::bind(&server_side, "10.0.0.2:0".parse()?).await?;
    let to = listener.local_addr()?;
    let serving = tokio::spawn(async move { serve(listener.accept().await?.0).await });

    let (sender, connection) = client::handshake(Stream::connect(&client_side, to).await?).await?;
    let driving = tokio::spawn(connection);
    let mut calls = JoinSet::new();
    for seed in 0..STREAMS {
        let sender = sender.clone();
        calls.spawn(async move { call(sender, pattern(len, seed)).await });
    }
    while let Some(called) = calls.join_next().await {
        called??;
    }
    drop(sender);
    driving.await??;
    serving.await??;
    println!(
        "{STREAMS} streams of {len} bytes went to h2 and came back over one connection of a stack of this program's own"
    );
    Ok(())
}

/// Sends `body`, and looks whether it comes back.
async fn call(sender: client::SendRequest<Bytes>, body: Bytes) -> Done {
    let request = Request::post("http://10.0.0.2/echo").body(())?;
    let (answer, mut out) = sender.ready().await?.send_request(request, false)?;
    send(&mut out, body.clone()).await?;
    let (head, mut back) = answer.await?.into_parts();
    assert_eq!(head.status, StatusCode::OK);
    let back = collect(&mut back).await?;
    let told = head.headers.get(CHECKSUM).ok_or("an answer without a checksum")?;
    assert_eq!(told, checksum(&body).as_str());
    assert!(back == body, "something else came back");
    Ok(())
}

async fn serve(stream: Stream) -> Done {
    let mut connection = server::handshake(stream).await?;
    let mut answers = JoinSet::new();
    // (Whoever accepts drives the connection, its streams too.)
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        answers.spawn(answer(request.into_body(), respond));
    }
    while let Some(answered) = answers.join_next().await {
        answered??;
    }
    Ok(())
}

/// Answers with the request's body.
async fn answer(mut body: RecvStream, mut respond: SendResponse<Bytes>) -> Done {
    let body = collect(&mut body).await?;
    let head = Response::builder().header(CHECKSUM, checksum(&body)).body(())?;
    send(&mut respond.send_response(head, false)?, body).await
}

/// Receives a body to its end, and gives the room that it took back as it comes.
async fn collect(body: &mut RecvStream) -> Done<Bytes> {
    let mut all = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        all.extend_from_slice(&piece);
    }
    Ok(all.into())
}

/// Sends a body as the peer has room for it.
async fn send(out: &mut SendStream<Bytes>, mut body: Bytes) -> Done {
    while !body.is_empty() {
        out.reserve_capacity(body.len());
        let room = poll_fn(|context| out.poll_capacity(context)).await.ok_or("the stream is over")??;
        let piece = body.split_to(room.min(body.len()));
        out.send_data(piece, body.is_empty())?;
    }
    Ok(())
}

/// The SHA-256 of `bytes`, in hexadecimal.
fn checksum(bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA256);
    context.update(bytes);
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pattern(len: usize, seed: u32) -> Bytes {
    let byte = |n: u32| ((n ^ seed.wrapping_mul(40_503)).wrapping_mul(2_654_435_761) >> 24) as u8;
    (0..len as u32).map(byte).collect::<Vec<u8>>().into()
}
