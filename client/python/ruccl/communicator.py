"""Communicators: one rank's membership in a session of ranks, and the collectives.

R is the world size, [a, ...] a shape whose axis 0 is a. An array is numpy's, or any object with a
C-contiguous buffer. One made by Connection.empty() is used where it is; every other is copied
through shared memory, a large one in a blocking call piece by piece while the collective runs.
Inputs that are not contiguous are packed; outputs that are not contiguous are refused. Or it is an
array in memory of a GPU, a torch tensor or an object with a __cuda_array_interface__, which
Connection.register_cuda() has to know, and is used where it is; outputs there have to be given.

Every rank calls the same collectives in the same order. A refusal, also one by this package, is an
error on every rank, after which the communicator goes on; see ruccl.errors for what else there is.
"""

import ctypes
import functools
import operator
from ctypes import byref, c_void_p

from . import _library, cuda, tensors
from .dtypes import op_of
from .errors import Closed, Code, Rejected, check
from .gate import Gate
from .work import Work
from ._library import lib


class _Request:
    """A collective's arguments, ready for the C function that starts it."""

    def __init__(self, *arguments, result=None, finish=None):
        self.arguments = arguments
        self.finish = finish or (lambda work: result)


def _collective(prepare):
    """Makes the blocking call out of the method that checks its arguments into a _Request.

    The result's `asynchronous` is the call that returns a Work at once.
    """
    name = prepare.__name__

    def begin(self, attended, args, kwargs):
        try:
            request = prepare(self, *args, **kwargs)
            arguments = self._arguments(request)
        except Exception:
            # The other ranks make this call too, and would wait for this one.
            self._refuse(name)
            raise
        return self._start(name, request, arguments, attended)

    @functools.wraps(prepare)
    def start(self, *args, **kwargs):
        return begin(self, False, args, kwargs)

    @functools.wraps(prepare)
    def call(self, *args, **kwargs):
        work = begin(self, True, args, kwargs)
        try:
            return work.wait()
        finally:
            work.drop()  # what a signal's handler has interrupted goes on

    start.__name__ = f"{name}_async"
    start.__qualname__ = f"{prepare.__qualname__}_async"
    start.__doc__ = f"As {name}(), which see; returns a Work at once."
    call.asynchronous = start
    return call


class Member:
    """The membership that a communicator and all its forms share."""

    def __init__(self, connection, raw):
        self.connection = connection
        self.raw = raw
        self.gate = Gate("the communicator was left")
        connection._members.add(self)

    def formed(self):
        """Called inside the connection's gate, once everyone has joined."""
        self.rank = lib.ruccl_rank(self.raw)
        self.world_size = lib.ruccl_world_size(self.raw)
        self.id = lib.ruccl_id(self.raw).decode()
        return Communicator(self, self.raw.max_chunk_bytes, self.raw.stream)

    def leave(self):
        if not self.gate.shut():
            return
        self.connection._members.discard(self)
        try:
            with self.connection._gate:
                check(lib.ruccl_leave(self.raw))
        except Closed:
            pass  # the connection was, and has taken the membership along


class Communicator:
    """One rank's membership in a session of R ranks, and how its collectives are done.

    rank, world_size, id    as joined
    max_chunk_bytes         most bytes of tensor messages in flight; None without a budget
    stream                  that calls on arrays of GPUs take part in; None for that of the arrays

    Leave it to part in good order; `with` does, after telling the others of an exception. Dropping
    the object does not leave.
    """

    def __init__(self, member, max_chunk_bytes, stream):
        self._member = member
        self._connection = member.connection
        self._raw = _library.Comm(member.raw.member, max_chunk_bytes, stream, 0)
        self._attended = _library.Comm(member.raw.member, max_chunk_bytes, stream, 1)
        self.rank = member.rank
        self.world_size = member.world_size
        self.id = member.id
        self.max_chunk_bytes = None if max_chunk_bytes == _library.NO_BUDGET else max_chunk_bytes
        self.stream = stream

    def __repr__(self):
        budget = "" if self.max_chunk_bytes is None else f", {self.max_chunk_bytes} bytes"
        return f"<ruccl.Communicator {self.id}, rank {self.rank} of {self.world_size}{budget}>"

    def __enter__(self):
        return self

    def __exit__(self, kind, exception, traceback):
        try:
            if exception is not None:
                self.abort(f"{kind.__name__}: {exception}")
        except Closed:
            pass  # by hand, inside the block
        finally:
            self.leave()

    # ------------------------------------------------------------------ membership

    def bounded(self, max_chunk_bytes):
        """The same communicator under a budget in bytes. Never communicates."""
        if not 0 <= operator.index(max_chunk_bytes) < _library.NO_BUDGET:
            raise Rejected(Code.INVALID_ARGUMENT, f"{max_chunk_bytes} bytes are no budget")
        return Communicator(self._member, max_chunk_bytes, self.stream)

    def unbounded(self):
        """The communicator as it was before any budget."""
        return Communicator(self._member, _library.NO_BUDGET, self.stream)

    def on_stream(self, stream):
        """The same communicator on a CUDA stream: an integer handle, or torch's or cupy's object.

        A call on arrays of GPUs begins after what the stream holds, and what is put into the stream
        afterwards sees the result, without waiting for the Work. Without this it is the stream that
        the array names, torch's current one, or else the legacy default stream.
        """
        return Communicator(self._member, self._raw.max_chunk_bytes, cuda.stream_of(stream))

    def split(self, color, key=0):
        """Collective: ranks of the same color form a new communicator, ordered by (key, old rank).

        color   an integer from 0 up, or None to take part and get no communicator
        Returns the new Communicator, or None.
        """
        return self.split_async(color, key).wait()

    def split_async(self, color, key=0):
        """As split(); returns a Work at once."""
        try:
            color = _library.COLOR_NONE if color is None else signed(color, 0, "color")
            key = signed(key, -(2**31), "key")
        except Exception:
            self._refuse("split")
            raise
        raw, handle = _library.Comm(), c_void_p()
        with self._connection._gate, self._member.gate:
            check(lib.ruccl_split_async(self._raw, color, key, byref(raw), byref(handle)))
        return forming(self._connection, raw, handle)

    def leave(self):
        """Waits for this rank's own unfinished work, then ends its membership.

        Operations of others that still need this rank fail at once with RankLeft. The communicator
        and its bounded forms are closed afterwards; leaving twice does nothing.
        """
        self._member.leave()

    def abort(self, text):
        """Fails the communicator for every rank: Aborted, with `text`."""
        with self._connection._gate, self._member.gate:
            check(lib.ruccl_abort(self._raw, text.encode()))

    # ------------------------------------------------------------------ collectives

    @_collective
    def all_reduce(self, x, out=None, op="sum", *, dtype=None):
        """Reduces over all ranks, for all ranks: out = x[0] op x[1] ... op x[R-1].

        Shapes: x and out any, also no axes. Without `out`, in place in `x`.
        op: sum, product, min, max, mean (floats), and, or, xor (integers). Returns out.
        """
        source, target = self._in_place(x, out, dtype)
        return _Request(source, target, op_of(op), result=x if out is None else out)

    @_collective
    def all_gather(self, x, out=None, *, dtype=None):
        """Everyone's x for everyone, rank 0's first.

        Shapes: x [a, ...]; out [R*a, ...], allocated without `out`. In place where x is out's
        block `rank`. Returns out.
        """
        source = tensors.read(x, dtype)
        target = self._output(out, dtype, source, self._times(source.shape))
        return _Request(source, target, result=target.source)

    @_collective
    def reduce_scatter(self, x, out=None, op="sum", *, dtype=None):
        """Reduces over all ranks and leaves each rank its block of the result.

        Shapes: x [R*a, ...]; out [a, ...], allocated without `out`. In place where out is x's
        block `rank`. op as in all_reduce(). Returns out.
        """
        source = tensors.read(x, dtype)
        target = self._output(out, dtype, source, self._over(source.shape))
        return _Request(source, target, op_of(op), result=target.source)

    @_collective
    def broadcast(self, x, root=0, out=None, *, dtype=None):
        """The root's x for everyone.

        Shapes: x and out any, the same on every rank. Without `out`, in place in `x`. Returns out.
        """
        source, target = self._in_place(x, out, dtype)
        return _Request(source, target, unsigned(root, "root"), result=x if out is None else out)

    @_collective
    def reduce(self, x, root=0, out=None, op="sum", *, dtype=None):
        """Reduces over all ranks, for the root.

        Shapes: x and out any; out only counts at the root, where it is x itself if not given. op as
        in all_reduce(). Returns out at the root, None elsewhere.
        """
        root = unsigned(root, "root")
        if self.rank != root:
            return _Request(tensors.read(x, dtype), None, op_of(op), root)
        source, target = self._in_place(x, out, dtype)
        return _Request(source, target, op_of(op), root, result=x if out is None else out)

    @_collective
    def gather(self, x, root=0, out=None, *, dtype=None):
        """Everyone's x for the root, rank 0's first.

        Shapes: x [a, ...]; out [R*a, ...], which only counts at the root, where it is allocated if
        not given. Returns out at the root, None elsewhere.
        """
        root = unsigned(root, "root")
        source = tensors.read(x, dtype)
        if self.rank != root:
            return _Request(source, None, root)
        target = self._output(out, dtype, source, self._times(source.shape))
        return _Request(source, target, root, result=target.source)

    @_collective
    def scatter(self, x, root=0, out=None, *, dtype=None):
        """The root's x for everyone, block r for rank r.

        Shapes: x [R*a, ...], which only counts at the root; out [a, ...], allocated at the root if
        not given, and needed everywhere else. Returns out.
        """
        root = unsigned(root, "root")
        source = tensors.read(x, dtype) if self.rank == root else None
        if out is None and source is None:
            raise Rejected(Code.INVALID_ARGUMENT, "scatter needs out on every rank but the root")
        target = self._output(out, dtype, source, source and self._over(source.shape))
        return _Request(source, target, root, result=target.source)

    @_collective
    def all_to_all(self, x, out=None, *, dtype=None):
        """Block d of x goes to rank d; block s of out comes from rank s.

        Shapes: x and out [R*a, ...]; out is allocated if not given. Returns out.
        """
        source = tensors.read(x, dtype)
        target = self._output(out, dtype, source, source.shape)
        return _Request(source, target, result=target.source)

    @_collective
    def all_to_all_v(
        self, rows, send_counts, out=None, *, capacity=None, expected_counts=None, dtype=None
    ):
        """As many rows as each likes from everyone to everyone.

        Shapes: rows [sum(send_counts), ...], grouped by destination; out [capacity, ...]. Counts
        are in rows, R of them. Without `out` it is allocated with `capacity` rows, or with the sum
        of `expected_counts`. Where those are given, other counts are refused on every rank before
        data moves.
        Returns (out cut to the rows received, by ascending source; rows received from each rank).
        """
        source = tensors.read(rows, dtype)
        sends = tensors.counts(send_counts, self.world_size, "send_counts")
        expected = None
        if expected_counts is not None:
            expected = tensors.counts(expected_counts, self.world_size, "expected_counts")
        if capacity is None and expected is not None:
            capacity = sum(expected)
        if out is None and capacity is None:
            raise Rejected(
                Code.INVALID_ARGUMENT, "all_to_all_v needs out, or capacity, or expected_counts"
            )
        target = self._output(out, dtype, source, (capacity, *source.shape[1:]))

        def finish(work):
            received = work.receive_counts()
            return tensors.first_rows(target, sum(received)), received

        return _Request(source, sends, target, expected, finish=finish)

    @_collective
    def barrier(self):
        """Returns when every rank has called it."""
        return _Request()

    # ------------------------------------------------------------------ point to point

    @_collective
    def send(self, x, to, tag=0, *, dtype=None):
        """Sends x to rank `to`; done once a recv() there has matched it.

        Matched by (source, destination, tag) in the order of the calls. Takes no part in the order
        of the collectives.
        """
        return _Request(tensors.read(x, dtype), unsigned(to, "to"), unsigned(tag, "tag"))

    @_collective
    def recv(self, out, source, tag=0, *, dtype=None):
        """Receives from rank `source` into out, of the sender's type and shape. Returns out."""
        target = tensors.write(out, dtype)
        return _Request(target, unsigned(source, "source"), unsigned(tag, "tag"), result=out)

    all_reduce_async = all_reduce.asynchronous
    all_gather_async = all_gather.asynchronous
    reduce_scatter_async = reduce_scatter.asynchronous
    broadcast_async = broadcast.asynchronous
    reduce_async = reduce.asynchronous
    gather_async = gather.asynchronous
    scatter_async = scatter.asynchronous
    all_to_all_async = all_to_all.asynchronous
    all_to_all_v_async = all_to_all_v.asynchronous
    barrier_async = barrier.asynchronous
    send_async = send.asynchronous
    recv_async = recv.asynchronous

    # ------------------------------------------------------------------ the way into the library

    def _arguments(self, request):
        regions = self._connection._regions
        return [
            byref(argument.tensor(regions)) if isinstance(argument, tensors.Array) else argument
            for argument in request.arguments
        ]

    def _raw_for(self, request, attended):
        raw = self._attended if attended else self._raw
        if self.stream is None:
            for argument in request.arguments:
                if isinstance(argument, tensors.Array) and argument.stream is not None:
                    return _library.Comm(
                        raw.member, raw.max_chunk_bytes, argument.stream, raw.attended
                    )
        return raw

    def _start(self, name, request, arguments, attended):
        function = getattr(lib, f"ruccl_{name}_async")
        raw = self._raw_for(request, attended)
        handle = c_void_p()
        work = Work(
            self._connection, handle, keep=request.arguments, finish=request.finish,
            world_size=self.world_size, attended=attended,
        )  # fmt: skip
        try:
            with self._connection._gate, self._member.gate:
                self._connection._sweep()
                check(function(raw, *arguments, byref(handle)))
        except BaseException:
            work.drop()
            raise
        return work

    def _refuse(self, name):
        """Takes the place of a call that failed here in the order of the collectives.

        A tensor of no type is what the library refuses on every rank; calls without tensors are
        told apart from the other ranks' by their kind.
        """
        if name in ("send", "recv"):
            return
        if name in ("split", "barrier"):
            name = "all_reduce"
        function = getattr(lib, f"ruccl_{name}_async")
        nothing = {
            _library.TENSOR: byref(_library.Tensor()),
            _library.COUNTS: (ctypes.c_uint64 * self.world_size)(),
            _library.OP: 1,
            _library.RANK: 0,
        }
        handle = c_void_p()
        try:
            with self._connection._gate, self._member.gate:
                function(self._raw, *map(nothing.get, function.argtypes[1:-1]), byref(handle))
                lib.ruccl_work_release(handle)
        except Closed:
            pass  # then nobody waits

    def _in_place(self, x, out, dtype):
        if out is None:
            both = tensors.write(x, dtype)
            return both, both
        return tensors.read(x, dtype), tensors.write(out, dtype)

    def _output(self, out, dtype, like, shape):
        return tensors.like(like, shape) if out is None else tensors.write(out, dtype)

    # Shapes that do not fit come out as they are, for the library to refuse on every rank alike.

    def _times(self, shape):
        return (shape[0] * self.world_size, *shape[1:]) if shape else shape

    def _over(self, shape):
        return (shape[0] // self.world_size, *shape[1:]) if shape else shape


def forming(connection, raw, handle):
    """The Work of a communicator that is being formed; its result is the Communicator, or None."""
    if raw.member is None:
        return Work(connection, handle, keep=(raw,))
    member = Member(connection, raw)
    return Work(
        connection, handle, keep=(raw,), undo=member.leave,
        finish=lambda work: member.formed(),
    )  # fmt: skip


def unsigned(value, name):
    """A rank, tag or size as the library takes it; ctypes would cut it to 32 bits in silence."""
    number = operator.index(value)
    if not 0 <= number < 2**32:
        code = Code.INVALID_ROOT if name == "root" else Code.INVALID_ARGUMENT
        raise Rejected(code, f"{name} is {number}; it has to be from 0 to 2^32 - 1")
    return number


def signed(value, least, name):
    number = operator.index(value)
    if not least <= number < 2**31:
        raise Rejected(Code.INVALID_ARGUMENT, f"{name} is {number}; it has to be from {least} up")
    return number
