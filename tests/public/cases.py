"""The public scripts that are run: whose, on which machines, at which sizes, and what is known of those that disagree."""
# ruff: noqa: E501

from __future__ import annotations

from .case import B200, BOTH, H200, OTHERS, Case
from .programs import PROGRAMS


def tutorial(file: str, code: str = "", **more) -> Case:
    """One of Triton's tutorials: as a script, or the calls in `code`."""
    return Case("Triton's tutorials", file.partition(".")[0] + more.pop("of", ""), f"python/tutorials/{file}", code=code, **more)


def gluon(file: str, *calls: str, **more) -> Case:
    """One of Gluon's tutorials: its own tests, at these sizes."""
    name = f"Gluon {file.partition('.')[0]}" + more.pop("of", "")
    return Case("Gluon's tutorials", name, f"python/tutorials/gluon/{file}", code="\n".join(calls), **more)


def submission(task: str, author: str, file: str, **more) -> Case:
    """A submission to one of GPU MODE's nvfp4 tasks, built by load_inline, before the task's own check."""
    sizes, of = more.pop("sizes", SIZES[task]), more.pop("of", "")
    folders = f"problems/nvidia/nvfp4_{task}", "problems/nvidia"
    code = f"judged(custom_kernel, {sizes}, seed=1111)"
    return Case("load_inline", f"{author}, {file}{of}", file, "", code, B200, folders, limit=240, **more)


SIZES = {
    "gemv": "m=128, k=256, l=1", "gemm": "m=128, n=256, k=256, l=1", "dual_gemm": "m=128, n=128, k=256, l=1",
    "group_gemm": "m=(128, 128), n=(256, 256), k=(256, 256), g=2",
}  # fmt: skip
_MATMUL = "M={}, N={}, K={}, BLOCK_M={}, BLOCK_N={}, BLOCK_K={}"
_SMALL = _MATMUL.format(208, 416, 304, 64, 64, 64)
_WIDE = _MATMUL.format(208, 416, 304, 128, 256, 64)

_ATTENTION = """
q, k, v = (torch.randn(1, 2, {0}, 64, dtype=torch.float16, device="cuda") * 0.5 for _ in range(3))
scores = (q.float() @ k.float().transpose(2, 3) * 0.5).masked_fill({1} & (torch.ones({0}, {0}, device="cuda").tril() == 0), float("-inf"))
close(attention(q, k, v, {1}, 0.5, {2}), torch.softmax(scores, 3) @ v.float(), 0.01)"""

_GROUPED = """
a, b = ([torch.rand(n, n, device="cuda", dtype=torch.float16) for n in (256, 128)] for _ in range(2))
for c, x, y in zip(group_gemm_fn(a, b), a, b):
    close(c, x @ y, 0.01)
for c, x, y in zip(group_gemm_tma_fn(a, [y.T.contiguous() for y in b]), a, b):
    close(c, x @ y, 0.01)"""

_CLC = """
for clc in True, False:
    a, b = (torch.randn(304, 304, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)
    run_matmul_kernel(a, b, c, use_clc=clc)
    close(c, a @ b, 0.001)"""

TRITON = (
    tutorial("01-vector-add.py", machines=(*BOTH, *OTHERS)),
    tutorial("02-fused-softmax.py"),
    tutorial("03-matrix-multiplication.py", machines=(*BOTH, *OTHERS), limit=300),
    tutorial("04-low-memory-dropout.py", machines=(*BOTH, *OTHERS)),
    tutorial("05-layer-norm.py", "test_layer_norm(151, 1024, torch.float16)", until="test_layer_norm(1151", explained="lines 179, 182: no barrier between all warps' load of Count and one thread's exchange of it, so a late warp reads 1; Triton 3.9 puts one there, and agrees"),
    tutorial("06-fused-attention.py", _ATTENTION.format(128, True, False), of=", forward", machines=(*BOTH, *OTHERS)),
    tutorial("06-fused-attention.py", _ATTENTION.format(128, True, True), of=", forward, warp specialised", machines=B200),
    tutorial("06-fused-attention.py", _ATTENTION.format(1024, False, False), of=", forward, 1 x 2 x 1024 x 64"),
    tutorial("06-fused-attention.py", "test_op(1, 2, 128, 64, True, False, 'bwd', 'triton-fp16')", of=", backward"),
    tutorial("07-extern-functions.py", machines=(*BOTH, *OTHERS)),
    tutorial("08-grouped-gemm.py", _GROUPED, until="group_m = ["),
    tutorial("09-persistent-matmul.py", "validate(256, 256, 256, torch.float16)"),
    *(
        tutorial("10-block-scaled-matmul.py", f"validate_block_scaled(256, 256, 512, block_scale_type={kind!r})", of=f", {kind}", machines=B200)
        for kind in ("nvfp4", "mxfp4", "mxfp8", "mixed")
    ),
    tutorial("11-programmatic-dependent-launch.py", "validate(98432)"),
)

GLUON = (
    gluon("01-intro.py", "test_copy_scalar()", "test_memcpy(64, 500)"),
    gluon("02-layouts.py", "test_memcpy_1d(128, 1000, 4)", "test_memcpy_2d(128, 256, 100, 2000, False, 4)", "test_memcpy_2d_inout(300, 400, True, False)"),
    gluon("03-async-copy.py", "test_memcpy_1d_cpasync(1000, 256)", "test_elementwise_add(100, 200, 32, 32)", "test_elementwise_add_cpasync(100, 200, 32, 32)", "test_elementwise_add_pipelined(100, 200, 32, 64, 2)"),
    gluon("04-tma.py", "test_tma_message_passing(16)", "test_memcpy_1d_tma(64, 500)", "test_elementwise_add_pipelined(100, 200, 32, 64, 2)"),
    gluon("05-wgmma.py", "test_small_mma(64, 32, 32, False, 16, 4)", "test_small_mma(64, 256, 128, True, 64, 4)", f"test_blocked_matmul({_SMALL}, TRANSPOSE_B=True, num_warps=4)", f"test_blocked_matmul_pipelined({_SMALL}, num_warps=4)", machines=H200),
    gluon("06-tcgen05.py", "test_tmem_example_kernel(128, 64, 4)", "test_small_mma(64, 128, 128, False, True, 4)", "test_small_mma(128, 128, 128, True, False, 4)", f"test_blocked_matmul({_SMALL}, TRANSPOSE_B=True, num_warps=4)", f"test_blocked_matmul_pipelined({_SMALL}, num_warps=4)", machines=B200),
    gluon("07-persistence.py", f"test_pipelined_matmul({_WIDE}, num_buffers=3, num_warps=8)", f"test_persistent_matmul({_WIDE}, num_buffers=3, num_warps=8, SchedulerImpl=schedulers[0])", f"test_persistent_matmul_pipelined({_WIDE}, num_buffers=3, num_warps=8, SchedulerImpl=schedulers[1])", explained="line 692: the last load of the peeled prologue has no `pred`; after the last tile a TMA load that nobody waits for is in flight when the CTA exits"),
    gluon("08-warp-specialization.py", "test_elementwise_add_warp_specialized(100, 200, 32, 64, 2, 2, 4)", of=", element-wise"),
    gluon("08-warp-specialization.py", f"test_matmul_warp_specialized({_WIDE}, num_buffers=3, SUBTILE_FACTOR=4, num_warps=4, SchedulerImpl=t7.schedulers[0])", of=", matmul", machines=B200),
    gluon("09-tma-gather-scatter.py", "test_async_gather(8, 128, 48, torch.bfloat16, 1024, 1024, None)", "test_async_scatter(8, 128, 48, torch.bfloat16, 1024, 1024, None)", "test_matmul_fused_gather_scatter(256, 256, 256, 128, 128, 64, 3)", machines=B200, explained="line 560: as 07, the last load of the peeled prologue has no `pred`"),
    gluon("10-tcgen05-copy.py", "test_tcgen05_copy_nvmma_shared(128, 64, 32, torch.float32, 128)", "test_matmul_accumulate(256, 256, 256, 128, 64, 64, 3, torch.float16)", machines=B200),
    gluon("11-tcgen05-mma-scaled.py", "test_simple_mma_scaled(256, 256, 256, 'nvfp4', 'nvfp4', 128, 128)", "test_mma_scaled_contig(256, 256, 256, 'mxfp4', 'mxfp4', 128, 128)", "test_mma_scaled_packed_block(256, 256, 256, 'mxfp8', 'mxfp8', 128, 128)", "test_mma_scaled_tcgen05_copy(256, 256, 256, 'nvfp4', 'nvfp4', 128, 256)", machines=B200),
    gluon("11-tcgen05-mma-scaled.py", "test_simple_mma_scaled(256, 256, 256, 'mxfp8', 'mxfp4', 128, 128)", of=", FP8 x FP4", machines=B200),
    gluon("11-tcgen05-mma-scaled.py", "test_mma_scaled_pipelined(256, 256, 640, 'nvfp4', 'nvfp4', mma_scaled_pipelined_kernel)", "test_mma_scaled_pipelined(256, 256, 640, 'mxfp8', 'mxfp8', mma_scaled_warp_specialized_kernel)", of=", pipelined", machines=B200, explained="lines 1143, 1144: `tcgen05_copy` of the scales takes no `pred`, as the MMA and the commit behind it do; after the last tile nobody waits for it before the dealloc"),
    gluon("12-cluster-launch-control.py", _CLC, machines=B200),
    gluon("13-conv-im2col.py", "test_tma_im2col_simple()", "test_tma_im2col_padded()", "test_tma_im2col_offset()", "test_tma_im2col_multi_batch()", "test_tma_im2col_multi_batch_padded()"),
    gluon("13-conv-im2col.py", "test_conv2d_tma_im2col(1, 16, 16, 64, 64, 3, 3, 1, 1)", of=", convolution", explained="lines 1007, 1025: a block waits for the MMA before its own only when its loads are under way, which write what that MMA reads; the result agrees"),
    gluon("14-multicta.py", "test_multicta_softmax_f32(8, 256)", "test_multicta_softmax_f32(2, 2**16)", of=", softmax"),
    gluon("14-multicta.py", "test_two_cta_tcgen05()", "test_tma_multicast_copy()", "test_tma_tcgen05()", of=", tcgen05", machines=B200),
    gluon("14-multicta.py", "test_matmul_multicta()", of=", matmul", machines=B200),
)

_NAREG = "NaregAmirianMegan"
_RECORD = "nvidia/nvfp4_group_gemm/submission_v6b.py"
_RELAXED = "no release between the loads of tensor memory and its dealloc: barrier.cluster.arrive is relaxed, which hands nothing on"
SUBMISSIONS = (
    submission("gemm", _NAREG, "nvfp4_gemm/submission_ptx.py", explained="line 518 of its CUDA: loads of all its stages are issued first, whatever K is: past the ends of the scales at K = 256"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/sub_v6_2.py"),
    submission("dual_gemm", "novus677", "submission.py", sizes="m=256, n=512, k=256, l=1", explained="line 933: loads of all its stages are issued first, whatever K is: past the ends of the scales at K = 256, one of its own shapes"),
    submission("gemv", _NAREG, "nvfp4_kernels/submit_final.py"),
    submission("gemv", "jIab-b", "kernel_thing/examples/1.py"),
    submission("dual_gemm", _NAREG, "nvfp4_dual_gemm/sub_ptx_v3.py", sizes="m=256, n=128, k=512, l=1", explained="lines 703 to 705: the loads of the scales are commented out, whose bytes the mbarrier expects, so that it hangs"),
    submission("gemm", "jIab-b", "s_128.py", explained="its tcgen05.alloc asks for 136 columns, which are to be a power of two (9.7.16.7.1)"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/v2.py", explained="line 914: the leader's multicast load writes to its peer, and nothing keeps it from coming before the peer has started: the kernel has no barrier of the cluster"),
    submission("gemv", _NAREG, "nvfp4_kernels/v7_3.py"),
    submission("gemv", "Better-Call-Paul", "gemv_model.py"),
    submission("gemm", _NAREG, "nvfp4_gemm/phase0/v1.py", explained="includes CUTLASS's headers, which were not installed"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/sub_v7.py"),
    submission("gemv", _NAREG, "nvfp4_kernels/iteration_3/v1_3.py"),
    submission("gemv", "jIab-b", "kernel_thing/examples/3.py"),
    submission("dual_gemm", _NAREG, "nvfp4_dual_gemm/submission_ptx.py", explained="line 542: loads of all its stages are issued first, whatever K is: past the ends of the scales at K = 256"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/submission_v2.py", explained="line 572: loads of all its stages are issued first, whatever K is: past the ends of the scales at K = 256"),
    submission("gemv", _NAREG, "nvfp4_kernels/v1.py"),
    submission("gemv", _NAREG, "nvfp4_kernels/iteration_2/v0_2_tma.py"),
    submission("gemm", "jIab-b", "sub_tc2.py", explained="its tcgen05.alloc asks for 144 columns, which are to be a power of two (9.7.16.7.1)"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/sub_v8.py"),
    submission("dual_gemm", _NAREG, "nvfp4_dual_gemm/sub_ptx_v2.py", sizes="m=256, n=128, k=256, l=1", explained="line 784: the barrier between all warps' loads of tensor memory and warp 0's dealloc is commented out"),
    submission("gemv", _NAREG, "nvfp4_kernels/v4.py"),
    submission("gemv", "jIab-b", "kernel_thing/examples/7.py"),
    submission("group_gemm", _NAREG, "nvfp4_grouped_gemm/v0.py", explained="line 135: a multicast load writes to the peer, and nothing keeps it from coming before the peer has started: the kernel has no barrier of the cluster"),
    submission("group_gemm", "gau-nernst", _RECORD, of=", its kernel", sizes="m=(64, 40), n=(4096, 4096), k=(1536, 1536), g=2", explained=f"line 866: {_RELAXED}"),
    submission("group_gemm", "gau-nernst", _RECORD, of=", other sizes", sizes="m=(96, 128), n=(128, 256), k=(256, 512), g=2"),
)

_PRIMITIVES = "examples/python/CuTeDSL/experimental/primitives"
_NAMES = """
    async_pipeline bar_warp_sync barrier_cta_red barrier_cta_sync basic_types cp_async_bulk
    cp_async_bulk_prefetch cp_async_mbarrier_arrive_cluster cp_async_mbarrier_arrive_cta cp_async_shared_global
    cp_async_shared_global_swizzled elect_sync ldmatrix_stmatrix mapa mbarrier mbarrier_lifecycle
    pipeline_software_fill red redux_sync shfl_sync vote_sync warp_named_barrier
    reduction/block_smem_reduce reduction/cluster_smem_reduce reduction/cluster_tmem_reduce
    reduction/thread_vector_reduce reduction/warp_vector_reduce
    tcgen05/1cta_mma_a_from_tmem tcgen05/1cta_mma_basic tcgen05/1cta_mma_mn_major tcgen05/1cta_mma_pipeline
    tcgen05/2cta_mma_basic tcgen05/2cta_mma_blockscale_m128 tcgen05/2cta_mma_tma_store
    tcgen05/clusterMxN_2cta_mma tcgen05/cp_narrow_a_to_tmem_mma tcgen05/mcast_clusterMxN_1cta_mma
    tcgen05/mcast_clusterMxN_2cta_mma tcgen05/slicek_m32n8k128 tcgen05/tmem_ld_st
    tcgen05/tmem_ld_to_stmatrix_transpose
    tma/tma_1cta_mbarrier tma/tma_load_store tma/tma_load_to_ldmatrix tma/tma_multicast tma/tma_pipeline_count2
    tma/tma_pipeline_pingpong tma/tma_pipeline_single_warp tma/tma_pipeline_warpspec tma/tma_store
    tma/tma_swizzle_modes tma/tma_tensormap_replace
    tutorial/01_hello_world tutorial/02_naive_gemm tutorial/03_gemm_tiled_smem tutorial/04_tma_load
    tutorial/05_minimal_tensor_mma tutorial/06_softmax tutorial/07_vectorized_array
    tutorial/08_mlir_value_tree_debug tutorial/09_tma_4d_to_2d tutorial/10_minimal_tensor_mma_fp8
    tutorial/gemm_M128_N128_Kany_TN_warpspec_multistage
"""
_SCALAR = "tutorial/03_gemm_tiled_smem"  # 1024^3 multiply-adds from shared memory, with 2 million waits at a barrier
_TWICE = "every warp's elected lane makes the mbarriers, though they live already"
_EXPLAINED = {
    "tutorial/05_minimal_tensor_mma": f"line 74: {_TWICE}",
    "tutorial/06_softmax": "line 328: no barrier between the reads of element 0 and warp 0's next store to it",
    "tutorial/10_minimal_tensor_mma_fp8": f"line 82: {_TWICE}",
    "tutorial/gemm_M128_N128_Kany_TN_warpspec_multistage": f"line 203: {_TWICE}",
    "reduction/cluster_tmem_reduce": "line 245: `tcgen05.wait::st` does not wait for `tcgen05.cp`, which needs a commit and its mbarrier",
    "tcgen05/1cta_mma_a_from_tmem": "line 204: all warps store at lane 0, which is that of the first one",
    "tma/tma_multicast": "line 208: warp 0 alone waits for the copy, and the cluster barrier behind that is relaxed, which hands nothing on",
    "tma/tma_pipeline_single_warp": "line 176: no barrier after the reads of a stage (line 214) before warp 0 fills it again",
    "mapa": "line 144: reads the peer's shared memory as the last thing; nothing keeps the peer from exiting before",
    "tcgen05/2cta_mma_blockscale_m128": "line 679: an arrival of CTA scope at the peer's barrier, which makes nothing visible to the peer",
}
PRIMITIVES = tuple(
    Case(
        "CUTLASS, experimental/primitives", name, f"{_PRIMITIVES}/{name}.py", machines=B200,
        explained=_EXPLAINED.get(name, ""), limit=240 if name == _SCALAR else 60,
    )
    for name in _NAMES.split()
)  # fmt: skip

_GRADIENTS = """
x = torch.randn(8, 256, device="cuda", requires_grad=True)
w = torch.randn(256, device="cuda", requires_grad=True)
wanted = {1}
gradients = torch.autograd.grad(wanted.sum(), [x, w])
z = x.clone()  # some kernels write their gradients over their inputs
y = {0}
close(y, wanted, 1e-5)
for got, expected in zip(torch.autograd.grad(y.sum(), [x, w]), gradients):
    close(got, expected, 1e-4)"""
_RMS = "x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6) * w"


def liger(name: str, code: str, **more) -> Case:
    """A kernel of Liger's, forward and backward."""
    return Case("Liger", f"Liger, {name}", code=f"from liger_kernel.ops import *\n{code}", path=("src",), **more)


_CROSS_ENTROPY = """
x = torch.randn(8, {0}, device="cuda", requires_grad=True)
t = torch.randint(0, {0}, (8,), device="cuda")
wanted = torch.nn.functional.cross_entropy(x, t)
(expected,) = torch.autograd.grad(wanted, x)
given = x.detach().clone().requires_grad_()
loss = LigerCrossEntropyFunction.apply(given.clone(), t, None, -100)[0]
close(loss, wanted.detach(), 1e-5)
(got,) = torch.autograd.grad(loss, given)
close(got, expected, 1e-4)"""
LIGER = (
    liger("rms_norm", _GRADIENTS.format("LigerRMSNormFunction.apply(z, w, 1e-6)", _RMS)),
    liger("layer_norm", _GRADIENTS.format("LigerLayerNormFunction.apply(z, w, w, 1e-5)", "torch.nn.functional.layer_norm(x, (256,), w, w, 1e-5)")),
    liger("swiglu", _GRADIENTS.format("LigerSiLUMulFunction.apply(z, x * w)", "torch.nn.functional.silu(x) * (x * w)")),
    liger("geglu", _GRADIENTS.format("LigerGELUMulFunction.apply(z, x * w)", "torch.nn.functional.gelu(x, approximate='tanh') * (x * w)")),
    liger("cross_entropy, 256 classes", _CROSS_ENTROPY.format(256), explained="lines 208, 252: 1024 threads for 256 elements, so four warps load each and one of them stores it; what the others read then is not used"),
    liger("cross_entropy, 2048 classes", _CROSS_ENTROPY.format(2048)),
)  # fmt: skip

_GLA = """
from fla.ops.{0} import chunk_{0}, fused_recurrent_{0}
q, k, v = (torch.randn(1, 64, 1, 32, device="cuda") * 0.3 for _ in range(3))
more = [torch.nn.functional.logsigmoid(torch.randn(1, 64, 1, 32, device="cuda"))] if {1} else []
close(chunk_{0}(q, k, v, *more)[0], fused_recurrent_{0}(q, k, v, *more)[0], 0.01)"""
FLA = tuple(
    Case("flash-linear-attention", f"FLA, {name}: chunks against the recurrence", code=_GLA.format(name, gated), path=("fla/..",))
    for name, gated in (("gla", True), ("retention", False))
)

_QUACK = """
x, w = torch.randn(8, 256, device="cuda"), torch.randn(256, device="cuda")
from quack.{} import {} as function
got = function({})
close(got[0] if isinstance(got, tuple) else got, {}, 1e-5)"""
QUACK = (
    # Its objects in TMPDIR, which a later process loads, have machine code alone: a case has a TMPDIR of its own
    Case("quack", "quack, softmax", code=_QUACK.format("softmax", "softmax_fwd", "x", "torch.softmax(x, 1)"), path=("quack/..",)),
    Case("quack", "quack, rmsnorm", code=_QUACK.format("rmsnorm", "rmsnorm_fwd", "x, w", _RMS), path=("quack/..",)),
    Case("quack", "quack, cross_entropy", code="""
from quack.cross_entropy import cross_entropy_fwd
x, t = torch.randn(8, 256, device="cuda"), torch.randint(0, 256, (8,), device="cuda")
got = cross_entropy_fwd(x, t)
close(got[0] if isinstance(got, tuple) else got, torch.nn.functional.cross_entropy(x, t, reduction="none"), 1e-5)""", path=("quack/..",)),
    Case("quack", "quack, gemm, 128 x 256 x 128", code="""
from quack.gemm_interface import gemm
a, b = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((128, 128), (128, 256)))
close(gemm(a, b, tuned=False), a.float() @ b.float(), 0.01)""", path=("quack/..",)),
    Case("quack", "quack, gemm, NVFP4, 128 x 256 x 256", code="""
from quack.blockscaled.operand import BlockScaledFormat, BlockScaledOperand
from quack.blockscaled.utils import blockscaled_quantize
from quack.gemm_interface import gemm, gemm_blockscaled_ref
form = BlockScaledFormat.from_name("nvfp4")
a, b = (
    BlockScaledOperand.from_parts(*blockscaled_quantize(torch.randn(n, 256, device="cuda", dtype=torch.bfloat16), "nvfp4"), form)
    for n in (128, 256)
)
close(gemm(a, b.mT, tuned=False), gemm_blockscaled_ref(a, b.mT), 0.005)""", machines=B200, path=("quack/..",)),
)  # fmt: skip

_FA4 = """
import sys, types
sys.modules["flash_attn"] = package = types.ModuleType("flash_attn")  # as its own wheel has it, without version 2
package.__path__ = [folder for folder in sys.path if folder.endswith("flash_attn")]
from flash_attn.cute.interface import _flash_attn_bwd, flash_attn_func
q, k, v, gradient = (torch.randn(1, {0}, {1}, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4))
exact = [x.float().requires_grad_() for x in (q, k, v)]
scores = torch.einsum("bqhd,bkhd->bhqk", *exact[:2]) / 128**0.5
scores = scores.masked_fill(torch.ones({0}, {0}, device="cuda").tril() == 0, float("-inf"))
wanted = torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), exact[2])
"""
_FA4_FORWARD = """
got = flash_attn_func(q, k, v, causal=True)
close(got[0] if isinstance(got, tuple) else got, wanted.detach(), 0.01)"""
_FA4_BACKWARD = """
out, sums = wanted.detach().to(torch.bfloat16), torch.logsumexp(scores.detach(), -1)
got = _flash_attn_bwd(q, k, v, out, gradient, sums, causal=True)
for one, expected in zip(got, torch.autograd.grad(wanted, exact, gradient.float())):
    close(one, expected, 0.01)"""
_FA4_BOTH = """
q, k, v = (x.requires_grad_() for x in (q, k, v))
got = flash_attn_func(q, k, v, causal=True)
got = torch.autograd.grad(got[0] if isinstance(got, tuple) else got, (q, k, v), gradient)
for one, expected in zip(got, torch.autograd.grad(wanted, exact, gradient.float())):
    close(one, expected, 0.01)"""


def fa4(name: str, code: str, tokens: int, heads: int, **more) -> Case:
    """A call of flash-attention 4's, before attention in float32."""
    name = f"FA4, {name}, {tokens} x {tokens} x 128"
    return Case("flash-attention 4", name, code=_FA4.format(tokens, heads) + code, path=("flash_attn", "quack/.."), **more)


FA4 = (
    fa4("forward", _FA4_FORWARD, 256, 2, explained="B200: flash_fwd_sm100.py, from line 2645 on in 4.0.0b36: no `tcgen05.wait::ld` between the load of S and the release of its columns; its values have been used by then, which the ISA does not count"),
    fa4("backward", _FA4_BACKWARD, 128, 1),
    fa4("forward and backward by autograd", _FA4_BOTH, 128, 1, machines=H200),
)

_FLASHINFER = """
import sys, types
for name in ("flashinfer", "flashinfer.cute_dsl", "flashinfer.gemm", "flashinfer.norm"):  # their modules without those of its other kernels
    sys.modules[name] = package = types.ModuleType(name)
    package.__path__ = [folder + name.removeprefix("flashinfer").replace(".", "/") for folder in sys.path if folder.endswith("/flashinfer")]
"""
_GEMM = """
from flashinfer.gemm.kernels.{0} import {1}
a, b = (torch.randn(n, {4}, device="cuda", dtype=torch.bfloat16) * 0.1 for n in ({2}, {3}))
out = torch.empty({2}, {3}, device="cuda", dtype=torch.bfloat16)
{5}
close(out, a.float() @ b.float().T, 0.01)"""


def flashinfer(module: str, names: str, m: int, n: int, k: int, call: str, **more) -> Case:
    """A dense GEMM of FlashInfer's in CuTe DSL, which has its checkout, einops and pynvml on the path."""
    code = _FLASHINFER + _GEMM.format(module, names, m, n, k, call)
    return Case("FlashInfer", f"FlashInfer, {module}, {m} x {n} x {k}", code=code, machines=B200, path=("flashinfer",), **more)


FLASHINFER = (
    flashinfer("dense_bf16_gemm_direct", "default_tactic, run_direct_dense", 4, 256, 512, "run_direct_dense(a, b.t(), out, False, default_tactic(4, 256, 512))"),
    flashinfer("dense_bf16_gemm_sm100_splitk", "default_tactic, run_splitk_dense", 16, 256, 1024, "run_splitk_dense(a, b.t(), None, out, False, default_tactic(16, 256, 1024))"),
    flashinfer("tgv_gemm_cute_ext", "get_tgv_cute_ext_default_tactic, run_tgv_cute_ext", 16, 256, 512, "run_tgv_cute_ext(a, b.t(), None, out, False, get_tgv_cute_ext_default_tactic())"),
    Case("FlashInfer", "FlashInfer, rmsnorm, layernorm, 9 x 1024", code=_FLASHINFER + """
from flashinfer.norm.kernels.layernorm import layernorm_cute
from flashinfer.norm.kernels.rmsnorm import rmsnorm_cute
x, w = (torch.randn(*size, device="cuda", dtype=torch.bfloat16) for size in ((9, 1024), (1024,)))
y = torch.empty_like(x)
rmsnorm_cute(x, w, y)
close(y, torch.nn.functional.rms_norm(x.float(), (1024,), w.float(), 1e-6), 0.01)
gamma, beta = (torch.randn(1024, device="cuda") for _ in range(2))
layernorm_cute(y, x, gamma, beta)
close(y, torch.nn.functional.layer_norm(x.float(), (1024,), gamma, beta, 1e-6), 0.01)""", path=("flashinfer",)),
)  # fmt: skip

_MATMUL_TEST = """
given = dict(
    m=32, n=256, k=256, split_k=1, do_gather=False, do_scatter=False, inner_expt_opt=None, do_gamma=False, is_persistent=False,
    num_warps=None, n_slices=1, mode="plain", act_dtype_str="bfloat16", weight_dtype_str="bfloat16", output_dtype_str=None, block_m=32,
    b_hbm_swizzling=False, shuffle_mxfp4_w_layout=False, a_hbm_swizzling=False, colmajor_mxfp_weight=True, epilogue_subtile=None,
    a_transpose=False, b_transpose=False, c_transpose=False, swiglu_opts=None, c_hbm_swizzling=False, device="cuda", opt_flags_scope=None,
)
_test_op(**given | dict({}))"""


def triton_kernels(name: str, given: str, **more) -> Case:
    """triton_kernels' own test of its matmul, at M x 256 x 256."""
    file = "python/triton_kernels/tests/test_matmul.py"
    return Case("triton_kernels", f"triton_kernels, matmul, {name}", file, "", _MATMUL_TEST.format(given), path=("python/triton_kernels",), **more)


TRITON_KERNELS = (
    triton_kernels("bf16", ""),
    triton_kernels("bf16, persistent", "is_persistent=True, m=128, block_m=128"),
    triton_kernels("bf16, ragged, gather and scatter", "mode='ragged', n_slices=3, m=48, do_gather=True, do_scatter=True"),
    triton_kernels("bf16, SwiGLU", "swiglu_opts=(1.1, 1.4)"),
    triton_kernels("f16, split-K", "split_k=2, act_dtype_str='float16', weight_dtype_str='float16'"),
    triton_kernels("FP8", "act_dtype_str='float8_e5m2', weight_dtype_str='float8_e5m2'"),
    triton_kernels("bf16 x MXFP4", "weight_dtype_str='mxfloat4_e2m1'"),
    triton_kernels("MXFP8 x MXFP4, persistent, swizzled scales", "m=128, block_m=128, is_persistent=True, act_dtype_str='mxfloat8_e4m3fn', weight_dtype_str='mxfloat4_e2m1', b_hbm_swizzling=True", machines=B200),
    triton_kernels("NVFP4", "m=128, block_m=128, act_dtype_str='nvfp4_e2m1', weight_dtype_str='nvfp4_e2m1', output_dtype_str='bfloat16'", machines=B200),
)

_CUBLAS = "makes its inputs and its reference by cuRAND and cuBLAS, which are not served"
CUPY = (
    Case("CuPy's examples", "CuPy, gemm/sgemm, 128 x 192 x 64", "examples/gemm/sgemm.py", code="""
a, b = torch.randn(128, 64, device="cuda"), torch.randn(64, 192, device="cuda")
close(torch.from_dlpack(sgemm(*(cp.asarray(x.T.contiguous()).T for x in (a, b)))), a @ b, 1e-6)  # else cuBLAS transposes them"""),
    Case("CuPy's examples", "CuPy, finance/black_scholes", "examples/finance/black_scholes.py", code="""
given = [low + (high - low) * torch.rand(1000, device="cuda", dtype=torch.float64) for low, high in ((5, 30), (1, 100), (0.25, 10))]
wanted = black_scholes(numpy, *(x.cpu().numpy() for x in given), 0.02, 0.3)
for form in (black_scholes_kernel, lambda *args: black_scholes(cupy, *args)):
    for got, one in zip(form(*map(cupy.asarray, given), 0.02, 0.3), wanted):
        close(torch.from_dlpack(got).cpu(), torch.from_numpy(one), 1e-12)"""),
    Case("CuPy's examples", "CuPy, stream/cupy_kernel", "examples/stream/cupy_kernel.py"),
    Case("CuPy's examples", "CuPy, stream/cupy_event", "examples/stream/cupy_event.py"),
    Case("CuPy's examples", "CuPy, custom_struct/complex_struct", "examples/custom_struct/complex_struct.py"),
    Case("CuPy's examples", "CuPy, custom_struct/builtin_vectors", "examples/custom_struct/builtin_vectors.py", explained=_CUBLAS),
    Case("CuPy's examples", "CuPy, custom_struct/packed_matrix", "examples/custom_struct/packed_matrix.py", explained=_CUBLAS),
)


def sample(folder: str, args: str = "", **more) -> Case:
    """One of NVIDIA's CUDA samples: a program that checks its own results."""
    name = folder.partition("/")[2]
    name, file = name + more.pop("of", ""), f"Samples/{folder}/{more.pop('file', name)}.cu"
    return Case("NVIDIA's CUDA samples", f"sample {name}", file, args, path=("Common",), **more)


_FIRST, _CONCEPTS = "0_Introduction/", "2_Concepts_and_Techniques/"
_EVERYWHERE = "fp16ScalarProduct", "simpleAtomicIntrinsics", "simpleCooperativeGroups", "simpleVoteIntrinsics", "vectorAdd"
SAMPLES = (
    *(sample(_FIRST + name, machines=(*BOTH, *OTHERS) if name in _EVERYWHERE else BOTH) for name in (
        "clock", "fp16ScalarProduct", "simpleAtomicIntrinsics", "simpleCallback", "simpleCooperativeGroups", "simpleHyperQ",
        "simpleOccupancy", "simplePrintf", "simpleTemplates", "simpleVoteIntrinsics", "simpleZeroCopy", "template", "vectorAdd",
    )),
    *(sample(_CONCEPTS + name) for name in ("inlinePTX", "scalarProd")),
    sample(_CONCEPTS + "shfl_scan"),
)  # fmt: skip

def cute_tutorial(file: str, args: str, machines: tuple[str, ...], **more) -> Case:
    """One of CUTLASS's programs in C++ that teach CuTe, at M, N, K."""
    name = file.rpartition("/")[2].partition(".")[0] + f", {args.replace(' ', ' x ')}" * bool(args)
    options, path = "--expt-relaxed-constexpr -O2", ("include", "tools/util/include", "examples/common")
    return Case("CUTLASS C++, cute/tutorial", name, f"examples/cute/tutorial/{file}", args, "", options, machines, path, **more)


CUTE = (
    cute_tutorial("blackwell/01_mma_sm100.cu", "128 256 64", B200, explained="lines 274, 289: generic stores of the operands, then __syncthreads and tcgen05.mma, with no fence.proxy.async between"),
    cute_tutorial("blackwell/02_mma_tma_sm100.cu", "128 256 128", B200),
    cute_tutorial("blackwell/03_mma_tma_multicast_sm100.cu", "512 1024 128", B200),
    cute_tutorial("blackwell/04_mma_tma_2sm_sm100.cu", "512 1024 128", B200),
    cute_tutorial("blackwell/05_mma_tma_epi_sm100.cu", "512 1024 128", B200),
    cute_tutorial("hopper/wgmma_sm90.cu", "128 128 256", H200, explained="lines 266 to 270: each thread waits for its own cp.async alone, and no barrier comes before wgmma reads what the others copied"),
    cute_tutorial("hopper/wgmma_tma_sm90.cu", "256 128 256", H200),
    cute_tutorial("sgemm_1.cu", "128 128 32", B200),
    cute_tutorial("sgemm_2.cu", "128 128 32", B200),
    cute_tutorial("sgemm_sm70.cu", "128 128 32", B200),
    cute_tutorial("sgemm_sm80.cu", "128 128 64 T N", B200, explained="line 285: behind the last tile it copies that once more, and nobody waits for it before the exit"),
    cute_tutorial("tiled_copy.cu", "", B200),
    cute_tutorial("tiled_copy_if.cu", "", B200),
)

def newer_blackwell(file: str, mnkl: str, machines: tuple[str, ...]) -> Case:
    """One of CUTLASS's GEMMs in CuTe DSL for a GeForce card or a B300, before its own reference, at M, N, K, batches."""
    name = f"{file.rpartition('/')[2].partition('.')[0]}, {mnkl.replace(',', ' x ')}".removesuffix(", ")
    return Case("CUTLASS, GeForce and B300", name, f"examples/python/CuTeDSL/cute/{file}.py", f"--mnkl {mnkl}" * bool(mnkl), machines=machines, path=("examples/python/CuTeDSL/cute",), limit=90)


_GEFORCE, _SM103 = "blackwell_geforce/kernel", "blackwell/kernel/blockscaled"
NEWER = (
    newer_blackwell(f"{_GEFORCE}/dense_gemm/dense_gemm", "200,136,96,1", ("rtx5090", "dgx-spark")),
    newer_blackwell(f"{_GEFORCE}/blockscaled_gemm/dense_blockscaled_gemm_persistent_cooperative", "128,128,256,1", ("rtx5090",)),
    newer_blackwell(f"{_GEFORCE}/blockscaled_gemm/dense_blockscaled_gemm_persistent_pingpong", "128,128,256,1", ("rtx5090",)),
    newer_blackwell(f"{_SM103}_gemm/sm103_dense_blockscaled_gemm_persistent", "128,128,768,1", ("b300",)),
    newer_blackwell(f"{_SM103}_grouped_gemm/sm103_grouped_blockscaled_gemm", "", ("b300",)),
)

_NUMBA = """
import unittest
from numba.cuda.tests.doc_examples import test_{0} as file
ran = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(file))
assert ran.wasSuccessful() and ran.testsRun > len(ran.skipped), f"{{ran.testsRun}} tests, {{len(ran.skipped)}} skipped\""""


def numba(name: str, code: str = _NUMBA, **more) -> Case:
    """An example of numba-cuda's documentation, which is a test of its own suite."""
    return Case("numba-cuda's examples", f"numba-cuda, {name}", code=code.format(name), machines=B200, path=("numba_cuda/..",), limit=90, **more)


NUMBA = (
    *(numba(name) for name in "cpointer cpu_gpu_compat globals reduction sessionize ufunc vecadd".split()),
    numba("matmul", "from numba.cuda.tests.doc_examples.test_{0} import test_{0}\ntest_{0}()"),
    numba("cg", explained="1023 barriers of a grid of 32 CTAs"),
    numba("laplace", explained="10,000 barriers of a grid"),
    numba("ffi", explained="links PTX of two sources, which is refused by name"),
    numba("montecarlo", explained="reduction.py, line 95: syncwarp of all 32 lanes in a branch that two of them take"),
    numba("random", explained="its size is 454 million random numbers"),
)

_TINYGRAD = """
import os, sys
os.environ |= {{"DEV": "CUDA", "FORWARD_ONLY": "1"}}
import pytest
sys.argv = ["pytest"]
assert pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", {0!r}, {0!r} + "/test/backend/test_ops.py", "-k", {1!r}]) == 0"""


def tinygrad(words: str, **more) -> Case:
    """tinygrad's own tests of operations, forward, on its device CUDA; those whose names have the words."""
    code = _TINYGRAD.format("{test}", words).replace("'{test}'", "os.path.dirname(os.path.dirname(__import__('tinygrad').__file__))")
    return Case("tinygrad's test_ops", f"tinygrad, {words}", "", "", code, machines=B200, path=("tinygrad/..",), **more)


# What folds constants runs on tinygrad's device CPU, too, for which it wants clang
TINYGRAD = tuple(tinygrad(words, limit=90) for words in (
    "test_matmul or test_dot", "test_max_pool2d_simple or test_avg_pool2d", "test_where", "test_gelu", "test_topk", "test_fancy_indexing or test_gather",
))  # fmt: skip


def tilelang(file: str, args: str = "", **more) -> Case:
    """One of tilelang's examples, before its own reference."""
    name = f"tilelang, {file.rpartition('/')[2].partition('.')[0]}" + more.pop("of", "")
    return Case("tilelang's examples", name, f"examples/{file}", args, machines=B200, **more)


TILELANG = (
    tilelang("elementwise/example_elementwise_add.py", "--m 512 --n 512"),
    tilelang("gemv/example_gemv.py", "--n 128 --k 256", explained="it tunes itself in processes of its own, by times, of which there are none"),
    tilelang("topk/example_topk.py"),
    tilelang("gemm/example_gemm.py", code="""
kernel = matmul.compile(M=256, N=256, K=256, block_M=128, block_N=128, block_K=32)
a, b = (torch.randn(256, 256, device="cuda", dtype=torch.float16) for _ in range(2))
close(kernel(a, b), a @ b, 0.005)"""),
    tilelang("norm/rms_norm.py", code="""
kernel = rms_norm.compile(M=64, N=512, blk_m=1)
x = torch.randn(64, 512, device="cuda")
close(kernel(x), ref_program(x), 1e-4)"""),
    tilelang("flash_attention/example_mha_fwd_bhsd.py", "--seq_q 128 --seq_kv 128"),
)  # fmt: skip

CASES = (*TRITON, *GLUON, *LIGER, *FLA, *TRITON_KERNELS, *QUACK, *FA4, *FLASHINFER, *PRIMITIVES, *SUBMISSIONS, *SAMPLES, *PROGRAMS, *CUTE, *NEWER, *CUPY, *NUMBA, *TINYGRAD, *TILELANG)


def all_cases(record: dict[str, dict[str, dict]]) -> list[Case]:
    """Return the cases, and behind them, group by group, those of other files (`--cases`) that the record knows."""
    known = {case.name for case in CASES}
    rows = {name: next(iter(found.values())) for name, found in record.items() if name not in known}
    others = [Case(row["group"], name, row["file"], row["args"], explained=row["explained"]) for name, row in rows.items() if "group" in row]
    return [*CASES, *sorted(others, key=lambda case: case.group)]
