"""Sockets over shared memory: bytes from one process to another with one copy, received in place.

    with onecopy.connect("unix:/run/store.sock") as conn:
        conn.sendall(b"a request")
        view = conn.recv_borrowed()          # no copy: memoryview(view), numpy.frombuffer(view)
        tensor = conn.recv(shape=(1024, 1024), dtype="float16")
        array = numpy.from_dlpack(tensor)    # no copy, read-only

    print(conn.path, conn.copies_per_byte)   # what really happened

The peer may be any onecopy program, in any language; any other unix socket is served by the kernel. What is received in place
is memory that the peer has written and could still write: check what matters in a copy (bytes(view)), not in place.
`onecopy.aio` has the same for asyncio.
"""

from . import aio
from ._onecopy import (
    DONTWAIT,
    NTCOPY,
    PEEK,
    TRUNC,
    WAITALL,
    Binding,
    Connection,
    DeviceMemory,
    Fragment,
    Frags,
    Listener,
    Reservation,
    Sent,
    Stack,
    Tensor,
    TxBinding,
    UdpSocket,
    View,
    connect,
    listen,
    pair,
)

__all__ = [
    "DONTWAIT",
    "NTCOPY",
    "PEEK",
    "TRUNC",
    "WAITALL",
    "Binding",
    "Connection",
    "DeviceMemory",
    "Fragment",
    "Frags",
    "Listener",
    "Reservation",
    "Sent",
    "Stack",
    "Tensor",
    "TxBinding",
    "UdpSocket",
    "View",
    "aio",
    "connect",
    "listen",
    "pair",
]
