"""TCP of a stack of onecopy's own, and of the kernel's by io_uring."""

import asyncio
import errno
import threading

import pytest
from conftest import is_interrupted, may_have_tap, runs_with_tap

import onecopy
from onecopy import aio

PATTERN = bytes(range(256)) * 4096

ON_TAP = """
PATTERN = bytes(range(256)) * 4096

def echo(listener):
    with listener.accept()[0] as peer:
        while piece := peer.recv(1 << 16):
            peer.sendall(piece)

# It connects to a socket of the kernel's.
with socket.create_server(("10.77.0.1", 0)) as listener:
    thread = threading.Thread(target=echo, args=(listener,))
    thread.start()
    with stack.connect(f"tcp://10.77.0.1:{listener.getsockname()[1]}", timeout=60) as conn:
        assert conn.path == "stack" and not conn.records
        sender = threading.Thread(target=conn.sendall, args=(PATTERN,))
        sender.start()
        got = bytearray()
        while len(got) < len(PATTERN):
            got += memoryview(conn.recv_borrowed())
        sender.join()
        assert got == PATTERN
        conn.shutdown("write")
        assert conn.recv(1) == b""
        counts = conn.stats()
        assert counts["sent"] == counts["received"] == len(PATTERN), counts
        # One copy in user space either way, and the TAP device copies each packet once.
        assert counts["user_copied_in"] == counts["user_copied_out"] == len(PATTERN), counts
        assert counts["kernel_copied"] == 2 * len(PATTERN) and conn.copies_per_byte == 2.0, counts
    thread.join()

# A socket of the kernel's connects to it.
with stack.listen("tcp://10.77.0.2:0") as listener:
    host, port = listener.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        listener.settimeout(60)
        with listener.accept() as server:
            client.sendall(b"over the wire")
            assert server.recv(13) == b"over the wire"
            assert is_refused_in_a_child(lambda: server.send(b"?"))
            server.sendall(b"and back")
            assert client.recv(100) == b"and back"

# Nobody answers there.
try:
    stack.connect("tcp://10.77.0.1:1", timeout=60)
except ConnectionRefusedError:
    print("well")
"""


@may_have_tap
def test_a_stack_talks_to_the_kernels_sockets() -> None:
    runs_with_tap(ON_TAP)


def test_the_kernels_tcp_by_io_uring(kernel: onecopy.Stack) -> None:
    assert kernel.carrier == "kernel" and kernel.addresses == []
    with kernel.listen("tcp://127.0.0.1:0") as listener, kernel.connect(listener.address) as client:
        server = listener.accept()
        sender = threading.Thread(target=client.sendall, args=(PATTERN,))
        sender.start()
        into = bytearray(len(PATTERN))
        have = 0
        while have < len(into):
            have += server.recv_into(memoryview(into)[have:])
        sender.join()
        assert into == PATTERN and server.path == "kernel"
        with client.reserve(5) as room:
            memoryview(room)[:] = b"hello"
        assert server.recv(100) == b"hello"
        tensor_bytes = b"".join(i.to_bytes(4, "little") for i in range(6))
        client.sendall(tensor_bytes)
        tensor = server.recv(shape=(2, 3), dtype="int32")
        assert tensor.view.tobytes() == tensor_bytes
        server.close()
        assert client.recv(1) == b""


def test_auto_takes_the_kernel_where_there_is_no_tap_device(kernel: onecopy.Stack) -> None:
    assert onecopy.Stack(transport="auto").carrier == "kernel"
    # A name that no device can have: the same as no right to make one.
    auto = onecopy.Stack(tap="a name that is too long", address="10.77.0.2/24", transport="auto")
    assert auto.carrier == "kernel"
    with pytest.raises(OSError):
        onecopy.Stack(tap="a name that is too long", address="10.77.0.2/24")


def test_it_waits_as_others_do(kernel: onecopy.Stack) -> None:
    with kernel.listen("tcp://127.0.0.1:0") as listener:
        with pytest.raises(BlockingIOError):
            listener.accept(onecopy.DONTWAIT)
        with kernel.connect(listener.address) as client, listener.accept():
            with pytest.raises(BlockingIOError):
                client.recv(1, onecopy.DONTWAIT)
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            client.settimeout(0)
            with pytest.raises(BlockingIOError):
                client.recv(1)


def test_ctrl_c_ends_a_receive(kernel: onecopy.Stack) -> None:
    is_interrupted("""
import onecopy
stack = onecopy.Stack(transport="kernel")
listener = stack.listen("tcp://127.0.0.1:0")
client = stack.connect(listener.address)
server = listener.accept()
client.recv(1)
""")


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="needs a link"):
        onecopy.Stack(address="10.0.0.2/24")
    with pytest.raises(ValueError, match="needs an address"):
        onecopy.Stack(tap="onecopy0")
    with pytest.raises(ValueError, match="10.0.0.2/24"):
        onecopy.Stack(tap="onecopy0", address="10.0.0.2")
    with pytest.raises(ValueError, match="write"):
        onecopy.Stack(transport="magic")
    with pytest.raises(ValueError, match="gateway"):
        onecopy.Stack(tap="onecopy0", address="10.0.0.2/24", gateway="there")


def test_a_wrong_address_is_said(kernel: onecopy.Stack) -> None:
    with pytest.raises(ValueError, match="tcp://"):
        kernel.connect("unix:/run/x")
    with kernel.listen("tcp://127.0.0.1:0") as listener:
        with pytest.raises(OSError) as raised:
            kernel.listen(listener.address)
        assert raised.value.errno == errno.EADDRINUSE


def test_asyncio_waits_at_its_descriptor(kernel: onecopy.Stack) -> None:
    async def main() -> None:
        with kernel.listen("tcp://127.0.0.1:0") as listener:
            client, server = kernel.connect(listener.address), listener.accept()
            async with aio.Connection(client) as one, aio.Connection(server) as other:
                receiving = asyncio.create_task(other.recv(5))
                await asyncio.sleep(0)
                await one.sendall(b"hello")
                assert await receiving == b"hello"

    asyncio.run(asyncio.wait_for(main(), 120))
