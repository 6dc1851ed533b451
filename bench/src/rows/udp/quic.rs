//! QUIC, by quinn, over either: what a program of others' makes of our datagrams.
//!
//! The client is the engine, over the kernel's socket or ours; the server has the kernel's, and reads.

#[path = "../../../../examples/rust/quinn_echo/datagrams.rs"]
mod datagrams;

use anyhow::{Context as _, Result, bail, ensure};
use onecopy::advanced::link::{Tap, TapConfig};
use onecopy::{Driver, Mac, Stack};
use onecopy_sys::netns::Namespace;
use quinn::{ClientConfig, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use super::super::bytes;
use super::super::job::{number, with};
use super::super::tcp::meter::Meter;
use super::super::tcp::net::{Devices, Net, Queues};
use super::super::tcp::plan::{ENGINE, PEER, PREFIX, Plan};
use super::super::tcp::{add_up, until_something_comes};
use super::LIFE;
use crate::proc;
use crate::row::{CPU_PER_GB, Case, Context, Sample, Session, Work};
use datagrams::Datagrams;

/// The name that the server's certificate is for.
const NAME: &str = "bench.example";
/// Bytes that the program gives at a time.
const PIECE: usize = 128 << 10;
/// Bytes that are compared.
const VERIFIED: u64 = 3_000_017;
const SEED: u64 = 0x5eed;

/// One stream of bytes, which the engine sends. Nothing is asked for: most of it is quinn's own work, and what each leaves of that is shown.
pub fn case(plan: Plan) -> Case {
    Case {
        name: "quinn".to_owned(),
        engines: vec!["kernel", "copy"],
        baseline: "kernel",
        reach: Vec::new(),
        work: Work::fixed(1),
        open: Box::new(move |context, engine| Ok(Box::new(Quic::open(context, engine, plan.clone())?))),
    }
}

struct Quic {
    context: Context,
    net: Net,
    role: String,
    plan: Plan,
    /// The server's certificate and its key.
    identity: Value,
}

impl Quic {
    fn open(context: &Context, engine: &str, mut plan: Plan) -> Result<Quic> {
        let tap = Devices::Tap { mtu: 1500, queues: Queues::One };
        let net = Net::new(if engine == "kernel" { Devices::Veth } else { tap })?;
        net.tell(&mut plan);
        let own = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("making a certificate")?;
        let identity =
            json!({"certificate": own.cert.der().to_vec(), "key": own.signing_key.serialize_der()});
        Ok(Quic { context: context.clone(), net, role: format!("udp/quinn-{engine}"), plan, identity })
    }

    /// Figures of who sent, and of who received.
    fn pass(&self, plan: &Plan) -> Result<(Value, Value)> {
        let job = with(serde_json::to_value(plan)?, self.identity.clone());
        let (launcher, cpus) = (&self.context.launcher, self.context.cpus);
        let mut peer = launcher.start("udp/quinn-peer", &job, Some(cpus[1]), LIFE)?;
        peer.ready()?;
        let mut engine = launcher.start(&self.role, &job, Some(cpus[0]), LIFE)?;
        let engine = engine.figures()?;
        Ok((engine, peer.figures()?))
    }
}

impl Session for Quic {
    fn verify(&mut self) -> Result<()> {
        let (_, receiver) = self.pass(&Plan { verify: Some(VERIFIED), ..self.plan.clone() })?;
        ensure!(
            receiver["verified"] == VERIFIED,
            "{} bytes came instead of {VERIFIED}",
            receiver["verified"]
        );
        Ok(())
    }

    fn run(&mut self, _: u64) -> Result<Sample> {
        let (sender, receiver) = until_something_comes(|| self.pass(&self.plan))?;
        let (bytes, seconds) = (number(&receiver, "bytes")?, number(&receiver, "seconds")?);
        let values = vec![
            ("rate", bytes / seconds / 1e6),
            (CPU_PER_GB.name, number(&receiver, "cpu")? / (bytes / 1e9)),
        ];
        let settings = vec![
            ("MTU".to_owned(), self.net.mtu().to_string()),
            ("datagrams out".to_owned(), sender["datagrams"].to_string()),
            ("system calls or trains".to_owned(), sender["calls"].to_string()),
            ("lost".to_owned(), sender["lost"].to_string()),
        ];
        Ok(Sample { seconds, values, settings })
    }
}

/// Runs it on this thread alone, as the other engines do.
fn here<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn bytes_of(job: &Value, name: &str) -> Result<Vec<u8>> {
    Vec::deserialize(&job[name]).with_context(|| format!("no {name}"))
}

/// The server: takes one connection and one stream, and reads.
pub fn peer(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    plan.peers()?.enter().context("entering the peer's namespace")?;
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(bytes_of(job, "key")?);
    let config = ServerConfig::with_single_cert(vec![bytes_of(job, "certificate")?.into()], key.into())?;
    here(async {
        let server = Endpoint::server(config, plan.address(0).into()).context("binding the server")?;
        proc::say_ready()?;
        let connection = server.accept().await.context("no connection")?.await?;
        let mut stream = connection.accept_uni().await.context("waiting for a stream")?;
        let figures = match plan.verify {
            Some(len) => check(&mut stream, len).await,
            None => measure(&mut stream, &plan).await,
        };
        connection.close(0_u8.into(), b"seen");
        server.wait_idle().await;
        figures
    })
}

async fn measure(stream: &mut RecvStream, plan: &Plan) -> Result<Value> {
    let mut meter = Meter::start(plan);
    let (mut came, mut sum) = (0, 0);
    while meter.next().is_some() {
        let Some(chunk) = stream.read_chunk(usize::MAX, true).await.context("receiving")? else { break };
        sum = add_up(sum, &chunk.bytes);
        came += chunk.bytes.len() as u64;
        meter.tick(came)?;
    }
    std::hint::black_box(sum);
    meter.figures()
}

async fn check(stream: &mut RecvStream, len: u64) -> Result<Value> {
    let mut at = 0;
    while let Some(chunk) = stream.read_chunk(usize::MAX, true).await.context("receiving")? {
        bytes::check(&chunk.bytes, SEED, at)?;
        at += chunk.bytes.len() as u64;
    }
    ensure!(at == len, "{at} bytes came instead of {len}");
    Ok(json!({"verified": at}))
}

/// The engine that is the kernel.
pub fn kernel(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let namespace = plan.engines.as_deref().context("the kernel has no namespace")?;
    Namespace::open(namespace)?.enter().context("entering the engine's namespace")?;
    here(async {
        let client = Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into()).context("binding the client")?;
        send(client, job, &plan).await
    })
}

/// The engine that is ours.
pub fn ours(job: &Value) -> Result<Value> {
    let plan = Plan::from_job(job)?;
    let tap = plan.peers()?.run(|| Tap::open(TapConfig::new(&plan.device)))??;
    let stack = Stack::builder()
        .link(tap)
        .address(&format!("{ENGINE}/{PREFIX}"))
        .mac(Mac([2, 0, 0, 0, 0, 2]))
        .driver(Driver::Caller)
        .build()?;
    here(async {
        let driven = stack.clone();
        let driving = tokio::spawn(async move { driven.drive_async().await });
        let socket = Datagrams::bind(&stack, SocketAddr::from((ENGINE, 4433))).await?;
        let runtime = Arc::new(TokioRuntime);
        let config = EndpointConfig::default();
        let client = Endpoint::new_with_abstract_socket(config, None, socket.clone(), runtime)?;
        let figures = send(client, job, &plan).await?;
        ensure!(socket.counts().trains_out > 0, "quinn has sent no train");
        driving.abort();
        Ok(figures)
    })
}

/// Sends on one stream until the time is over, or what is to be compared.
async fn send(client: Endpoint, job: &Value, plan: &Plan) -> Result<Value> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(bytes_of(job, "certificate")?.into())?;
    let config = ClientConfig::with_root_certificates(Arc::new(roots))?;
    let server = SocketAddr::from((PEER, plan.address(0).port()));
    let connection = client.connect_with(config, server, NAME)?.await.context("connecting")?;
    let mut stream = connection.open_uni().await?;
    match plan.verify {
        Some(len) => send_checked(&mut stream, len).await?,
        None => {
            let until = proc::now() + plan.sending();
            let piece = vec![0x5a; PIECE];
            while proc::now() < until {
                // (The server has seen enough.)
                if stream.write_all(&piece).await.is_err() {
                    break;
                }
            }
        }
    }
    let stats = connection.stats();
    if plan.verify.is_some() {
        // Until the server has read it all.
        let why = connection.closed().await;
        if !matches!(why, quinn::ConnectionError::ApplicationClosed(_)) {
            bail!("the connection ended: {why}");
        }
    } else {
        connection.close(0_u8.into(), b"done");
    }
    client.wait_idle().await;
    Ok(json!({
        "datagrams": stats.udp_tx.datagrams,
        "calls": stats.udp_tx.ios,
        "lost": stats.path.lost_packets,
    }))
}

async fn send_checked(stream: &mut SendStream, len: u64) -> Result<()> {
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < len {
        let part = (len - at).min(PIECE as u64) as usize;
        bytes::fill(&mut piece[..part], SEED, at);
        stream.write_all(&piece[..part]).await.context("sending")?;
        at += part as u64;
    }
    stream.finish().context("ending the stream")
}
