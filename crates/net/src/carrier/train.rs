//! Which datagrams go together.

use super::meta::Message;
use onecopy_inet::udp::MAX_SEGMENTS;

/// The longest datagram of a train, and the longest train; none where none is cut.
pub(crate) struct Limits {
    pub each: usize,
    pub all: usize,
}

/// The first message, and as many of those behind it as go with it as one train.
pub(crate) fn alike<'m, 'a>(messages: &'m [Message<'a>], limits: &Limits) -> &'m [Message<'a>] {
    let Some(first) = messages.first() else { return messages };
    let size = first.bytes.len();
    if size == 0 || size > limits.each || first.envelope.gso.is_some() {
        return &messages[..1];
    }
    let most = (limits.all / size).clamp(1, MAX_SEGMENTS);
    let mut count = 1;
    while let Some(next) = messages.get(count).filter(|_| count < most) {
        if next.bytes.is_empty() || next.bytes.len() > size || next.envelope != first.envelope {
            break;
        }
        count += 1;
        if next.bytes.len() < size {
            break;
        }
    }
    &messages[..count]
}
