//! The system calls that onecopy needs and rustix lacks, thin and safe.
//!
//! | module | what |
//! |---|---|
//! | [`memfd`] | sealed anonymous files that two processes map, made and verified |
//! | [`map`] | shared mappings of such files, and views into them that are never `&[u8]` |
//! | [`spans`] | pread, readv, writev and sendmsg on such views |
//! | [`bpf`] | the program that leads an interface's packets to a socket of AF_XDP |
//! | [`socket`] | how much lies unread in the kernel, and the longest names |
//! | [`devmem`] | device memory TCP of the kernel's: fragments and tokens |
//! | [`dmabuf`] | memory that drivers share: made of memfds, taken, looked at |
//! | [`datagram`] | what is said of datagrams of UDP beside their bytes |
//! | [`eventfd`] | a descriptor that is readable while something waits |
//! | [`fork`] | being told of forks, and forking |
//! | [`futex`] | wait and wake on a word that processes share |
//! | [`life`] | who of the processes that share something still lives |
//! | [`netdev`] | device memory TCP of the kernel's: binding |
//! | [`netns`] | network namespaces of this process' own |
//! | [`interface`] | what a network interface is: its driver, queues, address and checksums |
//! | [`load`] | how many tasks want a CPU right now |
//! | [`scm`] | descriptors and credentials as control messages, and who the peer is |
//! | [`signal`] | a handler that interrupts calls and tells |
//! | [`sockopt`] | socket options |
//! | [`tun`] | network interfaces whose other side is a descriptor |
//! | [`unix_diag`] | what the kernel says of unix sockets: names, peers, users, queues |
//! | [`xdp`] | sockets of AF_XDP: packets of an interface's queue in shared memory |

pub mod bpf;
pub mod datagram;
pub mod devmem;
pub mod dmabuf;
pub mod eventfd;
pub mod fork;
pub mod frozen;
pub mod futex;
pub mod interface;
pub mod life;
pub mod load;
pub mod map;
pub mod memfd;
pub mod netdev;
pub mod netns;
pub mod page_cache;
pub mod rtnetlink;
pub mod scm;
pub mod signal;
pub mod socket;
pub mod sockopt;
pub mod spans;
pub mod tun;
pub mod unix_diag;
pub mod user;
pub mod window;
pub mod xdp;
