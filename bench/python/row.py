"""Row `python`: tensors from one process to another, all elements read by the receiver.

    python3 bench/python/row.py [--json] [--rounds N] [--quick] [--record FILE]

Each engine moves fresh data in messages of 64 KiB and 1 MiB, and the receiver sums every message with numpy. Ours sends
records and sums where they lie. Rivals: pickle over multiprocessing.Pipe, and a double-buffered multiprocessing.shared_memory
ring with two semaphores, whose sender copies in and whose receiver sums in place. Engines alternate within a round.
"""

import argparse
import csv
import json
import multiprocessing
import multiprocessing.connection
import os
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy

import onecopy

Array = Any


def fresh(source: Array, turn: int) -> Array:
    """Makes data that no message before had: one pass over the buffer, the same for each engine."""
    source += numpy.uint64(turn)
    return source


def expected(words: int, count: int) -> int:
    """What all messages add up to."""
    source, total = numpy.arange(words, dtype=numpy.uint64), 0
    for turn in range(count):
        total += int(fresh(source, turn).sum(dtype=numpy.uint64))
    return total


def ours(words: int, count: int) -> float:
    """Records over shared memory, summed where they lie."""
    size = words * 8
    one, other = onecopy.pair(records=True, receive_buffer=max(4 * size, 1 << 20), send_buffer=max(4 * size, 1 << 20))

    def send() -> None:
        other.close()
        source = numpy.arange(words, dtype=numpy.uint64)
        one.recv(1)
        for turn in range(count):
            one.send(fresh(source, turn))
        one.recv(1)

    def receive() -> int:
        one.close()
        total = 0
        for _ in range(count):
            with other.recv_borrowed() as view:
                array = numpy.frombuffer(view, numpy.uint64)
                total += int(array.sum(dtype=numpy.uint64))
                del array
        return total

    return timed(send, receive, lambda: other.send(b"!"), words, count)


def pickled(words: int, count: int) -> float:
    """pickle over multiprocessing.Pipe."""
    other, one = multiprocessing.Pipe(duplex=True)

    def send() -> None:
        other.close()
        source = numpy.arange(words, dtype=numpy.uint64)
        one.recv()
        for turn in range(count):
            one.send(fresh(source, turn))
        one.recv()

    def receive() -> int:
        one.close()
        return sum(int(other.recv().sum(dtype=numpy.uint64)) for _ in range(count))

    return timed(send, receive, lambda: other.send(b"!"), words, count)


def ring(words: int, count: int) -> float:
    """Two buffers in multiprocessing.shared_memory, two semaphores."""
    memory = shared_memory.SharedMemory(create=True, size=2 * words * 8)
    free, full, go = multiprocessing.Semaphore(2), multiprocessing.Semaphore(0), multiprocessing.Semaphore(0)
    halves = numpy.ndarray((2, words), numpy.uint64, memory.buf)

    def send() -> None:
        source = numpy.arange(words, dtype=numpy.uint64)
        go.acquire()
        for turn in range(count):
            data = fresh(source, turn)
            free.acquire()
            halves[turn % 2] = data
            full.release()
        go.acquire()

    def receive() -> int:
        total = 0
        for turn in range(count):
            full.acquire()
            total += int(halves[turn % 2].sum(dtype=numpy.uint64))
            free.release()
        return total

    try:
        return timed(send, receive, go.release, words, count)
    finally:
        del halves
        memory.close()
        memory.unlink()


def timed(
    send: Callable[[], None], receive: Callable[[], int], start: Callable[[], object], words: int, count: int
) -> float:
    """Forks a sender, and gives bytes a second. The sum is checked against one that was made apart."""
    child = os.fork()
    if child == 0:
        try:
            send()
        finally:
            os._exit(0)
    begun = time.perf_counter()
    start()
    total = receive()
    took = time.perf_counter() - begun
    start()
    os.waitpid(child, 0)
    if total != EXPECTED[words, count]:
        raise SystemExit(f"the receiver's sum is wrong: {total}")
    return words * 8 * count / took


EXPECTED: dict[tuple[int, int], int] = {}
ENGINES = {"onecopy": ours, "pickle": pickled, "shared_memory": ring}


def main() -> None:
    """Runs the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one record a line")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="for a moment: is it alive?")
    parser.add_argument("--record", metavar="FILE", help="append the figures to a file that `onecopy bench --record` has made")
    args = parser.parse_args()
    records: list[list[object]] = []
    for case, size in (("64K", 64 << 10), ("1M", 1 << 20)):
        words = size // 8
        count = max(4, ((2 << 20) if args.quick else (256 << 20)) // size)
        EXPECTED[words, count] = expected(words, count)
        rates: dict[str, list[float]] = {name: [] for name in ENGINES}
        for turn in range(args.rounds + 1):
            for name, engine in ENGINES.items():
                rate = engine(words, count)
                if turn:  # the first round warms up
                    rates[name].append(rate)
        medians = {name: statistics.median(all_) for name, all_ in rates.items()}
        for name, all_ in rates.items():
            figures = [value / 1e9 for value in (medians[name], min(all_), max(all_))]
            engine_name = "auto" if name == "onecopy" else name
            ratio = medians[name] / medians["pickle"]
            records.append(["python", case, engine_name, "rate", "GB/s", *figures, args.rounds, "pickle", ratio])
            for baseline in [rival for rival in ENGINES if rival != name] if name == "onecopy" else [None]:
                record = {
                    "bench": "python", "case": case, "engine": name, "metric": "rate", "unit": "B/s",
                    "median": medians[name], "low": min(all_), "high": max(all_), "rounds": args.rounds,
                    "baseline": baseline, "ratio": medians[name] / medians[baseline] if baseline else None,
                }
                if args.json:
                    print(json.dumps(record))
                else:
                    against = f"{record['ratio']:6.2f} x {baseline}" if baseline else ""
                    print(f"{case:4} {name:14} {medians[name] / 1e9:6.2f} GB/s ({min(all_) / 1e9:.2f}-{max(all_) / 1e9:.2f}) {against}")
    if args.record:
        with open(args.record, "a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(records)
    print(f"python {sys.version.split()[0]}, numpy {numpy.__version__}, {os.cpu_count()} CPUs, not pinned", file=sys.stderr)


if __name__ == "__main__":
    main()
