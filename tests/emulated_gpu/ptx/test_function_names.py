"""Names of kernels in reports: C++ functions are named as their source has them."""

import pytest

from emulated_gpu.ptx.function_names import readable

NAMES = {
    "_Z9transposePKfPfi": "transpose",
    "_Z5scaleIiLi4EEvPT_i": "scale<int, 4>",
    "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalIN4cute5tupleIJiiiiEEEvvEEEEvNT_6ParamsE":
        "cutlass::device_kernel<...>",
    "_ZN12_GLOBAL__N_14fillEPi": "{anonymous}::fill",
    "matmul_kernel": "matmul_kernel",
    "_Zno_name": "_Zno_name",
    "kernel_" + 70 * "x": "kernel_" + 50 * "x" + "...",
}  # fmt: skip


@pytest.mark.parametrize("name, shown", NAMES.items())
def test_a_report_names_functions_as_the_source_does(name, shown):
    assert readable(name) == shown
