"""Arrays as arguments: numpy arrays, arrays of GPUs, and whatever has a C-contiguous buffer."""

import ctypes
import math
import struct
from ctypes import c_char, c_uint64

from . import cuda, dtypes
from ._library import MAX_AXES, Tensor
from .dtypes import numpy
from .errors import Code, Rejected

_NOWHERE = ctypes.create_string_buffer(1)  # where the elements of an empty array are


class Array:
    """What an argument is: its element type, shape and address, and what keeps the bytes there.

    storage  what arrays like this one are made with: a numpy.dtype or a buffer format; None on GPUs
    stream   that an array of a GPU is used in, as far as it says so
    """

    __slots__ = ("source", "dtype", "shape", "storage", "address", "stream", "_keep")

    def __init__(self, source, dtype, shape, storage, address, keep, stream=None):
        if len(shape) > MAX_AXES:
            raise Rejected(
                Code.INVALID_SHAPE, f"an array has {len(shape)} axes; {MAX_AXES} are the most"
            )
        self.source = source
        self.dtype = dtype
        self.shape = shape
        self.storage = storage
        self.address = address
        self.stream = stream
        self._keep = keep

    def tensor(self, regions):
        """The C structure: a region and an offset where the array is shared, else an address."""
        size = nbytes(self.shape, self.dtype)
        tensor = Tensor(dtype=self.dtype, naxes=len(self.shape))
        tensor.shape[: len(self.shape)] = self.shape
        if size and self.storage is None and not regions.has_cuda:
            raise Rejected(
                Code.INVALID_ARGUMENT,
                "the array is in memory of a GPU that is not registered; see"
                " Connection.register_cuda()",
            )
        found = regions.find(self.address, size) if size and self.storage is not None else None
        if found:
            tensor.region, tensor.offset = found
        else:
            tensor.data = self.address if size else ctypes.addressof(_NOWHERE)
        return tensor


def read(source, dtype=None):
    """`source` as an input. What is not contiguous, or is read-only, is packed into a copy."""
    if cuda.is_array(source):
        return _cuda_array(cuda.Interface(source), dtype)
    if _is_numpy(source):
        packed = source if source.flags.c_contiguous else numpy.ascontiguousarray(source)
        return _numpy_array(packed, dtype)
    view = _buffer(source)
    if view.readonly or not view.c_contiguous:
        return _buffer_array(source, view, bytearray(view.tobytes()), dtype)
    return _buffer_array(source, view, view, dtype)


def write(target, dtype=None):
    """`target` as an output. It has to be contiguous and writable: a copy would keep the result."""
    if cuda.is_array(target):
        found = cuda.Interface(target)
        _require_writable(found.contiguous, found.writable)
        return _cuda_array(found, dtype)
    if _is_numpy(target):
        _require_writable(target.flags.c_contiguous, target.flags.writeable)
        return _numpy_array(target, dtype)
    view = _buffer(target)
    _require_writable(view.c_contiguous, not view.readonly)
    return _buffer_array(target, view, view, dtype)


def like(array, shape):
    """A new plain array of `array`'s type and the given shape, as an output."""
    if array.storage is None:
        raise Rejected(Code.INVALID_ARGUMENT, "an array in memory of a GPU needs out")
    if numpy is not None and isinstance(array.storage, numpy.dtype):
        return write(numpy.empty(shape, array.storage), array.dtype)
    memory = bytearray(nbytes(shape, array.dtype))
    return write(view_of(memory, array.storage, shape), array.dtype)


def nbytes(shape, dtype):
    return math.prod(shape) * dtype.width


def view_of(memory, storage, shape):
    """The start of `memory` as an array: numpy's for a numpy.dtype, a memoryview for a format."""
    count = math.prod(shape)
    if numpy is not None and isinstance(storage, numpy.dtype):
        return numpy.frombuffer(memory, storage, count).reshape(shape)
    flat = memoryview(memory)[: count * struct.calcsize(storage)].cast(storage)
    # A memoryview has no shape with a zero in it but the flat one.
    return flat.cast("B").cast(storage, shape) if count and len(shape) != 1 else flat


def first_rows(array, nrows):
    """The first rows of an output, in the form that its owner gave it."""
    if nrows == array.shape[0]:
        return array.source
    if array.storage is None or _is_numpy(array.source):
        return array.source[:nrows]
    view = memoryview(array.source)
    if view.shape != array.shape:
        view = view.cast(array.storage)
    return view[:nrows]


def _is_numpy(source):
    return numpy is not None and isinstance(source, numpy.ndarray)


def _numpy_array(array, dtype):
    chosen = dtypes.chosen(dtypes.of_numpy(array.dtype), dtype)
    return Array(array, chosen, array.shape, array.dtype, array.ctypes.data, array)


def _cuda_array(found, dtype):
    if not found.contiguous:
        raise Rejected(
            Code.INVALID_ARGUMENT, "an array in memory of a GPU has to be C-contiguous"
        )
    chosen = dtypes.chosen(dtypes.of_name(found.dtype), dtype)
    return Array(
        found.source, chosen, found.shape, None, found.address, found.source, found.stream
    )


def _buffer(source):
    try:
        return memoryview(source)
    except TypeError:
        raise TypeError(
            f"an array is needed, or an object with a buffer, not {type(source).__name__}"
        ) from None


def _buffer_array(source, view, held, dtype):
    """An array described by `view`, whose bytes are those of `held`."""
    natural = dtypes.of_buffer(view)
    shape = view.shape
    wanted = natural if dtype is None else dtypes.dtype_of(dtype)
    if natural == dtypes.DType.u8 and wanted.width > 1 and len(shape) == 1:
        # Plain bytes, as in a bytearray, stand for elements of any type.
        if shape[0] % wanted.width:
            raise Rejected(
                Code.INVALID_SHAPE,
                f"{shape[0]} bytes do not divide into {wanted} elements of {wanted.width} bytes",
            )
        shape = (shape[0] // wanted.width,)
    else:
        wanted = dtypes.chosen(natural, dtype)
    # ctypes keeps the buffer exported, so that nobody resizes a bytearray under the daemon.
    keep = (c_char * view.nbytes).from_buffer(held)
    return Array(source, wanted, shape, wanted.format, ctypes.addressof(keep), keep)


def _require_writable(contiguous, writable):
    if not contiguous:
        raise Rejected(
            Code.INVALID_ARGUMENT,
            "the output is not C-contiguous: pass a contiguous array and copy from it",
        )
    if not writable:
        raise Rejected(Code.INVALID_ARGUMENT, "the output is read-only: pass a writable array")


def counts(values, world_size, name):
    """A vector of row counts, one for each rank."""
    values = [int(value) for value in values]
    if len(values) != world_size:
        raise Rejected(
            Code.INVALID_ARGUMENT,
            f"{name} has {len(values)} entries; {world_size} are needed, one for each rank",
        )
    for rank, value in enumerate(values):
        if not 0 <= value < 2**63:
            raise Rejected(Code.INVALID_ARGUMENT, f"{name}[{rank}] is {value}; it counts rows")
    return (c_uint64 * world_size)(*values)
