"""Many threads on one object: with the GIL, and on a free-threaded Python without it.

Meanwhile another thread collects garbage, for which a free-threaded Python stops the world: a thread that waited there for a lock of ours, without having detached, would stop it for good.
"""

import asyncio
import collections
import errno
import gc
import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from world import MORE, PATTERN, World

import onecopy
from onecopy import aio

THREADS = 4

Call = Callable[[], object]


@pytest.fixture(autouse=True)
def stirred() -> Iterator[None]:
    """Threads take turns often, and the world is stopped often."""
    done = threading.Event()

    def collect() -> None:
        while not done.wait(0.001):
            gc.collect()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    collector = threading.Thread(target=collect)
    collector.start()
    yield
    done.set()
    collector.join()
    sys.setswitchinterval(before)


def together(*calls: Call) -> None:
    """Makes all of these calls at once, each in a thread of its own; all have to come to their end, and none may fail."""
    begin = threading.Barrier(len(calls))
    failures: list[BaseException] = []

    def run(call: Call) -> None:
        begin.wait()
        try:
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if failures:
            raise failures[0]
        assert not thread.is_alive(), "a call hangs"
    if failures:
        raise failures[0]


def ends(transport: str, *, records: bool = False) -> tuple[onecopy.Connection, onecopy.Connection]:
    """A pair, whose calls wait for a minute at most."""
    if transport == "stack":
        near, far = onecopy.Stack.pair()
        with far.listen(MORE) as listener:
            one, other = near.connect(MORE), listener.accept()
    else:
        one, other = onecopy.pair(records=records, transport=transport)
    one.settimeout(60)
    other.settimeout(60)
    return one, other


def look(*connections: onecopy.Connection) -> None:
    """All that is only asked."""
    for one in connections:
        assert one.stats() and one.path and repr(one) and one.policy
        assert one.copies_per_byte is None or one.copies_per_byte >= 0
        one.settimeout(60)
        assert one.gettimeout() == 60


@pytest.mark.parametrize("transport", ["auto", "kernel"])
def test_records_of_many_to_many(transport: str) -> None:
    one, other = ends(transport, records=True)
    each, size = 150, 800
    held: queue.SimpleQueue[object] = queue.SimpleQueue()
    got: list[bytes] = []
    tickets = itertools.count()

    def send(sender: int) -> None:
        for turn in range(each):
            one.send(f"{sender} {turn} ".encode().ljust(size, b"."))

    def receive(way: int) -> None:
        while next(tickets) < THREADS * each:
            if way == 0:
                got.append(other.recv())
            elif way == 1:
                room = bytearray(size)
                assert other.recv_into(room) == size
                got.append(bytes(room))
            elif way == 2:
                view = other.recv_borrowed()
                memory = memoryview(view)
                got.append(bytes(memory))
                held.put((view, memory))
            else:
                tensor = other.recv(shape=(size,), dtype="uint8")
                got.append(tensor.view.tobytes())
                held.put((tensor, tensor.__dlpack__(max_version=(1, 0))))

    def let_go() -> None:
        # Dropped by another thread than the one that received it, and not in order.
        kept: list[object] = []
        while (one := held.get()) is not None:
            kept.append(one)
            if len(kept) > 7:
                kept.pop(3)

    sending = threading.Event()

    def look_on() -> None:
        while not sending.is_set():
            look(one, other)

    def send_and_receive() -> None:
        together(
            *(lambda n=n: send(n) for n in range(THREADS)), *(lambda n=n: receive(n) for n in range(THREADS))
        )
        sending.set()
        held.put(None)

    together(send_and_receive, let_go, look_on)
    assert sorted(got) == sorted(
        f"{sender} {turn} ".encode().ljust(size, b".") for sender in range(THREADS) for turn in range(each)
    )


@pytest.mark.parametrize("transport", ["auto", "kernel", "stack"])
def test_a_stream_of_many_to_many(transport: str) -> None:
    one, other = ends(transport)
    each = 400_000
    counts: collections.Counter[int] = collections.Counter()
    lock = threading.Lock()

    def send(byte: int) -> None:
        for length in (1, 3000, 50_000, each - 53_001):
            one.sendall(bytes([byte]) * length)

    def receive(way: int) -> None:
        kept: collections.deque[object] = collections.deque(maxlen=3)
        while True:
            if way % 3 == 0:
                data = other.recv(30_000)
            elif way % 3 == 1:
                room = bytearray(10_000)
                data = bytes(room[: other.recv_into(room)])
            else:
                view = other.recv_borrowed(20_000)
                memory = memoryview(view)
                data = bytes(memory)
                kept.append(memory)
            with lock:
                counts.update(data)
            if not data:
                return

    def send_all() -> None:
        together(*(lambda n=n: send(n) for n in range(THREADS)))
        one.shutdown("write")

    def look_on() -> None:
        for _ in range(50):
            look(one, other)

    together(send_all, *(lambda n=n: receive(n) for n in range(THREADS)), look_on)
    assert counts == {byte: each for byte in range(THREADS)}


def test_all_is_asked_of_a_connection_while_a_receive_of_it_waits() -> None:
    for transport in ("auto", "kernel", "stack"):
        one, other = ends(transport)
        one.sendall(b"held")
        view = other.recv_borrowed()
        began = threading.Event()

        def receive() -> None:
            began.set()
            assert other.recv(10) == b"late"

        def ask() -> None:
            began.wait()
            for _ in range(10):
                look(one, other)
                gc.collect()
            assert bytes(view) == b"held"
            view.release()
            one.sendall(b"late")

        together(receive, ask)


def test_one_view_is_looked_at_and_released_by_many() -> None:
    one, other = ends("auto")
    for turn in range(60):
        one.sendall(PATTERN[turn : turn + 5000])
        view = other.recv_borrowed()
        released: list[int] = []

        def look_at(view: onecopy.View = view, turn: int = turn) -> None:
            for _ in range(20):
                try:
                    with memoryview(view) as memory:
                        assert memory == PATTERN[turn : turn + 5000]
                    assert view.tobytes() == PATTERN[turn : turn + 5000]
                    tensor = view.as_tensor((5000,), "uint8")
                    del tensor
                except ValueError:
                    return  # released

        def release(view: onecopy.View = view, released: list[int] = released) -> None:
            while True:
                try:
                    view.release()
                    released.append(1)
                    return
                except BufferError:
                    pass  # somebody looks

        together(look_at, look_at, look_at, release, release)
        assert released == [1, 1]
        with pytest.raises(ValueError, match="released"):
            memoryview(view)


def test_tensors_are_taken_and_let_go_by_many() -> None:
    numpy = pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    one, other = ends("auto", records=True)
    arrays: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def let_go() -> None:
        while (array := arrays.get()) is not None:
            assert array.sum() == array.size * array[0, 0]
            del array

    def take(tensor: onecopy.Tensor) -> None:
        for turn in range(10):
            if turn % 3:
                arrays.put(numpy.from_dlpack(tensor))
            else:
                tensor.__dlpack__(max_version=(1, 0))  # nobody takes it

    def receive() -> None:
        for turn in range(60):
            one.send(numpy.full((16, 32), turn, dtype="float32"))
            tensor = other.recv(shape=(16, 32), dtype="float32")
            together(*([lambda tensor=tensor: take(tensor)] * THREADS))
        arrays.put(None)
        arrays.put(None)

    together(receive, let_go, let_go)


def test_one_reservation_at_a_time_however_many_ask() -> None:
    one, other = ends("auto")
    sent: list[int] = []
    refused: list[int] = []

    def reserve(number: int) -> None:
        for turn in range(100):
            try:
                room = one.reserve(64)
            except BufferError:
                refused.append(number)
                continue
            with memoryview(room) as memory:
                memory[:] = bytes([number]) * len(memory)
            if turn % 5:
                sent.append(room.commit())
            else:
                room.cancel()

    def receive() -> None:
        while data := other.recv(64):
            assert data == bytes([data[0]]) * len(data)

    def reserve_all() -> None:
        together(*(lambda n=n: reserve(n) for n in range(THREADS)))
        one.shutdown("write")

    together(reserve_all, receive)
    assert other.stats()["received"] == sum(sent) and len(sent) + len(refused) <= THREADS * 100
    # And one is committed once.
    one, other = ends("auto")
    room = one.reserve(8)
    done: list[int] = []

    def commit() -> None:
        try:
            done.append(room.commit())
        except ValueError:
            done.append(0)

    together(*([commit] * THREADS))
    assert sorted(done) == [0, 0, 0, 8] and other.recv(100) == bytes(8)


def is_closed(error: OSError) -> bool:
    """What a call says of a connection that this program, or its peer, has ended."""
    return error.errno in (errno.EBADF, errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)


@pytest.mark.parametrize("transport", ["auto", "kernel", "stack"])
def test_a_connection_is_closed_while_others_use_it(transport: str) -> None:
    for _ in range(10):
        one, other = ends(transport)

        def use(call: Callable[[onecopy.Connection], object]) -> Call:
            def run(one: onecopy.Connection = one) -> None:
                try:
                    while True:
                        call(one)
                except OSError as error:
                    assert is_closed(error), error

            return run

        def close(one: onecopy.Connection = one, other: onecopy.Connection = other) -> None:
            try:
                for _ in range(5):
                    one.stats()
                one.shutdown("both")  # which ends the calls that wait
            except OSError as error:
                assert is_closed(error), error
            one.close()
            one.close()
            other.close()
            assert one.closed and one.fileno() == -1

        together(
            use(lambda one: one.sendall(PATTERN[:3000])),
            use(lambda one: one.recv(100) or one.stats()),
            use(lambda one: one.recv_borrowed(100) or one.stats()),
            use(look),
            close,
            close,
        )


def until_closed(call: Call) -> Call:
    """Calls it until what it is a call of is closed."""

    def run() -> None:
        while True:
            try:
                call()
            except TimeoutError:
                pass
            except OSError as error:
                assert error.errno == errno.EBADF, error
                return

    return run


def test_listeners_and_sockets_of_datagrams_are_closed_while_others_use_them() -> None:
    near, far = onecopy.Stack.pair()
    client = near.udp()
    for port in range(1000, 1010):
        listener, udp = far.listen(f"tcp://10.0.0.2:{port}"), far.udp(f"udp://10.0.0.2:{port}")
        listener.settimeout(0.001)
        udp.settimeout(0.001)

        def close(
            listener: onecopy.Listener = listener, udp: onecopy.UdpSocket = udp, port: int = port
        ) -> None:
            for _ in range(5):
                client.send_to(b"datagram", f"udp://10.0.0.2:{port}")
            udp.close()
            listener.close()

        together(
            until_closed(listener.accept),
            until_closed(lambda listener=listener: listener.address),  # type: ignore[misc]
            until_closed(udp.recv_from),
            until_closed(lambda udp=udp: (udp.recv_from_into(bytearray(8)), udp.stats())),  # type: ignore[misc]
            close,
            close,
        )


def test_fragments_and_sends_of_a_devices_memory_between_threads(world: World) -> None:
    source = onecopy.DeviceMemory.opaque(len(PATTERN))
    source.write_at(0, PATTERN)
    total = 4 * len(PATTERN)
    fragments: queue.SimpleQueue[onecopy.Fragment | None] = queue.SimpleQueue()
    sends: queue.SimpleQueue[onecopy.Sent | None] = queue.SimpleQueue()
    sums: list[int] = []
    with world.bind() as binding, world.near.bind_tx(source) as tx:
        sender, receiver = world.connected()

        def send() -> None:
            for turn in range(THREADS):
                for at in range(0, len(PATTERN), 65536):
                    sent = sender.send_device(tx, [(at, 65536)])
                    assert len(sent) == 65536
                    for _ in range(2):
                        sends.put(sent)
            sends.put(None)
            sends.put(None)

        def wait() -> None:
            while (sent := sends.get()) is not None:
                assert sent.wait(60) and sent.done and sent.copied

        def receive() -> None:
            have = 0
            while have < total:
                frags = receiver.recv_frags(50_000)
                have += len(frags)
                for fragment in frags.device:
                    fragments.put(fragment)
                assert binding.promised >= 0 and receiver.tokens_held >= 0
            for _ in range(THREADS):
                fragments.put(None)

        def give_back(way: int) -> None:
            while (fragment := fragments.get()) is not None:
                sums.append(sum(fragment.tobytes()))
                if way == 0:
                    assert receiver.dont_need([fragment]) == 1
                elif way == 1:
                    assert receiver.dont_need([fragment.token]) == 1

        together(send, wait, wait, receive, *(lambda n=n: give_back(n) for n in range(THREADS)))
        assert sum(sums) == 4 * sum(PATTERN)
        del fragments, sends, sender, receiver
    gc.collect()
    assert world.all_home() and source.free == source.nbytes


def test_a_binding_is_closed_while_others_send_from_it(world: World) -> None:
    for _ in range(5):
        memory = onecopy.DeviceMemory.opaque(1 << 20)
        tx = world.near.bind_tx(memory)
        sender, receiver = world.connected(MORE)

        def send(tx: onecopy.TxBinding = tx, sender: onecopy.Connection = sender) -> None:
            try:
                while True:
                    sender.send_device(tx, [(0, 10_000)])
            except OSError as error:
                assert error.errno == errno.EBADF, error

        def receive(tx: onecopy.TxBinding = tx, receiver: onecopy.Connection = receiver) -> None:
            for _ in range(20):
                receiver.recv(10_000)
            tx.close()

        def drain(receiver: onecopy.Connection = receiver) -> None:
            while receiver.recv(100_000):
                pass

        def work(send: Call = send, receive: Call = receive, sender: onecopy.Connection = sender) -> None:
            together(send, send, receive)
            sender.shutdown("write")

        together(work, drain)
        sender.close()
        receiver.close()


def test_an_event_loop_in_each_thread() -> None:
    async def main() -> None:
        one, other = aio.pair(records=True)
        async with one, other:

            async def send() -> None:
                for turn in range(50):
                    await one.send(f"{turn}".encode())
                    await asyncio.sleep(0)
                one.close()

            sending = asyncio.create_task(send())
            got = [bytes(view) async for view in other]
            await sending
            assert got == [f"{turn}".encode() for turn in range(50)]

    together(*([lambda: asyncio.run(asyncio.wait_for(main(), 60))] * THREADS))
