"""Receiving into a device's memory: opaque memory, which no process maps, stands for a device."""

import asyncio
import errno
import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from conftest import is_interrupted
from world import MORE, PATTERN, SERVER, World, fails, received

import onecopy
from onecopy import aio


def test_payload_lies_in_the_devices_memory(world: World) -> None:
    assert world.memory.kind == "opaque" and world.memory.device == 7 and world.memory.address is None
    with world.bind() as binding:
        sender, receiver = world.connected()

        def send() -> None:
            sender.sendall(PATTERN)
            sender.shutdown("write")

        sending = threading.Thread(target=send)
        sending.start()
        got, tokens = b"", 0
        while frags := receiver.recv_frags(100_000):
            assert frags.linear is None and sum(one.size for one in frags.device) == len(frags)
            for fragment in frags.device:
                tokens += 1
                assert (fragment.token, fragment.binding) == (tokens, binding.id)
                assert fragment.offset + fragment.size <= world.memory.nbytes
                got += fragment.tobytes()
            assert receiver.tokens_held == len(frags.device)
        sending.join()
        assert got == PATTERN and receiver.tokens_held == 1
        del fragment
        assert receiver.tokens_held == 0 and world.all_home()  # each `frags` was dropped for the next one
        counts = receiver.stats()
        assert counts["received"] == len(PATTERN) and counts["user_copied_out"] == 0
        placed = world.far.queue_stats(1)
        assert placed is not None and placed["placed_bytes"] >= len(PATTERN)
        # By tobytes; and what the link put there by a wrong guess, and brought back.
        assert world.memory.stats()["copied_out"] >= len(PATTERN)
    assert binding.closed


def test_bytes_of_the_hosts_memory_come_as_bytes(world: World) -> None:
    sender, receiver = world.connected(MORE)
    sender.send(b"plain")
    with world.bind(), receiver.recv_frags() as frags:
        assert frags.linear == frags.tobytes() == b"plain" and frags.device == () and len(frags) == 5
    assert receiver.stats()["user_copied_out"] == 5
    sender.close()
    end = receiver.recv_frags()
    assert not end and len(end) == 0 and end.tobytes() == b""


def test_the_cpu_cannot_read_it(world: World) -> None:
    with world.bind():
        sender, receiver = world.connected()
        sender.send(b"secret")
        (fragment,) = receiver.recv_frags().device
        with pytest.raises(BufferError, match="tobytes"):
            memoryview(fragment)  # type: ignore[arg-type]
        with pytest.raises(BufferError, match="tobytes"):
            bytes(fragment)  # type: ignore[call-overload]
        with pytest.raises(BufferError, match="no addresses"):
            fragment.__dlpack__(max_version=(1, 0))
        with pytest.raises(BufferError, match="no addresses"):
            fragment.__dlpack_device__()
        assert not hasattr(fragment, "__cuda_array_interface__")
        sender.send(b"more")
        for call in (lambda: receiver.recv(4), lambda: receiver.recv_into(bytearray(4)), receiver.recv_borrowed):
            fails(errno.EFAULT, call)
        assert received(receiver, 4) == b"more"  # it stayed


def test_tokens_go_back_once(world: World) -> None:
    with world.bind():
        sender, receiver = world.connected()
        sender.send(PATTERN[:20])
        frags = [receiver.recv_frags(1).device[0] for _ in range(20)]
        assert [one.token for one in frags] == list(range(1, 21)) and receiver.tokens_held == 20
        assert receiver.dont_need([frags[0], frags[1]]) == 2
        assert receiver.dont_need([frags[0], 2]) == 0  # they were
        assert receiver.dont_need([3]) == 1
        assert receiver.dont_need([frags[2]]) == 0  # by number
        assert receiver.dont_need([(4, 2), frags[10], 7]) == 4
        assert receiver.dont_need([0, 999, (1 << 31, 9)]) == 0
        assert receiver.dont_need([]) == 0
        for gone in (frags[0], frags[2]):
            with pytest.raises(ValueError, match="given back"):
                gone.tobytes()
        fails(errno.EINVAL, receiver.dont_need, [500] * 129)
        for wrong in ("text", [None], [frags[12], b"12"], [(1, 2, 3)]):
            with pytest.raises(TypeError):
                receiver.dont_need(wrong)  # type: ignore[arg-type]
        assert receiver.tokens_held == 13 and frags[12].tobytes() == PATTERN[12:13]
        del frags[12]
        assert receiver.tokens_held == 12
        # A fragment knows its connection, whichever it is given to.
        other_sender, other = world.connected()
        assert other.dont_need([frags[5]]) == 1 and receiver.tokens_held == 11
        del frags, gone
        assert receiver.tokens_held == 0 and world.all_home()
        other_sender.close()


def test_what_is_held_by_none_and_what_outlives_its_connection(world: World) -> None:
    with world.bind():
        sender, receiver = world.connected()
        sender.send(b"hello")
        with receiver.recv_frags() as frags:
            (fragment,) = frags.device
        assert receiver.tokens_held == 0
        with pytest.raises(ValueError, match="given back"):
            fragment.tobytes()
        sender.send(b"again")
        (fragment,) = receiver.recv_frags().device
        assert fragment.tobytes() == b"again"
        receiver.close()
        with pytest.raises(ValueError, match="closed"):
            fragment.tobytes()
        assert world.all_home()
        with pytest.raises(OSError):
            receiver.dont_need([fragment])


def test_flags_are_recvmsgs(world: World) -> None:
    with world.bind():
        sender, receiver = world.connected()
        with pytest.raises(BlockingIOError):
            receiver.recv_frags(5, onecopy.DONTWAIT)
        receiver.settimeout(0.05)
        with pytest.raises(TimeoutError):
            receiver.recv_frags(5)
        receiver.settimeout(60)
        sender.send(b"1234567890")
        seen = receiver.recv_frags(5, onecopy.PEEK)
        assert len(seen) == 5 and seen.device[0].token == 0 and receiver.tokens_held == 0
        with pytest.raises(ValueError, match="PEEK"):
            seen.tobytes()
        with pytest.raises(OSError) as raised:
            receiver.recv_frags(5, most=0)
        assert raised.value.errno == 525
        assert len(receiver.recv_frags(5, onecopy.TRUNC)) == 5
        frags = receiver.recv_frags(5, most=1)
        assert frags.tobytes() == b"67890" and len(frags.device) == 1
        assert len(receiver.recv_frags(0)) == 0


def test_peek_and_trunc_of_both_kinds_of_memory(world: World) -> None:
    sender, receiver = world.connected()
    sender.send(b"host's")
    while len(receiver.recv_frags(6, onecopy.PEEK)) < 6:
        pass
    with world.bind():
        sender.send(b"device's")
        # A look stops before the other memory, and takes nothing.
        for _ in range(2):
            seen = receiver.recv_frags(100, onecopy.PEEK)
            assert seen.linear == b"host's" and not seen.device
        # What is thrown away is of either; with both flags it is.
        assert len(receiver.recv_frags(4, onecopy.PEEK | onecopy.TRUNC)) == 4
        have = 0
        while have < 7:
            thrown = receiver.recv_frags(7 - have, onecopy.TRUNC)
            assert thrown.linear is None and not thrown.device and thrown.tobytes() == b""
            have += len(thrown)
        seen = receiver.recv_frags(100, onecopy.PEEK, most=1)
        assert [one.token for one in seen.device] == [0] and len(seen) == 3
        assert receiver.tokens_held == 0 and received(receiver, 3) == b"e's"
        for flag in (onecopy.PEEK, onecopy.TRUNC):
            with pytest.raises(BlockingIOError):
                receiver.recv_frags(1, flag | onecopy.DONTWAIT)
        sender.close()
        assert not receiver.recv_frags(1, onecopy.PEEK) and not receiver.recv_frags(1, onecopy.TRUNC)


def test_a_receive_that_waits_for_all_stops_before_the_devices_memory(world: World) -> None:
    sender, receiver = world.connected()
    sender.send(b"abc")
    while len(receiver.recv_frags(3, onecopy.PEEK)) < 3:
        pass
    room = bytearray(8)
    with world.bind():
        sender.send(b"placed")
        assert receiver.recv_into(room, onecopy.WAITALL) == 3 and room[:3] == b"abc"
        assert received(receiver, 6) == b"placed"
    # That is over, and no news any more.
    sender.send(b"defghijk")
    assert receiver.recv_into(room, onecopy.WAITALL) == 8 and room == b"defghijk"


def test_no_receive_ignores_a_flag(world: World) -> None:
    sender, receiver = world.connected(MORE)
    sender.send(b"hello")
    for flag in (onecopy.PEEK, onecopy.TRUNC, onecopy.WAITALL):
        calls: list[Callable[[], object]] = [
            lambda: receiver.recv(5, flag),  # noqa: B023
            lambda: receiver.recv_borrowed(5, flag),  # noqa: B023
            lambda: receiver.recv(None, flag, shape=(5,), dtype="uint8"),  # noqa: B023
        ]
        if flag == onecopy.WAITALL:
            calls.append(lambda: receiver.recv_frags(5, flag))  # noqa: B023
        else:
            calls.append(lambda: receiver.recv_into(bytearray(5), flag))  # noqa: B023
        with world.near.udp() as socket:
            calls.append(lambda: socket.recv_from(5, flag))  # noqa: B023
            for call in calls:
                fails(errno.EOPNOTSUPP, call)
    assert receiver.recv(5) == b"hello"


def test_a_wrong_bind_says_what_the_kernels_does(world: World) -> None:
    small = onecopy.DeviceMemory.opaque(4096)
    fails(errno.EINVAL, world.far.bind_rx, world.memory, [])
    fails(errno.EINVAL, world.far.bind_rx, world.memory, [0, 1])
    fails(errno.EINVAL, world.far.bind_rx, small, [1])
    fails(errno.ERANGE, world.far.bind_rx, world.memory, [5])
    fails(errno.ERANGE, world.far.steer, SERVER, 5)
    with world.bind():
        fails(errno.EEXIST, world.far.bind_rx, world.memory, [1])
        fails(errno.EINVAL, world.far.set_queues, 1)
    assert world.far.queues == 2 and world.far.queue_stats(2) is None
    assert world.far.unsteer(SERVER) and not world.far.unsteer(SERVER)
    fails(errno.EINVAL, world.far.set_queues, 2**32 - 1)
    fails(errno.EINVAL, onecopy.DeviceMemory.opaque, 0)
    one, _ = onecopy.pair()
    for call in (one.recv_frags, lambda: one.dont_need([1]), lambda: one.tokens_held):
        fails(errno.EOPNOTSUPP, call)


def moved(stack: onecopy.Stack, before: dict[str, int]) -> dict[str, int]:
    """The counters of what a stack has refused that are not as before."""
    return {name: now - before[name] for name, now in stack.device_refusals().items() if now != before[name]}


def test_what_is_refused_is_counted_by_why_and_takes_nothing(world: World) -> None:
    zero = world.far.device_refusals()
    assert set(zero.values()) == {0} and world.near.device_refusals() == zero
    fails(errno.EINVAL, world.far.bind_rx, world.memory, [])
    fails(errno.ERANGE, world.far.bind_rx, world.memory, [5])
    fails(errno.EINVAL, world.far.bind_rx, onecopy.DeviceMemory.opaque(4096), [1])
    assert world.memory.free == world.memory.nbytes
    with world.bind():
        fails(errno.EEXIST, world.far.bind_rx, world.memory, [1])
        fails(errno.EBUSY, world.far.bind_tx, world.memory)
        binds = {"rx_no_queue": 1, "rx_no_such_queue": 1, "rx_too_small": 1, "rx_bound": 1, "tx_busy": 1}
        assert moved(world.far, zero) == binds
        before = world.far.device_refusals()
        sender, receiver = world.connected()
        sender.send(b"12")
        frags = [receiver.recv_frags(1).device[0] for _ in range(2)]
        assert receiver.dont_need([1, 1, (2, 3)]) == 2
        assert moved(world.far, before) == {"tokens_stale": 1, "tokens_unknown": 2}
        fails(errno.EINVAL, receiver.dont_need, [1] * 129)
        del frags
        assert moved(world.far, before) == {"tokens_stale": 1, "tokens_unknown": 2, "token_calls": 1}
        assert receiver.tokens_held == 0 and world.all_home()
        sender.send(b"as ever")
        assert received(receiver, 7) == b"as ever"
    assert world.near.device_refusals() == zero


def test_the_kernels_tcp_receives_into_memory_by_its_own_copy(kernel: onecopy.Stack) -> None:
    memory = onecopy.DeviceMemory.opaque(1 << 20)
    # Flows that nobody steers need a queue of their own.
    fails(errno.EINVAL, kernel.bind_rx, memory, [0])
    kernel.set_queues(2)
    try:
        binding = kernel.bind_rx(memory, [1])
    except OSError as error:
        assert error.errno == errno.EOPNOTSUPP, error
        pytest.skip(f"its memory cannot be registered here: {error}")
    with binding, kernel.listen("tcp://127.0.0.1:0") as listener:
        kernel.steer(listener.address, 1)
        with kernel.connect(listener.address) as client, listener.accept() as server:
            client.sendall(PATTERN[:100_000])
            client.shutdown("write")
            got = b""
            while frags := server.recv_frags():
                assert frags.linear is None
                got += frags.tobytes()
            assert got == PATTERN[:100_000]
            counts = server.stats()
            assert (counts["received"], counts["user_copied_out"]) == (100_000, 0)


def test_unbound_with_fragments_outstanding(world: World) -> None:
    binding = world.bind()
    sender, receiver = world.connected()
    sender.send(PATTERN[:3000])
    kept: list[onecopy.Frags] = []
    while sum(len(one) for one in kept) < 3000:
        kept.append(receiver.recv_frags())
    binding.close()
    binding.close()
    fails(errno.EBADF, lambda: binding.promised)
    sender.send(b"behind it")
    assert receiver.recv_frags().linear == b"behind it"
    assert b"".join(one.tobytes() for one in kept) == PATTERN[:3000]
    del kept
    assert receiver.tokens_held == 0 and world.all_home()
    # One that is only dropped is undone, too.
    again = world.bind()
    assert again.id != binding.id
    del again
    gc.collect()
    world.bind().close()


def test_full_memory_shuts_the_window_until_tokens_come_back() -> None:
    world = World(64 << 10)
    with world.bind() as binding:
        sender, receiver = world.connected()
        sending = threading.Thread(target=sender.sendall, args=(PATTERN,))
        sending.start()
        kept, have = [], 0
        receiver.settimeout(0.2)
        with pytest.raises(TimeoutError):
            while True:
                kept.append(receiver.recv_frags())
                have += len(kept[-1])
        assert have < len(PATTERN) and binding.narrowed > 0 and binding.event() == "starved"
        receiver.settimeout(60)
        got = b"".join(one.tobytes() for one in kept)
        kept.clear()  # (it tells the stack, without a call of the program's)
        got += received(receiver, len(PATTERN) - have)
        sending.join()
        assert got == PATTERN and binding.promised <= world.memory.nbytes
        events = []
        while event := binding.event():
            events.append(event)
        assert "fed" in events, events


def test_a_client_receives_where_its_own_port_is_steered_to(world: World) -> None:
    world.near.set_queues(2)
    world.near.steer("tcp://10.0.0.1:7777", 1)
    with world.near.bind_rx(world.memory, [1]), world.far.listen(MORE) as listener:
        client = world.near.connect(MORE, timeout=60, source_address="tcp://10.0.0.1:7777")
        server = listener.accept()
        server.send(b"to the client")
        (fragment,) = client.recv_frags().device
        assert fragment.tobytes() == b"to the client"
        with pytest.raises(OSError) as raised:
            world.near.connect(MORE, timeout=60, source_address="tcp://10.0.0.1:7777")
        assert raised.value.errno == errno.EADDRNOTAVAIL
        server.close()


def test_several_threads_receive_and_give_back(world: World) -> None:
    """The GIL and the stack's lock: nobody waits for one with the other in hand."""
    with world.bind() as binding:
        pairs = [world.connected() for _ in range(3)]
        total = 200_000

        def receive(receiver: onecopy.Connection) -> None:
            have = 0
            while have < total:
                frags = receiver.recv_frags(10_000)
                have += len(frags)
                receiver.dont_need(frags.device)
                assert binding.promised >= 0

        threads = [threading.Thread(target=pair[0].sendall, args=(bytes(total),)) for pair in pairs]
        threads += [threading.Thread(target=receive, args=(pair[1],)) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert world.all_home()


FORKED = """
import gc, os
import onecopy

near, far = onecopy.Stack.pair()
far.set_queues(2)
far.steer("tcp://10.0.0.2:5201", 1)
memory = onecopy.DeviceMemory.opaque(1 << 20)
binding = far.bind_rx(memory, [1])
listener = far.listen("tcp://10.0.0.2:5201")
sender = near.connect("tcp://10.0.0.2:5201", timeout=60)
receiver = listener.accept()
sender.send(b"the parent's")
frags = receiver.recv_frags()

if (child := os.fork()) == 0:
    # It has no part in any of it: EBUSY. What it drops stays the parent's.
    calls = [receiver.recv_frags, frags.tobytes, frags.device[0].tobytes, lambda: binding.promised,
             lambda: far.bind_rx(memory, [1]), lambda: memory.free, lambda: receiver.dont_need(frags.device)]
    for call in calls:
        try:
            call()
        except OSError as error:
            assert error.errno == 16, error
        else:
            os._exit(1)
    frags.release()
    binding.close()
    del calls, call, frags, binding, receiver, sender, listener, memory, near, far
    gc.collect()
    # Memory of its own it may have.
    near, far = onecopy.Stack.pair()
    del near, far
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert receiver.tokens_held == 1 and frags.tobytes() == b"the parent's"
sender.send(b"and more")
with receiver.recv_frags() as more:
    assert more.tobytes() == b"and more"
print("well")
# The interpreter ends with all of it alive.
"""


def test_a_child_of_fork_gives_nothing_back_and_the_interpreter_ends_with_all_alive() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout == "well\n", ran.stderr


def test_ctrl_c_ends_a_receive() -> None:
    is_interrupted("""
import onecopy
near, far = onecopy.Stack.pair()
listener = far.listen("tcp://10.0.0.2:80")
sender = near.connect("tcp://10.0.0.2:80")
receiver = listener.accept()
receiver.recv_frags()
""")


def test_asyncio_receives_by_reference(world: World) -> None:
    async def main() -> None:
        with world.bind():
            one, other = world.connected()
            async with aio.Connection(one) as sender, aio.Connection(other) as receiver:
                receiving = asyncio.create_task(receiver.recv_frags())
                await asyncio.sleep(0)
                await sender.sendall(b"hello")
                with await receiving as frags:
                    assert frags.tobytes() == b"hello"

    asyncio.run(asyncio.wait_for(main(), 120))


def test_stacks_of_a_pair() -> None:
    near, far = onecopy.Stack.pair("10.1.0.1/16", "10.1.0.2/16", mtu=9000)
    assert near.addresses == ["10.1.0.1/16"] and far.addresses == ["10.1.0.2/16"]
    assert near.carrier == "stack"
    with far.listen("tcp://10.1.0.2:0") as listener, near.connect(listener.address, timeout=60) as client:
        server = listener.accept()
        client.sendall(b"over the cable")
        assert server.recv(14) == b"over the cable"
        server.close()
    with pytest.raises(ValueError, match="mtu"):
        onecopy.Stack.pair(mtu=20)
    with pytest.raises(ValueError, match="10.0.0.2/24"):
        onecopy.Stack.pair("10.0.0.1")
