"""What lies between two daemons, or only pretends to be one: the test's sockets, on its hosts."""

import contextlib
import select
import socket
import threading


def dial(host, address, port, payload=b""):
    """A connection from the host, on which `payload` has been sent."""
    dialled = host.socket()
    dialled.settimeout(10)
    dialled.connect((address, port))
    with contextlib.suppress(ConnectionError):  # whoever is refused at once has nothing to send to
        dialled.sendall(payload)
    return dialled


def listen(host, port):
    """A socket that accepts nobody."""
    listener = host.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host.address, port))
    listener.listen()
    return listener


def is_closed(connection, seconds):
    """Whether the other end closes it within so many seconds, whatever it says before."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


class Proxy:
    """Listens on `host` and hands what it gets on to `target`, (address, port), and back; keeps a
    record of it, and says it otherwise if it is told to."""

    def __init__(self, host, port, target):
        self._host, self._target = host, target
        self._listener = listen(host, port)
        self._lock = threading.Lock()
        self._pairs = []  # of sockets: who dialled, and whom they meant
        self._ended = False
        self._flip = None
        self.record = b""  # what dialling daemons have said, one connection behind the other
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def flip(self, offset):
        """From now on changes that byte of what dialling daemons say, counted from here."""
        with self._lock:
            self._flip = offset

    def repeat(self, nbytes):
        """Says the last bytes once more to whom they were meant for."""
        with self._lock:
            for _, server in self._pairs:
                server.sendall(self.record[-nbytes:])

    def close(self):
        self._ended = True
        self._thread.join()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _serve(self):
        while not self._ended:
            with self._lock:
                ends = [end for pair in self._pairs for end in pair]
            for ready in select.select([self._listener, *ends], [], [], 0.05)[0]:
                with self._lock:
                    if ready is self._listener:
                        self._accept()
                    else:
                        self._pass_on(ready)

    def _accept(self):
        client, _ = self._listener.accept()
        server = self._host.socket()
        try:
            server.connect(self._target)
        except OSError:
            client.close()
            server.close()
            return
        self._pairs.append((client, server))

    def _pass_on(self, ready):
        pair = next((pair for pair in self._pairs if ready in pair), None)
        if not pair:
            return  # closed a moment ago
        client, server = pair
        try:
            data = ready.recv(65536)
            if data and ready is client:
                data = self._changed(data)
                self.record += data
            (server if ready is client else client).sendall(data)
        except ConnectionError:
            data = b""
        if not data:
            self._pairs.remove(pair)
            client.close()
            server.close()

    def _changed(self, data):
        if self._flip is None:
            return data
        at, self._flip = self._flip, self._flip - len(data)
        if at < len(data):
            self._flip = None
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data
