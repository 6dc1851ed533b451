"""Against the `onecopy` program: its server of files, and its nc."""

import json
import os
import pathlib
import subprocess
import sys
import time
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


@pytest.mark.parametrize("name", ["echo", "jobs"])
def test_examples_run(name: str) -> None:
    subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], check=True, timeout=60)
