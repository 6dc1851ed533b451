"""Datagrams of a stack of onecopy's own, and of the kernel's."""

import asyncio
import errno
import socket

import pytest
from conftest import is_interrupted, may_have_tap, runs_with_tap

import onecopy
from onecopy import aio

ON_TAP = """
with socket.socket(type=socket.SOCK_DGRAM) as kernel, stack.udp(timeout=60) as ours:
    kernel.settimeout(60)
    kernel.bind(("10.77.0.1", 0))
    there = f"udp://10.77.0.1:{kernel.getsockname()[1]}"
    assert ours.send_to(b"out", there) == 3
    said, at = kernel.recvfrom(100)
    assert said == b"out" and at[0] == "10.77.0.2", (said, at)
    kernel.sendto(b"and in", at)
    assert ours.recv_from() == (b"and in", there)
    assert ours.path == "stack", ours.path
    try:
        ours.send_to(bytes(1473), there)
    except OSError as error:
        assert error.errno == 90, error  # EMSGSIZE: the stack makes no fragments
    assert is_refused_in_a_child(lambda: ours.send_to(b"?", there))
    # Nobody is there.
    ours.connect("udp://10.77.0.1:1")
    ours.send(b"anybody?")
    try:
        ours.recv()
    except ConnectionRefusedError:
        print("well")
"""


@may_have_tap
def test_a_stack_talks_to_the_kernels_sockets() -> None:
    runs_with_tap(ON_TAP)


def test_datagrams_stay_apart_and_say_who_sent_them(kernel: onecopy.Stack) -> None:
    with kernel.udp("udp://127.0.0.1:0", timeout=60) as one, kernel.udp("udp://127.0.0.1:0") as other:
        assert one.path == "kernel" and one.peer is None and one.copies_per_byte is None
        other.connect(one.address)
        assert other.peer == one.address
        for sent in (b"first", bytearray(b"the second one"), b"", memoryview(b"fourth")):
            assert other.send(sent) == len(sent)
        assert one.recv() == b"first"
        assert one.recv_from() == (b"the second one", other.address)
        assert one.recv_from(10) == (b"", other.address)
        into = bytearray(10)
        assert one.recv_from_into(into) == (6, other.address) and into == b"fourth" + bytes(4)
        counts = one.stats()
        assert counts["received"] == counts["kernel_copied"] == 25 and counts["drops"] == 0, counts
        assert one.copies_per_byte == 1.0


@pytest.mark.parametrize(("host", "most"), [("127.0.0.1", 65_507), ("[::1]", 65_527)])
def test_the_longest_datagram_comes_whole(kernel: onecopy.Stack, host: str, most: int) -> None:
    try:
        one = kernel.udp(f"udp://{host}:0", timeout=60)
    except OSError as error:
        pytest.skip(f"no address {host} here: {error}")
    with one, socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.sendto(bytes(most), (host.strip("[]"), int(one.address.rsplit(":", 1)[1])))
        assert len(one.recv()) == most


def test_what_is_too_long_is_said(kernel: onecopy.Stack) -> None:
    with kernel.udp("udp://127.0.0.1:0", timeout=60) as one, kernel.udp("udp://127.0.0.1:0") as other:
        other.send_to(b"longer", one.address)
        other.send_to(b"next", one.address)
        with pytest.raises(OSError, match="datagram was longer") as raised:
            one.recv(5)
        assert raised.value.errno == errno.EMSGSIZE
        assert one.recv(5) == b"next"
        with pytest.raises(OSError) as raised:
            other.send_to(bytes(70_000), one.address)
        assert raised.value.errno == errno.EMSGSIZE
        with pytest.raises(BufferError, match="read-only"):
            one.recv_from_into(b"fixed")


def test_it_waits_as_others_do(kernel: onecopy.Stack) -> None:
    with kernel.udp("udp://127.0.0.1:0") as one:
        with pytest.raises(BlockingIOError):
            one.recv(flags=onecopy.DONTWAIT)
        one.settimeout(0.05)
        assert one.gettimeout() == 0.05
        with pytest.raises(TimeoutError):
            one.recv()
        one.settimeout(0)
        with pytest.raises(BlockingIOError):
            one.recv()


def test_ctrl_c_ends_a_receive(kernel: onecopy.Stack) -> None:
    is_interrupted("""
import onecopy
one = onecopy.Stack(transport="kernel").udp("udp://127.0.0.1:0")
one.recv()
""")


def test_nobody_there_is_said_of_a_connected_socket(kernel: onecopy.Stack) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        port = gone.getsockname()[1]
    with kernel.udp(timeout=60) as one:
        one.connect(f"udp://127.0.0.1:{port}")
        one.send(b"anybody?")
        with pytest.raises(ConnectionRefusedError):
            one.recv()


def test_a_wrong_address_is_said_and_a_closed_socket_is_closed(kernel: onecopy.Stack) -> None:
    for wrong in ("tcp://127.0.0.1:0", "127.0.0.1:0"):
        with pytest.raises(ValueError, match="udp://"):
            kernel.udp(wrong)
    one = kernel.udp("udp://[::1]:0") if socket.has_ipv6 else kernel.udp()
    with pytest.raises(OSError) as raised:
        kernel.udp(one.address)
    assert raised.value.errno == errno.EADDRINUSE
    with pytest.raises(OSError) as raised:
        one.send(b"to whom?")
    assert raised.value.errno == errno.EDESTADDRREQ
    assert one.address in repr(one) and not one.closed
    one.close()
    assert one.closed and one.fileno() == -1 and "closed" in repr(one)
    with pytest.raises(OSError) as raised:
        one.recv()
    assert raised.value.errno == errno.EBADF


def test_asyncio_waits_at_its_descriptor(kernel: onecopy.Stack) -> None:
    async def main() -> None:
        client, server = kernel.udp("udp://127.0.0.1:0"), kernel.udp("udp://127.0.0.1:0")
        async with aio.UdpSocket(client) as one, aio.UdpSocket(server) as other:
            receiving = asyncio.create_task(other.recv_from())
            await asyncio.sleep(0)
            await one.send_to(b"hello", server.address)
            said, who = await receiving
            assert said == b"hello" and who == client.address
            one.sync.connect(server.address)
            await one.send(b"again")
            assert await other.recv_from_into(bytearray(100)) == (5, who)
            await other.send_to(b"back", who)
            assert await one.recv() == b"back"

    asyncio.run(asyncio.wait_for(main(), 120))
