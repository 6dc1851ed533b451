//! The namespaces of a case, and the devices in them. All is gone with their last descriptor, however the run ends.

use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use onecopy_sys::netns::Namespace;
use rustix::io::Errno;

use super::plan::{ENGINE, PEER, PREFIX, Plan};

/// The TAP's name.
const TAP: &str = "onecopy0";
/// The ends of a veth pair: the peer's, the engine's.
const VETH: [&str; 2] = ["veth0", "veth1"];
/// The MTU of the kernel's devices.
const MTU: u32 = 1500;

/// What is between the peer and the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Devices {
    /// A pair of devices of the kernel's, with all that they leave to each other.
    Veth,
    /// The same, but the engine's end has no address: it is for the engine to take past the kernel's IP.
    BareVeth,
    /// A TAP, for the engine to open.
    Tap { mtu: u32, queues: Queues },
    /// A TAP at each side, for a relay to open.
    Taps,
}

/// Whether a TAP may be opened more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    One,
    Many,
}

/// Namespaces and devices of one case and engine.
#[derive(Debug)]
pub struct Net {
    devices: Devices,
    peer: Namespace,
    engine: Option<Namespace>,
}

impl Net {
    /// Makes them.
    pub fn new(devices: Devices) -> Result<Net> {
        let peer = namespace()?;
        let engine = match devices {
            Devices::Veth | Devices::BareVeth => {
                let engine = namespace()?;
                let [ours, theirs] = VETH;
                let there = engine.path();
                ip(&peer, &format!("link add {ours} type veth peer name {theirs} netns {there}"))?;
                match devices {
                    Devices::BareVeth => ip(&engine, &format!("link set {theirs} up"))?,
                    _ => up(&engine, theirs, &ENGINE.to_string())?,
                }
                up(&peer, ours, &PEER.to_string())?;
                Some(engine)
            }
            Devices::Tap { mtu, queues } => {
                tap(&peer, mtu, queues)?;
                up(&peer, TAP, &PEER.to_string())?;
                None
            }
            Devices::Taps => {
                let engine = namespace()?;
                for (side, address) in [(&peer, PEER), (&engine, ENGINE)] {
                    tap(side, MTU, Queues::One)?;
                    up(side, TAP, &address.to_string())?;
                }
                Some(engine)
            }
        };
        Ok(Net { devices, peer, engine })
    }

    /// Tells workers where all of it is.
    pub fn tell(&self, plan: &mut Plan) {
        plan.peers = self.peer.path();
        plan.engines = self.engine.as_ref().map(Namespace::path);
        plan.device = if self.devices == Devices::BareVeth { VETH[1] } else { TAP }.to_owned();
        plan.mtu = self.mtu();
    }

    /// Whether it takes a relay.
    pub fn is_relayed(&self) -> bool {
        self.devices == Devices::Taps
    }

    /// Bytes of the longest packet.
    pub fn mtu(&self) -> u32 {
        match self.devices {
            Devices::Veth | Devices::BareVeth | Devices::Taps => MTU,
            Devices::Tap { mtu, .. } => mtu,
        }
    }
}

/// A namespace without IPv6's chatter.
fn namespace() -> Result<Namespace> {
    let namespace = match Namespace::new() {
        Err(Errno::PERM) => bail!("it needs root (CAP_SYS_ADMIN), for network namespaces of its own"),
        namespace => namespace.context("making a network namespace")?,
    };
    // (Where there is no IPv6, there is no chatter.)
    namespace.run(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap_or_default())?;
    Ok(namespace)
}

fn tap(namespace: &Namespace, mtu: u32, queues: Queues) -> Result<()> {
    let many = if queues == Queues::Many { " multi_queue" } else { "" };
    ip(namespace, &format!("tuntap add dev {TAP} mode tap vnet_hdr{many}"))
        .context("a TAP needs the kernel's module tun, and /dev/net/tun")?;
    ip(namespace, &format!("link set {TAP} mtu {mtu}"))
}

fn up(namespace: &Namespace, device: &str, address: &str) -> Result<()> {
    ip(namespace, &format!("addr add {address}/{PREFIX} dev {device}"))?;
    ip(namespace, &format!("link set {device} up"))
}

/// Runs ip(8) in there.
fn ip(namespace: &Namespace, words: &str) -> Result<()> {
    let mut command = Command::new("ip");
    command.args(words.split_whitespace());
    let output = namespace.run(|| command.output())?;
    let output =
        output.map_err(|error| anyhow!("there is no ip (iproute2) to make devices with: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {words}: {}", said.trim());
    Ok(())
}
