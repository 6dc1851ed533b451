"""Against the `onecopy` program: its server of files, and its nc."""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import time
import types
from collections.abc import Iterator

import pytest

import onecopy

PROGRAM = os.environ.get("ONECOPY")
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
PATTERN = bytes(range(256)) * 8192

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="ONECOPY does not name the onecopy program")


def connected(address: str) -> onecopy.Connection:
    """Connects as soon as somebody listens."""
    until = time.monotonic() + 20
    while True:
        try:
            return onecopy.connect(address, timeout=20)
        except (FileNotFoundError, ConnectionRefusedError):
            assert time.monotonic() < until, f"nobody listens at {address}"
            time.sleep(0.01)


@pytest.fixture
def served(tmp_path: pathlib.Path, address: str) -> Iterator[str]:
    """A daemon that serves a file."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "pattern").write_bytes(PATTERN)
    assert PROGRAM is not None
    daemon = subprocess.Popen(
        [PROGRAM, "serve", "--root", str(files), "--listen", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield address
    daemon.terminate()
    daemon.wait(20)


def test_a_file_of_serve_arrives_over_shared_memory(served: str) -> None:
    with connected(served) as client:
        for _ in range(2):
            client.sendall(b"GET /pattern HTTP/1.1\r\nHost: a\r\n\r\n")
            got = bytearray()
            while b"\r\n\r\n" not in got:
                got += client.recv_borrowed()
            head, body = bytes(got).split(b"\r\n\r\n", 1)
            assert head.startswith(b"HTTP/1.1 200 ")
            while len(body) < len(PATTERN):
                body += client.recv(1 << 20)
            assert body == PATTERN
        assert client.path == "shared memory"


def test_nc_and_python_talk(tmp_path: pathlib.Path, address: str) -> None:
    assert PROGRAM is not None
    (tmp_path / "sent").write_bytes(PATTERN)
    command = [PROGRAM, "nc", "-l", "-U", address.removeprefix("unix:"), "--send", str(tmp_path / "sent")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as nc:
        with connected(address) as client:
            client.sendall(b"hello, nc")
            client.shutdown("write")
            got = b"".join(bytes(view) for view in client)
        assert nc.stdout is not None and nc.stdout.read() == b"hello, nc"
        assert nc.wait(20) == 0
    assert got == PATTERN


def test_safetensors_are_streamed(tmp_path: pathlib.Path, served: str) -> None:
    numpy = pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    sent = {"a": numpy.arange(300_000, dtype="float32").reshape(3, -1), "b": numpy.arange(7, dtype="int64")}
    header, data = {}, b""
    for name, array in sent.items():
        kind = {"float32": "F32", "int64": "I64"}[array.dtype.name]
        end = len(data) + array.nbytes
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "files" / "m").write_bytes(len(text).to_bytes(8, "little") + text + data)
    connected(served).close()
    example = EXAMPLES / "safetensors_stream.py"
    said = subprocess.run([sys.executable, example, served, "/m"], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [
        f"a (3, 100000) float32 {float(sent['a'].sum())}",
        "b (7,) int64 21.0",
    ]
    missing = subprocess.run([sys.executable, example, served, "/no"], capture_output=True, text=True)
    assert missing.returncode == 1 and "404" in missing.stderr


def test_a_dataset_comes_sample_by_sample(tmp_path: pathlib.Path, served: str) -> None:
    numpy = pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    shards = [numpy.arange(n * 12, dtype="float32").reshape(n, 3, 4) + n for n in (5, 1, 700)]
    for number, shard in enumerate(shards):
        (tmp_path / "files" / f"{number}.bin").write_bytes(shard.tobytes())
    (tmp_path / "files" / "odd.bin").write_bytes(b"x" * 49)
    connected(served).close()
    module = runpy.run_path(str(EXAMPLES / "dataset.py"))
    paths = [f"/{number}.bin" for number in range(3)]
    for in_place in (False, True):
        samples = module["Shards"](served, paths, (3, 4), "float32", in_place=in_place)
        for _ in range(2):  # it can be gone through again
            whole = (sample for shard in shards for sample in shard)
            count = 0
            for got, sent in zip(samples, whole, strict=True):
                assert (got == sent).all() and got.flags.writeable is not in_place
                count += 1
            assert count == 706
    # Samples that are kept are the program's own: the daemon does not wait for them.
    kept = list(module["Shards"](served, paths, (3, 4), "float32"))
    assert len(kept) == 706 and (kept[-1] == shards[2][-1]).all()
    assert list(module["Shards"](served, [], (3, 4), "float32")) == []
    with pytest.raises(OSError, match="404"):
        list(module["Shards"](served, ["/no.bin"], (3, 4), "float32"))
    with pytest.raises(ValueError, match="no multiple of a sample's 48"):
        list(module["Shards"](served, ["/odd.bin"], (3, 4), "float32"))
    command = [sys.executable, str(EXAMPLES / "dataset.py"), served, "12", *paths]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.startswith("706 samples, sum ")


def test_a_worker_takes_the_shards_that_are_its_own(
    tmp_path: pathlib.Path, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    for number in range(5):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes([number]) * 16)
    connected(served).close()
    # What torch says in a worker, without torch.
    data = types.ModuleType("torch.utils.data")
    vars(data).update(IterableDataset=type("IterableDataset", (), {}))
    for name in ("torch", "torch.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "torch.utils.data", data)
    for worker, mine in enumerate(([0, 2, 4], [1, 3])):
        info = types.SimpleNamespace(id=worker, num_workers=2)
        vars(data).update(get_worker_info=lambda info=info: info)
        shards = runpy.run_path(str(EXAMPLES / "dataset.py"))["Shards"]
        samples = shards(served, [f"/{number}.bin" for number in range(5)], (8,), "uint8")
        assert [int(sample[0]) for sample in samples] == [number for number in mine for _ in range(2)]


def test_each_worker_of_a_data_loader_has_shards_of_its_own(tmp_path: pathlib.Path, served: str) -> None:
    pytest.importorskip("numpy", minversion="2.1", reason="numpy 2.1 is not installed")
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    for number in range(4):
        (tmp_path / "files" / f"{number}.bin").write_bytes(bytes([number]) * 256)
    connected(served).close()
    module = runpy.run_path(str(EXAMPLES / "dataset.py"))
    samples = module["Shards"](served, [f"/{number}.bin" for number in range(4)], (8,), "uint8")
    batches = list(data.DataLoader(samples, batch_size=4, num_workers=2))
    assert sorted(int(sample[0]) for batch in batches for sample in batch) == sorted([0, 1, 2, 3] * 32)


@pytest.mark.parametrize("name", ["device_to_device", "echo", "into_device", "jobs"])
def test_examples_run(name: str) -> None:
    subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], check=True, timeout=60)
