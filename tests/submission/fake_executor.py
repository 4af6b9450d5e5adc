"""Instead of a compiled kernel, for tests of the submission's host side."""

import ctypes


class FakeExecutor:
    """Stands for the compiled kernel: records the words of each launch."""

    def __init__(self, gemm):
        self.gemm, self.launched, self.cuda_result = gemm, [], ctypes.c_int(0)

    def to(self):
        return self

    def generate_execution_args(self, pointer):
        return pointer, None

    def _get_invoke_packed_args(self, pointer):
        return (ctypes.c_int64 * self.gemm.words).from_address(pointer._pointer)

    def capi_func(self, packed):
        self.launched.append(list((ctypes.c_int64 * self.gemm.words).from_address(packed)))
