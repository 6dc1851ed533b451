//! Datagrams in a tokio runtime: no task waits for what is already there, and nothing is lost.

use onecopy::unix::SocketAddr;
use onecopy::unix::tokio::Datagram;

const COUNT: u32 = 5000;

async fn flows(from: Datagram, to: Datagram) -> (Datagram, Datagram) {
    let sender = tokio::spawn(async move {
        for n in 0..COUNT {
            let datagram = vec![n as u8; 4 + n as usize % 2000];
            from.send(&datagram).await.unwrap();
        }
        from
    });
    let mut buffer = [0; 4000];
    for n in 0..COUNT {
        let got = to.recv(&mut buffer).await.unwrap();
        assert_eq!((got, buffer[0]), (4 + n as usize % 2000, n as u8), "datagram {n}");
    }
    (sender.await.unwrap(), to)
}

#[tokio::test]
async fn a_pair_and_two_that_meet() {
    let limit = onecopy_testing::LONG;
    let (a, b) = Datagram::pair().unwrap();
    let (a, b) = tokio::time::timeout(limit, flows(a, b)).await.unwrap();
    tokio::time::timeout(limit, flows(b, a)).await.unwrap();

    let name = |what: &str| {
        SocketAddr::from_abstract_name(format!("onecopy-tokio-{what}-{}", std::process::id())).unwrap()
    };
    let (a, b) = (Datagram::bind(name("a")).unwrap(), Datagram::bind(name("b")).unwrap());
    a.connect(name("b")).unwrap();
    b.connect(name("a")).unwrap();
    let (a, b) = tokio::time::timeout(limit, flows(a, b)).await.unwrap();
    let (b, a) = tokio::time::timeout(limit, flows(b, a)).await.unwrap();
    assert!(a.path().is_shared_memory() && b.path().is_shared_memory());
}

#[tokio::test]
async fn a_full_receiver_is_waited_for() {
    let name = SocketAddr::from_abstract_name(format!("onecopy-tokio-full-{}", std::process::id())).unwrap();
    let (many, one) = (Datagram::bind(&name).unwrap(), Datagram::unbound().unwrap());
    let sender = tokio::spawn(async move {
        for n in 0..200u32 {
            one.send_to(&n.to_le_bytes(), &name).await.unwrap();
        }
    });
    let mut buffer = [0; 9];
    for n in 0..200u32 {
        let (got, from) = many.recv_from(&mut buffer).await.unwrap();
        assert_eq!((got, &buffer[..4]), (4, &n.to_le_bytes()[..]));
        assert!(from.as_pathname().is_none() && from.as_abstract_name().is_none());
    }
    sender.await.unwrap();
}
