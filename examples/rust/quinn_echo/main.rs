//! quinn, unchanged, over UDP of the program's own: QUIC between two stacks on one cable, some megabytes both ways.
//!
//! quinn asks for a socket by its trait `AsyncUdpSocket`; [`Datagrams`] is one of `onecopy::udp::tokio::Socket`, and passes on all that quinn
//! knows of UDP: trains out and in, congestion marks, this side's address.
//!
//! ```console
//! $ cargo run -p onecopy --features tokio --example quinn_echo             # 16 MiB
//! $ cargo run -p onecopy --features tokio --example quinn_echo -- 1000000
//! ```

mod datagrams;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{array, env};

use datagrams::{Counts, Datagrams};
use onecopy::advanced::link::Tap;
use onecopy::{Driver, Stack};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};

/// The configurations of a server whose certificate the client trusts.
fn configs() -> Result<(quinn::ServerConfig, quinn::ClientConfig), Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed(["example.org".to_owned()])?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
    let server = quinn::ServerConfig::with_single_cert(vec![own.cert.der().clone()], key.into())?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(own.cert.der().clone())?;
    Ok((server, quinn::ClientConfig::with_root_certificates(Arc::new(roots))?))
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let len: usize = env::args().nth(1).map_or(Ok(16 << 20), |len| len.parse())?;
    // Two hosts. (Where a TAP may be had, `tap("onecopy0")` is the way to the kernel, and the world.)
    let (left, right) = Tap::cable(1500)?;
    // The runtime drives them: there is no thread that would have to wake it.
    let left = Stack::builder().link(left).address("10.0.0.1/24").driver(Driver::Caller).build()?;
    let right = Stack::builder().link(right).address("10.0.0.2/24").driver(Driver::Caller).build()?;
    let driving = [&left, &right].map(|stack| {
        let stack = stack.clone();
        tokio::spawn(async move { stack.drive_async().await })
    });
    let [near, far]: [SocketAddr; 2] = array::from_fn(|n| ([10, 0, 0, n as u8 + 1], 4433).into());
    let (server_config, client_config) = configs()?;

    let server_socket = Datagrams::bind(&right, far).await?;
    let runtime = Arc::new(TokioRuntime);
    let server = Endpoint::new_with_abstract_socket(
        EndpointConfig::default(),
        Some(server_config),
        server_socket.clone(),
        runtime.clone(),
    )?;
    let serving = tokio::spawn(async move {
        let connection = server.accept().await.ok_or("no connection")?.await?;
        let (mut send, mut receive) = connection.accept_bi().await?;
        let mut buffer = vec![0; 64 << 10];
        while let Some(n) = receive.read(&mut buffer).await? {
            send.write_all(&buffer[..n]).await?;
        }
        send.finish()?;
        connection.closed().await;
        Ok::<_, Box<dyn Error + Send + Sync>>(connection.stats())
    });

    let client_socket = Datagrams::bind(&left, near).await?;
    let client =
        Endpoint::new_with_abstract_socket(EndpointConfig::default(), None, client_socket.clone(), runtime)?;
    let connection = client.connect_with(client_config, far, "example.org")?.await?;
    let (mut send, mut receive) = connection.open_bi().await?;
    let data = pattern(len);
    let writing = async {
        send.write_all(&data).await?;
        send.finish()?;
        Ok::<_, Box<dyn Error>>(())
    };
    let reading = async { Ok::<_, Box<dyn Error>>(receive.read_to_end(len).await?) };
    let ((), back) = tokio::try_join!(writing, reading)?;
    assert!(back == data, "what came back is what was sent");
    let stats = connection.stats();
    connection.close(0_u8.into(), b"done");
    client.wait_idle().await;
    let server_stats = serving.await?.map_err(|error| error as Box<dyn Error>)?;
    driving.iter().for_each(|driving| driving.abort());

    println!("{len} bytes there and back, checked");
    for (name, socket, stats) in [("client", &client_socket, stats), ("server", &server_socket, server_stats)]
    {
        let Counts { trains_out, trains_in, marked } = socket.counts();
        println!(
            "{name}: {} datagrams out, {trains_out} trains; {} in, {trains_in} trains, {marked} packets with a mark; {} lost",
            stats.udp_tx.datagrams, stats.udp_rx.datagrams, stats.path.lost_packets,
        );
        // (A few bytes make no train.)
        if len > 1 << 20 {
            assert!(trains_out > 0 && trains_in > 0 && marked > 0, "quinn has what it asked for");
        }
    }
    Ok(())
}
