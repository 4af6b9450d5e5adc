"""Times the host's side of a call with 8 groups on a CPU: the submission's, and of simpler calls that launch the same.

    python -m silicon.entry.host_path [--template FILE] [--calls 2000]

No GPU is needed: launches go to three bytes of machine code that return success (x86-64). What remains is Python, the
checks, and CuTe DSL's own host code, which encodes the tensormaps. `--template` adds a submission in a file, such as
the task's template, which is not part of this repository. Printed are the median and the fastest of 20 rounds.
"""

import ctypes
import mmap
import platform
import statistics
import time

import emulated_gpu
from emulated_gpu.serve.cute import cute_dsl
from silicon import command
from silicon.entry.h200_loads import load_module

ROUNDS = 20
M, N, K = (80, 176, 128, 72, 64, 248, 96, 160), 4096, 7168


def launch_nothing() -> mmap.mmap:
    """Lets CuTe DSL launch into `xor eax, eax; ret`. Returns the page that holds it, which must be kept."""
    assert platform.machine() == "x86_64", "the stub is x86-64 machine code"
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x31\xc0\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    name = "_cudaLaunchKernelEx"
    cute_dsl._callbacks[name] = type(cute_dsl._callbacks[name])(address)
    return page


def nested_lists():
    """A function that hands CuTe DSL a list of five pointers for each group, as the task's template does."""
    import cutlass
    import cutlass.cute as cute
    import torch
    from cutlass.cute.runtime import make_ptr

    @cute.kernel
    def kernel():
        pass

    @cute.jit
    def launch(groups: list[tuple[cute.Pointer, ...]], sizes: list[tuple[cutlass.Int32, ...]]):
        kernel().launch(grid=(1, 1, 1), block=(32, 1, 1))

    types = (cutlass.Float4E2M1FN, cutlass.Float4E2M1FN, cutlass.Float16, cutlass.Float8E4M3FN, cutlass.Float8E4M3FN)

    def arguments(data):
        abc, _, scales, sizes = data
        groups = [
            tuple(
                make_ptr(dtype, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
                for dtype, tensor in zip(types, (*abc[g], *scales[g]))
            )
            for g in range(len(sizes))
        ]
        return groups, [tuple(cutlass.Int32(x) for x in size) for size in sizes]

    compiled = {}

    def call(data):
        groups, sizes = arguments(data)
        if not compiled:
            compiled[torch] = cute.compile(launch, groups, sizes)
        compiled[torch](groups, sizes)
        return [c for _, _, c in data[0]]

    return call


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--template", type=command.existing, help="a submission to time beside the others")
    parser.add_argument("--calls", type=int, default=2000, help="calls of a round")
    options = parser.parse_args()

    page = launch_nothing()
    emulated_gpu.install()
    import torch

    import submission
    from reference import generate_input

    data = generate_input(M, (N,) * 8, (K,) * 8, 8, 1, device=torch.device("cpu"))
    kernels = {"submission": submission.custom_kernel, "nested lists, no checks": nested_lists()}
    if options.template:
        kernels["template"] = load_module(options.template).custom_kernel
    rounds = {name: [] for name in kernels}
    for kernel in kernels.values():
        kernel(data)
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            calls = max(1, options.calls // (1 if name == "submission" else 20))
            begin = time.process_time_ns()
            for _ in range(calls):
                kernel(data)
            rounds[name].append((time.process_time_ns() - begin) / calls / 1e3)
    for name, us in rounds.items():
        print(f"{name:24} {statistics.median(us):8.2f} us of CPU a call in the median, {min(us):8.2f} at best")
    page.flush()


if __name__ == "__main__":
    main()
