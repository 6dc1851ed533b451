"""TCP's payload into a device's memory, where it is used: two stacks on a cable in this process, and no privilege.

    python3 examples/python/into_device.py

Of a CUDA device's memory each fragment is a tensor where it lies: torch.from_dlpack(fragment), cupy.from_dlpack(fragment). Where there is no driver, opaque
memory stands for a device: nothing reads it in place, so its bytes are copied out here.
"""

import threading

import onecopy

SERVER = "tcp://10.0.0.2:5201"
SIZE = 4 << 20


def memory_of_a_device() -> onecopy.DeviceMemory:
    """A CUDA device's, or what stands for one."""
    try:
        return onecopy.DeviceMemory.cuda(SIZE)
    except OSError as error:
        print(f"no CUDA device: {error}")
        return onecopy.DeviceMemory.opaque(SIZE)


def main() -> None:
    """Receives 16 MiB into 4 MiB of memory, whose pages are used again as their tokens come back."""
    sent = bytes(n * 7 % 251 for n in range(1 << 20)) * 16
    near, far = onecopy.Stack.pair()
    # Flows to port 5201 come to queue 1, which has the memory; all others to queue 0.
    far.set_queues(2)
    far.steer(SERVER, 1)
    memory = memory_of_a_device()
    with far.bind_rx(memory, [1]), far.listen(SERVER) as listener:
        with near.connect(SERVER, timeout=60) as sender, listener.accept() as receiver:
            sending = threading.Thread(target=sender.sendall, args=(sent,))
            sending.start()
            have = tensors = 0
            while have < len(sent):
                # At its end the tokens go back. The page of a tensor that is still there stays.
                with receiver.recv_frags() as frags:
                    if not have and memory.kind == "cuda":
                        assert frags.device[0].__dlpack_device__() == (2, memory.device)
                        tensors = len([fragment.__cuda_array_interface__ for fragment in frags.device])
                    assert frags.tobytes() == sent[have : have + len(frags)]
                    have += len(frags)
            sending.join()
            counts = receiver.stats()
            print(f"{have} bytes into {memory}; copied by a CPU in user space: {counts['user_copied_out']}")
            assert counts["user_copied_out"] == 0 and receiver.tokens_held == 0
            assert (tensors > 0) == (memory.kind == "cuda")


if __name__ == "__main__":
    main()
