"""Programs in CUDA C++ by many authors, each with a check of its own, at sizes that take seconds."""
# ruff: noqa: E501

from __future__ import annotations

from .case import B200, H200, OTHERS, Case


def program(group: str, file: str, args: str = "", *edits: tuple[str, str], says: str = "", **more) -> Case:
    """A program. edits: sizes above all."""
    name = more.pop("name", "") or file.rpartition("/")[2].partition(".")[0]
    return Case(group, f"{group}, {name}", file, args, edits=edits, says=says, machines=more.pop("machines", B200), **more)


_ALL = {"machines": (*B200, *OTHERS)}


def beginners(file: str, name: str, *edits: tuple[str, str], says: str = "COMPLETED SUCCESSFULLY") -> Case:
    """One of CoffeeBeforeArch's, which ends by an assert of every element."""
    return program("CoffeeBeforeArch", file, "", *edits, says=says, name=name)


_COFFEE = (
    beginners("01_vector_addition/baseline/vectorAdd.cu", "vectorAdd"),
    beginners("01_vector_addition/unified_memory/vectorAdd_um_baseline.cu", "vectorAdd, unified memory"),
    beginners("02_matrix_mul/tiled/mmul.cu", "mmul, tiled", ("N = 1 << 10", "N = 1 << 7")),
    beginners("02_matrix_mul/nonMultiple/mmul.cu", "mmul, not a multiple", ("(1 << 9) + 7", "(1 << 5) + 7"), ("(1 << 10) + 7", "(1 << 6) + 7"), ("(1 << 11) + 7", "(1 << 7) + 7")),
    beginners("03_sum_reduction/no_confliicts/sumReduction.cu", "sumReduction"),
    beginners("03_sum_reduction/cooperative_groups/sumReduction.cu", "sumReduction, cooperative groups"),
    beginners("04_histogram/shmem_atomic/histogram.cu", "histogram, shared memory", says=""),
    beginners("05_convolution/1d_tiled/convolution.cu", "convolution, tiled", ("n = 1 << 20", "n = 1 << 16")),
)


def olcf(file: str, *edits: tuple[str, str], says: str = "", **more) -> Case:
    """A solution of OLCF's and NVIDIA's training series."""
    return program("OLCF's training series", f"exercises/{file}_solution.cu", "", *edits, says=says, **more)


_OLCF = (
    olcf("hw1/matrix_mul", ("DSIZE = 8192", "DSIZE = 128"), says="Success!"),
    olcf("hw2/matrix_mul_shared", ("DSIZE = 8192", "DSIZE = 128"), says="Success!", **_ALL),
    olcf("hw2/stencil_1d", says="Success!"),
    olcf("hw4/matrix_sums", ("DSIZE = 16384", "DSIZE = 512"), says="column sums correct!"),
    olcf("hw5/matrix_sums", ("DSIZE = 16384", "DSIZE = 512"), says="column sums correct!", name="matrix_sums, reductions"),
    olcf("hw5/max_reduction", ("N = 8ULL*1024ULL*1024ULL", "N = 64ULL*1024ULL")),
    olcf("hw6/linked_list", says="key = 3", **_ALL),
    olcf("hw7/overlap", ("chunks = 64", "chunks = 4"), ("1024*1024*chunks", "1024*chunks")),
    olcf("hw8/task2/task2", ("SIZE 4096", "SIZE 128"), says="PASS", name="transpose, shared memory"),
    olcf("hw9/task1", says="group partial sum", name="groups of threads"),
    olcf("hw9/task2", name="stream compaction of a grid"),
    olcf("hw12/task1", says="Success!", name="matrix_mul, mended"),
    program("OLCF's training series", "exercises/hw13/Solutions/axpy_stream_capture_solution.cu", "", ("N 500000", "N 20000"), explained="lines 67, 92: the streams are non-blocking, and so do not wait for the copies of pageable memory on the default one"),
)


def fan(file: str, args: str = "", *edits: tuple[str, str], says: str = "", **more) -> Case:
    """One of the programs of brucefan1983's book."""
    return program("brucefan1983, CUDA-Programming", f"src/{file}.cu", args, *edits, says=says, **more)


_SMALL = ("N = 100000000", "N = 102400")
_FAN = (
    fan("03-basic-framework/add1", "", _SMALL, says="No errors"),
    fan("05-prerequisites-for-speedup/add2gpu", "", _SMALL, ("NUM_REPEATS = 10", "NUM_REPEATS = 1"), says="No errors"),
    fan("07-global-memory/matrix", "64", ("NUM_REPEATS = 10", "NUM_REPEATS = 1")),
    fan("08-shared-memory/reduce2gpu", "", ("N = 100000000", "N = 4096"), ("NUM_REPEATS = 100", "NUM_REPEATS = 1"), says="503."),
    fan("10-warp/warp"),
    fan("12-unified-memory/add", "", _SMALL, says="No errors"),
    fan("06-memory/static"),
)


def cheng(file: str, args: str = "", *edits: tuple[str, str], says: str = "", **more) -> Case:
    """One of the examples of "Professional CUDA C Programming"."""
    return program("Professional CUDA C Programming", f"examples/{file}.cu", args, *edits, says=says, **more)


_CHENG = (
    cheng("chapter03/reduceInteger", "512", ("1 << 24", "1 << 15")),
    cheng("chapter03/sumMatrix", "32 32", ("nx = 1 << 14", "nx = 1 << 8"), ("ny = 1 << 14", "ny = 1 << 8")),
    cheng("chapter04/sumMatrixGPUManaged", "8"),
    cheng("chapter05/checkSmemSquare", "1"),
    cheng("chapter05/constantStencil", "", ("1 << 24", "1 << 15")),
    cheng("chapter04/transpose", "6 16 16 8 8", ("nx = 1 << 11", "nx = 1 << 7"), ("ny = 1 << 11", "ny = 1 << 7")),
)

_BLOG = (
    program("NVIDIA's blog", "series/cuda-cpp/transpose/transpose.cu", "", ("nx = 1024", "nx = 128"), ("ny = 1024", "ny = 128"), ("NUM_REPS = 100", "NUM_REPS = 1")),
    program("NVIDIA's blog", "series/cuda-cpp/shared-memory/shared-memory.cu"),
    program("NVIDIA's blog", "series/cuda-cpp/finite-difference/finite-difference.cu", "", ("nReps = 20", "nReps = 1")),
    program("NVIDIA's blog", "posts/mixed-precision/haxpy.cu"),
)


_CCCL = (
    program("CCCL's examples", "cub/examples/block/example_block_radix_sort.cu", path=("cub", "thrust", "libcudacxx/include")),
    program("CCCL's examples", "cub/examples/block/example_block_reduce.cu", path=("cub", "thrust", "libcudacxx/include")),
    program("CCCL's examples", "thrust/examples/sum.cu", path=("thrust/examples",), name="sum"),
    program("CCCL's examples", "thrust/examples/norm.cu", path=("thrust/examples",), name="norm"),
)

_LLM_SIZES = (("int B = 8;", "int B = 2;"), ("int T = 1024;", "int T = 16;"), ("int C = 768;", "int C = 64;"))
_LLM_RUNS = (("{32, 64, 128, 256, 512, 1024}", "{64, 256}"), ("repeat_times = ", "repeat_times = 1; //"))


def llm(name: str, args: str, *edits: tuple[str, str], **more) -> Case:
    """One of llm.c's programs that hold kernels against loops of the host."""
    return program("llm.c, dev/cuda", f"dev/cuda/{name}.cu", args, *_LLM_SIZES, *_LLM_RUNS, *edits, **_CHECKED, **more)


_SOFTMAX = (*_LLM_SIZES[:2], ("int V = 50257;", "int V = 1031;"), *_LLM_RUNS)
_CHECKED = {"options": "-O3 -lcublas -lcublasLt", "says": "All results match"}

_LLM = (
    llm("gelu_forward", "2", **_ALL),
    llm("residual_forward", "2", **_ALL),
    llm("layernorm_forward", "3", **_ALL),
    llm("gelu_backward", "2", **_ALL),
    llm("fused_residual_forward", "4", **_ALL),
    program("llm.c, dev/cuda", "dev/cuda/softmax_forward.cu", "4", *_SOFTMAX, explained="line 268: all warps read the maximum in the first word, where warp 0 may have written its sum before (line 288)", **_CHECKED),
    program("llm.c, dev/cuda", "dev/cuda/softmax_forward.cu", "3", *_SOFTMAX, name="softmax_forward, a warp a row", **_CHECKED),
    program("llm.c, dev/cuda", "dev/cuda/global_norm.cu", "2", ("int C = 768;", "int C = 32;"), ("{32, 64, 128, 256, 512, 768, 1024}", "{64, 256}"), _LLM_RUNS[1], **_CHECKED),
)


def sgemm(number: int, what: str, **more) -> Case:
    """A kernel of siboehm's SGEMM, before cuBLAS, at 128."""
    edits = ("SIZE = {128, 256, 512, 1024, 2048, 4096}", "SIZE = {128}"), ("repeat_times = 50", "repeat_times = 1")
    both = "#include <runner.cuh>", '#include "src/runner.cuh"\n#include "src/runner.cu"'  # nvcc is given one file
    return program("siboehm's SGEMM", "sgemm.cu", str(number), *edits, both, options="-O3 -lcublas", name=f"kernel {number}, {what}", **more)


_SGEMM = (sgemm(1, "naive"), sgemm(3, "shared memory"), sgemm(6, "vectorised", **_ALL), sgemm(10, "warp tiles"))

_CONCEPTS, _FEATURES, _FIRST = (f"Samples/{one}" for one in ("2_Concepts_and_Techniques", "3_CUDA_Features", "0_Introduction"))


def sample(folder: str, args: str = "", *edits: tuple[str, str], **more) -> Case:
    name = folder.rpartition("/")[2]
    return program("NVIDIA's CUDA samples, more", f"{folder}/{name}.cu", args, *edits, path=("Common",), **more)


_SAMPLES = (
    sample(f"{_FIRST}/matrixMul", "-wA=64 -hA=64 -wB=64 -hB=64", ("nIter = 300", "nIter = 1"), says="Result = PASS"),
    sample(f"{_FIRST}/asyncAPI", "", ("16 * 1024 * 1024", "64 * 1024")),
    sample(f"{_FIRST}/simpleAWBarrier"),
    sample(f"{_FEATURES}/simpleCudaGraphs", "", ("1 << 24", "1 << 14"), ("maxBlocks = 512", "maxBlocks = 16")),
    sample(f"{_FEATURES}/graphMemoryNodes", "", ("NUM_ELEMENTS       8000000", "NUM_ELEMENTS       80000"), explained="line 392: cudaMemcpy of pageable memory may return when that has been staged (runtime API, API synchronization behavior); stream 1 is made non-blocking and waits for nothing"),
    sample(f"{_FEATURES}/globalToShmemAsyncCopy", "-wA=128 -hA=128 -wB=128 -hB=128", ("nIter = 100", "nIter = 1"), says="Result = PASS"),
    sample(f"{_CONCEPTS}/threadFenceReduction", "-n=65536", ("testIterations = 100", "testIterations = 2"), says="GPU result"),
    sample(f"{_FEATURES}/newdelete", explained="container.hpp, line 92: m_top is read plainly, which other threads change by atomicAdd"),
    sample(f"{_FEATURES}/binaryPartitionCG"),
    sample(f"{_CONCEPTS}/streamOrderedAllocation", "", ("1048576", "16384")),
    sample("Samples/6_Performance/LargeKernelParameter"),
    sample(f"{_FEATURES}/graphConditionalNodes", explained="conditional nodes, which are refused by name"),
    sample(f"{_FIRST}/simpleAssert", says="returned OK", explained="line 64: its assertion is made to fail, and does"),
    sample(f"{_FIRST}/simpleStreams", "", ("16 * 1024 * 1024", "64 * 1024"), ("nreps       = 10", "nreps       = 2")),
    sample(f"{_FIRST}/systemWideAtomics"),
    sample(f"{_CONCEPTS}/reductionMultiBlockCG", "--n=65536", ("testIterations = 100", "testIterations = 2")),
    sample(f"{_FEATURES}/warpAggregatedAtomicsCG", "", ("10000000", "100000")),
    sample(f"{_FEATURES}/StreamPriorities", "", ("256 * 1024 * 1024", "64 * 1024"), ("128 * 1024 * 1024", "32 * 1024")),
    sample(f"{_FEATURES}/immaTensorCoreGemm", "", ("TILES 256", "TILES 8")),
    sample("Samples/6_Performance/alignedTypes", "", ("50000000", "50000"), ("NUM_ITERATIONS = 32", "NUM_ITERATIONS = 1")),
    sample("Samples/6_Performance/transpose", "-dimX=64 -dimY=64", ("NUM_REPS 100", "NUM_REPS 1")),
)


def poly(file: str, *edits: tuple[str, str], **more) -> Case:
    """One of PolyBench-GPU, at the sizes that each of its headers has a name for."""
    folder, _, name = file.partition("/")
    size = more.pop("size", 64)
    sizes = "".join(f"#define {one} {size}\n" for one in ("N", "NI", "NJ", "NK", "NX", "NY", "M")) + "#define TSTEPS 2\n"
    edits = ("cudaThreadSynchronize", "cudaDeviceSynchronize"), (f'#include "{name}.cuh"', f'{sizes}#include "{name}.cuh"'), *edits
    more |= {"says": "Percent: 0", "options": "-O3 -DPOLYBENCH_TIME", "path": (f"CUDA/{folder}",), "name": folder}
    return program("PolyBench-GPU", f"CUDA/{file}.cu", "", *edits, **more)


_POLY = (
    poly("GEMM/gemm"),
    poly("2DCONV/2DConvolution"),
    poly("ATAX/atax", explained="atax.cuh, line 58: eight rows of threads of a block add to the same elements of tmp"),
    poly("CORR/correlation", size=256),
    poly("JACOBI2D/jacobi2D", ("#define TSTEPS 20", "#define TSTEPS 2"), ("#define N 1000", "#define N 64")),
    poly("GRAMSCHM/gramschmidt"),
)


def cutlass(file: str, args: str, **more) -> Case:
    """One of CUTLASS's numbered examples, which include cuRAND's headers, and compare with loops of their own."""
    path = ("include", "tools/util/include", "examples/common", "nvidia/cu13/include")
    more = {"says": "Disposition: Passed", "limit": 150, **more}
    name = f"{file.rpartition('/')[2]}, {args.replace('--', '')}"
    options = "-O1 --expt-relaxed-constexpr -DNDEBUG -lcuda"
    return Case("CUTLASS C++, examples", name, f"examples/{file}.cu", args, options=options, path=path, **more)


_FP8, _SCALED = "54_hopper_fp8_warp_specialized_gemm", "67_hopper_fp8_warp_specialized_gemm_with_blockwise_scaling"

_BUILDER = "71_blackwell_gemm_with_collective_builder"
_FILLS = "cuRAND's initialisation on every SM takes 12 s of CPU, three times for each kernel; the first kernel passes its own check"
_CUTLASS = (
    cutlass("48_hopper_warp_specialized_gemm/48_hopper_warp_specialized_gemm", "--m=128 --n=128 --k=128 --iterations=0", machines=H200),
    cutlass("49_hopper_gemm_with_collective_builder/49_collective_builder", "--m=128 --n=128 --k=128 --l=1", machines=H200, says="Passed", limit=90, explained=_FILLS),
    cutlass(f"{_BUILDER}/{_BUILDER}", "--m=256 --n=256 --k=128 --l=1", machines=B200, says="Passed", limit=90, explained=_FILLS),
    cutlass(f"{_FP8}/{_FP8}", "--m=128 --n=128 --k=128 --iterations=0", machines=H200),
    cutlass(f"{_SCALED}/{_SCALED}", "--m=128 --n=128 --k=128 --iterations=0", machines=H200),
    *(cutlass(f"70_blackwell_gemm/70_blackwell_{of}_gemm", "--m=256 --n=256 --k=128 --iterations=0", machines=B200) for of in ("fp16", "fp8")),
    cutlass("72_blackwell_narrow_precision_gemm/72a_blackwell_nvfp4_bf16_gemm", "--m=256 --n=256 --k=256 --iterations=0", machines=B200),
    cutlass("91_fp4_gemv/91_fp4_gemv", "--m=64 --k=4096 --iterations=1", machines=B200, says="test pass"),
    cutlass("91_fp4_gemv/91_fp4_gemv", "--m=128 --k=256 --iterations=1", machines=B200, says="test pass", explained="gemv_blockscaled.h, line 349: the prologue loads all its stages, whatever K is"),
)

PROGRAMS = (*_COFFEE, *_OLCF, *_FAN, *_CHENG, *_BLOG, *_CCCL, *_LLM, *_SGEMM, *_SAMPLES, *_POLY, *_CUTLASS)
