//! What the kernel tells of a connection.

use crate::world::{pair, pattern, stack, until};
use std::io::{Read, Write};
use std::thread;

#[test]
fn what_the_kernel_tells_of_a_connection_is_told() {
    let Some(stack) = stack() else { return };
    let (mut client, mut server) = pair(&stack);
    let (there, back) = (pattern(300_000), pattern(70_000));
    let writer = thread::spawn({
        let there = there.clone();
        move || {
            client.write_all(&there).unwrap();
            client
        }
    });
    let mut got = vec![0; there.len()];
    server.read_exact(&mut got).unwrap();
    let mut client = writer.join().unwrap();
    server.write_all(&back).unwrap();
    got.truncate(back.len());
    client.read_exact(&mut got).unwrap();
    let (there, back) = (there.len() as u64, back.len() as u64);
    // The SYN of the one who connects counts one; a last acknowledgement may be delayed.
    until(|| (client.info().bytes_acked, server.info().bytes_acked) == (there + 1, back));
    for (end, sent, received) in [(&client, there, back), (&server, back, there)] {
        let info = end.info();
        assert_eq!((info.bytes_received, info.bytes_sent - info.bytes_retrans), (received, sent), "{info:?}");
        assert_eq!((info.unacked, info.notsent_bytes), (0, 0), "{info:?}");
        assert!(info.rtt > 0 && info.rttvar > 0 && info.min_rtt <= info.rtt, "{info:?}");
        assert!(info.snd_cwnd > 0 && info.snd_ssthresh > 0 && info.reordering > 0, "{info:?}");
        assert!(info.pmtu > 0 && info.advmss > 0 && info.snd_wnd > 0 && info.rcv_ssthresh > 0, "{info:?}");
        assert!(info.delivered > 0 && info.data_segs_in > 0 && info.data_segs_out > 0, "{info:?}");
        assert!(info.segs_out >= info.data_segs_out && info.segs_in >= info.data_segs_in, "{info:?}");
        assert!(info.busy_time >= info.rwnd_limited + info.sndbuf_limited, "{info:?}");
    }
}
