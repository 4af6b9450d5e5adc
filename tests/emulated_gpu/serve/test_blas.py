"""cuBLAS and cuBLASLt as programs call them to check kernels of their own: against loops (blas.cpp)."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from emulated_gpu.formats.element_types import BF16, E4M3, E5M2, F16, F32, S8
from emulated_gpu.serve.cuda_cpp import blas, toolkit
from tests import forked

HERE = Path(__file__).parent
LIBRARIES = "-lcublasLt", "-lcublas", "-lcudart"


def test_products_are_those_of_loops(tmp_path):
    here, runtime, program = toolkit.find(), toolkit.cudart().parent, tmp_path / "program"
    command = ["g++", "-w", "-O1", str(HERE / "blas.cpp"), "-o", str(program), f"-I{here.include}"]
    command += [f"-I{toolkit.HEADERS}", f"-L{runtime}", f"-L{toolkit.blas().parent}", *LIBRARIES]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    ran = forked.emulated_gpu("run", program)
    assert (ran.stdout, ran.returncode) == ("OK\n", 0), ran.stderr


@pytest.mark.parametrize("kind", [F16, BF16, E4M3, E5M2, F32])
def test_every_value_of_a_type_is_its_own_code(kind):
    codes = np.arange(1 << min(kind.bits, 16), dtype=blas.CONTAINERS[kind.bits])
    with np.errstate(invalid="ignore"):  # NaN is one
        values = kind.decode(codes)
        again = kind.decode(blas.encoded(values, kind).astype(codes.dtype))
    finite = np.isfinite(values)
    assert np.array_equal(values[finite], again[finite]) and np.isnan(again[np.isnan(values)]).all()


def test_bfloat16_is_rounded_to_even():
    half = 2.0**-8
    assert BF16.decode(blas.encoded(np.array([1 + half, 1 + 3 * half]), BF16)).tolist() == [1.0, 1 + 4 * half]


def test_a_matrix_is_seen_by_columns_or_rows():
    memory = np.arange(24, dtype=np.uint8)
    columns = blas.codes(memory.ctypes.data, (2, 3), 8, False, S8)
    rows = blas.codes(memory.ctypes.data, (2, 3), 8, True, S8)
    assert columns.tolist() == [[0, 8, 16], [1, 9, 17]] and rows.tolist() == [[0, 1, 2], [8, 9, 10]]
