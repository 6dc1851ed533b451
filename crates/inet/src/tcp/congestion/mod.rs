//! How many packets may be out at once: the congestion window, as Linux keeps it.
//!
//! [`Congestion`] has the window (`cwnd`) and where slow start ends (`ssthresh`), in packets of one MSS. It grows with what is
//! [acknowledged](Congestion::acked), but only while it was the window that held back the sender; it is [reduced](Congestion::reduce) for
//! losses and for ECN, falls to one packet for a [timeout](Congestion::timeout), and comes back where a reduction turns out to have been
//! [for nothing](Congestion::undo). By which rules it does so is its [`Algorithm`].
//!
//! While it is reduced, [`Prr`] says what the window is from one acknowledgement to the next; who owns both brings its answer
//! ([`Congestion::set_cwnd`]), until the reduction is [over](Congestion::settle).
//!
//! | Linux | here |
//! |---|---|
//! | `tcp_cong_avoid`, `pkts_acked` | [`Congestion::acked`] |
//! | `tcp_init_cwnd_reduction`, `tcp_end_cwnd_reduction` | [`Congestion::reduce`], [`Congestion::settle`] |
//! | `tcp_cwnd_reduction` | [`Prr::step`] |
//! | `tcp_enter_loss` | [`Congestion::timeout`] |
//! | `tcp_undo_cwnd_reduction` | [`Congestion::undo`] |
//! | `tcp_cwnd_validate`, `tcp_cwnd_application_limited` | [`Congestion::transmitted`], [`Congestion::validate`] |
//! | `tcp_slow_start_after_idle_check`, `tcp_cwnd_restart` | [`Congestion::restart_after_idle`] |
//! | `CA_EVENT_TX_START` | [`Congestion::flight_begins`] |

mod cubic;
mod hystart;
mod prr;
mod reno;

pub use hystart::SlowStart;
pub use prr::Prr;

use crate::wire::Seq;
use cubic::Cubic;
use hystart::{Heard, Hystart};

/// By which rules a window grows and shrinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681.
    Reno,
    /// RFC 9438, and HyStart.
    #[default]
    Cubic,
}

impl Algorithm {
    /// As `TCP_CONGESTION` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Reno => "reno",
            Algorithm::Cubic => "cubic",
        }
    }

    /// The one that is called so.
    pub fn named(name: &str) -> Option<Algorithm> {
        [Algorithm::Reno, Algorithm::Cubic].into_iter().find(|algorithm| algorithm.name() == name)
    }
}

/// `ssthresh` before there was any loss: as `tcpi_snd_ssthresh` shows it.
pub const INFINITE: u32 = 0x7fff_ffff;

/// What an acknowledgement tells the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Acked {
    /// Packets that it delivered, by number or by SACK; 0 where they are no reason to grow (what was acknowledged out of order, without
    /// moving `una`).
    pub packets: u32,
    /// How long the last sent of them was on its way, if none of them was sent twice.
    pub rtt_us: Option<u32>,
    /// The smoothed round trip.
    pub srtt_us: Option<u32>,
    /// Bytes in a packet.
    pub mss: u32,
    /// The oldest byte that is not acknowledged, now.
    pub una: Seq,
    /// The next byte to be sent.
    pub nxt: Seq,
}

/// A connection's congestion window. All figures are packets.
#[derive(Clone, Debug)]
pub struct Congestion {
    /// Invariant: at least 1.
    cwnd: u32,
    ssthresh: u32,
    /// Acknowledged in congestion avoidance, and not yet worth a packet more.
    credit: u32,
    /// The most that was out in the window of data that ends at `usage_until`.
    most_out: u32,
    usage_until: Seq,
    /// The most that was out since the window was last full.
    used: u32,
    /// When it was last full, or was changed (milliseconds, which wrap).
    stamp_ms: u32,
    prior_cwnd: u32,
    /// 0 where there is nothing to be undone.
    prior_ssthresh: u32,
    rules: Rules,
    /// The window to begin with, and to begin again with after a pause.
    initial: u8,
    /// Whether the window held something back in that window of data.
    limited: bool,
    /// A reduction is under way: `cwnd` is [`Prr`]'s, and does not grow.
    reducing: bool,
}

#[derive(Clone, Debug)]
enum Rules {
    Reno,
    /// The curve is made when it is first needed: after a loss, or in congestion avoidance.
    Cubic {
        hystart: Hystart,
        curve: Option<Box<Cubic>>,
    },
}

impl Rules {
    fn new(algorithm: Algorithm, slow_start: SlowStart) -> Rules {
        match algorithm {
            Algorithm::Reno => Rules::Reno,
            Algorithm::Cubic => Rules::Cubic { hystart: Hystart::new(slow_start), curve: None },
        }
    }
}

fn ms(now: u64) -> u32 {
    (now / 1_000_000) as u32
}

fn us(now: u64) -> u32 {
    (now / 1_000) as u32
}

impl Congestion {
    /// A window of `initial` packets (10: RFC 6928; at least 1, at most 255), in slow start.
    pub fn new(algorithm: Algorithm, initial: u32) -> Congestion {
        let initial = initial.clamp(1, 255);
        Congestion {
            cwnd: initial,
            ssthresh: INFINITE,
            credit: 0,
            most_out: 0,
            usage_until: Seq(0),
            used: 0,
            stamp_ms: 0,
            prior_cwnd: 0,
            prior_ssthresh: 0,
            rules: Rules::new(algorithm, SlowStart::default()),
            initial: initial as u8,
            limited: false,
            reducing: false,
        }
    }

    /// The same, leaving slow start so. To be called before anything is acknowledged.
    #[must_use]
    pub fn with_slow_start(mut self, slow_start: SlowStart) -> Congestion {
        self.rules = Rules::new(self.algorithm(), slow_start);
        self
    }

    /// Goes by other rules from now on, and leaves slow start so; the window stays.
    pub fn set_algorithm(&mut self, algorithm: Algorithm, slow_start: SlowStart) {
        if algorithm != self.algorithm() {
            self.rules = Rules::new(algorithm, slow_start);
        }
    }

    /// By which rules it goes.
    pub fn algorithm(&self) -> Algorithm {
        match self.rules {
            Rules::Reno => Algorithm::Reno,
            Rules::Cubic { .. } => Algorithm::Cubic,
        }
    }

    /// What they are called.
    pub fn name(&self) -> &'static str {
        self.algorithm().name()
    }

    /// Packets that may be out; at least 1.
    pub fn cwnd(&self) -> u32 {
        self.cwnd
    }

    /// Where slow start ends; [`INFINITE`] before there was a reason.
    pub fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    /// Whether the window is below `ssthresh`.
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Whether a reduction is under way.
    pub fn is_reducing(&self) -> bool {
        self.reducing
    }

    /// Makes the window `cwnd` packets: [`Prr`]'s answer, or one packet after a first SYN was lost.
    pub fn set_cwnd(&mut self, cwnd: u32) {
        self.cwnd = cwnd.max(1);
    }

    /// Whether the window is what holds the sender back. In slow start that is so while it is less than twice what was out, since a
    /// window of data that leaves nothing to be sent behind it may double as well.
    pub fn is_limited(&self) -> bool {
        self.limited || (self.in_slow_start() && self.cwnd < self.most_out.saturating_mul(2))
    }

    /// Something was sent, or could not be sent for the window's sake. `packets_out` are all that are not acknowledged by number;
    /// `limited` says whether the window is full, or held something back.
    pub fn transmitted(&mut self, now: u64, packets_out: u32, limited: bool, una: Seq, nxt: Seq) {
        // One that was full in a window of data counts as full until its end.
        if !una.before(self.usage_until) || limited || (!self.limited && packets_out > self.most_out) {
            self.limited = limited;
            self.most_out = packets_out;
            self.usage_until = nxt;
        }
        if self.is_limited() {
            self.used = 0;
            self.stamp_ms = ms(now);
        } else {
            self.used = self.used.max(packets_out);
        }
    }

    /// The time for which it was not used begins now.
    pub fn stamp(&mut self, now: u64) {
        self.stamp_ms = ms(now);
    }

    /// Shrinks a window of which only a part was used for a whole RTO (RFC 2861, section 3.2; `rto_ns` as it is backed off), half of the
    /// way to what was used. To be called after [`Congestion::transmitted`], unless `tcp_slow_start_after_idle` is off. `may_shrink`:
    /// nothing is lost or out of order, and the program does not wait for room in its own send buffer.
    pub fn validate(&mut self, now: u64, rto_ns: u64, may_shrink: bool) {
        let since = ms(now).wrapping_sub(self.stamp_ms);
        if self.is_limited() || u64::from(since) < rto_ns.div_ceil(1_000_000) {
            return;
        }
        if may_shrink {
            let used = self.used.max(self.initial.into());
            if used < self.cwnd {
                self.ssthresh = self.current_ssthresh();
                // Below cwnd, so that the sum of the two halves fits.
                self.cwnd = used + (self.cwnd - used) / 2;
            }
            self.used = 0;
        }
        self.stamp_ms = ms(now);
    }

    /// Takes an acknowledgement: measures, and grows if the window was what held the sender back and no reduction is under way.
    pub fn acked(&mut self, now: u64, acked: &Acked) {
        self.measure(now, acked);
        if acked.packets == 0 || self.reducing {
            return;
        }
        self.stamp_ms = ms(now);
        if !self.is_limited() {
            return;
        }
        let mut packets = acked.packets;
        if self.in_slow_start() {
            if let Rules::Cubic { hystart, .. } = &mut self.rules {
                packets = hystart.worth(packets);
            }
            (self.cwnd, packets) = reno::slow_start(self.cwnd, self.ssthresh, packets);
            if packets == 0 {
                return;
            }
        }
        let per = match &mut self.rules {
            Rules::Reno => self.cwnd,
            Rules::Cubic { hystart, curve } => {
                curve.get_or_insert_default().per(ms(now), self.cwnd, packets, hystart.shortest_us())
            }
        };
        self.cwnd = reno::avoid(self.cwnd, &mut self.credit, per, packets);
    }

    /// What the round trip says about when to leave slow start.
    fn measure(&mut self, now: u64, acked: &Acked) {
        // In a reduction the window is below its threshold for another reason. HyStart++ is for the first slow start alone.
        let slow_start = self.in_slow_start() && !self.reducing;
        let first = self.ssthresh == INFINITE;
        let cushion_us = self.cushion_us(acked);
        let Rules::Cubic { hystart, curve } = &mut self.rules else { return };
        let Some(rtt_us) = acked.rtt_us else { return };
        // Right after a recovery round trips are what the recovery made of them.
        if curve.as_ref().is_some_and(|curve| curve.is_young(ms(now))) {
            return;
        }
        hystart.measured(rtt_us);
        let (una, nxt, cwnd) = (acked.una, acked.nxt, self.cwnd);
        let heard = Heard { now_us: us(now), rtt_us, una, nxt, cwnd, cushion_us };
        let looks = slow_start && (first || hystart.way() == SlowStart::HyStart);
        if looks && hystart.heard(&heard) {
            self.ssthresh = self.cwnd;
        }
    }

    /// What two hosts that gather packets into 64 KiB may add to a round trip at twice the rate that there is: 1 ms at most.
    fn cushion_us(&self, acked: &Acked) -> u32 {
        let Some(srtt) = acked.srtt_us else { return 0 };
        let percent = if self.cwnd < self.ssthresh / 2 { 200 } else { 120 };
        let rate = u64::from(acked.mss.max(1)).saturating_mul(self.cwnd.into()).saturating_mul(percent);
        let delay = (4 * 65_536 * 100 * u64::from(srtt)).checked_div(rate).unwrap_or(0);
        delay.min(1_000) as u32
    }

    /// Nothing was out, and something is being sent: `idle_ns` since the last that was. A pause is no time to grow.
    pub fn flight_begins(&mut self, now: u64, idle_ns: u64) {
        if let Rules::Cubic { curve: Some(curve), .. } = &mut self.rules {
            curve.idled(ms(now), u32::try_from(idle_ns / 1_000_000).unwrap_or(u32::MAX));
        }
    }

    /// Packets were lost, or the network says by ECN that it is full: `ssthresh` is what the algorithm makes of the window. `undoable`
    /// says whether [`Congestion::undo`] may take it back; not so for ECN, which never errs. The window itself is [`Prr`]'s from now on
    /// until [`Congestion::settle`]. To be called once for each window of data.
    pub fn reduce(&mut self, undoable: bool) {
        self.prior_ssthresh = if undoable { self.current_ssthresh() } else { 0 };
        self.prior_cwnd = self.cwnd;
        self.credit = 0;
        self.ssthresh = match &mut self.rules {
            Rules::Reno => reno::ssthresh(self.cwnd),
            Rules::Cubic { curve, .. } => curve.get_or_insert_default().reduced(self.cwnd),
        };
        self.reducing = true;
    }

    /// The reduction is over: the window is `ssthresh`, unless it was undone.
    pub fn settle(&mut self, now: u64) {
        if self.reducing {
            self.reducing = false;
            self.cwnd = self.ssthresh.max(1);
            self.stamp_ms = ms(now);
        }
    }

    /// A retransmission timeout: the window is one packet above `in_flight`, which are those that are not taken for lost. `anew` says
    /// whether it begins a loss event of its own, which makes `ssthresh` smaller; not so if that was done in the same window of data.
    pub fn timeout(&mut self, now: u64, in_flight: u32, nxt: Seq, anew: bool) {
        if anew {
            self.prior_ssthresh = self.current_ssthresh();
            self.prior_cwnd = self.cwnd;
            self.ssthresh = match self.rules {
                Rules::Reno => reno::ssthresh(self.cwnd),
                Rules::Cubic { .. } => cubic::ssthresh(self.cwnd),
            };
        }
        self.reducing = false;
        self.cwnd = in_flight.saturating_add(1);
        self.credit = 0;
        self.stamp_ms = ms(now);
        if let Rules::Cubic { hystart, curve } = &mut self.rules {
            hystart.reset(us(now), nxt);
            *curve = None;
        }
    }

    /// Whether [`Congestion::undo`] would do anything.
    pub fn can_undo(&self) -> bool {
        self.prior_ssthresh != 0
    }

    /// The last reduction or timeout was for nothing: window and `ssthresh` are what they were before it, or what they have become since
    /// if that is more. Gives whether `ssthresh` rose, which takes back a CWR that was not sent yet.
    pub fn undo(&mut self, now: u64) -> bool {
        let rises = self.can_undo() && self.prior_ssthresh > self.ssthresh;
        if self.can_undo() {
            self.cwnd = self.cwnd.max(self.prior_cwnd);
            self.ssthresh = self.ssthresh.max(self.prior_ssthresh);
        }
        self.reducing = false;
        self.stamp_ms = ms(now);
        rises
    }

    /// What is to be undone is not known any more.
    pub fn forget_undo(&mut self) {
        self.prior_ssthresh = 0;
    }

    /// Something is sent after a pause in which nothing was out: the window is halved for each RTO of it (as it is backed off) after
    /// the first, down to the initial one (RFC 2861; RFC 9293, section 3.8.1). `tcp_slow_start_after_idle` turns it off.
    pub fn restart_after_idle(&mut self, now: u64, idle_ns: u64, rto_ns: u64) {
        if idle_ns <= rto_ns {
            return;
        }
        self.ssthresh = self.current_ssthresh();
        let least = self.cwnd.min(self.initial.into());
        // An RTO is gone by now already; halving ends after 32 times, however short it is.
        let mut left = idle_ns - rto_ns;
        while left > 0 && self.cwnd > least {
            self.cwnd /= 2;
            left = left.saturating_sub(rto_ns);
        }
        self.cwnd = self.cwnd.max(least).max(1);
        self.stamp_ms = ms(now);
        self.used = 0;
    }

    /// Nothing goes on: gives memory back that says nothing.
    pub fn rest(&mut self) {
        if let Rules::Cubic { curve, .. } = &mut self.rules
            && curve.as_ref().is_some_and(|curve| !curve.remembers())
        {
            *curve = None;
        }
    }

    /// Where slow start would end if a pause or an error made the window small now: three quarters of the window at least.
    fn current_ssthresh(&self) -> u32 {
        if self.reducing { self.ssthresh } else { self.ssthresh.max(self.cwnd / 2 + self.cwnd / 4) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::rtt::Rtt;

    #[test]
    fn both_take_an_eighth_kibibyte() {
        let sizes = (size_of::<Congestion>(), size_of::<Rtt>(), size_of::<Prr>());
        assert!(sizes.0 + sizes.1 <= 128, "{sizes:?}");
    }

    fn has_curve(window: &Congestion) -> bool {
        matches!(&window.rules, Rules::Cubic { curve: Some(_), .. })
    }

    #[test]
    fn a_timeout_forgets_the_curve_and_rest_what_says_nothing() {
        let mut window = Congestion::new(Algorithm::Cubic, 10);
        assert!(!has_curve(&window));
        window.reduce(true);
        window.rest();
        assert!(has_curve(&window), "it knows of a loss");
        window.timeout(0, 0, Seq(0), true);
        assert!(!has_curve(&window));
        // Out of slow start without a loss, as by HyStart.
        (window.ssthresh, window.limited) = (window.cwnd, true);
        window.acked(0, &Acked { packets: 1, ..Acked::default() });
        assert!(has_curve(&window));
        window.rest();
        assert!(!has_curve(&window));
    }

    #[test]
    fn a_timeout_forgets_round_trips_and_a_young_curve_hears_none() {
        let shortest = |window: &Congestion| match &window.rules {
            Rules::Cubic { hystart, .. } => hystart.shortest_us(),
            Rules::Reno => 0,
        };
        let sample = |rtt_us| Acked { packets: 1, rtt_us: Some(rtt_us), ..Acked::default() };
        let mut window = Congestion::new(Algorithm::Cubic, 10);
        window.acked(0, &sample(500));
        assert_eq!(shortest(&window), 500);
        window.timeout(0, 0, Seq(0), true);
        assert_eq!(shortest(&window), 0);
        window.acked(0, &sample(700));
        (window.ssthresh, window.limited) = (window.cwnd, true);
        window.acked(0, &Acked { packets: 1, ..Acked::default() });
        window.acked(999_000_000, &sample(400));
        assert_eq!(shortest(&window), 700);
        window.acked(1_000_000_000, &sample(400));
        assert_eq!(shortest(&window), 400);
    }

    #[test]
    fn names_are_those_of_the_socket_option() {
        for algorithm in [Algorithm::Reno, Algorithm::Cubic] {
            assert_eq!(Algorithm::named(algorithm.name()), Some(algorithm));
            assert_eq!(Congestion::new(algorithm, 10).name(), algorithm.name());
        }
        assert_eq!(Algorithm::named("bbr"), None);
    }
}
