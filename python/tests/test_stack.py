"""TCP of a stack of onecopy's own, and of the kernel's by io_uring."""

import asyncio
import errno
import os
import threading
from typing import Any

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
        # The TAP device copies each packet once. Here what comes in one piece is looked at where it lies.
        assert counts["user_copied_in"] == len(PATTERN) >= counts["user_copied_out"], counts
        assert counts["kernel_copied"] == 2 * len(PATTERN) and conn.copies_per_byte <= 2.0, counts
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


ON_SHARDS = """
PATTERN = bytes(range(256)) * 1024
assert stack.shards == 2
link = subprocess.run(["ip", "-d", "link", "show", "onecopy0"], check=True, capture_output=True, text=True).stdout
assert "multi_queue" in link, link

def echo(peer):
    while piece := peer.recv(1 << 16):
        peer.sendall(piece)
    peer.close()

def talks(conn):
    sender = threading.Thread(target=conn.sendall, args=(PATTERN,))
    sender.start()
    got = bytearray()
    while len(got) < len(PATTERN):
        piece = conn.recv(1 << 16)
        assert piece
        got += piece
    sender.join()
    assert got == PATTERN
    conn.close()

def all_talk(accept, connect):
    # As many connections that all are in one shard are one in 128.
    servers, clients = [], []
    for _ in range(8):
        clients.append(connect())
        servers.append(threading.Thread(target=echo, args=(accept(),)))
    clients = [threading.Thread(target=talks, args=(client,)) for client in clients]
    for thread in servers + clients:
        thread.start()
    for thread in servers + clients:
        thread.join()

with stack.listen("tcp://10.77.0.2:80") as listener:
    all_talk(lambda: listener.accept(), lambda: socket.create_connection(("10.77.0.2", 80), timeout=60))
with socket.create_server(("10.77.0.1", 80)) as listener:
    all_talk(lambda: listener.accept()[0], lambda: stack.connect("tcp://10.77.0.1:80", timeout=60))

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernels:
    kernels.bind(("10.77.0.1", 7000))
    kernels.settimeout(60)
    for port in range(7000, 7016):
        with stack.udp(f"udp://10.77.0.2:{port}", timeout=60) as ours:
            ours.send_to(b"there", "udp://10.77.0.1:7000")
            assert kernels.recvfrom(100) == (b"there", ("10.77.0.2", port))
            kernels.sendto(b"back", ("10.77.0.2", port))
            assert ours.recv(100) == b"back"

# What a device's memory is bound to has one shard.
for call in (lambda: stack.set_queues(2), lambda: stack.bind_rx(onecopy.DeviceMemory.opaque(1 << 20), [0])):
    try:
        call()
        raise AssertionError("it was done")
    except OSError as error:
        assert error.errno == 95 and "shards" in str(error), error
print("well")
"""


@may_have_tap
def test_several_shards_are_one_stack() -> None:
    runs_with_tap(ON_SHARDS, shards=2)


def cable() -> tuple[onecopy.Connection, onecopy.Connection]:
    """A connection between two stacks of this process."""
    near, far = onecopy.Stack.pair()
    with far.listen("tcp://10.0.0.2:80") as listener:
        one = near.connect(listener.address, timeout=60)
        other = listener.accept()
    other.settimeout(60)
    return one, other


def test_what_a_stack_receives_is_looked_at_where_it_lies() -> None:
    one, other = cable()
    one.sendall(PATTERN[:1000])
    view = other.recv_borrowed()
    memory = memoryview(view)
    assert view.in_place and memory.readonly and bytes(memory) == PATTERN[:1000]
    assert other.stats()["user_copied_out"] == 0
    with pytest.raises(BufferError, match="still looks"):
        view.release()
    one.close()
    other.close()
    assert bytes(memory) == PATTERN[:1000]
    memory.release()
    view.release()
    with pytest.raises(ValueError, match="released"):
        bytes(view)


def test_a_large_stream_is_looked_at_piece_by_piece() -> None:
    one, other = cable()

    def send() -> None:
        one.sendall(PATTERN)
        one.shutdown("write")

    sender = threading.Thread(target=send)
    sender.start()
    got = bytearray()
    for view in other:
        with view, memoryview(view) as memory:
            got += memory
    sender.join()
    assert got == PATTERN
    # (What comes in small packets is brought together.)
    assert other.stats()["user_copied_out"] < len(PATTERN) // 2


def test_what_came_in_several_pieces_is_one_buffer() -> None:
    one, other = cable()
    one.sendall(PATTERN[:100])
    one.sendall(PATTERN[100:300])
    while len(seen := other.recv_frags(1000, onecopy.PEEK)) < 300:
        pass
    assert seen.linear == PATTERN[:300]
    before = other.stats()["user_copied_out"]
    view = other.recv_borrowed()
    memory = memoryview(view)
    assert bytes(memory) == PATTERN[:300] and not view.in_place
    assert other.stats()["user_copied_out"] == before + 300


def test_tensors_of_a_stack_are_in_place_where_they_are_aligned() -> None:
    one, other = cable()
    one.sendall(bytes(8))
    assert other.recv(8) == bytes(8)  # (how long the headers are is known from here on)
    one.sendall(PATTERN[:1024])
    tensor = other.recv(shape=(16, 16), dtype="float32")
    assert tensor.in_place and bytes(tensor.view) == PATTERN[:1024]
    tensor.__dlpack__(max_version=(1, 0))
    counts = other.stats()
    one.sendall(b"x" + PATTERN[:1024])
    assert other.recv(1) == b"x"
    odd = other.recv(shape=(16, 16), dtype="float32")
    assert not odd.in_place and bytes(odd.view) == PATTERN[:1024]
    assert other.stats()["tensors_unaligned"] == counts["tensors_unaligned"] + 1 == 1
    # A large one comes in pieces: a copy.
    sender = threading.Thread(target=one.sendall, args=(PATTERN,))
    sender.start()
    large = other.recv(shape=(len(PATTERN),), dtype="uint8")
    sender.join()
    assert bytes(large.view) == PATTERN


@pytest.mark.parametrize("looked_at", [False, True])
def test_what_a_program_keeps_of_a_stack_is_bounded(looked_at: bool) -> None:
    one, other = cable()
    sent = PATTERN * 40

    def send() -> None:
        one.sendall(sent)
        one.shutdown("write")

    sender = threading.Thread(target=send)
    sender.start()
    kept = []
    while view := other.recv_borrowed(4096):
        kept.append((view, memoryview(view) if looked_at else None))
    sender.join()
    assert b"".join(bytes(view) for view, _ in kept) == sent
    in_place = [len(view) for view, _ in kept if view.in_place]
    # 16 MiB of pages, of which some are used in part.
    assert 1 << 20 < sum(in_place) <= 16 << 20
    if looked_at:
        assert all(memory is not None and bytes(memory) == bytes(view) for view, memory in kept)
    else:
        assert other.stats()["views_copied_out"] > 0 and kept[-1][0].in_place and not kept[0][0].in_place
    # When they are gone, there is room again.
    kept.clear()
    del view
    again_one, again = cable()
    again_one.sendall(b"once more")
    assert again.recv_borrowed().in_place


def test_a_child_of_fork_reads_what_its_parent_has_received() -> None:
    one, other = cable()
    one.sendall(b"received before")
    view = other.recv_borrowed()
    memory = memoryview(view)
    if (child := os.fork()) == 0:
        well = bytes(view) == bytes(memory) == b"received before"
        memory.release()
        view.release()
        del view, memory, other, one
        os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(memory) == b"received before"


def test_the_kernels_tcp_by_io_uring(kernel: onecopy.Stack) -> None:
    assert kernel.carrier == "kernel" and kernel.addresses == [] and kernel.shards == 1
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


def test_connections_are_spread_over_the_kernels_rings(kernel: onecopy.Stack) -> None:
    stack = onecopy.Stack(transport="kernel", shards=3)
    assert stack.shards == 3 and stack.shard_counters(3) is None
    with stack.listen("tcp://127.0.0.1:0") as listener:
        pairs = [(stack.connect(listener.address), listener.accept()) for _ in range(3)]
        for client, server in pairs:
            client.sendall(b"hello")
            assert server.recv(100) == b"hello"
        # The listener is one of 7.
        for shard in range(3):
            counters = stack.shard_counters(shard)
            assert counters is not None and counters["sockets"] in (2, 3) and counters["requests"] > 0
        for pair in pairs:
            for end in pair:
                end.close()
    with pytest.raises(ValueError, match="1 to 64 shards"):
        onecopy.Stack(transport="kernel", shards=0)


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
    with pytest.raises(ValueError, match="one shard at least"):
        onecopy.Stack(tap="onecopy0", address="10.0.0.2/24", shards=0)
    with pytest.raises(ValueError, match="gateway"):
        onecopy.Stack(tap="onecopy0", address="10.0.0.2/24", gateway="there")


def test_the_kernel_has_none_of_what_is_a_stacks_own() -> None:
    said: list[tuple[str, Any]] = [
        ("tap", "onecopy0"),
        ("address", "10.0.0.2/24"),
        ("gateway", "10.0.0.1"),
        ("mtu", 1500),
    ]
    for name, value in said:
        with pytest.raises(ValueError, match=f"^{name} is about .* leave it out"):
            onecopy.Stack(transport="kernel", **{name: value})


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
