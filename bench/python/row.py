"""Row `python`: tensors from one process to another, all elements read by the receiver.

    python3 bench/python/row.py [--json] [--rounds N] [--quick] [--record FILE]

Each engine moves fresh data in messages of 64 KiB and 1 MiB, and the receiver sums every message with numpy. Ours: `onecopy` sends records
(one copy) and sums where they lie; `onecopy-ref` makes the data in reserved room of the peer's buffer, so nobody copies them, and where
torch is installed the receiver takes them as a tensor by DLPack. Rivals: pickle over multiprocessing.Pipe; a double-buffered
multiprocessing.shared_memory ring with two semaphores, whose sender copies in and whose receiver sums in place; and
torch.multiprocessing, whose tensors go as handles of shared memory over a pipe, and are made there, too: `torch-fd` (its file_descriptor strategy, torch's
default here) and `torch-fs` (file_system) have a new tensor for each message, as torch's DataLoader has; `torch-kept` (file_system)
has four that both sides keep, and sends the handle of the next free one. Engines alternate within a round.
"""

import argparse
import csv
import hashlib
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy

import onecopy

try:
    import torch
    import torch.multiprocessing
except ImportError:
    torch = None

Array = Any

# Messages that are under way at once, of those engines whose buffer is not their own business.
WINDOW = 4


def fresh(source: Array, turn: int) -> Array:
    """Makes data that no message before had: one pass over the buffer, the same for each engine."""
    source += numpy.uint64(turn)
    return source


def made(source: Array, turn: int, room: Array) -> None:
    """The same data, made where they are to lie: one pass over `source`, which stays, and over the room."""
    numpy.add(source, numpy.uint64(turn * (turn + 1) // 2), out=room)


def total_of(array: Array) -> int:
    """Reads every element."""
    return int(array.sum(dtype=numpy.uint64))


def expected(words: int, count: int) -> int:
    """What all messages add up to."""
    source, total = numpy.arange(words, dtype=numpy.uint64), 0
    for turn in range(count):
        total += total_of(fresh(source, turn))
    return total


def pair(words: int) -> tuple[onecopy.Connection, onecopy.Connection]:
    """Two ends whose buffers have room for some messages."""
    room = max(WINDOW * words * 8, 1 << 20)
    return onecopy.pair(records=True, receive_buffer=room, send_buffer=room)


def ours(words: int, count: int) -> float:
    """Records over shared memory, summed where they lie."""
    one, other = pair(words)

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
                total += total_of(array)
                del array
        return total

    return timed(send, receive, lambda: other.send(b"!"), words, count)


def by_reference(words: int, count: int) -> float:
    """The same, made in the peer's buffer. The receiver's tensors are torch's, or where there is no torch numpy's arrays."""
    one, other = pair(words)

    def send() -> None:
        other.close()
        source = numpy.arange(words, dtype=numpy.uint64)
        one.recv(1)
        for turn in range(count):
            with one.reserve(words * 8) as room:
                array = numpy.frombuffer(room, numpy.uint64)
                made(source, turn, array)
                del array
        one.recv(1)

    def with_torch() -> int:
        total = 0
        for _ in range(count):
            tensor = torch.from_dlpack(other.recv(shape=(words,), dtype="int64"))
            total += total_of(tensor.numpy())
            del tensor
        return total

    def with_numpy() -> int:
        total = 0
        for _ in range(count):
            with other.recv_borrowed() as view:
                array = numpy.frombuffer(view, numpy.uint64)
                total += total_of(array)
                del array
        return total

    def receive() -> int:
        one.close()
        return with_torch() if torch else with_numpy()

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
        return sum(total_of(other.recv()) for _ in range(count))

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
            total += total_of(halves[turn % 2])
            free.release()
        return total

    try:
        return timed(send, receive, go.release, words, count)
    finally:
        del halves
        memory.close()
        memory.unlink()


def shared_tensor(words: int) -> Any:
    """A tensor that lies in shared memory from the first, as DataLoader's workers make theirs: the way with the fewest copies."""
    storage = torch.UntypedStorage._new_shared(words * 8)
    return torch.empty(0, dtype=torch.int64).set_(storage, 0, (words,))


def handles(strategy: str, keep: bool) -> Callable[[int, int], float]:
    """torch.multiprocessing: a tensor goes as the handle of its shared memory, over the fastest of its ways, a pipe."""

    def engine(words: int, count: int) -> float:
        torch.multiprocessing.set_sharing_strategy(strategy)
        other, one = torch.multiprocessing.Pipe(duplex=True)
        # Its pipe has room for hundreds of handles: without this the sender would fill gigabytes of memory that nobody has used before.
        free = torch.multiprocessing.Semaphore(WINDOW)

        def send() -> None:
            other.close()
            source = numpy.arange(words, dtype=numpy.uint64)
            tensors = [shared_tensor(words) for _ in range(WINDOW)] if keep else []
            one.recv()
            for turn in range(count):
                free.acquire()
                tensor = tensors[turn % WINDOW] if keep else shared_tensor(words)
                made(source, turn, tensor.numpy().view(numpy.uint64))
                one.send(tensor)
                del tensor
            one.recv()

        def receive() -> int:
            one.close()
            total, kept = 0, []
            for _ in range(count):
                tensor = other.recv()
                total += total_of(tensor.numpy())
                if keep and len(kept) < WINDOW:
                    kept.append(tensor)  # so its mapping is found again
                del tensor
                free.release()
            return total

        return timed(send, receive, lambda: other.send(b"!"), words, count)

    return engine


def timed(
    send: Callable[[], None], receive: Callable[[], int], start: Callable[[], object], words: int, count: int
) -> float:
    """Forks a sender, and gives bytes a second. The sum is checked against one that was made apart."""
    child = multiprocessing.get_context("fork").Process(target=send)
    child.start()
    begun = time.perf_counter()
    start()
    total = receive()
    took = time.perf_counter() - begun
    start()
    child.join()
    # (numpy's sums, and so these, are those of 64 bits.)
    if child.exitcode != 0 or (total - EXPECTED[words, count]) % (1 << 64):
        raise SystemExit(f"the receiver's sum is wrong ({total}), or the sender failed ({child.exitcode})")
    return words * 8 * count / took


EXPECTED: dict[tuple[int, int], int] = {}
ENGINES: dict[str, Callable[[int, int], float]] = {
    "onecopy": ours,
    "onecopy-ref": by_reference,
    "pickle": pickled,
    "shared_memory": ring,
}
TORCH: dict[str, Callable[[int, int], float]] = {
    "torch-fd": handles("file_descriptor", keep=False),
    "torch-fs": handles("file_system", keep=False),
    "torch-kept": handles("file_system", keep=True),
}

# The columns of a record and of the verdicts beside it (bench/src/record.rs).
FIGURES = "bench,case,engine,metric,unit,median,low,high,rounds,baseline,ratio,program"
VERDICTS = "program,bench,case,engine,metric,verdict,reached,demand"

# How the record calls ours: `auto` is what a program gets that asks for nothing.
RECORDED = {"onecopy": "auto", "onecopy-ref": "reserve"}

# What ours must reach: how many times the best of these rivals, in which case.
REACH = [
    ("64K", "onecopy", 2.0, ["pickle"]),
    ("1M", "onecopy", 2.0, ["pickle"]),
    ("64K", "onecopy", 1.2, ["shared_memory"]),
    ("1M", "onecopy", 0.95, ["shared_memory"]),
    ("64K", "onecopy-ref", 1.0, list(TORCH)),
    ("1M", "onecopy-ref", 1.0, list(TORCH)),
]


SIGNS = {"reached": "✓", "missed": "✗", "none": "?"}


def verdicts(case: str, medians: dict[str, float]) -> list[tuple[str, str, float | None, str]]:
    """What was reached of that, by which engine, and the demand in words: one that has no rival here is open."""
    lines = []
    for of, engine, times, rivals in REACH:
        if of != case:
            continue
        demand = f">= {times:g} x {'best of ' * (len(rivals) > 1)}{', '.join(rivals)}"
        there = [medians[rival] for rival in rivals if rival in medians]
        ratio = medians[engine] / max(there) if there else None
        verdict = "none" if ratio is None else "reached" if ratio >= times else "missed"
        lines.append((engine, verdict, ratio, demand))
    return lines


def program() -> str:
    """What tells the program that was measured from another: of this file and of the package's."""
    folder = pathlib.Path(onecopy.__file__).parent
    parts = [pathlib.Path(__file__), *sorted(path for path in folder.iterdir() if path.suffix in {".py", ".so"})]
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:16]


def fits(path: pathlib.Path, columns: str) -> None:
    """Ends the program where a file has other columns: a version of it before, or after, has begun it."""
    if path.exists() and (heading := path.open().readline().strip()) != columns:
        raise SystemExit(f"{path} has other columns than this version's ({columns}): move it away, or name a file in another folder")


def appended(path: pathlib.Path, columns: str, lines: list[list[object]]) -> None:
    """Appends lines to a CSV file, which gets its heading with the first."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        if fresh:
            out.writerow(columns.split(","))
        out.writerows(lines)


def record(path: pathlib.Path, figures: list[list[object]], judged: list[list[object]]) -> None:
    """Adds a run to a record: its figures, its verdicts, and to the machine's facts a line that says when it ended and of which program it is."""
    name = program()
    appended(path, FIGURES, [[*figure, name] for figure in figures])
    appended(path.with_suffix(".verdicts.csv"), VERDICTS, [[name, *verdict] for verdict in judged])
    with path.with_suffix(".txt").open("a") as facts:
        facts.write(f"run: {time.strftime('%H:%M')}, program {name}, rows python\n")


def main() -> None:
    """Runs the row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one record a line")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="for a moment: is it alive?")
    parser.add_argument("--record", metavar="FILE", type=pathlib.Path, help="append the figures to a file that `onecopy bench --record` has made, and the verdicts beside it")
    args = parser.parse_args()
    if args.record and not args.record.with_suffix(".txt").exists():
        raise SystemExit(f"{args.record} has no facts of its machine beside it: name a file that `onecopy bench ROW --record` has made today")
    if args.record:
        fits(args.record, FIGURES)
        fits(args.record.with_suffix(".verdicts.csv"), VERDICTS)
    engines = dict(ENGINES)
    if torch:
        # Its sums are numpy's here, and its own threads would only be in the way of a fork.
        torch.set_num_threads(1)
        engines |= TORCH
    else:
        print(f"torch is not installed: without {', '.join(TORCH)} (pip install torch)", file=sys.stderr)
    records: list[list[object]] = []
    judged: list[list[object]] = []
    for case, size in (("64K", 64 << 10), ("1M", 1 << 20)):
        words = size // 8
        count = max(4, ((2 << 20) if args.quick else (256 << 20)) // size)
        EXPECTED[words, count] = expected(words, count)
        rates: dict[str, list[float]] = {name: [] for name in engines}
        for turn in range(args.rounds + 1):
            for name, engine in engines.items():
                rate = engine(words, count)
                if turn:  # the first round warms up
                    rates[name].append(rate)
        medians = {name: statistics.median(all_) for name, all_ in rates.items()}
        for name, all_ in rates.items():
            figures = [value / 1e9 for value in (medians[name], min(all_), max(all_))]
            # The record has one rival for each engine.
            rival = "torch-kept" if torch and name == "onecopy-ref" else "pickle"
            ratio = medians[name] / medians[rival]
            records.append(["python", case, RECORDED.get(name, name), "rate", "GB/s", *figures, args.rounds, rival, ratio])
            for baseline in [rival for rival in engines if rival not in RECORDED] if name in RECORDED else [None]:
                figure = {
                    "bench": "python", "case": case, "engine": name, "metric": "rate", "unit": "B/s",
                    "median": medians[name], "low": min(all_), "high": max(all_), "rounds": args.rounds,
                    "baseline": baseline, "ratio": medians[name] / medians[baseline] if baseline else None,
                }
                if args.json:
                    print(json.dumps(figure))
                else:
                    against = f"{figure['ratio']:6.2f} x {baseline}" if baseline else ""
                    print(f"{case:4} {name:14} {medians[name] / 1e9:6.2f} GB/s ({min(all_) / 1e9:.2f}-{max(all_) / 1e9:.2f}) {against}")
        for engine, verdict, reached, demand in verdicts(case, medians):
            judged.append(["python", case, RECORDED[engine], "rate", verdict, reached, demand])
            came = f"{reached:.2f} x" if reached is not None else "not here"
            print(f"{SIGNS[verdict]} {case} {engine} {demand}: {came}", file=sys.stderr if args.json else sys.stdout)
    if args.record:
        record(args.record, records, judged)
    with_torch = f", torch {torch.__version__}" if torch else ""
    print(
        f"python {sys.version.split()[0]}, numpy {numpy.__version__}{with_torch}, {os.cpu_count()} CPUs, not pinned",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
