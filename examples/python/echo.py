"""A server that sends back what comes, and a client, each in a thread.

    python3 examples/python/echo.py
"""

import pathlib
import tempfile
import threading

import onecopy


def serve(listener: onecopy.Listener) -> None:
    """Sends one client's bytes back from where they lie."""
    with listener.accept() as server:
        while view := server.recv_borrowed():
            with view:
                server.sendall(view.tobytes())


def main() -> None:
    """Runs both."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{pathlib.Path(folder) / 'echo'}"
        with onecopy.listen(address) as listener:
            server = threading.Thread(target=serve, args=(listener,))
            server.start()
            with onecopy.connect(address) as client:
                for line in (b"one", b"two", b"three"):
                    client.sendall(line)
                    answer = client.recv(100)
                    print(answer.decode(), "by", client.path)
                    assert answer == line
            server.join()


if __name__ == "__main__":
    main()
