//! A sender of nothing but packets.

use onecopy_inet::tcp::congestion::{Acked, Algorithm, Congestion};
use onecopy_inet::tcp::rtt::Rtt;
use onecopy_inet::wire::Seq;
use std::collections::VecDeque;

pub const MS: u64 = 1_000_000;
pub const MSS: u32 = 1_000;

/// A sender that loses nothing unless told: it sends what its window lets out, at once, and takes acknowledgements.
pub struct Flow {
    pub now: u64,
    pub window: Congestion,
    pub rtt: Rtt,
    /// When each packet that is out was sent.
    pub out: VecDeque<u64>,
    pub una: Seq,
    pub nxt: Seq,
    pub queued: u32,
    pub last_sent: u64,
}

impl Flow {
    /// After a handshake with a round trip of so many milliseconds.
    pub fn new(window: Congestion, handshake_ms: u64) -> Flow {
        let mut rtt = Rtt::new();
        let (una, now) = (Seq(u32::MAX - 5_000), 1_000 * MS);
        rtt.sample((handshake_ms * 1_000) as u32, una, una);
        Flow { now, window, rtt, out: VecDeque::new(), una, nxt: una, queued: 0, last_sent: now }
    }

    pub fn cubic() -> Flow {
        Flow::new(Congestion::new(Algorithm::Cubic, 10), 200)
    }

    pub fn write(&mut self, packets: u32) {
        self.queued += packets;
        self.send();
    }

    pub fn send(&mut self) {
        let room = self.window.cwnd().saturating_sub(self.out.len() as u32);
        let count = room.min(self.queued);
        if count > 0 && self.out.is_empty() {
            self.window.flight_begins(self.now, self.now - self.last_sent);
        }
        for _ in 0..count {
            self.out.push_back(self.now);
            self.last_sent = self.now;
            self.nxt = self.nxt.plus(MSS);
        }
        self.queued -= count;
        let out = self.out.len() as u32;
        let full = out >= self.window.cwnd();
        if count > 0 || full {
            self.window.transmitted(self.now, out, full, self.una, self.nxt);
            self.window.validate(self.now, self.rtt.rto_ns(), true);
        }
    }

    pub fn wait(&mut self, ms: u64) -> &mut Flow {
        self.now += ms * MS;
        self
    }

    /// So many packets are acknowledged.
    pub fn ack(&mut self, packets: u32) {
        let sent: Vec<u64> = self.out.drain(..packets as usize).collect();
        self.una = self.una.plus(packets * MSS);
        let us = |sent: Option<&u64>| ((self.now - sent.unwrap()) / 1_000) as u32;
        let (first, last) = (us(sent.first()), us(sent.last()));
        self.rtt.sample(first, self.una, self.nxt);
        let srtt_us = self.rtt.srtt_us();
        let (una, nxt, mss, rtt_us) = (self.una, self.nxt, MSS, Some(last));
        self.window.acked(self.now, &Acked { packets, rtt_us, srtt_us, mss, una, nxt });
        self.send();
    }

    /// Acknowledgements of two packets each, so many, so many milliseconds apart.
    pub fn acks(&mut self, count: u32, ms: u64) {
        for _ in 0..count {
            self.wait(ms).ack(2);
        }
    }

    pub fn cwnd(&self) -> u32 {
        self.window.cwnd()
    }
}
