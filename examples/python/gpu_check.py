"""Checks on a CUDA device what Python gets of a fragment, DLPack and __cuda_array_interface__, against sums that the CPU computes.

A row of JSON for each, as `cargo xtask gpu-check` prints those of Rust; it runs this, too. By itself:

    python3 gpu_check.py [--need-gpu]

What a program like torch does is done by the driver's own calls here, so that nothing else is needed: each tensor is taken on a stream, copied on that stream to
memory of the program's, and dropped before the stream has come to it. Its token must be back then, and other bytes must land in its page only behind the copy. Where
torch is installed, and has the device, it takes a tensor, too. Without a driver or a device this says what is needed (and exits with 1, if --need-gpu is there).
"""

import ctypes
import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import onecopy

LIBRARY = os.environ.get("ONECOPY_CUDA_LIBRARY") or "libcuda.so.1"
SERVER = "tcp://10.0.0.2:5201"
SIZE = 64 << 10
TURNS = 16
# A page: where it is free again, what comes next comes there. (Smaller pieces share one.)
PIECE = 4096

# DLPack's names of streams that are no handle (__dlpack__ in the array API standard), and CUDA's.
LEGACY, PER_THREAD = 1, 2


class Driver:
    """What a program does with the driver, beside onecopy."""

    def __init__(self, ordinal: int = 0) -> None:
        """The device's primary context, which onecopy has, too."""
        self.library = ctypes.CDLL(LIBRARY)
        self.stand_in = hasattr(self.library, "onecopy_stand_in_get")
        device, context = ctypes.c_int(), ctypes.c_size_t()
        self.done("cuDeviceGet", self.library.cuDeviceGet(ctypes.byref(device), ordinal))
        self.done("cuDevicePrimaryCtxRetain", self.library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        self.context = context
        self.busy = 0

    @staticmethod
    def done(name: str, result: int) -> None:
        """Says which call has failed."""
        if result != 0:
            raise OSError(f"{name}: CUresult {result}")

    def call(self, name: str, *arguments: Any) -> None:
        """A call in the context."""
        words = [ctypes.c_size_t(one) if isinstance(one, int) else one for one in arguments]
        self.done("cuCtxPushCurrent", self.library.cuCtxPushCurrent_v2(self.context))
        try:
            self.done(name, getattr(self.library, name)(*words))
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_size_t()))

    def stream(self, *, apart: bool) -> int:
        """A stream; one that is apart is not in step with the default stream."""
        handle = ctypes.c_size_t()
        self.call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(apart))
        return handle.value

    def memory(self, size: int) -> int:
        """Memory of the program's own."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), size)
        return at.value

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        """A copy on the device, which the stream comes to some time."""
        self.call("cuMemcpyDtoDAsync_v2", to, source, size, stream)

    def keep_busy(self, stream: int) -> None:
        """Puts work into the stream that takes a while, so that what comes behind it is late."""
        if not self.busy:
            self.busy = self.memory(2 * SIZE)
        for _ in range(256):
            self.copy(self.busy, self.busy + SIZE, SIZE, stream)

    def read(self, source: int, size: int, stream: int) -> bytes:
        """What is there when the stream has come to it."""
        room = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(room), source, size, stream)
        self.call("cuStreamSynchronize", stream)
        return room.raw


class Tensor(ctypes.Structure):
    """DLTensor, of dlpack.h."""

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


class Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_size_t),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


# A capsule does not copy its name.
USED = b"used_dltensor_versioned"


def take(capsule: object) -> tuple[int, int, Callable[[], None]]:
    """Takes the tensor out of its capsule, as torch does: where it lies, how many bytes it has, and its deleter."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    at = api.PyCapsule_GetPointer(capsule, b"dltensor_versioned")
    assert api.PyCapsule_SetName(capsule, USED) == 0
    managed: Any = Managed.from_address(at)
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(managed.deleter)
    return managed.tensor.data, managed.tensor.shape[0], lambda: deleter(at)


class World:
    """A connection over a cable whose receiver has a CUDA device's memory bound: the least there is, so that its pages are used again and again."""

    def __init__(self) -> None:
        """Raises OSError where there is no device."""
        self.memory = onecopy.DeviceMemory.cuda(SIZE)
        self.driver = Driver()
        # A packet has a page at least.
        self.near, self.far = onecopy.Stack.pair(mtu=9000)
        self.far.set_queues(2)
        self.far.steer(SERVER, 1)
        self.binding = self.far.bind_rx(self.memory, [1])
        with self.far.listen(SERVER) as listener:
            self.sender = self.near.connect(SERVER, timeout=60)
            self.receiver = listener.accept()
        self.receiver.settimeout(60)
        self.turn = 0

    def fragment(self) -> tuple[onecopy.Fragment, bytes]:
        """Sends bytes that no fragment before had, and receives them as one."""
        self.turn += 1
        data = hashlib.shake_256(str(self.turn).encode()).digest(PIECE)
        self.sender.sendall(data)
        (fragment,) = self.receiver.recv_frags(len(data)).device
        return fragment, data

    def overwrite(self) -> None:
        """Fills all of the memory that is free, some times over."""
        for _ in range(40):
            self.sender.sendall(b"\xee" * 4096)
            left = 4096
            while left:
                with self.receiver.recv_frags(left) as frags:
                    left -= len(frags)

    def tokens(self, wanted: int) -> None:
        """Fails where others are held."""
        held = self.receiver.tokens_held
        if held != wanted:
            raise AssertionError(f"{held} tokens are held, and not {wanted}")


def same(got: bytes, wanted: bytes) -> None:
    """Compares what the device gave with what was sent, by their sums."""
    found, right = (hashlib.sha256(one).hexdigest()[:16] for one in (got, wanted))
    if found != right:
        raise AssertionError(f"the sum is {found} and not {right}")


def dlpack(world: World, given: int | None, handle: int) -> int:
    """Tensors that are taken on a stream, and dropped before it has come to their bytes."""
    own = world.driver.memory(PIECE)
    for _ in range(TURNS):
        fragment, data = world.fragment()
        at, size, delete = take(fragment.__dlpack__(stream=given, max_version=(1, 0)))
        del fragment
        world.tokens(1)
        world.driver.keep_busy(handle)
        world.driver.copy(own, at, size, handle)
        delete()
        world.tokens(0)
        world.overwrite()
        same(world.driver.read(own, size, handle), data)
    return TURNS * PIECE


def array_interface(world: World) -> int:
    """Addresses by __cuda_array_interface__, which names no stream: one that is in step with the default stream is waited for."""
    own, handle = world.driver.memory(PIECE), world.driver.stream(apart=False)
    for _ in range(TURNS):
        fragment, data = world.fragment()
        interface = fragment.__cuda_array_interface__
        at, (size,) = interface["data"][0], interface["shape"]
        if interface["version"] != 3 or interface["typestr"] != "|u1" or interface["stream"] is not None:
            raise AssertionError(f"another interface: {interface}")
        world.driver.keep_busy(handle)
        world.driver.copy(own, at, size, handle)
        del fragment
        world.tokens(0)
        world.overwrite()
        same(world.driver.read(own, size, handle), data)
    return TURNS * PIECE


def kept(world: World) -> int:
    """A tensor keeps its bytes when its token was given back long ago."""
    stream = world.driver.stream(apart=True)
    for _ in range(TURNS):
        fragment, data = world.fragment()
        at, size, delete = take(fragment.__dlpack__(stream=stream, max_version=(1, 0)))
        world.receiver.dont_need([fragment])
        world.tokens(0)
        del fragment
        world.overwrite()
        same(world.driver.read(at, size, stream), data)
        delete()
    return TURNS * PIECE


def torch_takes(world: World, torch: Any) -> int:
    """A tensor of torch's, on its current stream."""
    for _ in range(TURNS):
        fragment, data = world.fragment()
        tensor = torch.from_dlpack(fragment)
        copied = tensor.clone()
        del fragment, tensor
        gc.collect()
        world.tokens(0)
        world.overwrite()
        same(copied.cpu().numpy().tobytes(), data)
    return TURNS * PIECE


def paths(world: World) -> Iterator[tuple[str, Callable[[], int]]]:
    """Each, and what checks it: bytes that were compared."""
    step, apart = world.driver.stream(apart=False), world.driver.stream(apart=True)
    streams = {"no stream": (None, LEGACY), "the legacy default stream": (LEGACY, LEGACY), "the thread's default stream": (PER_THREAD, PER_THREAD)}
    streams |= {"a stream": (step, step), "a stream that is apart": (apart, apart)}
    for name, (given, handle) in streams.items():
        yield f"DLPack, {name}", lambda given=given, handle=handle: dlpack(world, given, handle)  # type: ignore[misc]
    yield "DLPack, kept", lambda: kept(world)
    yield "__cuda_array_interface__", lambda: array_interface(world)
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]

        if torch.cuda.is_available():
            yield "torch.from_dlpack", lambda: torch_takes(world, torch)
            return
        lacks = "torch has no device"
    except ImportError:
        lacks = "torch is not installed"
    print(f"torch.from_dlpack was not tried: {lacks}", file=sys.stderr)


def main() -> int:
    """All of it."""
    try:
        world = World()
    except OSError as error:
        print(f"no GPU was checked: {error}", file=sys.stderr)
        return int("--need-gpu" in sys.argv)
    failed = 0
    for path, check in paths(world):
        row: dict[str, object] = {"device": 0, "stand_in": world.driver.stand_in, "path": path}
        try:
            row |= {"ok": True, "bytes": check()}
        except (AssertionError, OSError) as error:
            failed += 1
            row |= {"ok": False, "error": str(error)}
        print(json.dumps(row), flush=True)
    if world.driver.stand_in:
        print("this was the stand-in for a driver: sums were compared on it, and on no GPU", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
