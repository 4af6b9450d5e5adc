"""CUDA C++ on the emulator. The checks share one process, which nothing else may share with them."""

import re
from pathlib import Path

import check_scripts
import pytest

from emulator.errors import Unsupported
from emulator.serve.cuda_cpp import nvcc, toolkit

CHECKS = Path(__file__).with_name("cuda_cpp_checks.py")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """Name of each check -> its traceback, or nothing."""
    found, done = check_scripts.results(CHECKS)
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", check_scripts.names(CHECKS))
def test_cuda_cpp(results, name):
    assert results[name] == ""


@pytest.mark.parametrize("given, expected", [
    ("-gencode=arch=compute_100a,code=sm_100a -O3", "-gencode=arch=compute_100a,code=compute_100a -O3"),
    ("-gencode arch=compute_90a,code=[sm_90a,compute_90a]", "-gencode arch=compute_90a,code=compute_90a"),
    ("-arch=sm_100a -DX=sm_1", "-arch=compute_100a -DX=sm_1"),
    ("-arch sm_90a", "-arch compute_90a"),
])  # fmt: skip
def test_nvcc_is_asked_for_ptx_alone(given, expected):
    assert nvcc.for_ptx(given.split()) == ["--no-compress", "-lineinfo", *expected.split()]


def test_a_machine_without_nvcc_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(toolkit, "candidates", list)
    toolkit.find.cache_clear()
    try:
        with pytest.raises(Unsupported, match=r"CUDA C\+\+ needs nvcc .*: pip install"):
            toolkit.find()
    finally:
        toolkit.find.cache_clear()


def test_every_function_of_cudas_headers_is_served_or_refused():
    """The texts of the headers are CUDA's; what is served must be named there."""
    found = toolkit.find()
    served = (toolkit.HERE / "runtime.cpp").read_text()
    refused = set(re.findall(r"int (cu\w+)\(\)", toolkit.refused(found, served)))
    headers = "".join((found.include / h).read_text(errors="replace") for h in ("cuda_runtime_api.h", "cuda.h"))
    assert {"cudaIpcOpenMemHandle", "cudaGraphLaunch"} <= refused and "cudaMalloc" not in refused
    for name in re.findall(r"^\w[\w *]*?\b(cu(?:da)?[A-Z]\w+)\(", served, re.MULTILINE):
        assert name in headers and name not in refused, name
