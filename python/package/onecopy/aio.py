"""onecopy in asyncio: the event loop watches the readiness descriptor, and no thread waits for anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from . import _onecopy
from ._onecopy import DONTWAIT, Frags, Sent, Tensor, TxBinding, View

if TYPE_CHECKING:
    from ._onecopy import Buffer

__all__ = ["Connection", "Listener", "UdpSocket", "arrived", "connect", "listen", "pair"]

_T = TypeVar("_T")
_S = TypeVar("_S", _onecopy.Connection, _onecopy.Listener, _onecopy.UdpSocket)


async def _when_ready(fd: int, attempt: Callable[[], _T], *, writing: bool = False) -> _T:
    """Calls `attempt` whenever the descriptor is ready, until it does not say that it would wait."""
    while True:
        try:
            return attempt()
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[None] = loop.create_future()

            def wake() -> None:
                if not ready.done():
                    ready.set_result(None)

            add, remove = (
                (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
            )
            add(fd, wake)
            try:
                await ready
            finally:
                remove(fd)


class _Closing(Generic[_S]):
    """Closes what it has taken over at the end of `async with`."""

    def __init__(self, sync: _S) -> None:
        """Takes it over."""
        self.sync: _S = sync

    def close(self) -> None:
        """Closes it. No task may be in a call of it: cancel it first."""
        self.sync.close()

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()


class Connection(_Closing[_onecopy.Connection]):
    """A connection whose calls are awaited. One task receives, one sends: a second one waits for its turn."""

    def __init__(self, connection: _onecopy.Connection) -> None:
        """Takes the connection over: it does not wait any more by itself."""
        connection.settimeout(0)
        super().__init__(connection)
        self._receiving = asyncio.Lock()
        self._sending = asyncio.Lock()

    async def send(self, data: Buffer, flags: int = 0) -> int:
        """As the blocking send: returns how many bytes were sent, of a stream maybe fewer than all."""
        async with self._sending:
            return await _when_ready(
                self.sync.fileno(), lambda: self.sync.send(data, flags | DONTWAIT), writing=True
            )

    async def sendall(self, data: Buffer, flags: int = 0) -> None:
        """Sends all bytes. If it is cancelled, a part of them may have been sent."""
        with memoryview(data) as whole, whole.cast("B") as rest:
            async with self._sending:
                at = 0
                while True:
                    with rest[at:] as piece:
                        at += await _when_ready(
                            self.sync.fileno(), lambda: self.sync.send(piece, flags | DONTWAIT), writing=True
                        )
                    if at >= len(rest):
                        return

    async def send_device(
        self, binding: TxBinding, ranges: Sequence[tuple[int, int]], flags: int = 0
    ) -> Sent:
        """Sends bytes of a device's memory: as many as there is room for, which len() says. `await arrived(sent)` tells when they have arrived."""
        async with self._sending:
            return await _when_ready(
                self.sync.fileno(), lambda: self.sync.send_device(binding, ranges, flags | DONTWAIT), writing=True
            )

    @overload
    async def recv(self, n: int | None = None, *, shape: None = None, dtype: None = None) -> bytes: ...
    @overload
    async def recv(self, *, shape: Sequence[int], dtype: object) -> Tensor: ...
    async def recv(
        self, n: int | None = None, *, shape: Sequence[int] | None = None, dtype: object = None
    ) -> bytes | Tensor:
        """Receives bytes, or with shape= and dtype= a tensor, of a stream when all of it is there. A receive that is cancelled takes nothing: the next one gets what had come."""
        if shape is not None:
            wanted = shape
            async with self._receiving:
                return await _when_ready(
                    self.sync.fileno(), lambda: self.sync.recv(flags=DONTWAIT, shape=wanted, dtype=dtype)
                )
        async with self._receiving:
            return await _when_ready(self.sync.fileno(), lambda: self.sync.recv(n, DONTWAIT))

    async def recv_into(self, buffer: Buffer) -> int:
        """Receives into a writable buffer. Returns how many bytes came; 0 is the end of the stream."""
        async with self._receiving:
            return await _when_ready(self.sync.fileno(), lambda: self.sync.recv_into(buffer, DONTWAIT))

    async def recv_borrowed(self, n: int | None = None) -> View:
        """Receives in place."""
        async with self._receiving:
            return await _when_ready(self.sync.fileno(), lambda: self.sync.recv_borrowed(n, DONTWAIT))

    async def recv_frags(self, n: int = 1 << 20, flags: int = 0, *, most: int | None = None) -> Frags:
        """Receives by reference, on a connection of a Stack."""
        async with self._receiving:
            return await _when_ready(
                self.sync.fileno(), lambda: self.sync.recv_frags(n, flags | DONTWAIT, most=most)
            )

    def __aiter__(self) -> Connection:
        """Yields a View for each record, until the end."""
        return self

    async def __anext__(self) -> View:
        """The next record."""
        view = await self.recv_borrowed()
        if not view:
            raise StopAsyncIteration
        return view


async def arrived(sent: Sent) -> bool:
    """Waits until a send is complete. Returns True once the peer has all of it, and False where the connection has ended before."""
    return await _when_ready(sent.fileno(), lambda: sent.wait(0))


class UdpSocket(_Closing[_onecopy.UdpSocket]):
    """A socket of datagrams whose calls are awaited. Several tasks may use it: each datagram is whole."""

    def __init__(self, socket: _onecopy.UdpSocket) -> None:
        """Takes the socket over: it does not wait any more by itself."""
        socket.settimeout(0)
        super().__init__(socket)
        self._receiving = asyncio.Lock()
        self._sending = asyncio.Lock()

    async def send(self, data: Buffer, flags: int = 0) -> int:
        """Sends a datagram to whom the socket is connected to."""
        async with self._sending:
            return await _when_ready(
                self.sync.fileno(), lambda: self.sync.send(data, flags | DONTWAIT), writing=True
            )

    async def send_to(self, data: Buffer, address: str, flags: int = 0) -> int:
        """Sends a datagram to "udp://host:port". A host's name is looked up in the loop's thread: give its address."""
        async with self._sending:
            return await _when_ready(
                self.sync.fileno(), lambda: self.sync.send_to(data, address, flags | DONTWAIT), writing=True
            )

    async def recv(self, n: int | None = None) -> bytes:
        """Receives a datagram."""
        return (await self.recv_from(n))[0]

    async def recv_from(self, n: int | None = None) -> tuple[bytes, str]:
        """Receives a datagram, and who sent it."""
        async with self._receiving:
            return await _when_ready(self.sync.fileno(), lambda: self.sync.recv_from(n, DONTWAIT))

    async def recv_from_into(self, buffer: Buffer) -> tuple[int, str]:
        """Receives a datagram into a writable buffer. Returns its length and who sent it."""
        async with self._receiving:
            return await _when_ready(self.sync.fileno(), lambda: self.sync.recv_from_into(buffer, DONTWAIT))


class Listener(_Closing[_onecopy.Listener]):
    """A listener whose accept is awaited."""

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.sync.address

    async def accept(self) -> Connection:
        """Waits for a client."""
        accepted = await _when_ready(self.sync.fileno(), lambda: self.sync.accept(DONTWAIT))
        return Connection(accepted)


async def connect(address: str, *, records: bool = False, transport: str = "auto") -> Connection:
    """Connects as onecopy.connect does. A unix socket answers at once; TCP connects in a thread of the loop's executor."""
    if address.startswith("tcp://"):
        made = await asyncio.to_thread(
            _onecopy.connect, address, records=records, transport=transport
        )
    else:
        made = _onecopy.connect(address, records=records, transport=transport)
    return Connection(made)


def listen(address: str, *, records: bool = False, backlog: int | None = None) -> Listener:
    """Listens as onecopy.listen does."""
    return Listener(_onecopy.listen(address, records=records, backlog=backlog))


def pair(*, records: bool = False) -> tuple[Connection, Connection]:
    """Two connections that are each other's peers."""
    one, other = _onecopy.pair(records=records)
    return Connection(one), Connection(other)
