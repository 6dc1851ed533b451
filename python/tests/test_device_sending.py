"""Sending from a device's memory: opaque memory, which no process maps, stands for a device."""

import asyncio
import errno
import gc
import select
import subprocess
import sys
import threading

import pytest
from conftest import is_interrupted, may_have_tap, runs_with_tap
from world import MORE, PATTERN, World, fails, received

import onecopy
from onecopy import aio


class Source:
    """Memory full of a pattern, which the near stack sends from."""

    def __init__(self, world: World) -> None:
        """Fills it by two writes."""
        self.memory = onecopy.DeviceMemory.opaque(len(PATTERN), 3)
        self.memory.write_at(0, PATTERN[:5000])
        self.memory.write_at(5000, memoryview(PATTERN)[5000:])
        self.tx = world.near.bind_tx(self.memory)


def part(ranges: list[tuple[int, int]]) -> bytes:
    """What lies there."""
    return b"".join(PATTERN[offset : offset + length] for offset, length in ranges)


def fill(sender: onecopy.Connection, tx: onecopy.TxBinding) -> tuple[onecopy.Sent, int]:
    """Sends until nothing moves any more: what was sent last, of which the peer has not all, and how many bytes these are with those before."""
    sender.settimeout(0.3)
    have, last = 0, None
    while True:
        try:
            last = sender.send_device(tx, [(0, len(PATTERN))])
            have += len(last)
        except TimeoutError:
            if last is not None and not last.done:
                sender.settimeout(60)
                return last, have


def test_from_one_devices_memory_to_anothers(world: World) -> None:
    source = Source(world)
    ranges = [(0, 1), (4095, 2), (5000, 3), (8192, 300_000), (77, 100_001), (9, 0)]
    with world.bind(), source.tx as tx:
        sender, receiver = world.connected()
        got: list[bytes] = []
        whole = part(ranges)
        receiving = threading.Thread(target=lambda: got.append(received(receiver, 2 * len(whole))))
        receiving.start()
        for one in ranges:
            sent = sender.send_device(tx, [one])
            assert len(sent) == one[1] and bool(sent) == (one[1] > 0)
            assert sent.wait() and sent.done
        sent = sender.send_device(tx, ranges)
        assert len(sent) == len(whole)
        assert sent.wait(60) and sent.wait(0) and sent.copied is True  # by the cable, as a TAP does
        receiving.join()
        assert got == [whole * 2]
        counts = sender.stats()
        assert counts["sent"] == counts["referenced"] == 2 * len(whole) and counts["user_copied_in"] == 0
        assert receiver.stats()["user_copied_out"] == 0
    assert tx.closed and world.all_home() and source.memory.free == source.memory.nbytes
    fails(errno.EBADF, sender.send_device, tx, [(0, 1)])


def test_the_memory_is_written_again_once_it_is_complete(world: World) -> None:
    source = Source(world)
    sender, receiver = world.connected(MORE)
    for turn in range(20):
        note = f"message {turn}".encode().ljust(16)
        source.memory.write_at(12_345, note)
        assert source.memory.read_at(12_345, 16) == note
        sent = sender.send_device(source.tx, [(12_345, 16)])
        assert sent.wait(60)
        assert receiver.recv(16) == note
    host = b"host's bytes behind them"
    sender.send_device(source.tx, [(12_345, 16)])  # nobody waits for it: it arrives all the same
    sender.sendall(host)
    assert receiver.recv_frags(16).linear == note and receiver.recv(len(host)) == host


def test_it_waits_for_room_and_for_the_peer(world: World) -> None:
    source = Source(world)
    sender, receiver = world.connected(MORE)
    everything = (0, len(PATTERN))
    # Until there is no room: what was taken is told.
    taken = sender.send_device(source.tx, [everything] * 8, onecopy.DONTWAIT)
    have = len(taken)
    assert 0 < have < 8 * len(PATTERN)
    taken, more = fill(sender, source.tx)
    have += more
    with pytest.raises(BlockingIOError):
        sender.send_device(source.tx, [everything], onecopy.DONTWAIT)
    sender.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sender.send_device(source.tx, [everything])
    sender.settimeout(60)
    assert not taken.done and taken.copied is None and "under way" in repr(taken)
    with pytest.raises(BlockingIOError):
        taken.wait(0)
    with pytest.raises(TimeoutError):
        taken.wait(0.05)
    ready = select.poll()
    ready.register(taken, select.POLLIN)
    assert not ready.poll(0)
    # Several threads wait for the same.
    waiting = [threading.Thread(target=taken.wait) for _ in range(3)]
    rest: list[onecopy.Sent] = []
    waiting.append(threading.Thread(target=lambda: rest.append(sender.send_device(source.tx, [everything] * 2))))
    for thread in waiting:
        thread.start()
    left = have + 2 * len(PATTERN)
    while left:
        left -= receiver.recv_into(bytearray(min(left, 1 << 16)), onecopy.WAITALL)
    for thread in waiting:
        thread.join(60)
        assert not thread.is_alive()
    assert ready.poll(60_000) and ready.poll(0) and taken.done and "done" in repr(taken)
    assert len(rest[0]) == 2 * len(PATTERN) and rest[0].wait(60)


def test_a_connection_that_ends_drops_what_is_under_way(world: World) -> None:
    source = Source(world)
    sender, receiver = world.connected(MORE)
    sent, _ = fill(sender, source.tx)
    source.tx.close()  # what is under way has its pages
    assert not sent.done
    receiver.close()
    assert sent.wait(60) is False and "dropped" in repr(sent)
    del sent
    gc.collect()
    assert source.memory.free == source.memory.nbytes
    world.near.bind_tx(source.memory).close()


def test_a_wrong_send_says_what_the_kernels_does(world: World) -> None:
    source = Source(world)
    sender, receiver = world.connected(MORE)
    size = source.memory.nbytes
    for wrong in [[(size, 1)], [(0, size + 1)], [(2**64 - 1, 2)], [(0, 5), (size - 1, 2)]]:
        fails(errno.EFAULT, sender.send_device, source.tx, wrong)
    fails(errno.EMSGSIZE, sender.send_device, source.tx, [(0, size)] * 4096)
    for odd in ("text", [1], [(1, 2, 3)], [(-1, 2)], [(0, 1.5)]):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            sender.send_device(source.tx, odd)  # type: ignore[arg-type]
    fails(errno.EFAULT, source.memory.write_at, size - 1, b"ab")
    fails(errno.EFAULT, source.memory.read_at, size - 1, 2)
    fails(errno.EFAULT, source.memory.read_at, 2**64 - 1, 2)
    assert not hasattr(source.memory, "__cuda_array_interface__")
    # Of another stack, and none.
    fails(errno.ENODEV, receiver.send_device, source.tx, [(0, 1)])
    one, _ = onecopy.pair()
    fails(errno.EOPNOTSUPP, one.send_device, source.tx, [(0, 1)])
    # Bound once: to send from, or to receive into.
    fails(errno.EBUSY, world.near.bind_tx, source.memory)
    fails(errno.EBUSY, world.far.bind_tx, source.memory)
    world.near.set_queues(2)
    fails(errno.EBUSY, world.near.bind_rx, source.memory, [1])
    with world.bind() as rx:
        assert rx.id >= 0 and source.tx.id >= 0
        fails(errno.EBUSY, world.far.bind_tx, world.memory)
    near, far = world.near.device_refusals(), world.far.device_refusals()
    counted = {"send_outside": 4, "send_too_long": 1, "tx_busy": 1, "rx_busy": 1}
    assert {name: count for name, count in near.items() if count} == counted
    assert {name: count for name, count in far.items() if count} == {"send_foreign": 1, "tx_busy": 2}
    # None of these has sent anything.
    sender.send(b"nothing before")
    assert receiver.recv(100) == b"nothing before"
    assert len(sender.send_device(source.tx, [])) == 0


def test_under_the_kernels_tcp(kernel: onecopy.Stack, world: World) -> None:
    source = Source(world)
    memory = onecopy.DeviceMemory.opaque(len(PATTERN))
    memory.write_at(0, PATTERN)
    try:
        tx = kernel.bind_tx(memory)
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip(str(error))
    fails(errno.EBUSY, kernel.bind_tx, memory)
    with tx, kernel.listen("tcp://127.0.0.1:0") as listener, kernel.connect(listener.address) as client:
        # Of another stack.
        fails(errno.ENODEV, client.send_device, source.tx, [(0, 1)])
        fails(errno.EFAULT, client.send_device, tx, [(len(PATTERN), 1)])
        server = listener.accept()
        got = bytearray()
        receiving = threading.Thread(target=lambda: got.extend(b"".join(iter(lambda: server.recv(1 << 16), b""))))
        receiving.start()
        ranges = [(0, 1), (4095, 2), (5000, 300_001), (0, len(PATTERN))]
        sent = client.send_device(tx, ranges)
        assert sent.wait(60) and sent.copied
        client.shutdown("write")
        receiving.join()
        assert got == part(ranges)
        counts = client.stats()
        assert counts["kernel_copied"] == counts["referenced"] == len(got) and counts["user_copied_in"] == 0
    kernel.bind_tx(memory).close()


def test_asyncio_sends_and_waits(world: World) -> None:
    async def main() -> None:
        source = Source(world)
        one, other = world.connected(MORE)
        async with aio.Connection(one) as sender, aio.Connection(other) as receiver:

            async def send() -> int:
                have = 0
                while have < len(PATTERN):
                    sent = await sender.send_device(source.tx, [(have, len(PATTERN) - have)])
                    assert sent
                    have += len(sent)
                return await aio.arrived(sent)

            sending = asyncio.create_task(send())
            got = bytearray()
            while len(got) < len(PATTERN):
                got += await receiver.recv()
            assert got == PATTERN and await sending is True

    asyncio.run(asyncio.wait_for(main(), 120))


FORKED = """
import os
import onecopy

near, far = onecopy.Stack.pair()
memory = onecopy.DeviceMemory.opaque(1 << 20)
memory.write_at(0, b"the parent's")
tx = near.bind_tx(memory)
listener = far.listen("tcp://10.0.0.2:80")
sender = near.connect("tcp://10.0.0.2:80", timeout=60)
receiver = listener.accept()
sent = sender.send_device(tx, [(0, 12)])
if (child := os.fork()) == 0:
    calls = [lambda: sender.send_device(tx, [(0, 1)]), lambda: near.bind_tx(memory), sent.wait, sent.fileno,
             lambda: sent.done, lambda: memory.write_at(0, b"x"), lambda: memory.read_at(0, 1)]
    for call in calls:
        try:
            call()
        except OSError as error:
            assert error.errno == 16, error
        else:
            os._exit(1)
    tx.close()
    del calls, call, sent, tx, sender, receiver, listener, memory, near, far
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert sent.wait(60) and receiver.recv(100) == b"the parent's"
under_way = sender.send_device(tx, [(0, 1 << 20)] * 4, onecopy.DONTWAIT)
print("well")
# The interpreter ends with all of it alive, and bytes under way.
"""


def test_a_child_of_fork_sends_nothing_and_the_interpreter_ends_with_all_alive() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout == "well\n", ran.stderr


@pytest.mark.parametrize("last", ["sender.send_device(tx, [(0, 1 << 20)] * 64)", "sent.wait()"])
def test_ctrl_c_ends_a_wait(last: str) -> None:
    is_interrupted(f"""
import onecopy
near, far = onecopy.Stack.pair()
listener = far.listen("tcp://10.0.0.2:80")
sender = near.connect("tcp://10.0.0.2:80")
receiver = listener.accept()
tx = near.bind_tx(onecopy.DeviceMemory.opaque(1 << 20))
sender.settimeout(0.3)
sent = None
while sent is None or sent.done:
    try:
        while True:
            sent = sender.send_device(tx, [(0, 1 << 20)])
    except TimeoutError:
        pass
sender.settimeout(None)
{last}
""")


@may_have_tap
def test_over_a_tap_to_the_kernel() -> None:
    runs_with_tap("""
pattern = bytes(n * 7 % 251 for n in range(1 << 20))
memory = onecopy.DeviceMemory.opaque(1 << 20)
memory.write_at(0, pattern)
with socket.create_server(("10.77.0.1", 5201)) as server, stack.bind_tx(memory) as tx:
    with stack.connect("tcp://10.77.0.1:5201", timeout=60) as conn:
        peer, _ = server.accept()
        got = bytearray()
        def receive():
            while chunk := peer.recv(1 << 16):
                got.extend(chunk)
        receiving = threading.Thread(target=receive)
        receiving.start()
        ranges = [(0, 1), (4095, 2), (5000, 300_001), (0, 1 << 20)]
        sent = conn.send_device(tx, ranges)
        assert sent.wait(60) and sent.copied
        conn.shutdown("write")
        receiving.join()
        peer.close()
        assert got == b"".join(pattern[at : at + n] for at, n in ranges)
        counts = conn.stats()
        assert counts["referenced"] == len(got) and counts["user_copied_in"] == 0
print("well")
""")
