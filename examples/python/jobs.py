"""Jobs as records: a queue of them from one process to another, which answers each.

    python3 examples/python/jobs.py
"""

import os

import onecopy


def main() -> None:
    """Forks a worker and gives it work."""
    boss, worker = onecopy.pair(records=True)
    child = os.fork()
    if child == 0:
        boss.close()
        for job in worker:
            worker.send(b"done: " + bytes(job))
        os._exit(0)
    worker.close()
    for number in range(3):
        boss.send(f"job {number}".encode())
    for number in range(3):
        answer = boss.recv()
        print(answer.decode())
        assert answer == f"done: job {number}".encode()
    boss.close()
    assert os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    main()
