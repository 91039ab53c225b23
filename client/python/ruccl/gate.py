"""Closing what several threads use."""

import threading

from .errors import Closed, Code


class Gate:
    """Counts the calls that use something, so that none is inside when it is closed.

    with gate: ...      raises Closed once the gate is shut
    gate.shut()         lets nobody else in and waits until nobody is inside

    A finalizer may pass through while its thread is anywhere, also in here: hence the re-entrant
    lock, and in-and-out leaves the count as it was.
    """

    def __init__(self, text):
        self._text = text
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0
        self._open = True

    def __enter__(self):
        with self._lock:
            if not self._open:
                raise Closed(Code.CLOSED, self._text)
            self._inside += 1

    def __exit__(self, *exception):
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and not self._open:
                self._changed.notify_all()

    @property
    def is_open(self):
        return self._open

    def shut(self):
        """Returns whether it was open: exactly one caller does the closing."""
        with self._changed:
            was_open, self._open = self._open, False
            self._changed.wait_for(lambda: self._inside == 0)
        return was_open
