//! What packets say, a line each, much as tcpdump and packetdrill write it: for tests that fail, and for who watches a link.
//!
//! ```text
//! 0.000000 > 10.0.0.1.4711 > 10.0.0.2.80: S 0:0(0) win 65535 <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7>
//! 0.000100 < 10.0.0.2.80 > 10.0.0.1.4711: S. 0:0(0) ack 1 win 65535 <mss 1460,sackOK,TS val 9 ecr 1,nop,wscale 7>
//! 0.000200 > 10.0.0.1.4711 > 10.0.0.2.80: P. 1:2921(2920) ack 1 win 512 <nop,nop,TS val 1 ecr 9> (gso 1460)
//! 0.500000 < 10.0.0.9 > 10.0.0.1: ICMP 10.0.0.2 unreachable - need to frag (mtu 1400), length 36
//! ```
//!
//! The time in seconds; `>` for what is transmitted, `<` for what is received; who sent it to whom; then
//!
//! | protocol | what |
//! |---|---|
//! | TCP | as packetdrill: flags (`FSRP.UEWA`), `first:behind(bytes)`, ack, window as it is written, options in their order. `[ect0]`, `[ect1]`, `[ce]` before them where ECN says so |
//! | UDP, ICMP, ARP | as tcpdump |
//! | others | their number and length |
//!
//! and in parentheses what the bytes do not say: that it is a super-segment, a fragment, that its payload cannot be read, that its IPv4
//! header is damaged or that bytes are missing. `[|tcp]` is a header that is cut short.
//!
//! It is here and not in the link's crate, since it has to know what headers look like ([`crate::wire`]), which no link does. [`Trace`]
//! is a link around another all the same.
//!
//! ```
//! use onecopy_inet::trace::{Last, Trace};
//! use onecopy_link::{Link, Packet, Sink};
//! use onecopy_chain::notify::Segment;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut link = Trace::new(Sink::new(), Last::new(100));
//! link.transmit(1_500_000_000, Packet::new(&[0x88; 14], Segment::default())?);
//! assert_eq!(link.watch().to_string(), "1.500000 > IP version 8, length 14\n");
//! # Ok(())
//! # }
//! ```

mod line;
mod link;
mod relative;
mod seen;
mod tcp;

pub use line::Tracer;
pub use link::{Last, Printer, Trace, Watch};
pub use seen::{Seen, Way};
