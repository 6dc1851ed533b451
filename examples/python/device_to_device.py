"""From one device's memory to another's over TCP: no byte is touched by this program. Two stacks on a cable in this process, and no privilege.

    python3 examples/python/device_to_device.py

Between two machines each has a stack of its own, on a TAP device: onecopy.Stack(tap="onecopy0", address="10.0.0.1/24").
"""

import threading

import onecopy

SERVER = "tcp://10.0.0.2:5201"
SIZE = 4 << 20
PIECE = 1 << 20
ROUNDS = 4


def memory_of_a_device() -> onecopy.DeviceMemory:
    """A CUDA device's, or what stands for one."""
    try:
        return onecopy.DeviceMemory.cuda(SIZE)
    except OSError:
        return onecopy.DeviceMemory.opaque(SIZE)


def send(conn: onecopy.Connection, tx: onecopy.TxBinding, memory: onecopy.DeviceMemory) -> None:
    """Sends all of the memory in pieces, and fills each again once the peer has it."""
    under_way: dict[int, onecopy.Sent] = {}
    for turn in range(ROUNDS):
        for at in range(0, SIZE, PIECE):
            if at in under_way and not under_way[at].wait():
                raise ConnectionResetError("the peer is gone")
            # What a kernel on the device would write. As long as a piece is under way it may be sent as old or as new: so it was waited for.
            memory.write_at(at, bytes([turn]) * PIECE)
            under_way[at] = conn.send_device(tx, [(at, PIECE)])
    for sent in under_way.values():
        sent.wait()
    conn.shutdown("write")


def main() -> None:
    """Sends 16 MiB out of 4 MiB of one memory into 4 MiB of another one."""
    near, far = onecopy.Stack.pair()
    far.set_queues(2)
    far.steer(SERVER, 1)
    source, sink = memory_of_a_device(), memory_of_a_device()
    with far.bind_rx(sink, [1]), near.bind_tx(source) as tx, far.listen(SERVER) as listener:
        with near.connect(SERVER, timeout=60) as sender, listener.accept() as receiver:
            sending = threading.Thread(target=send, args=(sender, tx, source))
            sending.start()
            have = 0
            while True:
                with receiver.recv_frags() as frags:
                    if not frags:
                        break
                    for fragment in frags.device:
                        # A program's kernel reads it where it lies; we look at a copy of the first byte's.
                        assert fragment.tobytes()[0] == have // SIZE
                        have += fragment.size
            sending.join()
            touched = sender.stats()["user_copied_in"] + receiver.stats()["user_copied_out"]
            print(f"{have} bytes from {source} into {sink}; copied by a CPU in user space: {touched}")
            assert have == ROUNDS * SIZE and touched == 0


if __name__ == "__main__":
    main()
