"""What the tests share."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from world import World

import onecopy


@pytest.fixture
def address(tmp_path: pathlib.Path) -> str:
    """A fresh unix address. (A socket's path has at most 107 bytes.)"""
    return f"unix:{tmp_path}/s"


@pytest.fixture
def kernel() -> onecopy.Stack:
    """The kernel's TCP and UDP by io_uring."""
    try:
        return onecopy.Stack(transport="kernel")
    except OSError as error:
        pytest.skip(f"io_uring is forbidden here: {error}")


@pytest.fixture
def world() -> Iterator[World]:
    """A world. It has to come to its end."""
    yield World()


# Whether a program may have a TAP device, in a network of its own: nobody else's is touched, and nothing is left.
may_have_tap = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None or not os.path.exists("/dev/net/tun"),
    reason="a TAP device takes root and /dev/net/tun",
)

# What such a program begins with: the kernel is 10.77.0.1, and the stack 10.77.0.2.
WITH_TAP = """
import os, socket, subprocess, threading
import onecopy

stack = onecopy.Stack(tap="onecopy0", address="10.77.0.2/24", shards=SHARDS)
assert stack.carrier == "stack" and stack.addresses == ["10.77.0.2/24"], stack
for command in ("addr add 10.77.0.1/24 dev onecopy0", "link set onecopy0 up"):
    subprocess.run(["ip", *command.split()], check=True)

def is_refused_in_a_child(call):
    # The child of a fork has no thread that drives, and speaks for nobody: EBUSY.
    if (child := os.fork()) == 0:
        try:
            call()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 16
"""


def runs_with_tap(program: str, shards: int = 1) -> None:
    """Runs a program that says "well" when it is done, behind WITH_TAP."""
    command = ["unshare", "--net", sys.executable, "-c", WITH_TAP.replace("SHARDS", str(shards)) + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "well\n", done.stderr


def is_interrupted(program: str) -> None:
    """Runs a program whose last line waits for what never comes, and ends it as Ctrl-C does."""
    *lines, last = program.strip().splitlines()
    program = "\n".join(
        [*lines, 'print("waits", flush=True)', "try:", f"    {last}", "except KeyboardInterrupt:", '    print("interrupted", flush=True)']
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "waits\n"
        while pathlib.Path(f"/proc/{child.pid}/stat").read_text().rsplit(") ", 1)[1][0] != "S":
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=120)[0] == "interrupted\n"
    assert child.returncode == 0
