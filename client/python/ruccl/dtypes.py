"""Element types and operators, and how the types of numpy and of buffers map to them."""

import enum
import sys

from .errors import Code, Rejected

try:
    import numpy
except ImportError:
    numpy = None


class DType(enum.IntEnum):
    """An element type; the numbers of enum ruccl_dtype.

    Types from `bool` on are moved bit for bit and never reduced. A type that the array's own does
    not name (bf16, f8e4m3, packed_u32, ...) is given as dtype= over an array of unsigned integers
    of its width.
    """

    f32 = 1
    f64 = 2
    f16 = 3
    bf16 = 4
    f8e4m3 = 5
    f8e5m2 = 6
    i8 = 7
    i16 = 8
    i32 = 9
    i64 = 10
    u8 = 11
    u16 = 12
    u32 = 13
    u64 = 14
    bool = 15
    c64 = 16
    c128 = 17
    f8e4m3fnuz = 18
    f8e5m2fnuz = 19
    f8e8m0 = 20
    f4e2m1x2 = 21
    packed_u8 = 22
    packed_u32 = 23

    @property
    def width(self):
        """Bytes of one element."""
        return _WIDTHS.get(self, 1)

    @property
    def format(self):
        """The format of a memoryview that stores it: unsigned words where no format names it."""
        if self.width > 8:
            raise unsupported(self)
        return _FORMATS.get(self) or {1: "B", 2: "H", 4: "I", 8: "Q"}[self.width]

    def __str__(self):
        return self.name


_WIDTHS = {
    DType.f32: 4, DType.f64: 8, DType.f16: 2, DType.bf16: 2,
    DType.i16: 2, DType.i32: 4, DType.i64: 8, DType.u16: 2, DType.u32: 4, DType.u64: 8,
    DType.c64: 8, DType.c128: 16, DType.packed_u32: 4,
}  # fmt: skip

_FORMATS = {
    DType.f32: "f", DType.f64: "d", DType.bool: "?",
    DType.i8: "b", DType.i16: "h", DType.i32: "i", DType.i64: "q",
}  # fmt: skip

# Integers may stand for any type of their width: that is how codes without a name are stored.
_STORAGE = frozenset(range(DType.i8, DType.u64 + 1))

# A buffer's format says the kind, its item size the width: "l" is 4 bytes here and 8 there.
_KINDS = {
    **dict.fromkeys("efd", "f"), **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQNc", "u"),
    "?": "bool", "Zf": "c", "Zd": "c",
}  # fmt: skip

_NUMPY = {
    "float32": DType.f32, "float64": DType.f64, "float16": DType.f16,
    "int8": DType.i8, "int16": DType.i16, "int32": DType.i32, "int64": DType.i64,
    "uint8": DType.u8, "uint16": DType.u16, "uint32": DType.u32, "uint64": DType.u64,
    "bool": DType.bool, "complex64": DType.c64, "complex128": DType.c128,
}  # fmt: skip
_NUMPY_STORAGE = {dtype: name for name, dtype in _NUMPY.items()}

# Types that the ml_dtypes package adds to numpy.
_ML_DTYPES = {
    "bfloat16": DType.bf16, "float8_e4m3fn": DType.f8e4m3, "float8_e5m2": DType.f8e5m2,
    "float8_e4m3fnuz": DType.f8e4m3fnuz, "float8_e5m2fnuz": DType.f8e5m2fnuz,
    "float8_e8m0fnu": DType.f8e8m0,
}  # fmt: skip


class Op(enum.IntEnum):
    """A reduction; the numbers of enum ruccl_op. mean: floats only; and, or, xor: integers only."""

    SUM = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    MEAN = 5
    AND = 6
    OR = 7
    XOR = 8


def op_of(op):
    """The operator that `op` names: an Op, or its name in any case."""
    try:
        return Op[op.upper()] if isinstance(op, str) else Op(op)
    except (KeyError, ValueError):
        names = ", ".join(known.name.lower() for known in Op)
        raise Rejected(
            Code.INVALID_OPERATION, f"there is no operation {op!r}; there are {names}"
        ) from None


def dtype_of(dtype):
    """The type that `dtype` names: a DType, its name, or anything that numpy takes for a type."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in DType.__members__:
        return DType[dtype]
    if numpy is not None:
        return of_numpy(numpy.dtype(dtype))
    raise unsupported(dtype)


def of_numpy(dtype):
    """The element type of a numpy.dtype."""
    if not dtype.isnative:
        raise unsupported(dtype)
    return of_name(dtype.name)


def of_name(name):
    """The element type that numpy, or a package that adds to it, calls so."""
    found = _NUMPY.get(name) or _ML_DTYPES.get(name)
    if found is None:
        raise unsupported(name)
    return found


def numpy_storage(dtype):
    """The numpy.dtype of arrays that store `dtype`: unsigned words where numpy has no such type."""
    return numpy.dtype(_NUMPY_STORAGE.get(dtype) or f"u{dtype.width}")


def of_buffer(view):
    """The element type of a memoryview."""
    native = "@=" + "<>"[sys.byteorder == "big"]
    kind = _KINDS.get(view.format.lstrip(native))
    if kind is None:
        raise unsupported(view.format)
    return DType[kind if kind == "bool" else f"{kind}{view.itemsize * 8}"]


def chosen(natural, dtype):
    """The element type of an array whose own is `natural`, for a caller who said `dtype`."""
    if dtype is None:
        return natural
    wanted = dtype_of(dtype)
    if wanted == natural or (natural in _STORAGE and wanted.width == natural.width):
        return wanted
    raise Rejected(
        Code.INVALID_ARGUMENT,
        f"an array of {natural} does not store {wanted}: pass an array of {wanted}, or of integers"
        f" of {wanted.width} bytes",
    )


def unsupported(what):
    return Rejected(
        Code.UNSUPPORTED_DTYPE,
        f"elements of type {str(what)!r} cannot be moved; ruCCL has {', '.join(DType.__members__)}",
    )
