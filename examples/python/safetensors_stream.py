"""Tensors of a safetensors file, streamed from `onecopy serve` without a file in this process: each becomes one array.

    onecopy serve --root ./weights --listen unix:/run/store.sock
    python3 examples/python/safetensors_stream.py unix:/run/store.sock /model.safetensors

The format: 8 bytes with the length of a JSON header, the header, then the data (github.com/huggingface/safetensors). Needs numpy.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy

import onecopy

TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "I64": "int64", "I32": "int32", "U8": "uint8"}
LARGEST_HEADER = 100_000_000


def exactly(connection: onecopy.Connection, count: int) -> bytearray:
    """Receives so many bytes."""
    room = bytearray(count)
    with memoryview(room) as memory:
        have = 0
        while have < count:
            n = connection.recv_into(memory[have:])
            if n == 0:
                raise EOFError(f"the answer ended after {have} of {count} bytes")
            have += n
    return room


def tensors(connection: onecopy.Connection, path: str) -> Iterator[tuple[str, Any]]:
    """Asks for the file, and yields names and arrays as they arrive."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        head += exactly(connection, 1)
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise OSError(head.split(b"\r\n")[0].decode())
    length = int.from_bytes(exactly(connection, 8), "little")
    if length > LARGEST_HEADER:
        raise ValueError(f"no safetensors file: its header would have {length} bytes")
    header = json.loads(exactly(connection, length))
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    at = 0
    for name, entry in sorted(entries, key=lambda one: one[1]["data_offsets"]):
        start, end = entry["data_offsets"]
        if start != at:
            raise ValueError(f"{name} begins at {start}, not at {at}: the format has no gaps")
        tensor = connection.recv(shape=entry["shape"], dtype=TYPES[entry["dtype"]])
        if tensor.nbytes != end - start:
            raise ValueError(f"{name} has {end - start} bytes, and its shape says {tensor.nbytes}")
        at = end
        yield name, numpy.from_dlpack(tensor)


def main() -> None:
    """Prints what is in the file."""
    address, path = sys.argv[1:]
    with onecopy.connect(address, timeout=60) as connection:
        for name, array in tensors(connection, path):
            print(name, array.shape, array.dtype, float(array.sum()))


if __name__ == "__main__":
    main()
