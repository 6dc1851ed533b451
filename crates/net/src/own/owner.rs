//! What begins a stack, and ends it.

use super::inbox::Mesh;
use super::inner::Inner;
use super::pages::SendPages;
use super::shard::Shard;
use super::sleep::Sleep;
use crate::carrier::Refused;
use crate::port::Port;
use onecopy_chain::notify::zerocopy::{Account, Allowance};
use onecopy_inet::ip::{BadConfig, Cidr, Route};
use onecopy_inet::key::Seed;
use onecopy_inet::shard::Share;
use onecopy_inet::stack::Config;
use onecopy_inet::wire::Mac;
use onecopy_inet::{ip, stack, tcp, udp};
use onecopy_pool::OpenError;
use onecopy_socket::{Error, Op, Result, Wait};
use onecopy_sync::atomic::{AtomicU32, Ordering::Relaxed};
use onecopy_sys::signal;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Who drives a stack while no thread waits for a socket of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// A thread of the stack's own, which sleeps while nothing happens.
    #[default]
    Thread,
    /// The program, by [`Stack::drive`](crate::Stack::drive), which [`Stack::poll_fd`](crate::Stack::poll_fd) says when to call; and each of its
    /// calls that waits, as long as it does.
    Caller,
}

/// How a stack is to be: [`Builder`](crate::Builder) says what each of these is.
pub(crate) struct Setup {
    /// One for each shard.
    pub ports: Vec<Box<dyn Port>>,
    pub addresses: Vec<Cidr>,
    pub routes: Vec<Route>,
    pub mac: Option<Mac>,
    pub seed: Option<Seed>,
    pub driver: Driver,
    pub wait: Wait,
    pub linger: Duration,
    pub pages: u32,
    pub tcp: tcp::Config,
    pub udp: udp::Config,
    pub zerocopy: Allowance,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum Failed {
    Config(BadConfig),
    Pages(OpenError),
    System(Errno),
    Shards(&'static str),
}

/// All shards of a stack: ended with its last handle.
pub(crate) struct Owner {
    /// One at least.
    shards: Vec<Arc<Inner>>,
    threads: Vec<JoinHandle<()>>,
    linger: Duration,
    /// Which shard is next.
    turn: AtomicU32,
}

impl Owner {
    pub fn start(setup: Setup) -> std::result::Result<Owner, Failed> {
        let count = setup.ports.len();
        if count > usize::from(Share::MOST) {
            return Err(Failed::Shards("a stack has at most 64 shards"));
        }
        if count > 1 && setup.driver == Driver::Caller {
            return Err(Failed::Shards(
                "shards are driven by threads of their own, each at any time: take Driver::Thread, or build a stack for each thread",
            ));
        }
        let alike = |port: &dyn Port| (port.capabilities().medium, port.capabilities().mtu);
        if setup.ports.iter().any(|port| alike(&**port) != alike(&*setup.ports[0])) {
            return Err(Failed::Shards("the links of a stack's shards have to be of one kind and MTU"));
        }
        let seed = match setup.seed {
            Some(seed) => seed,
            None => random().map_err(Failed::System)?,
        };
        let mac = match setup.mac {
            Some(mac) => mac,
            // One of its own for each stack (the second bit says that nobody sold it).
            None => {
                let chance: [u8; 16] = random().map_err(Failed::System)?;
                Mac([2, chance[0], chance[1], chance[2], chance[3], chance[4]])
            }
        };
        let meshes = match count {
            1 => vec![None],
            _ => Mesh::new(count).map_err(Failed::System)?.into_iter().map(Some).collect(),
        };
        let (begun, account, refused) =
            (Instant::now(), Account::new(setup.zerocopy), Arc::<Refused>::default());
        let mut shards = Vec::new();
        for ((me, port), mesh) in setup.ports.into_iter().enumerate().zip(meshes) {
            let mut ip = ip::Config::new(port.capabilities(), mac, &setup.addresses, seed);
            ip.routes.clone_from(&setup.routes);
            // (Of one there is none.)
            ip.share = mesh.as_ref().and_then(|_| Share::new(me as u16, count as u16, &seed));
            let mut config = Config::new(ip, seed);
            (config.tcp, config.udp) = (setup.tcp.clone(), setup.udp.clone());
            share_out(&mut config, count);
            let inet = stack::Stack::new(config).map_err(Failed::Config)?;
            let pages = setup.pages.div_ceil(count as u32).max(1);
            let pages = SendPages::new(pages).map_err(Failed::Pages)?;
            let link = port.as_fd().try_clone_to_owned();
            let link = link.map_err(|error| Failed::System(errno(&error)))?;
            let sleep = match setup.driver {
                Driver::Thread => Some(Sleep::new(&link, mesh.as_ref()).map_err(Failed::System)?),
                Driver::Caller => None,
            };
            let shard = Shard::new(inet, port, pages, mesh.clone());
            let inner = Inner::new(
                shard,
                link,
                mesh,
                sleep,
                (begun, account.clone(), Arc::clone(&refused), setup.wait),
            );
            shards.push(Arc::new(inner.map_err(Failed::System)?));
        }
        // From here on it ends those of its threads that there are.
        let mut owner = Owner { shards, threads: Vec::new(), linger: setup.linger, turn: AtomicU32::new(0) };
        if setup.driver == Driver::Thread {
            for inner in &owner.shards {
                let inner = Arc::clone(inner);
                let thread = thread::Builder::new().name("onecopy-stack".into());
                let thread = signal::blocked(|| thread.spawn(move || inner.run()));
                owner.threads.push(thread.map_err(|error| Failed::System(errno(&error)))?);
            }
        }
        Ok(owner)
    }

    pub fn shards(&self) -> &[Arc<Inner>] {
        &self.shards
    }

    pub fn first(&self) -> &Arc<Inner> {
        &self.shards[0]
    }

    /// All shards: first the one that the next socket is of, where it may be any.
    pub fn in_turn(&self) -> impl Iterator<Item = &Arc<Inner>> + Clone {
        let (all, first) = (self.shards.len(), self.turn.fetch_add(1, Relaxed) as usize);
        self.shards.iter().cycle().skip(first % all).take(all)
    }

    /// What `attempt` comes to in the first of them that does not fail with `full`: none has all ports.
    pub fn try_in_turn<T>(
        &self,
        full: Errno,
        mut attempt: impl FnMut(&Arc<Inner>) -> Result<T>,
    ) -> Result<T> {
        let mut done = Err(Error::new(Op::Socket, full));
        for inner in self.in_turn() {
            done = attempt(inner);
            match &done {
                Err(error) if error.raw_os_error() == full.raw_os_error() => {}
                _ => break,
            }
        }
        done
    }

    /// The only one, for what one of several cannot do.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP.
    pub fn only(&self, op: Op) -> Result<&Arc<Inner>> {
        match self.shards() {
            [only] => Ok(only),
            _ => Err(Error::new(op, Errno::OPNOTSUPP)
                .because("a stack of several shards cannot; build one without Builder::shards for it")),
        }
    }

    pub fn account(&self) -> &Account {
        self.first().account()
    }

    pub fn addresses(&self) -> Vec<Cidr> {
        self.first().lock().inet().interface().addresses().to_vec()
    }

    pub fn mtu(&self) -> u32 {
        self.first().lock().inet().interface().mtu()
    }

    pub fn is_up(&self) -> bool {
        !self.shards.iter().any(|inner| inner.lock().is_down())
    }

    /// How many sockets there are.
    pub fn sockets(&self) -> usize {
        self.shards.iter().map(|inner| inner.lock().inet().len()).sum()
    }

    /// Calls `look` with the protocols of one shard.
    ///
    /// # Panics
    ///
    /// Where there is none of that number.
    pub fn with_shard<R>(&self, shard: u32, look: impl FnOnce(&mut stack::Stack) -> R) -> R {
        let inner = self.shards.get(shard as usize);
        let inner = inner.unwrap_or_else(|| panic!("no shard {shard}: there are {}", self.shards.len()));
        inner.with(|shard, _| look(shard.inet_mut()))
    }

    /// What the links have counted.
    pub fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.first().lock().link_counters();
        for inner in &self.shards[1..] {
            // Each has the same, in the same order.
            let more = inner.lock().link_counters();
            all.iter_mut().zip(more).for_each(|(sum, (_, count))| sum.1 += count);
        }
        all
    }

    /// Those of one shard; None where there is no such shard.
    pub fn link_counters_of(&self, shard: u32) -> Option<Vec<(&'static str, u64)>> {
        Some(self.shards.get(shard as usize)?.lock().link_counters())
    }

    /// How long until something is due in any shard.
    pub fn next_deadline(&self) -> Option<Duration> {
        let left = |inner: &Arc<Inner>| {
            let due = inner.lock().deadline()?;
            Some(Duration::from_nanos(due.saturating_sub(inner.now())))
        };
        self.shards.iter().filter_map(left).min()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if !self.first().is_here() {
            // A fork's child: wire and threads are its parent's, and what it has a copy of is not taken apart, as that would tell those who wait.
            std::mem::forget((std::mem::take(&mut self.threads), std::mem::take(&mut self.shards)));
            return;
        }
        let began = Instant::now();
        for inner in &self.shards {
            inner.linger(self.linger.saturating_sub(began.elapsed()));
        }
        for inner in &self.shards {
            inner.stop();
        }
        for thread in self.threads.drain(..) {
            // What one of them wakes may hold the last handle: that thread then ends by itself.
            if thread.thread().id() != thread::current().id() {
                // A panic of it has been told already.
                let _ = thread.join();
            }
        }
    }
}

/// What bounds all sockets together, shared out to so many shards.
fn share_out(config: &mut Config, count: usize) {
    let (n, tcp) = (count as u64, &mut config.tcp);
    tcp.memory = tcp.memory.map(|bytes| bytes.div_ceil(n));
    for most in [&mut tcp.max_orphans, &mut tcp.max_syn_backlog, &mut tcp.max_time_wait] {
        *most = most.div_ceil(count as u32);
    }
    config.udp.memory = config.udp.memory.div_ceil(n);
    config.udp.sockets = config.udp.sockets.div_ceil(count);
    config.sockets = config.sockets.div_ceil(count);
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn random() -> rustix::io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // So few bytes come at once, or not at all.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes)
}
