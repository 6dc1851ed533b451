"""Views and tensors: in place, read-only, and never under the feet of who holds them."""

import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

import onecopy

PATTERN = bytes(range(256)) * 64


class Buffer(ctypes.Structure):
    """The first fields of Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("rest", ctypes.c_char * 128),
    ]


def where(memory: memoryview) -> int:
    """The address of the first byte."""
    buffer = Buffer()
    api = ctypes.pythonapi
    api.PyObject_GetBuffer.argtypes = [ctypes.py_object, ctypes.POINTER(Buffer), ctypes.c_int]
    api.PyBuffer_Release.argtypes = [ctypes.POINTER(Buffer)]
    assert api.PyObject_GetBuffer(memory, buffer, 0) == 0
    at = int(buffer.buf)
    api.PyBuffer_Release(buffer)
    return at


def test_a_view_is_read_only_and_in_place() -> None:
    one, other = onecopy.pair()
    one.send(b"in place")
    view = other.recv_borrowed()
    assert view.in_place and len(view) == 8 and view
    with memoryview(view) as memory:
        assert memory.readonly and bytes(memory) == b"in place"
        with pytest.raises(TypeError):
            memory[0] = 1
        with pytest.raises(BufferError, match="still looks"):
            view.release()
    assert other.stats()["user_copied_out"] == 0
    with pytest.raises(BufferError):
        other.recv_into(view)
    view.release()
    with pytest.raises(ValueError, match="released"):
        bytes(view)
    with pytest.raises(ValueError, match="released"):
        memoryview(view)


def test_memory_stays_until_the_last_who_looks_is_gone() -> None:
    one, other = onecopy.pair()
    one.send(PATTERN)
    memory = memoryview(other.recv_borrowed())[1000:2000]
    one.close()
    other.close()
    del one, other
    gc.collect()
    assert bytes(memory) == PATTERN[1000:2000]


def test_views_that_nothing_looks_at_are_copied_out_before_the_peer_has_to_wait() -> None:
    one, other = onecopy.pair()
    one.settimeout(10)
    kept = []
    for turn in range(200):  # many times what the ring holds
        one.sendall(PATTERN[turn:])
        kept.append(other.recv_borrowed())
    assert all(bytes(view) == PATTERN[turn:] for turn, view in enumerate(kept))
    assert other.stats()["views_copied_out"] > 0
    assert not kept[0].in_place


def test_a_view_in_hand_does_not_stop_a_peer_that_needs_all_room() -> None:
    one, other = onecopy.pair(receive_buffer=4096, send_buffer=4096)
    one.send(b"small")
    held = other.recv_borrowed()

    def fill() -> None:
        for _ in range(2):  # the second one, at the latest, needs the room that is held
            with one.reserve(1 << 20):
                pass
        one.shutdown("write")

    sender = threading.Thread(target=fill)
    sender.start()
    other.settimeout(20)
    count = sum(len(view) for view in other)
    sender.join()
    assert count > 4096 and bytes(held) == b"small" and not held.in_place


def test_what_is_looked_at_for_long_keeps_its_address_and_stops_nobody() -> None:
    one, other = onecopy.pair(records=True)
    one.settimeout(10)
    kept = []
    for turn in range(200):  # many times what the ring holds
        one.send(PATTERN[turn:])
        memory = memoryview(other.recv_borrowed())
        kept.append((memory, where(memory)))
    assert other.stats()["views_copied_out"] > 0
    for turn, (memory, place) in enumerate(kept):
        assert bytes(memory) == PATTERN[turn:] and where(memory) == place


def test_a_forgotten_tensor_stops_nobody() -> None:
    one, other = onecopy.pair(records=True)
    one.settimeout(10)
    other.settimeout(10)
    one.send(PATTERN)
    forgotten = other.recv(shape=(len(PATTERN),), dtype="uint8")
    capsule = forgotten.__dlpack__(max_version=(1, 0))
    memory = memoryview(forgotten.view)
    place = where(memory)

    def send() -> None:
        for turn in range(300):
            one.send(PATTERN[turn:])
        one.shutdown("write")

    sender = threading.Thread(target=send)
    sender.start()
    for turn, view in enumerate(other):
        assert bytes(view) == PATTERN[turn:]
    sender.join()
    assert turn == 299
    assert not forgotten.in_place and bytes(memory) == PATTERN and where(memory) == place
    assert where(memoryview(forgotten.view)) == place and bytes(forgotten.view) == PATTERN
    with pytest.raises(BufferError, match="still looks"):
        forgotten.view.release()
    one.close()
    other.close()
    assert bytes(memory) == PATTERN
    memory.release()
    del capsule
    gc.collect()
    forgotten.view.release()


def test_who_reads_while_it_is_copied_sees_the_same_bytes() -> None:
    one, other = onecopy.pair(records=True)
    one.settimeout(10)
    wrong: list[bytes] = []
    current: list[memoryview] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for memory in current[-1:]:
                if (seen := bytes(memory)) != PATTERN:
                    wrong.append(seen)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(20):
            one.send(PATTERN)
            current[:] = [memoryview(other.recv_borrowed())]
            for turn in range(100):  # one that is held, and many that go at once: room goes back in order
                one.send(PATTERN[turn:])
                other.recv()
    finally:
        over.set()
        looking.join()
    assert not wrong
    assert other.stats()["views_copied_out"] >= 10  # but for those that wrapped


def test_what_wraps_is_one_buffer() -> None:
    one, other = onecopy.pair(receive_buffer=4096, send_buffer=4096)
    places = set()
    for turn in range(40):
        one.send(PATTERN[turn : turn + 3000])
        view = other.recv_borrowed()
        places.add(view.in_place)
        assert bytes(memoryview(view)) == PATTERN[turn : turn + len(view)]
        rest = 3000 - len(view)
        while rest:
            rest -= len(other.recv(rest))
    assert places == {True, False}
    assert other.stats()["user_copied_out"] > 0


def test_a_tensor_of_many_rings_comes_while_another_is_held() -> None:
    one, other = onecopy.pair(receive_buffer=4096, send_buffer=4096)
    for end in (one, other):
        end.settimeout(20)
    one.send(b"x" + bytes(7))
    small = other.recv(shape=(8,), dtype="uint8")
    capsule = small.__dlpack__(max_version=(1, 0))  # somebody looks at it
    whole = PATTERN * 4
    sender = threading.Thread(target=one.sendall, args=(whole,))
    sender.start()
    tensor = other.recv(shape=(len(whole),), dtype="uint8")
    sender.join()
    assert bytes(tensor.view) == whole and bytes(small.view) == b"x" + bytes(7)
    del capsule


def test_what_came_over_the_kernel_keeps_no_room(address: str) -> None:
    with onecopy.listen(address) as listener, onecopy.connect(address) as client, listener.accept() as server:
        client.sendall(b"early")
        early = server.recv_borrowed()
        first = memoryview(early)
        server.sendall(b"?")
        assert client.recv(1) == b"?"
        client.sendall(b"!")
        assert server.recv(1) == b"!" and not early.in_place
        for turn in range(100):  # many times what the ring holds
            client.sendall(PATTERN)
            before = server.recv_borrowed(len(PATTERN) // 2)
            rest = len(PATTERN) - len(before)
            while rest:
                rest -= len(server.recv_borrowed(rest))
            assert bytes(before) == PATTERN[: len(before)], turn
        assert "shared memory" in server.path and bytes(first) == b"early"
        assert server.stats()["views_copied_out"] == 0


def test_a_thread_that_waits_is_not_kept_waiting_by_what_another_holds() -> None:
    one, other = onecopy.pair(receive_buffer=4096, send_buffer=4096)
    for end in (one, other):
        end.settimeout(60)
    total = 256 << 10
    held: list[memoryview] = []
    while not held:
        got: list[bytes] = []
        waiter = threading.Thread(
            target=lambda: got.append(bytes(other.recv(shape=(total,), dtype="uint8").view))
        )
        waiter.start()
        sent = 0
        while sent < total + sum(len(memory) for memory in held):
            try:
                sent += one.send(bytes(min(512, total + sum(len(memory) for memory in held) - sent)))
                if not held and 4096 < sent < total // 2:
                    held.append(memoryview(other.recv_borrowed(100, onecopy.DONTWAIT)))
            except BlockingIOError:
                pass
        waiter.join()
        assert len(got[0]) == total


KEEP_MANY = """
import onecopy

one, other = onecopy.pair(records=True, receive_buffer=4096, send_buffer=4096)
one.settimeout(5)
kept = []
for turn in range(90_000):
    one.send(turn.to_bytes(4, "big") * 625)
    memory = memoryview(other.recv_borrowed())
    if turn % 2:  # apart: neighbours would share a mapping
        kept.append((turn, memory))
    del memory
for turn, memory in kept:
    assert bytes(memory) == turn.to_bytes(4, "big") * 625, turn
with open("/proc/self/maps") as maps:
    print(sum(1 for _ in maps))
"""


def test_who_keeps_tens_of_thousands_has_mappings_left_and_stops_nobody() -> None:
    limit = int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 100_000:
        pytest.skip(f"vm.max_map_count is {limit}: to use it up takes too long")
    # A program of its own: it would use up what all tests need.
    ran = subprocess.run([sys.executable, "-c", KEEP_MANY], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < limit / 3


def test_a_tensor_says_what_it_is() -> None:
    one, other = onecopy.pair(records=True)
    one.send(PATTERN)
    tensor = other.recv(shape=(64, 64), dtype="float32")
    assert tensor.shape == (64, 64) and tensor.dtype == "float32" and tensor.nbytes == 1 << 14
    assert tensor.in_place and bytes(tensor.view) == PATTERN
    assert tensor.__dlpack_device__() == (1, 0)
    capsule = tensor.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    with pytest.raises(BufferError, match="still looks"):
        tensor.view.release()
    del capsule  # nobody took it: it frees itself
    tensor.view.release()
    with pytest.raises(ValueError, match="released"):
        tensor.__dlpack__(max_version=(1, 0))


def test_a_tensor_of_bytes_that_are_not_aligned_is_a_counted_copy() -> None:
    one, other = onecopy.pair()
    one.send(b"x" + PATTERN[:160])
    assert other.recv(1) == b"x"
    view = other.recv_borrowed(80)
    odd = view.as_tensor((10,), "float64")
    assert view.in_place and not odd.in_place and bytes(odd.view) == PATTERN[:80]
    assert other.stats()["tensors_unaligned"] == 1
    received = other.recv(shape=(10,), dtype="float64")
    assert not received.in_place and bytes(received.view) == PATTERN[80:160]
    assert other.stats()["tensors_unaligned"] == 2 and other.stats()["user_copied_out"] == 1 + 160
    # Bytes need no alignment, and what is only of them is in place.
    one.send(PATTERN[:10])
    assert other.recv_borrowed().as_tensor((10,), "uint8").in_place
    assert other.stats()["tensors_unaligned"] == 2
    # Looked at when it was released, it is none.
    view.release()
    for kind, length in (("uint8", 80), ("float64", 10)):
        with pytest.raises(ValueError, match="released"):
            view.as_tensor((length,), kind).__dlpack__(max_version=(1, 0))


def test_who_pads_messages_sends_aligned_tensors(address: str) -> None:
    """Also behind messages that went over the kernel, before both sides shared memory."""
    with onecopy.listen(address) as listener, onecopy.connect(address) as client, listener.accept() as server:
        for _ in range(3):
            client.sendall(b"request".ljust(8))
            assert server.recv(8) == b"request "
            server.sendall(b"its answer".ljust(16) + PATTERN[:800])
            assert client.recv(16).strip() == b"its answer"
            tensor = client.recv(shape=(100,), dtype="float64")
            assert bytes(tensor.view) == PATTERN[:800]
        assert tensor.in_place and client.stats()["tensors_unaligned"] == 0


LENDER = os.environ.get("ONECOPY_LENDER")


@pytest.mark.skipif(LENDER is None, reason="ONECOPY_LENDER does not name the test's peer")
@pytest.mark.parametrize("looked_at", [False, True])
def test_pages_that_are_lent_are_in_place_and_go_home_when_they_are_needed(address: str, looked_at: bool) -> None:
    assert LENDER is not None
    size, frames = 64 << 10, 20
    with onecopy.listen(address) as listener:
        with subprocess.Popen([LENDER, address, str(frames)]) as lender:
            listener.settimeout(60)
            conn = listener.accept()
            conn.settimeout(60)
            conn.sendall(b"!")
            kept: list[tuple[onecopy.View, memoryview | None]] = []
            # The lender has three pages: who keeps three has to copy out before the next one comes.
            while len(kept) < frames:
                view = conn.recv_borrowed(size)
                assert view.in_place and len(view) == size
                kept.append((view, memoryview(view) if looked_at else None))
            assert conn.stats()["views_copied_out"] >= frames - 3
            for number, (view, memory) in enumerate(kept):
                assert bytes(view) == bytes([number]) * size
                assert memory is None or bytes(memory) == bytes([number]) * size
            # A tensor of a lent page.
            assert kept[-1][0].as_tensor((size // 8,), "int64").shape == (size // 8,)
            kept.clear()
            del view, memory
            gc.collect()
            assert lender.wait(60) == 0


def test_wrong_tensors_are_refused() -> None:
    one, other = onecopy.pair(records=True)
    one.send(PATTERN)
    with pytest.raises(TypeError, match="no type of tensors"):
        other.recv(shape=(1,), dtype="string")
    with pytest.raises(ValueError, match="no shape"):
        other.recv(shape=(-1,), dtype="int8")
    with pytest.raises(ValueError, match="no shape"):
        other.recv(shape=(1 << 40, 1 << 40), dtype="int8")
    with pytest.raises(TypeError, match="both"):
        other.recv(shape=(1,))  # type: ignore[call-overload]
    tensor = other.recv(shape=(len(PATTERN),), dtype="uint8")  # none of these took it
    for wrong in ({}, {"max_version": (0, 8)}, {"max_version": (1, 0), "copy": True}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**wrong)
    with pytest.raises(BufferError, match="CPU"):
        tensor.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    one.send(b"12")
    with pytest.raises(ValueError, match="2 bytes"):
        other.recv(shape=(1,), dtype="int32")
    one.send(b"12345678")
    with pytest.raises(OSError, match="longer"):
        other.recv(shape=(1,), dtype="int32")


def test_a_tensor_of_a_stream_is_whole() -> None:
    one, other = onecopy.pair()
    one.send(PATTERN[:100])
    one.send(PATTERN[100:])
    one.send(b"x" + PATTERN[:80])
    one.shutdown("write")
    first = other.recv(shape=(len(PATTERN) // 8,), dtype="int64")
    assert bytes(first.view) == PATTERN
    assert other.recv(1) == b"x"
    odd = other.recv(shape=(10,), dtype="float64")  # not aligned: a copy
    assert not odd.in_place and bytes(odd.view) == PATTERN[:80]
    with pytest.raises(EOFError, match="0 of 4"):
        other.recv(shape=(1,), dtype="int32")


def test_numpy_takes_it_without_a_copy() -> None:
    numpy = pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    one, other = onecopy.pair(records=True)
    sent = numpy.arange(1024, dtype="float32").reshape(32, 32)
    one.send(sent)
    tensor = other.recv(shape=sent.shape, dtype=sent.dtype)
    array = numpy.from_dlpack(tensor)
    assert (array == sent).all() and not array.flags.writeable and array.dtype == sent.dtype
    same = numpy.frombuffer(tensor.view, dtype="float32")
    assert same.__array_interface__["data"][0] == array.__array_interface__["data"][0]
    with pytest.raises(ValueError):
        array[0, 0] = 1
    with pytest.raises(BufferError, match="still looks"):
        tensor.view.release()
    del array, same
    gc.collect()
    tensor.view.release()
    assert other.stats()["user_copied_out"] == 0


def test_torch_takes_it_without_a_copy() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    one, other = onecopy.pair(records=True)
    sent = torch.arange(1024, dtype=torch.float16).reshape(32, 32)
    one.send(sent.numpy())
    tensor = other.recv(shape=sent.shape, dtype=sent.dtype)
    taken = torch.from_dlpack(tensor)
    assert torch.equal(taken, sent)
    assert other.stats()["user_copied_out"] == 0


def test_a_child_keeps_what_it_receives_in_place_though_a_thread_of_its_parent_waited() -> None:
    one, other = onecopy.pair()
    other.settimeout(2)
    waits = threading.Thread(target=lambda: pytest.raises(TimeoutError, other.recv, 1))
    waits.start()
    time.sleep(0.1)  # where that is too short, there is nothing to be seen
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.read(read, 1)  # the parent's thread is done
        other.settimeout(20)
        view = other.recv_borrowed()
        os._exit(0 if view.in_place and bytes(view) == b"for the child" else 1)
    waits.join()
    os.write(write, b"!")
    one.send(b"for the child")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
