"""Arrays in memory of GPUs, as other packages show them: torch tensors, and what has a
__cuda_array_interface__. Neither torch nor CUDA is imported."""

import sys

_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex", "b": "bool"}


def is_array(source):
    return _is_torch(source) or hasattr(source, "__cuda_array_interface__")


class Interface:
    """What an array says of itself: dtype as numpy names it, shape, address, stream or None."""

    def __init__(self, source):
        self.source = source
        if _is_torch(source):
            self._read_torch(source)
        else:
            self._read_interface(source.__cuda_array_interface__)

    def _read_torch(self, tensor):
        self.dtype = str(tensor.dtype).partition(".")[2]
        self.shape = tuple(tensor.shape)
        self.address = tensor.data_ptr()
        self.contiguous = tensor.is_contiguous()
        self.writable = True
        self.stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream

    def _read_interface(self, said):
        order, kind, width = said["typestr"][0], said["typestr"][1], int(said["typestr"][2:])
        self.shape = tuple(said["shape"])
        self.dtype = _KINDS.get(kind, said["typestr"])
        if self.dtype != "bool" and kind in _KINDS:
            self.dtype += str(8 * width)
        if width > 1 and order == "<>"[sys.byteorder == "little"]:
            self.dtype = said["typestr"]
        self.address, readonly = said["data"]
        self.contiguous = _is_contiguous(self.shape, said.get("strides"), width)
        self.writable = not readonly
        stream = said.get("stream")
        self.stream = 0 if stream == 1 else stream  # 1 stands for the legacy default stream


def stream_of(stream):
    """The handle of a stream: an integer, or an object of torch or cupy."""
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return getattr(stream, name)
    return stream


def _is_torch(source):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(source, torch.Tensor) and source.is_cuda


def _is_contiguous(shape, strides, width):
    if strides is None or 0 in shape:
        return True
    for axis, stride in zip(reversed(shape), reversed(strides)):
        if axis > 1 and stride != width:
            return False
        width *= axis
    return True
