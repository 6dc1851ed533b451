"""Streams and records between two ends, and between processes."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
from conftest import is_interrupted

import onecopy

PATTERN = bytes(range(256)) * 4096

each_transport = pytest.mark.parametrize("transport", ["auto", "kernel", "tcp", "stack"])


def pair_of(transport: str) -> tuple[onecopy.Connection, onecopy.Connection]:
    """Two ends of a stream of each_transport."""
    if transport == "tcp":
        with onecopy.listen("tcp://127.0.0.1:0") as listener:
            return onecopy.connect(listener.address), listener.accept()
    if transport == "stack":
        near, far = onecopy.Stack.pair()
        with far.listen("tcp://10.0.0.2:80") as listener:
            return near.connect(listener.address), listener.accept()
    return onecopy.pair(transport=transport)


def test_a_stream_goes_both_ways_and_ends(address: str) -> None:
    with onecopy.listen(address) as listener:
        assert listener.address == address
        with onecopy.connect(address) as client, listener.accept() as server:
            assert client.send(b"ping") == 4
            assert server.recv(100) == b"ping"
            server.sendall(bytearray(b"pong"))
            assert client.recv_borrowed().tobytes() == b"pong"
            client.shutdown("write")
            assert server.recv(1) == b""


def test_large_sends_arrive_whole_over_shared_memory(address: str) -> None:
    with onecopy.listen(address) as listener, onecopy.connect(address) as client:
        client.sendall(b"!")  # the switch to shared memory rides on a first byte of each side
        server = listener.accept()
        assert server.recv(1) == b"!"
        server.sendall(b"?")
        assert client.recv(1) == b"?"
        sender = threading.Thread(target=client.sendall, args=(PATTERN,))
        sender.start()
        got = bytearray()
        while len(got) < len(PATTERN):
            with server.recv_borrowed() as view:
                got += view
        sender.join()
        assert got == PATTERN
        server.sendall(b".")
        assert client.recv(1) == b"."
        assert server.path == client.path == "shared memory"
        counts = client.stats()
        assert counts["user_copied_in"] > 0 and counts["sent"] == len(PATTERN) + 1
        server.close()


@pytest.mark.parametrize("transport", ["auto", "kernel"])
def test_records_stay_apart(transport: str) -> None:
    one, other = onecopy.pair(records=True, transport=transport)
    for record in (b"a", b"bc", PATTERN[:5000]):
        assert one.send(record) == len(record)
    one.close()
    assert [bytes(view) for view in other] == [b"a", b"bc", PATTERN[:5000]]


def test_a_record_longer_than_asked_for_is_an_error() -> None:
    one, other = onecopy.pair(records=True)
    one.send(b"12345")
    with pytest.raises(OSError) as caught:
        other.recv(4)
    assert caught.value.errno == errno.EMSGSIZE
    one.send(b"1234")
    assert other.recv(4) == b"1234"


def test_recv_into_writes_where_it_is_told() -> None:
    one, other = onecopy.pair()
    one.send(b"abcdef", onecopy.NTCOPY)
    room = bytearray(8)
    assert other.recv_into(memoryview(room)[2:6]) == 4
    assert bytes(room) == b"\0\0abcd\0\0"
    with pytest.raises(BufferError, match="read-only"):
        other.recv_into(b"1234")
    with pytest.raises(BufferError, match="contiguous"):
        other.send(memoryview(b"12345678")[::2])
    with pytest.raises(TypeError):
        other.send("text")  # type: ignore[arg-type]


@each_transport
def test_recv_into_waits_for_all_as_sockets_do(transport: str) -> None:
    one, other = pair_of(transport)
    assert onecopy.WAITALL == socket.MSG_WAITALL
    for end in (one, other):
        end.settimeout(60)
    room = bytearray(len(PATTERN))

    def send_in_pieces() -> None:
        for at in range(0, len(PATTERN), 50_000):
            one.sendall(PATTERN[at : at + 50_000])

    sender = threading.Thread(target=send_in_pieces)
    sender.start()
    held = other.recv_borrowed(100)  # is copied out while it waits
    assert other.recv_into(memoryview(room)[len(held) :], onecopy.WAITALL) == len(PATTERN) - len(held)
    sender.join()
    assert bytes(held) + room[len(held) :] == PATTERN
    # What is there, where it is not to wait, and at the timeout; nothing is lost then.
    one.sendall(b"abc")
    few = bytearray(8)
    have = 0
    while not have:
        try:
            have = other.recv_into(few, onecopy.WAITALL | onecopy.DONTWAIT)
        except BlockingIOError:
            pass
    assert have == 3 and few[:3] == b"abc"
    with pytest.raises(BlockingIOError):
        other.recv_into(few, onecopy.WAITALL | onecopy.DONTWAIT)
    other.settimeout(0.05)
    with pytest.raises(TimeoutError):
        other.recv_into(few, onecopy.WAITALL)
    one.sendall(b"def")
    assert other.recv_into(few, onecopy.WAITALL) == 3 and few[:3] == b"def"
    # The end.
    other.settimeout(60)
    one.sendall(b"ghi")
    one.close()
    assert other.recv_into(few, onecopy.WAITALL) == 3 and few[:3] == b"ghi"
    assert other.recv_into(few, onecopy.WAITALL) == 0


@pytest.mark.parametrize("then", ["recv_into", "recv_frags", "tensor"])
def test_a_reset_behind_what_waited_for_all_is_told_once(then: str) -> None:
    near, far = onecopy.Stack.pair()
    listener = far.listen("tcp://10.0.0.2:80")
    one, other = near.connect(listener.address, timeout=60), listener.accept()
    other.settimeout(60)
    other.sendall(b"unread")
    while len(one.recv_frags(6, onecopy.PEEK)) < 6:
        pass
    one.sendall(b"abc")
    while len(other.recv_frags(3, onecopy.PEEK)) < 3:
        pass
    if then == "tensor":
        threading.Timer(0.05, one.close).start()
        # Of a tensor the bytes come behind it, and it is told behind these again.
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                other.recv(shape=(8,), dtype="uint8")
        assert other.recv(8) == b"abc"
        with pytest.raises(ConnectionResetError):
            other.recv(8)
        assert other.recv(8) == b""
        return
    threading.Timer(0.05, one.close).start()
    few = bytearray(8)
    assert other.recv_into(few, onecopy.WAITALL) == 3 and few[:3] == b"abc"
    with pytest.raises(ConnectionResetError):
        other.recv_into(few) if then == "recv_into" else other.recv_frags()
    assert other.recv_into(few) == 0


@each_transport
def test_the_timeout_is_of_all_that_is_waited_for(transport: str) -> None:
    one, other = pair_of(transport)
    other.settimeout(0.3)
    done = threading.Event()

    def trickle() -> None:
        while not done.wait(0.05):
            one.sendall(b"x")

    sender = threading.Thread(target=trickle)
    sender.start()
    began = time.monotonic()
    have = other.recv_into(bytearray(400), onecopy.WAITALL)
    took = time.monotonic() - began
    done.set()
    sender.join()
    assert 0 < have < 400 and took < 10, (have, took)


@each_transport
def test_a_tensor_that_does_not_come_as_a_whole_takes_nothing(transport: str) -> None:
    one, other = pair_of(transport)
    one.settimeout(60)
    one.sendall(b"abc")
    other.settimeout(0.05)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            other.recv(shape=(8,), dtype="uint8")
    one.sendall(b"de")
    with pytest.raises(BlockingIOError):
        other.recv(flags=onecopy.DONTWAIT, shape=(8,), dtype="uint8")
    other.settimeout(60)
    few = bytearray(2)
    assert other.recv_into(few, onecopy.WAITALL) == 2 and few == b"ab"
    threading.Timer(0.05, one.sendall, (b"fghij",)).start()
    assert bytes(other.recv(shape=(8,), dtype="uint8").view) == b"cdefghij"
    # Nor does one that there is no memory for.
    one.sendall(b"abc")
    with pytest.raises(MemoryError):
        other.recv(shape=(1 << 50,), dtype="uint8")
    assert other.recv_into(few, onecopy.WAITALL) == 2 and few == b"ab"
    assert bytes(other.recv(shape=(0,), dtype="uint8").view) == b"" and other.recv(8) == b"c"


@each_transport
@pytest.mark.parametrize("what", ["tensor", "recv_into"])
def test_an_exception_of_a_signal_takes_nothing(transport: str, what: str) -> None:
    one, other = pair_of(transport)
    one.sendall(b"abc")
    other.settimeout(60)

    def handle(*_: object) -> None:
        raise ConnectionError("of a handler's")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ConnectionError, match="of a handler's"):
            if what == "tensor":
                other.recv(shape=(8,), dtype="uint8")
            else:
                other.recv_into(bytearray(8), onecopy.WAITALL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    one.sendall(b"d")
    room = bytearray(4)
    assert other.recv_into(room, onecopy.WAITALL) == 4 and room == b"abcd"
    with pytest.raises(BlockingIOError):
        other.recv(1, onecopy.DONTWAIT)


def test_what_a_tensor_leaves_is_not_for_a_child() -> None:
    one, other = onecopy.pair()
    one.sendall(b"of the parent")
    with pytest.raises(BlockingIOError):
        other.recv(flags=onecopy.DONTWAIT, shape=(100,), dtype="uint8")
    if (child := os.fork()) == 0:
        try:
            other.recv(100, onecopy.DONTWAIT)
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert other.recv(100) == b"of the parent"


def test_a_signal_does_not_cut_what_waits_for_all() -> None:
    one, other = onecopy.pair()
    one.sendall(b"12345")
    seen = []

    def handle(*_: object) -> None:
        seen.append(other)
        if len(seen) == 3:
            one.sendall(b"678")
            signal.setitimer(signal.ITIMER_REAL, 0)

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        room = bytearray(8)
        assert other.recv_into(room, onecopy.WAITALL) == 8 and room == b"12345678"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    is_interrupted("""
import onecopy
one, other = onecopy.pair()
one.sendall(b"12345")
other.recv_into(bytearray(8), onecopy.WAITALL)
""")


def test_records_come_one_by_one_though_all_is_asked_for() -> None:
    one, other = onecopy.pair(records=True)
    one.send(b"12")
    one.send(b"34")
    room = bytearray(8)
    assert other.recv_into(room, onecopy.WAITALL) == 2


def test_reserved_room_is_written_in_place_and_sent_by_commit() -> None:
    one, other = onecopy.pair()
    with one.reserve(16) as room:
        assert len(room) == 16 and room.in_place
        with pytest.raises(BufferError, match="reservation"):
            one.send(b"in between")
        with memoryview(room) as memory:
            memory[:4] = b"here"
            with pytest.raises(BufferError, match="release"):
                room.commit(4)
        assert room.commit(4) == 4
    assert other.recv(100) == b"here"
    assert one.stats()["user_copied_in"] == 0
    with pytest.raises(ZeroDivisionError):
        with one.reserve(16):
            1 / 0
    with pytest.raises(ValueError, match="reserve again"):
        memoryview(room)
    with pytest.raises(ValueError, match="room for 8"):
        one.reserve(8).commit(9)
    one.send(b"after")
    assert other.recv(100) == b"after"  # what was not committed was not sent


def test_reserved_room_over_the_kernel_and_over_the_wrap() -> None:
    one, other = onecopy.pair(transport="kernel")
    with one.reserve(10) as room, memoryview(room) as memory:
        memory[:] = b"0123456789"
    assert other.recv(10) == b"0123456789"

    one, other = onecopy.pair(receive_buffer=4096, send_buffer=4096)
    seen = set()
    for turn in range(20):
        room = one.reserve(3000)
        seen.add(room.in_place)
        with memoryview(room) as memory:
            memory[:] = PATTERN[turn : turn + len(room)]
        assert room.commit() == len(room)
        assert other.recv(5000) == PATTERN[turn : turn + len(room)]
    assert seen == {True, False}


def test_errors_are_exceptions_of_the_right_kind(address: str) -> None:
    with pytest.raises(FileNotFoundError):
        onecopy.connect(address)
    onecopy.listen(address).close()
    with pytest.raises(ConnectionRefusedError):
        onecopy.connect(address)
    with pytest.raises(OSError) as caught:
        onecopy.listen(address)
    assert caught.value.errno == errno.EADDRINUSE
    for wrong in ("/path", "udp://host:1", "unix:" + "x" * 200):
        with pytest.raises((ValueError, OSError)):
            onecopy.connect(wrong)
    with pytest.raises(ValueError, match="transport"):
        onecopy.pair(transport="pigeon")
    with pytest.raises(ValueError, match="records"):
        onecopy.connect("tcp://127.0.0.1:1", records=True)
    for call in (onecopy.connect, onecopy.listen):
        for wrong in ("tcp://localhost", "tcp://:80", "tcp://localhost:http", "tcp://localhost:65536", "tcp://::1:80"):
            with pytest.raises(ValueError, match="write tcp://host:port"):
                call(wrong)
        with pytest.raises(socket.gaierror):
            call("tcp://no-such-host.invalid:80")

    one, other = onecopy.pair()
    with pytest.raises(BlockingIOError):
        one.recv(1, onecopy.DONTWAIT)
    one.settimeout(0)
    with pytest.raises(BlockingIOError):
        one.recv(1)
    one.settimeout(0.01)
    assert one.gettimeout() == pytest.approx(0.01)
    with pytest.raises(TimeoutError):
        one.recv(1)
    with pytest.raises(ValueError, match="seconds"):
        one.settimeout(-1)
    one.send(b"unread")
    other.close()
    with pytest.raises(ConnectionResetError):
        one.recv(1)
    with pytest.raises(BrokenPipeError):
        one.send(b"x")
    one.close()
    assert one.closed and one.fileno() == -1
    with pytest.raises(OSError) as closed:
        one.send(b"x")
    assert closed.value.errno == errno.EBADF


def test_accept_waits_no_longer_than_it_is_told(address: str) -> None:
    with onecopy.listen(address) as listener:
        listener.settimeout(0.01)
        with pytest.raises(TimeoutError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            listener.accept(onecopy.DONTWAIT)


def test_a_plain_socket_is_served_by_the_kernel(address: str) -> None:
    with onecopy.listen(address) as listener, socket.socket(socket.AF_UNIX) as plain:
        plain.connect(address.removeprefix("unix:"))
        with listener.accept() as server:
            plain.sendall(b"plain")
            assert server.recv(10) == b"plain"
            server.sendall(b"reply")
            assert plain.recv(10) == b"reply"
            assert server.path == "kernel"
            assert server.copies_per_byte is not None and server.copies_per_byte >= 1


def test_other_threads_run_while_one_waits() -> None:
    one, other = onecopy.pair()
    got: list[bytes] = []
    receiver = threading.Thread(target=lambda: got.append(other.recv(10)))
    receiver.start()
    one.send(b"late")  # this thread would never come here if the other one kept the GIL
    receiver.join()
    assert got == [b"late"]


def test_ctrl_c_ends_a_call_that_waits() -> None:
    program = (
        "import onecopy, signal, sys\n"
        "one, other = onecopy.pair()\n"
        "try:\n"
        "    print('waiting', flush=True)\n"
        "    one.recv(1)\n"
        "except KeyboardInterrupt:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    one.send(b'alive')\n"
        "    sys.exit(0 if other.recv(5) == b'alive' else 1)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"waiting\n"
    while True:  # the signal may come before it waits: another one is no harm
        child.send_signal(signal.SIGINT)
        try:
            assert child.wait(0.2) == 0
            break
        except subprocess.TimeoutExpired:
            pass


def test_a_signal_that_raises_nothing_ends_no_call() -> None:
    heard: list[int] = []
    one, other = onecopy.pair()
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        late = threading.Thread(target=lambda: one.send(b"x") if wait_for(lambda: len(heard) >= 3) else 0)
        late.start()
        assert other.recv(1) == b"x"
        late.join()
        other.settimeout(0.05)
        with pytest.raises(TimeoutError):
            other.recv(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(heard) >= 3


def wait_for(condition: Callable[[], bool]) -> bool:
    while not condition():
        time.sleep(0.001)
    return True


def test_a_forked_child_uses_its_end() -> None:
    one, other = onecopy.pair()
    one.send(b"before")
    assert other.recv(6) == b"before"
    child = os.fork()
    if child == 0:
        try:
            one.close()
            other.sendall(PATTERN)
            os._exit(0 if other.recv(2) == b"ok" else 1)
        finally:
            os._exit(2)
    got = bytearray()
    while len(got) < len(PATTERN):
        got += one.recv(1 << 16)
    one.sendall(b"ok")
    assert os.waitpid(child, 0)[1] == 0
    assert got == PATTERN


def test_a_hosts_name_is_looked_up() -> None:
    with onecopy.listen("tcp://localhost:0") as listener:
        port = listener.address.rsplit(":", 1)[1]
        with onecopy.connect(f"tcp://localhost:{port}", timeout=20) as client, listener.accept() as server:
            client.sendall(b"by name")
            assert server.recv(7) == b"by name"


def test_tcp_over_the_kernel() -> None:
    with onecopy.listen("tcp://127.0.0.1:0") as listener:
        with onecopy.connect(listener.address, timeout=20) as client, listener.accept() as server:
            sender = threading.Thread(target=client.sendall, args=(PATTERN,))
            sender.start()
            got = bytearray()
            while len(got) < len(PATTERN):
                got += server.recv_borrowed()
            sender.join()
            assert got == PATTERN and server.path == "kernel"
            assert server.stats()["received"] == len(PATTERN) and server.copies_per_byte == 1
            with server.reserve(3) as room, memoryview(room) as memory:
                memory[:] = b"end"
            server.close()
            assert client.recv(10) == b"end" and client.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        onecopy.connect(f"tcp://127.0.0.1:{free_port()}", timeout=20)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        assert isinstance(port, int)
        return port
