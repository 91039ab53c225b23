"""Failures as exceptions. The class says what is still of use afterwards.

Error
    Rejected            arguments were refused, on this rank or another; nothing was written and
        Mismatch        the communicator goes on
        BudgetTooSmall
        CapacityTooSmall
    CommunicatorFailed  the communicator is of no more use; leave it
        Timeout
        RankLost
        RankLeft
        Aborted
    ConnectionFailed    the connection is of no more use; close it
        DaemonLost
        DaemonStopping
        Closed          used after close() or leave()
"""

import enum

from ._library import lib


class Code(enum.IntEnum):
    """What kind of failure; the numbers of enum ruccl_code."""

    INVALID_ARGUMENT = 1
    INVALID_SHAPE = 2
    INVALID_ROOT = 3
    INVALID_OPERATION = 4
    UNSUPPORTED_DTYPE = 5
    UNSUPPORTED_ALGORITHM = 6
    BUDGET_TOO_SMALL = 7
    MISALIGNED = 8
    OUT_OF_RANGE = 9
    OVERLAP = 10
    MISMATCH = 11
    CAPACITY = 12
    UNEXPECTED_COUNTS = 13
    TIMEOUT = 14
    RANK_LOST = 15
    RANK_LEFT = 16
    ABORTED = 17
    DAEMON_LOST = 18
    DAEMON_STOPPING = 19
    QUOTA = 20
    PERMISSION = 21
    NOT_FOUND = 22
    DUPLICATE_RANK = 23
    VERSION = 24
    PROTOCOL = 25
    MEMORY_FAULT = 26
    NO_MEMORY = 27
    SYSTEM = 28
    FORKED = 29
    CLOSED = 30


class Error(RuntimeError):
    """A failure that ruCCL reports.

    code    what kind of failure, a Code
    text    one sentence: what failed, with which argument, and what to do
    ranks   the ranks concerned, ascending; at most the first 32 of them
    nranks  how many ranks are concerned
    """

    def __init__(self, code, text, ranks=(), nranks=None):
        super().__init__(text)
        self.code = code
        self.text = text
        self.ranks = tuple(ranks)
        self.nranks = len(self.ranks) if nranks is None else nranks

    def __reduce__(self):
        return type(self), (self.code, self.text, self.ranks, self.nranks)


class Rejected(Error, ValueError):
    """Arguments were refused, on this rank or another; the communicator goes on."""


class Mismatch(Rejected):
    """Ranks disagree; the text names the call, the first field that differs, and who said what."""


class BudgetTooSmall(Rejected):
    """Not one element for each rank fits; the text names the least budget that works."""


class CapacityTooSmall(Rejected):
    """An all_to_all_v output with too few rows; the text names the rows needed."""


class CommunicatorFailed(Error):
    """The communicator is of no more use: leave it. Later calls return the same cause."""


class Timeout(CommunicatorFailed):
    """Some ranks did not arrive in time; the text names them."""


class RankLost(CommunicatorFailed):
    """A member's process died or disconnected, and the text names rank, pid and host; or the link
    with the daemon of its node was lost, and it names that."""


class RankLeft(CommunicatorFailed):
    """A member left while others needed it."""


class Aborted(CommunicatorFailed):
    """A member called abort(); the text is what it said."""


class ConnectionFailed(Error):
    """The connection is of no more use: close it."""


class DaemonLost(ConnectionFailed):
    """The daemon died."""


class DaemonStopping(ConnectionFailed):
    """The daemon was told to stop."""


class Closed(ConnectionFailed):
    """The connection was closed, or the communicator left, before the call or during it."""


_CLASSES = {
    Code.INVALID_ARGUMENT: Rejected,
    Code.INVALID_SHAPE: Rejected,
    Code.INVALID_ROOT: Rejected,
    Code.INVALID_OPERATION: Rejected,
    Code.UNSUPPORTED_DTYPE: Rejected,
    Code.UNSUPPORTED_ALGORITHM: Rejected,
    Code.BUDGET_TOO_SMALL: BudgetTooSmall,
    Code.MISALIGNED: Rejected,
    Code.OUT_OF_RANGE: Rejected,
    Code.OVERLAP: Rejected,
    Code.MISMATCH: Mismatch,
    Code.CAPACITY: CapacityTooSmall,
    Code.UNEXPECTED_COUNTS: Rejected,
    Code.TIMEOUT: Timeout,
    Code.RANK_LOST: RankLost,
    Code.RANK_LEFT: RankLeft,
    Code.ABORTED: Aborted,
    Code.DAEMON_LOST: DaemonLost,
    Code.DAEMON_STOPPING: DaemonStopping,
    Code.CLOSED: Closed,
}


def last_error(code):
    """The exception for a call of this thread that has just returned `code`, which is negative."""
    last = lib.ruccl_last_error().contents
    number = -code
    text = last.text.decode(errors="replace")
    if last.code != number or not text:
        text = lib.ruccl_code_name(code).decode()
    ranks = last.ranks[: min(last.nranks, 32)] if last.code == number else ()
    try:
        number = Code(number)
    except ValueError:
        pass  # a newer library than this package: the number and the text still say enough
    return _CLASSES.get(number, Error)(number, text, ranks, last.nranks if ranks else 0)


def check(code):
    """Raises what a negative return value stands for, and hands on every other."""
    if code < 0:
        raise last_error(code)
    return code


for _class in [Error, *Error.__subclasses__(), *_CLASSES.values()]:
    _class.__module__ = "ruccl"
