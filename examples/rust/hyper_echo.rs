//! hyper, unchanged, over TCP of the program's own: HTTP/1.1 between two stacks on one cable, some megabytes both ways.
//!
//! hyper takes whatever reads and writes as tokio's streams do; `onecopy::tcp::tokio::Stream` is one.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example hyper_echo             # 16 MiB each way, twice
//! $ cargo run -p onecopy --features tokio --example hyper_echo -- 1000000
//! ```

use std::convert::Infallible;
use std::env;
use std::error::Error;

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode, client, server, service};
use hyper_util::rt::TokioIo;
use onecopy::advanced::link::Tap;
use onecopy::tcp::tokio::{Listener, Stream};
use onecopy::{Carrier, Stack};

type Done<R = ()> = Result<R, Box<dyn Error + Send + Sync>>;

/// Where a client's checksum of what it sends stands, and the server's of what it answers.
const CHECKSUM: &str = "x-sha256";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Done {
    let len: usize = env::args().nth(1).map_or(Ok(16 << 20), |len| len.parse())?;
    let (a, b) = Tap::cable(1500)?;
    let client = Stack::builder().link(a).address("10.0.0.1/24").build()?;
    let server = Stack::builder().link(b).address("10.0.0.2/24").build()?;
    let listener = Listener::bind(&server, "10.0.0.2:0".parse()?).await?;
    let to = listener.local_addr()?;
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await?;
        let answer = service::service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
        Done::Ok(server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await?)
    });

    let stream = Stream::connect(&client, to).await?;
    assert_eq!(stream.path().send, Carrier::Stack);
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let driving = tokio::spawn(connection);
    // Two requests on one connection, so that the end of a body is not the end of a stream.
    for seed in 0..2 {
        let sent = pattern(len, seed);
        let request = Request::builder()
            .method(Method::POST)
            .uri("/echo")
            .header("host", to.to_string())
            .header(CHECKSUM, checksum(&sent))
            .body(Full::new(sent.clone()))?;
        let answered = sender.send_request(request).await?;
        assert_eq!(answered.status(), StatusCode::OK);
        let told = answered.headers().get(CHECKSUM).cloned();
        let back = answered.into_body().collect().await?.to_bytes();
        assert_eq!(told.ok_or("an answer without a checksum")?, checksum(&back).as_str());
        assert!(back.iter().eq(sent.iter().rev()), "the answer is not what was sent, turned round");
    }
    drop(sender);
    driving.await??;
    serving.await??;
    println!(
        "{len} bytes went to hyper and came back, twice, over one connection of a stack of this program's own"
    );
    Ok(())
}

/// Answers with the request's body, turned round, if it is what the client says that it is.
async fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let said = request.headers().get(CHECKSUM).cloned();
    let refuse = |why: String| {
        let mut refused = Response::new(Full::new(Bytes::from(why)));
        *refused.status_mut() = StatusCode::BAD_REQUEST;
        refused
    };
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return refuse(error.to_string()),
    };
    if said.is_none_or(|said| said != checksum(&body).as_str()) {
        return refuse("the body is not what its checksum says".into());
    }
    let back: Bytes = body.iter().rev().copied().collect::<Vec<u8>>().into();
    let answer = Response::builder().header(CHECKSUM, checksum(&back)).body(Full::new(back));
    answer.unwrap_or_else(|error| refuse(error.to_string()))
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
