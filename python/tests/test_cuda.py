"""A CUDA device's memory, on a stand-in for its driver that is late and out of order."""

import ctypes
import gc
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import onecopy

LIBRARY = os.environ.get("ONECOPY_STAND_IN_LIBRARY")
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
SERVER = "tcp://10.0.0.2:5201"

# A page. (Of smaller pieces several share one, which is not used again before all are gone.)
PIECE = 4096

pytestmark = pytest.mark.skipif(
    LIBRARY is None, reason="ONECOPY_STAND_IN_LIBRARY does not name the stand-in for libcuda"
)


class Driver:
    """What a program like torch does with the driver, beside onecopy."""

    def __init__(self) -> None:
        """Loads the library that onecopy loads, too."""
        self.library = ctypes.CDLL(LIBRARY)
        self.library.onecopy_stand_in_get.restype = ctypes.c_uint64

    def call(self, name: str, *arguments: Any) -> None:
        """A call in the device's context, which somebody has retained."""
        words = [ctypes.c_size_t(one) if isinstance(one, int) else one for one in arguments]
        assert self.library.cuCtxPushCurrent_v2(ctypes.c_size_t(0xC0)) == 0
        try:
            assert getattr(self.library, name)(*words) == 0, name
        finally:
            assert self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_size_t())) == 0

    def stream(self, apart: bool = False) -> int:
        """A stream."""
        handle = ctypes.c_size_t()
        self.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(apart))
        return handle.value

    def memory(self, size: int) -> int:
        """Memory of the program's own on the device."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), size)
        return at.value

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """A copy on the device, which a stream comes to some time."""
        self.call("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    def keep_busy(self, stream: int) -> None:
        """Puts work into the stream, so that what comes behind it is late."""
        room = self.memory(2 * PIECE)
        for _ in range(200):
            self.copy(room, room + PIECE, PIECE, stream)

    def read(self, source: int, size: int, stream: int) -> bytes:
        """What is there when the stream has come to it."""
        room = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(room), source, size, stream)
        self.call("cuStreamSynchronize", stream)
        return room.raw

    def set(self, name: str, value: int) -> None:
        """A setting of the stand-in's."""
        assert self.library.onecopy_stand_in_set(name.encode(), ctypes.c_uint64(value)) == 0

    def get(self, name: str) -> int:
        """A count of the stand-in's."""
        return int(self.library.onecopy_stand_in_get(name.encode()))


class World:
    """A connection over a cable whose receiver has a CUDA device's memory bound."""

    def __init__(self, size: int = 64 << 10) -> None:
        """The least memory: the same pages are used again and again."""
        self.driver = Driver()
        # A packet has a page at least, and so a fragment of PIECE bytes is one, in a page of its own.
        self.near, self.far = onecopy.Stack.pair(mtu=9000)
        self.far.set_queues(2)
        self.far.steer(SERVER, 1)
        self.memory = onecopy.DeviceMemory.cuda(size)
        self.binding = self.far.bind_rx(self.memory, [1])
        with self.far.listen(SERVER) as listener:
            self.sender = self.near.connect(SERVER, timeout=60)
            self.receiver = listener.accept()
        self.receiver.settimeout(60)

    def fragment(self, data: bytes) -> onecopy.Fragment:
        """Sends a few bytes, and receives them as a fragment."""
        self.sender.sendall(data)
        (fragment,) = self.receiver.recv_frags(len(data)).device
        return fragment

    def overwrite(self) -> None:
        """Fills all of the memory that is free, some times over."""
        self.sender.settimeout(60)
        for _ in range(40):
            self.sender.sendall(b"\xee" * PIECE)
            left = PIECE
            while left:
                with self.receiver.recv_frags(left) as frags:
                    left -= len(frags)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world. Behind it nothing is left on the device."""
    assert LIBRARY is not None
    monkeypatch.setenv("ONECOPY_CUDA_LIBRARY", LIBRARY)
    made = World()
    yield made
    made.receiver.close()
    made.sender.close()
    made.binding.close()


class Taken(NamedTuple):
    """A tensor that was taken out of a capsule, as torch takes it."""

    data: int
    device: tuple[int, int]
    size: int
    stride: int
    kind: tuple[int, int, int]
    flags: int
    delete: Callable[[], None]


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_size_t),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


class Unversioned(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_size_t)]


def take(capsule: object, *, with_gil: bool = True) -> Taken:
    """Takes the tensor: the capsule is then an empty one."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
    versioned = api.PyCapsule_IsValid(capsule, b"dltensor_versioned") == 1
    name, used = (b"dltensor_versioned", USED[0]) if versioned else (b"dltensor", USED[1])
    at = api.PyCapsule_GetPointer(capsule, name)
    assert api.PyCapsule_SetName(capsule, used) == 0
    managed: Any = (Versioned if versioned else Unversioned).from_address(at)
    tensor = managed.tensor
    assert tensor.dimensions == 1 and tensor.byte_offset == 0
    kind = ctypes.PYFUNCTYPE if with_gil else ctypes.CFUNCTYPE
    deleter = kind(None, ctypes.c_void_p)(managed.deleter)
    return Taken(
        tensor.data,
        (tensor.device_type, tensor.device_id),
        tensor.shape[0],
        tensor.strides[0],
        (tensor.code, tensor.bits, tensor.lanes),
        managed.flags if versioned else 0,
        lambda: deleter(at),
    )


# A capsule does not copy its name.
USED = (b"used_dltensor_versioned", b"used_dltensor")


def test_what_a_kernel_wrote_is_sent_from_where_it_lies(world: World) -> None:
    source = onecopy.DeviceMemory.cuda(1 << 20)
    interface = source.__cuda_array_interface__
    assert interface["data"] == (source.address, False) and interface["shape"] == (source.nbytes,)
    # What stands for a kernel of the program's: a copy on its stream, from memory of its own.
    data = bytes(range(256)) * 64
    own, stream = onecopy.DeviceMemory.cuda(len(data)), world.driver.stream()
    own.write_at(0, data)
    assert own.address is not None and source.address is not None
    world.driver.copy(source.address + 12_345, own.address, len(data), stream)
    world.driver.call("cuStreamSynchronize", stream)
    with world.near.bind_tx(source) as tx:
        sent = world.sender.send_device(tx, [(12_345, len(data))])
        got = b""
        while len(got) < len(data):
            with world.receiver.recv_frags(len(data) - len(got)) as frags:
                got += frags.tobytes()
        assert got == data == source.read_at(12_345, len(data)) and sent.wait(60)
    assert source.free == source.nbytes
    with pytest.raises(OSError, match="inside"):
        source.write_at(source.nbytes, b"x")


def test_without_a_driver_it_says_what_to_install() -> None:
    program = """
import onecopy
try:
    onecopy.DeviceMemory.cuda(1 << 20)
except OSError as error:
    assert error.errno == 19 and "install NVIDIA's driver" in str(error), error
    print("well")
"""
    environment = {**os.environ, "ONECOPY_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "well\n", ran.stderr


def test_what_the_driver_refuses_is_an_oserror(world: World) -> None:
    with pytest.raises(OSError, match="numbered from 0") as raised:
        onecopy.DeviceMemory.cuda(1 << 20, 5)
    assert raised.value.errno == 19
    world.driver.library.onecopy_stand_in_fail(b"cuMemAlloc_v2", 0, 9, 2)
    with pytest.raises(OSError) as raised:
        onecopy.DeviceMemory.cuda(1 << 20)
    assert raised.value.errno == 12
    world.driver.library.onecopy_stand_in_fail(b"cuMemAlloc_v2", 0, 0, 0)


def test_payload_comes_to_the_device(world: World) -> None:
    assert world.memory.kind == "cuda" and world.memory.address is not None
    fragment = world.fragment(b"to the device")
    assert fragment.tobytes() == b"to the device"
    report = world.memory.report()
    assert report is not None and "stand-in" in report
    with pytest.raises(BufferError, match="CPU cannot read"):
        memoryview(fragment)  # type: ignore[arg-type]


def test_the_array_interface_has_the_address_and_keeps_the_page(world: World) -> None:
    data = bytes(range(256)) * 16
    fragment = world.fragment(data)
    assert world.memory.address is not None
    interface = fragment.__cuda_array_interface__
    at = world.memory.address + fragment.offset
    assert interface == {
        "shape": (PIECE,),
        "typestr": "|u1",
        "data": (at, False),
        "strides": None,
        "version": 3,
        "stream": None,
    }
    # Who has the address looks at the bytes on its own stream, when the token is long gone.
    stream, theirs = world.driver.stream(), world.driver.memory(PIECE)
    assert world.receiver.dont_need([fragment]) == 1
    world.overwrite()
    assert world.driver.read(at, PIECE, stream) == data
    with pytest.raises(ValueError, match="given back"):
        _ = fragment.__cuda_array_interface__
    # And what it has put into a stream is done before the page is used again.
    world.driver.keep_busy(stream)
    world.driver.copy(theirs, at, PIECE, stream)
    del fragment
    world.overwrite()
    assert world.driver.read(theirs, PIECE, stream) == data


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (2, 3)])
def test_dlpack_says_what_there_is(world: World, version: tuple[int, int] | None) -> None:
    fragment = world.fragment(b"0123456789")
    assert fragment.__dlpack_device__() == (2, 0)
    capsule = fragment.__dlpack__(stream=1, max_version=version, dl_device=(2, 0))
    assert ("versioned" in repr(capsule)) == (version in ((1, 0), (2, 3)))
    taken = take(capsule)
    assert world.memory.address is not None
    assert taken[:6] == (world.memory.address + fragment.offset, (2, 0), 10, 1, (1, 8, 1), 0)
    taken.delete()
    del capsule
    assert world.receiver.tokens_held == 1
    del fragment
    assert world.receiver.tokens_held == 0


def test_dlpack_refuses_what_it_cannot_do(world: World) -> None:
    fragment = world.fragment(b"bytes")
    for wrong in ({"copy": True}, {"dl_device": (1, 0)}, {"stream": 0}, {"stream": -2}):
        with pytest.raises(BufferError):
            fragment.__dlpack__(**wrong)
    assert world.receiver.dont_need([fragment]) == 1
    with pytest.raises(ValueError, match="given back"):
        fragment.__dlpack__()


@pytest.mark.parametrize("way", ["deleter", "deleter without the GIL", "deleter on a thread", "capsule"])
def test_the_token_goes_back_once_with_the_last_who_looks(world: World, way: str) -> None:
    fragment = world.fragment(b"0123456789")
    first, second = fragment.__dlpack__(max_version=(1, 0)), fragment.__dlpack__()
    del fragment
    assert world.receiver.tokens_held == 1
    if way == "capsule":
        del first
        gc.collect()
        assert world.receiver.tokens_held == 1
        del second
    else:
        deletes = [take(capsule, with_gil="GIL" not in way).delete for capsule in (first, second)]
        del first, second
        gc.collect()
        for left, delete in zip((1, 0), deletes, strict=True):
            if way == "deleter on a thread":
                thread = threading.Thread(target=delete)
                thread.start()
                thread.join()
            else:
                delete()
            assert world.receiver.tokens_held == left
    assert world.receiver.tokens_held == 0
    # Another one's was not given back with it.
    other = world.fragment(b"another")
    assert world.receiver.tokens_held == 1 and other.tobytes() == b"another"


@pytest.mark.parametrize("early", ["token", "connection", "binding"])
def test_a_tensor_keeps_its_bytes_whatever_else_goes(world: World, early: str) -> None:
    data = bytes(range(256)) * 16
    fragment = world.fragment(data)
    taken = take(fragment.__dlpack__(stream=1))
    if early == "token":
        assert world.receiver.dont_need([fragment.token]) == 1
        world.overwrite()
    elif early == "binding":
        world.binding.close()
    else:
        world.receiver.close()
        with world.far.listen(SERVER) as listener:
            world.sender = world.near.connect(SERVER, timeout=60)
            world.receiver = listener.accept()
        world.overwrite()
    del fragment
    free = world.memory.free
    assert world.driver.read(taken.data, PIECE, world.driver.stream()) == data
    taken.delete()
    if early != "binding":  # (there a page of which something is left is not taken on)
        assert world.memory.free >= free
        world.overwrite()


@pytest.mark.parametrize("stream", ["None", "legacy", "per thread", "own", "own and apart"])
def test_what_lands_next_waits_for_the_takers_stream(world: World, stream: str) -> None:
    """The taker drops its tensor while its stream has yet to read it."""
    theirs = world.driver.memory(PIECE)
    for seed in range(10):
        world.driver.set("seed", seed)
        default = {"None": 1, "legacy": 1, "per thread": 2}
        handle = default.get(stream) or world.driver.stream(apart="apart" in stream)
        given = None if stream == "None" else handle
        data = (b"turn %5d" % seed).ljust(PIECE)
        fragment = world.fragment(data)
        taken = take(fragment.__dlpack__(stream=given, max_version=(1, 0)))
        world.driver.keep_busy(handle)
        world.driver.copy(theirs, taken.data, PIECE, handle)
        del fragment
        taken.delete()
        assert world.receiver.tokens_held == 0
        world.overwrite()
        assert world.driver.read(theirs, PIECE, handle) == data, seed
    assert world.driver.get("current") == 0


def test_a_stream_that_cannot_be_ordered_keeps_the_page_for_good(world: World) -> None:
    data = bytes(range(256)) * 16
    fragment = world.fragment(data)
    at = fragment.__cuda_array_interface__["data"][0]
    world.driver.library.onecopy_stand_in_fail(b"cuEventRecord", 0, 1, 999)
    del fragment
    world.driver.library.onecopy_stand_in_fail(b"cuEventRecord", 0, 0, 0)
    assert world.receiver.tokens_held == 0
    world.overwrite()
    assert world.driver.read(at, PIECE, world.driver.stream()) == data


@pytest.mark.parametrize("name", ["device_to_device", "into_device"])
def test_the_example_runs_on_a_device(name: str) -> None:
    assert LIBRARY is not None
    environment = {**os.environ, "ONECOPY_CUDA_LIBRARY": LIBRARY}
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0 and "cuda 0" in ran.stdout, ran.stdout + ran.stderr


def test_the_check_for_a_gpu_passes_and_says_on_what() -> None:
    assert LIBRARY is not None
    environment = {**os.environ, "ONECOPY_CUDA_LIBRARY": LIBRARY}
    command = [sys.executable, str(EXAMPLES / "gpu_check.py"), "--need-gpu"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0 and len(rows) >= 7, ran.stdout + ran.stderr
    assert all(row["ok"] and row["stand_in"] for row in rows) and "stand-in" in ran.stderr
    # Where there is none it fails, if it is asked to.
    ran = subprocess.run(
        command, env={**environment, "ONECOPY_CUDA_LIBRARY": "/nowhere"}, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1 and "no GPU was checked" in ran.stderr


def test_the_interpreter_ends_while_tensors_live() -> None:
    program = """
import onecopy
near, far = onecopy.Stack.pair()
far.set_queues(2)
far.steer("tcp://10.0.0.2:5201", 1)
memory = onecopy.DeviceMemory.cuda(1 << 20)
binding = far.bind_rx(memory, [1])
listener = far.listen("tcp://10.0.0.2:5201")
sender = near.connect("tcp://10.0.0.2:5201", timeout=60)
receiver = listener.accept()
sender.send(b"bytes")
(fragment,) = receiver.recv_frags().device
interface = fragment.__cuda_array_interface__
capsule = fragment.__dlpack__(max_version=(1, 0))
print("well")
"""
    assert LIBRARY is not None
    environment = {**os.environ, "ONECOPY_CUDA_LIBRARY": LIBRARY}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0 and ran.stdout == "well\n", ran.stderr
