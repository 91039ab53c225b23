#!/usr/bin/python3
"""Arrays of GPUs in the Python package: with the tests' driver, and a daemon that adds one."""

import ctypes
import os
import subprocess
import sys
import types
import unittest
import unittest.mock

import ruccl
from ruccl import _library, cuda

N = 8


def check(result):
    assert result == 0, f"CUDA error {result}"


class Memory:
    """Memory of GPU 0, which the tests' driver keeps where the host sees it."""

    def __init__(self, nbytes):
        pointer = ctypes.c_uint64()
        check(driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)))
        self.pointer = pointer.value
        self.seen = (ctypes.c_ubyte * nbytes).from_address(self.pointer)

    def free(self):
        check(driver.cuMemFree_v2(ctypes.c_uint64(self.pointer)))


class Array:
    def __init__(self, pointer, shape=(N,), typestr="|u1", readonly=False, **more):
        self.__cuda_array_interface__ = {
            "data": (pointer, readonly), "shape": shape, "typestr": typestr, "version": 3, **more,
        }  # fmt: skip

    def __getitem__(self, rows):
        return rows


def setUpModule():
    global driver
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(driver.cuCtxSetCurrent(context))


class Cuda(unittest.TestCase):
    def setUp(self):
        self.daemon = subprocess.Popen(
            [os.environ["FAKE_DAEMON"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.connection = ruccl.connect(self.daemon.stdout.readline().strip())
        self.comm = self.connection.join("rc1-x@here", 0, 4)
        self.memory = Memory(64)

    def tearDown(self):
        self.connection.close()
        self.memory.free()
        self.daemon.communicate()
        self.assertEqual(self.daemon.returncode, 0)

    def register(self, exportable=True):
        if not exportable:
            driver.fake_cuda_exportable(ctypes.c_bool(False))
            self.memory.free()
            self.memory = Memory(64)
            driver.fake_cuda_exportable(ctypes.c_bool(True))
        return self.connection.register_cuda(self.memory.pointer, 64)

    def test_memory_is_registered_and_released(self):
        with self.register() as registered:
            self.assertFalse(registered.staged)
            x = Array(self.memory.pointer + 16)
            self.assertIs(self.comm.all_reduce(x), x)
        registered.release()
        with self.assertRaisesRegex(ruccl.Rejected, "not registered"):
            self.comm.all_reduce(x)

    def test_staged_memory_is_copied(self):
        with self.register(exportable=False) as registered:
            self.assertTrue(registered.staged)
            self.memory.seen[3] = 41
            out = bytearray(N)
            self.comm.all_reduce(Array(self.memory.pointer), out)
            self.assertEqual(out[3], 42)
            self.comm.all_reduce(bytes(range(N)), Array(self.memory.pointer + N))
            self.assertEqual(self.memory.seen[N + 7], 8)

    def test_memory_that_is_not_registered_is_refused(self):
        with self.assertRaisesRegex(ruccl.Rejected, "is not registered"):
            self.comm.all_reduce(Array(self.memory.pointer))

    def test_arrays_that_do_not_fit_are_refused(self):
        at = self.memory.pointer
        with self.register():
            for text, x in (
                ("C-contiguous", Array(at, (2, 4), strides=(1, 2))),
                ("cannot be moved", Array(at, typestr="|V2")),
                ("cannot be moved", Array(at, typestr=">f4")),
            ):
                with self.assertRaisesRegex(ruccl.Rejected, text):
                    self.comm.all_reduce(x, bytearray(N))
            with self.assertRaisesRegex(ruccl.Rejected, "read-only"):
                self.comm.all_reduce(Array(at, readonly=True))
            with self.assertRaisesRegex(ruccl.Rejected, "needs out"):
                self.comm.all_gather(Array(at))
            self.comm.all_reduce(Array(at, (2, 4), strides=(4, 1), readonly=True), Array(at, (2, 4)))

    def test_errors_of_registering_come_through(self):
        with self.assertRaises(ruccl.Rejected) as caught:
            self.connection.register_cuda(self.memory.pointer + 32, 64)
        self.assertEqual(caught.exception.code, ruccl.Code.OUT_OF_RANGE)

    def test_rows_are_cut_to_those_received(self):
        with self.register():
            x, out = Array(self.memory.pointer, (4, 1)), Array(self.memory.pointer + 8, (6, 1))
            rows, counts = self.comm.all_to_all_v(x, [4, 0, 0, 0], out)
            self.assertEqual((rows, counts), (slice(None, 2), [0, 2, 0, 0]))

    def test_calls_are_in_the_stream_that_is_named(self):
        stream = ctypes.c_void_p()
        check(driver.cuStreamCreate(ctypes.byref(stream), 1))
        for named in (stream.value, types.SimpleNamespace(ptr=stream.value),
                      types.SimpleNamespace(cuda_stream=stream.value)):  # fmt: skip
            comm = self.comm.on_stream(named)
            self.assertEqual(comm.stream, stream.value)
            self.assertEqual(comm.bounded(64).unbounded().stream, stream.value)
        x = Array(self.memory.pointer)
        with self.register():
            comm.all_reduce(x)
            self.comm.all_reduce(Array(self.memory.pointer, stream=stream.value))
            self.comm.all_reduce(Array(self.memory.pointer, stream=1))
            with self.assertRaisesRegex(ruccl.Error, "cuStreamGetCtx"):
                self.comm.all_reduce(Array(self.memory.pointer, stream=12345))
            with self.assertRaisesRegex(ruccl.Error, "cuStreamGetCtx"):
                self.comm.on_stream(12345).all_reduce(x)
        check(driver.cuStreamSynchronize(stream))
        check(driver.cuStreamDestroy_v2(stream))


class Torch(unittest.TestCase):
    """torch itself is not needed: what it would say."""

    def setUp(self):
        class Tensor:
            is_cuda, dtype, shape, device = True, "torch.bfloat16", (2, 3), "cuda:0"

            def data_ptr(self):
                return 4096

            def is_contiguous(self):
                return True

        current = types.SimpleNamespace(cuda_stream=77)
        torch = types.SimpleNamespace(
            Tensor=Tensor, cuda=types.SimpleNamespace(current_stream=lambda device: current)
        )
        patch = unittest.mock.patch.dict(sys.modules, torch=torch)
        patch.start()
        self.addCleanup(patch.stop)
        self.tensor = Tensor()

    def test_tensors_of_gpus_are_arrays(self):
        array = ruccl.tensors.read(self.tensor)
        self.assertEqual(
            (array.dtype, array.shape, array.address, array.stream), (ruccl.bf16, (2, 3), 4096, 77)
        )

    def test_tensors_of_the_host_are_not(self):
        self.tensor.is_cuda = False
        self.assertFalse(cuda.is_array(self.tensor))


class Structures(unittest.TestCase):
    def test_are_as_long_as_those_of_c(self):
        self.assertEqual(ctypes.sizeof(_library.Comm), 32)


if __name__ == "__main__":
    unittest.main()
