"""Two stacks and a device's memory between them: what the tests of device memory share."""

import pytest

import onecopy

PATTERN = bytes(n * 7 % 251 for n in range(1 << 20))
SERVER = "tcp://10.0.0.2:5201"
MORE = "tcp://10.0.0.2:80"  # a port that nobody steers


class World:
    """Two stacks on a cable. Flows to SERVER come to queue 1 of the far one, which memory can be bound to."""

    def __init__(self, size: int = 1 << 20) -> None:
        """Binds nothing yet."""
        self.near, self.far = onecopy.Stack.pair()
        self.far.set_queues(2)
        self.far.steer(SERVER, 1)
        self.memory = onecopy.DeviceMemory.opaque(size, 7)

    def bind(self) -> onecopy.Binding:
        """Binds the memory to queue 1."""
        return self.far.bind_rx(self.memory, [1])

    def connected(self, address: str = SERVER) -> tuple[onecopy.Connection, onecopy.Connection]:
        """The sender's end, and the receiver's."""
        with self.far.listen(address) as listener:
            sender = self.near.connect(address, timeout=60)
            receiver = listener.accept()
        receiver.settimeout(60)
        return sender, receiver

    def all_home(self) -> bool:
        """Whether all pages are free, but for the one that small pieces are cut from."""
        return self.memory.free + 4096 >= self.memory.nbytes


def fails(number: int, call: object, *arguments: object) -> None:
    """Whether a call raises OSError with that errno, and says what to do."""
    assert callable(call)
    with pytest.raises(OSError) as raised:
        call(*arguments)
    assert raised.value.errno == number and len(str(raised.value)) > 40, raised.value


def received(receiver: onecopy.Connection, length: int) -> bytes:
    """So many bytes, wherever they lie."""
    got = b""
    while len(got) < length:
        with receiver.recv_frags(length - len(got)) as frags:
            assert frags, "the end came early"
            got += frags.tobytes()
    return got
