//! What a stack did, for a person and for programs.

use super::services::{MOST, Totals};
use onecopy::Stack;
use onecopy_inet::ip::Reason;
use serde_json::{Map, Value, json};

/// Counted so far, all of it but what is nought.
#[derive(Default)]
pub struct Counters {
    link: Vec<(&'static str, u64)>,
    ip: Vec<(&'static str, u64)>,
    drops: Vec<(Reason, u64)>,
    tcp: Vec<(&'static str, u64)>,
    sockets: usize,
    services: Totals,
}

impl Counters {
    /// At this moment: of all shards together.
    pub fn of(stack: &Stack, services: Totals) -> Counters {
        let link = stack.link_counters();
        let shards = (0..stack.shards()).map(|shard| Counters::of_shard(stack, shard));
        let all = shards.reduce(|mut sum, shard| {
            sum.add(shard);
            sum
        });
        // (There is one at least.)
        Counters { link, services, ..all.unwrap_or_default() }
    }

    fn of_shard(stack: &Stack, shard: u32) -> Counters {
        stack.with_shard(shard, |inet| {
            let stats = inet.interface().stats();
            Counters {
                ip: vec![
                    ("received", stats.received),
                    ("sent", stats.sent),
                    ("echoes", stats.echoes),
                    ("arp", stats.arp),
                    ("icmp", stats.icmp),
                    ("tcp", stats.tcp),
                    ("udp", stats.udp),
                    ("complaints", stats.complaints),
                    ("dropped_in", stats.dropped_in()),
                    ("dropped_out", stats.dropped_out()),
                ],
                drops: stats.drops().collect(),
                tcp: inet.tcp_stats().each().collect(),
                sockets: inet.len(),
                ..Counters::default()
            }
        })
    }

    fn add(&mut self, other: Counters) {
        fn named<N: PartialEq>(all: &mut Vec<(N, u64)>, more: Vec<(N, u64)>) {
            for (name, count) in more {
                match all.iter_mut().find(|(one, _)| *one == name) {
                    Some((_, sum)) => *sum += count,
                    None => all.push((name, count)),
                }
            }
        }
        named(&mut self.ip, other.ip);
        named(&mut self.drops, other.drops);
        named(&mut self.tcp, other.tcp);
        self.sockets += other.sockets;
    }

    /// One object.
    pub fn json(&self) -> Value {
        fn some<'a>(of: impl Iterator<Item = (&'a str, u64)>) -> Map<String, Value> {
            of.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count.into())).collect()
        }
        let all: Map<String, Value> =
            self.ip.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect();
        let dropped: Map<String, Value> =
            self.drops.iter().map(|(reason, count)| (format!("{reason:?}"), (*count).into())).collect();
        json!({
            "ip": all,
            "dropped": dropped,
            "tcp": some(self.tcp.iter().copied()),
            "link": some(self.link.iter().copied()),
            "sockets": self.sockets,
            "services": self.services,
        })
    }

    fn ip(&self, name: &str) -> u64 {
        self.ip.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count)
    }

    fn tcp(&self, name: &str) -> u64 {
        self.tcp.iter().find(|(one, _)| *one == name).map_or(0, |(_, count)| *count)
    }

    /// One line.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} packets received, {} sent, {} pings answered; TCP: {} connections taken, {} segments in, {} out, {} of them again",
            self.ip("received"),
            self.ip("sent"),
            self.ip("echoes"),
            self.tcp("passive_opens"),
            self.tcp("segments_in"),
            self.tcp("segments_out"),
            self.tcp("retransmitted"),
        );
        let services = &self.services;
        if services.connections > 0 {
            let all = (services.received + services.sent).max(1) as f64;
            text += &format!(
                "; services: {} connections, {} bytes received, {} sent; copies per byte: user {:.2}, kernel {:.2}",
                services.connections,
                services.received,
                services.sent,
                services.user_copied as f64 / all,
                services.kernel_copied as f64 / all,
            );
            if services.refused > 0 {
                text += &format!("; {} connections let go, since {MOST} were there", services.refused);
            }
        }
        for (at, (reason, count)) in self.drops.iter().enumerate() {
            text += &format!("{}{count} since {reason}", if at == 0 { "; dropped: " } else { ", " });
        }
        text
    }
}
