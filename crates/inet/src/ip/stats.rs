//! What became of packets: each is counted once.

use std::fmt;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// Whether it is of packets that were to leave; else of those that came.
            pub fn is_out(self) -> bool {
                self as u8 >= Reason::NoRoute as u8
            }
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Reason::$name => $text,)+ })
            }
        }
    };
}

reasons! {
    /// In: it ends within the link's or the network's header.
    Short "it ends within a header",
    /// In: the frame is for another station, or for a group that we are not in.
    OtherStation "the frame is for another station",
    /// In: the frame comes from a group's address, or from zero.
    BadStation "the frame's sender is no station",
    /// In: neither IPv4, IPv6 nor ARP.
    EtherType "the frame carries a protocol that is not spoken here",
    /// In: not of the version that its frame says, or of none that is spoken here.
    Version "it is of another version",
    /// In: lengths in IP's header that cannot be.
    Header "its header says lengths that cannot be",
    /// In: IP's header was damaged.
    HeaderChecksum "its header was damaged on its way",
    /// In: fewer bytes came than IP's header says.
    Truncated "it is shorter than its header says",
    /// In: a part of a packet that cannot be: of a length that no other one can follow, or too far behind.
    Fragment "it is a fragment that cannot be",
    /// In: a part of a packet whose parts overlap, or do not go together, and all others of that packet.
    FragmentOverlap "it is a fragment of a packet whose fragments overlap",
    /// In: a part that came before.
    FragmentTwice "it is a fragment that came before",
    /// In: a part of a packet that made room for others, or has more parts than are taken.
    FragmentMemory "it is a fragment, and too many are waited for",
    /// In: a part of a packet whose other parts did not come in time. The sender is told, now and then.
    FragmentTimeout "it is a fragment, and the others did not come",
    /// In: nobody may have sent it from there (RFC 1122, section 3.2.1.3; RFC 1812, section 5.3.7).
    Martian "its sender's address is nobody's",
    /// In: for an address that is not ours; nothing is passed on.
    OtherHost "it is for another host",
    /// In: to everybody, and of a protocol that is for one; or for one, in a frame for everybody (RFC 1122, section 3.3.6).
    Broadcast "it is for everybody, and may not be",
    /// In: a protocol that nobody speaks here. The sender is told, now and then.
    Protocol "its protocol is not spoken here",
    /// In: an IPv6 packet that has nothing behind its headers.
    Nothing "it has nothing behind its headers",
    /// In: IPv6's extension headers cannot be, are longer than 128 bytes with IPv6's own, or have an option that wants it dropped. The sender is
    /// told of what he is to be told of, now and then.
    Extension "its extension headers are not taken",
    /// In: the transport's header is not all there, or says lengths that cannot be.
    Transport "its transport's header cannot be",
    /// In: the transport's checksum is wrong.
    Checksum "it was damaged on its way",
    /// In: its payload lies in a device's memory and has to be looked at.
    Unreadable "its bytes cannot be read here",
    /// In: no page for bytes that have to be moved.
    NoPage "there is no page for its bytes",
    /// In: an ICMP message that is cut short, or quotes what cannot be.
    IcmpMalformed "the ICMP message cannot be",
    /// In: an ICMP message about a packet that is not ours, or not of TCP or UDP.
    IcmpForeign "the ICMP message is not about a packet of ours",
    /// In: an ICMP message of a kind that nothing is done about.
    IcmpIgnored "nothing is done about ICMP messages of its kind",
    /// In: more questions by ICMP than are answered.
    IcmpTooMany "there are too many ICMP questions",
    /// In: an ARP packet that cannot be.
    ArpMalformed "the ARP packet cannot be",
    /// In: a question or an answer of NDP that cannot be, or comes from beyond the link.
    NdpMalformed "the NDP message cannot be",
    /// In: ARP, or NDP, about others, whom we have nothing to do with.
    ArpUnknown "it asks or tells about hosts that we have nothing to do with",
    /// In: ARP, or NDP, by somebody who says that he has our address.
    ArpConflict "somebody else says that he has our address",
    /// In: ARP, or NDP, that moves a neighbour who has moved a moment ago, or does not say that it is to be moved.
    ArpTooSoon "the neighbour has moved a moment ago",
    /// Out: there is no way there.
    NoRoute "there is no route there",
    /// Out: to an address that no single host has, or from one that is not ours.
    BadAddress "it may not be sent between these addresses",
    /// Out: longer than the link takes, or than IP's header can say.
    TooLong "it is longer than the link takes",
    /// Out: its payload lies in a device's memory, which the link does not take, or does not finish checksums of.
    DeviceMemory "its payload lies in a device's memory, which the link does not take",
    /// Out: in more fragments than the link gathers.
    Fragments "it has more fragments than the link gathers",
    /// Out: its headers are not what it says, or do not fit.
    Malformed "its headers are not what it says",
    /// Out: too many wait to leave.
    QueueFull "too many packets wait to leave",
    /// Out: too many wait for the same neighbour.
    NeighbourQueue "too many packets wait for the same neighbour",
    /// Out: the neighbour does not answer, or was forgotten meanwhile.
    NeighbourSilent "the neighbour does not answer",
}

/// Counters of an interface.
///
/// In: [`Stats::received`] is the sum of [`Stats::tcp`], [`Stats::udp`], [`Stats::icmp`], [`Stats::arp`] [`Stats::ndp`] among the third, and of what was dropped. Out:
/// [`Stats::sent`] is what was asked for, by us as well; what it was not dropped of leaves, as one packet or more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets that came.
    pub received: u64,
    /// Segments for TCP.
    pub tcp: u64,
    /// Datagrams for UDP.
    pub udp: u64,
    /// ICMP messages that something was done about.
    pub icmp: u64,
    /// ARP packets that something was done about.
    pub arp: u64,
    /// Of the packets that came, those that were sent here, to an address of ours.
    pub looped: u64,
    /// NDP messages that something was done about; they count as ICMP's, too.
    pub ndp: u64,
    /// Packets that were to be sent; a super-segment is one.
    pub sent: u64,
    /// Questions that were answered by ICMP.
    pub echoes: u64,
    /// Complaints that were sent.
    pub complaints: u64,
    /// Parts of packets that wait for others, or that were put together with others; the part that was the last to come counts as the packet.
    pub fragments: u64,
    /// Packets that were put together of parts.
    pub reassembled: u64,
    /// Packets that were sent in parts.
    pub fragmented: u64,
    /// Super-segments that were cut for the link.
    pub cut: u64,
    /// Checksums that were finished for the link.
    pub finished: u64,
    /// Packets some bytes of which had to be moved, as headers were not where they are read, or payload was there.
    pub moved: u64,
    /// Questions by ARP and NDP that were sent.
    pub asked: u64,
    dropped: Drops,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Drops([u64; Reason::ALL.len()]);

impl Default for Drops {
    fn default() -> Drops {
        Drops([0; Reason::ALL.len()])
    }
}

impl Stats {
    /// Packets that were dropped for this reason.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.dropped.0[reason as usize]
    }

    /// Packets that came and were dropped.
    pub fn dropped_in(&self) -> u64 {
        self.drops().filter(|(reason, _)| !reason.is_out()).map(|(_, count)| count).sum()
    }

    /// Packets that were to leave and were dropped.
    pub fn dropped_out(&self) -> u64 {
        self.drops().filter(|(reason, _)| reason.is_out()).map(|(_, count)| count).sum()
    }

    /// Each reason that anything was dropped for, and how often.
    pub fn drops(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().map(|reason| (*reason, self.dropped(*reason))).filter(|(_, count)| *count > 0)
    }

    /// So many parts that had been kept are dropped after all.
    pub(crate) fn lose_parts(&mut self, reason: Reason, parts: u64) {
        self.fragments -= parts;
        self.drop_many(reason, parts);
    }

    pub(crate) fn drop(&mut self, reason: Reason) {
        self.dropped.0[reason as usize] += 1;
    }

    pub(crate) fn drop_many(&mut self, reason: Reason, count: u64) {
        self.dropped.0[reason as usize] += count;
    }
}
