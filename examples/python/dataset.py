"""Training data from `onecopy serve`, as an IterableDataset: samples come as they arrive, and no file is opened here.

    onecopy serve --root ./shards --listen unix:/run/store.sock
    python3 examples/python/dataset.py unix:/run/store.sock 784 /0.bin /1.bin

A shard is a file of samples of one shape and type, one behind the other. Each worker of a torch DataLoader has a connection of its own, and shards of its own. Without
torch it is an iterable like any other. Needs numpy.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

import onecopy

try:
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    IterableDataset = object

    def get_worker_info() -> Any:
        """There are no workers."""
        return None


def answered(connection: onecopy.Connection, path: str) -> int:
    """Asks for a file. Returns how many bytes of it follow."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: store\r\n\r\n".encode())
    head = bytearray()
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise EOFError(f"{path}: the answer ended in its head")
        head += byte
    status, *fields = head.decode("latin-1").split("\r\n")
    if " 200 " not in status:
        raise OSError(f"{path}: {status}")
    lengths = [value for name, _, value in (field.partition(":") for field in fields) if name.lower() == "content-length"]
    return int(lengths[0])


class Shards(IterableDataset):
    """The samples of shards, each an array of `shape` and `dtype`.

    With `in_place` a sample lies in the memory that the daemon wrote to, read-only: use it and let it go, as what is held makes the daemon wait. Else
    it is the program's own, for the one copy that it takes: what a DataLoader wants, which keeps a batch.
    """

    def __init__(
        self, address: str, shards: Sequence[str], shape: Sequence[int], dtype: str, *, in_place: bool = False
    ) -> None:
        super().__init__()
        self.address, self.shards, self.in_place = address, list(shards), in_place
        self.shape, self.dtype = tuple(shape), numpy.dtype(dtype)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        mine = self.shards if worker is None else self.shards[worker.id :: worker.num_workers]
        if not mine:
            return
        size = self.dtype.itemsize * int(numpy.prod(self.shape))
        # Made here, in the worker's own process: a connection is not shared by a fork.
        with onecopy.connect(self.address, timeout=60) as connection:
            for path in mine:
                length = answered(connection, path)
                if length % size:
                    raise ValueError(f"{path} has {length} bytes, no multiple of a sample's {size}")
                for _ in range(length // size):
                    sample = numpy.from_dlpack(connection.recv(shape=self.shape, dtype=self.dtype))
                    yield sample if self.in_place else sample.copy()


def main() -> None:
    """Sums up all samples."""
    address, width, *shards = sys.argv[1:]
    count, total = 0, 0.0
    for sample in Shards(address, shards, [int(width)], "float32", in_place=True):
        count, total = count + 1, total + float(sample.sum())
    print(f"{count} samples, sum {total}")


if __name__ == "__main__":
    main()
