"""Mistakes with streams, events, copies and frees: each found in schedule 0, and silence where it is mended."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from emulated_gpu.serve.cuda_cpp import toolkit
from emulated_gpu.state.host_order import stands_between
from tests import forked
from tests.once import once

ROOT = Path(__file__).resolve().parents[3]
SOURCE = Path(__file__).with_name("streams.cu")
CASES = re.findall(r'^  (WRONG|RIGHT)\((?:"([\w-]+)", )?(\w+)\)$', SOURCE.read_text(), re.MULTILINE)
BY_TEMPLATE = next(n for n, line in enumerate(SOURCE.read_text().splitlines(), 1) if "LaunchKernelEx(" in line)
FOUND = re.compile(r"^emulated-gpu: ([\w-]+):", re.MULTILINE)


@pytest.fixture(scope="module", params=[0, 1], ids=["wrong", "mended"])
def said(request, tmp_path_factory) -> tuple[bool, dict[str, str]]:
    """Whether it is mended; and of each case what is said of it."""
    mended = bool(request.param)

    def build() -> str:
        program = str(tmp_path_factory.mktemp("streams") / "streams")
        line = toolkit.program_command(["-g", str(SOURCE), "-lcuda", "-o", program])
        subprocess.run(line, check=True, capture_output=True)
        return program

    def words() -> str:
        program = once(tmp_path_factory, "streams-program", build)
        done = forked.emulated_gpu("run", "--keep-going", 99, program, *["mended"] * mended)
        assert done.returncode == (0 if mended else 1), done.stderr
        return done.stderr

    text = once(tmp_path_factory, f"streams-{request.param}", words)
    parts = re.split(r"^== (?:wrong|right) (\S+) (\w+)\n", text, flags=re.MULTILINE)
    return mended, dict(zip(parts[2::3], parts[3::3]))


def test_all_cases_are_here():
    assert len(CASES) == SOURCE.read_text().count("\n  WRONG(") + SOURCE.read_text().count("\n  RIGHT(") > 20


@pytest.mark.parametrize(("verdict", "kind", "name"), CASES, ids=[case[2] for case in CASES])
def test_order_on_the_host(said, verdict, kind, name):
    mended, texts = said
    found = FOUND.findall(texts[name])
    assert found == ([kind] if verdict == "WRONG" and not mended else []), texts[name]


@pytest.mark.parametrize(("name", "text"), [
    ("event_too_early", "for which it has waited, was recorded on stream 1 before that"),
    ("event_recorded_anew", "was recorded behind that, but anew on stream 3 since"),
    ("freed_before", "of allocation"),
    ("pinned_memory_is_read", "at byte 4092, which cudaMemcpyAsync on stream 1 (streams.cu:"),
    ("copies_that_overlap", "at byte 2048"),
    ("dependents_that_fill_the_gpu", f"  at streams.cu:{BY_TEMPLATE}\n"),
    ("a_flag_of_a_later_launch", "one of another stream that is called later would write is not there yet"),
])  # fmt: skip
def test_a_finding_says_what_is_missing(said, name, text):
    mended, texts = said
    assert mended or text in texts[name]


def test_works_with_an_allocation_between_are_a_note(said):
    mended, texts = said
    noted = re.search("^emulated-gpu: note.* CUDA: stream-race: .*allocation is", texts["an_allocation_between"], re.M)
    assert (noted is None) == mended


OWN = r"""
#include <thread>
__global__ void set(int *x, int v) { x[threadIdx.x] = v; }
int main(int count, char **) {
  int *x;
  cudaMalloc(&x, 128);
  auto work = [&] {
    cudaMemset2DAsync(x, 128, 0, 128, 1), set<<<1, 32>>>(x, 3); if (count > 1) cudaStreamSynchronize(0);
  };
  std::thread(work).join();
  set<<<1, 32>>>(x, 4);
  return cudaDeviceSynchronize();
}
"""


@pytest.mark.thorough
def test_each_thread_has_a_default_stream_of_its_own(tmp_path):
    (tmp_path / "p.cu").write_text(OWN)
    own = ["--default-stream", "per-thread", "-g", str(tmp_path / "p.cu"), "-o", str(tmp_path / "p")]
    subprocess.run(toolkit.program_command(own), check=True, capture_output=True)
    for arguments, kinds in ([], ["stream-race"]), (["mended"], []):
        command = [sys.executable, "-m", "emulated_gpu", "run", str(tmp_path / "p"), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert FOUND.findall(done.stderr) == kinds, done.stderr


TORCH = Path(__file__).with_name("streams_of_torch.py")
NAMED = r"^def ((?:stream_race|read_before|use_after|uninitialized|never|right)\w*)"
NAMES = re.findall(NAMED, TORCH.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def torch_said(tmp_path_factory) -> dict[tuple[str, str], str]:
    """Of each check, and whether it is mended: the kinds of what was found."""
    done = once(tmp_path_factory, "streams-of-torch", lambda: forked.emulated_gpu("run", "--keep-going", 99, TORCH))
    found = {(name, mended): kinds for name, mended, kinds in map(str.split, done.stdout.splitlines())}
    assert len(found) == 2 * len(NAMES) > 20, done.stderr
    return found


@pytest.mark.parametrize("name", NAMES)
def test_streams_of_torch(torch_said, name):
    kind = re.match(r"(stream_race|read_before_sync|use_after_free|uninitialized_read|never_written)_", name)
    assert torch_said[name, "0"] == (kind[1].replace("_", "-") if kind else "-")
    assert torch_said[name, "1"] == "-"


def test_a_users_folder_may_be_called_as_a_package_is():
    import torch

    assert not stands_between("/home/somebody/torch/train.py") and not stands_between("/home/somebody/cuda/a.py")
    assert stands_between(torch.__file__)
