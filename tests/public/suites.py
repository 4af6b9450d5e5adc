"""Suites of others' tests, of which a seed draws some: whose, which tests, and what is known of those that do not pass."""
# ruff: noqa: E501

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """Tests of one file of a project's repository.

    file: in the repository; path: folders of it that are importable, besides its root; count: of tests that run; words:
    as of pytest's -k, such as small shapes; known: beginnings of names of tests that do not pass, and why.
    """

    project: str
    file: str
    count: int
    words: str = ""
    path: tuple[str, ...] = ()
    machines: tuple[str, ...] = ("b200",)
    known: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.project}, {self.file.rpartition('/')[2].removesuffix('.py')}"

    def explanation(self, test: str) -> str:
        """What is known of a test that does not pass; "" for nothing."""
        return next((why for name, why in self.known.items() if test.startswith(name)), "")


TRITON = Suite("Triton", "python/test/unit/language/test_core.py", 300, machines=("b200", "h200"), known={
    "test_atomic_poll[": "it counts the polls in the PTX's text, of which Triton 3.9 has one before the loop, too; the kernel's result is right",
    "test_atomic_cas[": "2000 CTAs wait for one spin lock, which are four million polls",
    "test_cat[True-": "it wants the order that Triton 3.9's `cat(can_reorder=True)` need not keep, and the checkout's does",
    "test_scan2d[cumsum-bfloat16-": "Triton 3.9 adds in bfloat16, where the checkout's promotes to float32, with which it is compared",
    "test_dot_max_num_imprecise_acc[": "Triton reads an accumulator before any `wgmma.wait_group`; ptxas says that it puts one there (C7517), the ISA does not promise it",
    "test_if_call[": "all four warps load the element that one thread stores; what the late ones read is not used",
    "test_load_store_same_ptr": "all 32 warps load the element that one thread stores; what the late ones read is not used",
    "test_scaled_dot[128-128-64-True-True-False-e2m1-e5m2-": "one element, of whose summands' magnitude 0.000002 is left: exactly 698.1, here 696, by the reference, torch on a CPU, 708",
})  # fmt: skip


_IN_FLOAT = "torch's autocast gives float32 (aten/src/ATen/autocast_mode.h has it in AT_FORALL_FP32), attorch half"


def attorch(part: str, count: int, words: str, known: dict[str, str] | None = None) -> Suite:
    return Suite("attorch", f"tests/test_{part}.py", count, words, known=known or {})


_ROUNDED = (
    "torch rounds to half between its operators, and its gradient begins with an output that is; attorch's kernel is"
    " closer to float64, within the test's bounds of it everywhere"
)
_TWICE = "both are within the test's bounds of float64 but for some of 100,000 elements, not of one another: halves on the way"
_COMPILES = "Triton takes longer to compile a warp's 8192 halves, in LLVM's passes: no launch has begun"

_ALL = "shape0] or shape3] or shape5] or shape7] or shape10] or shape11] or shape12]"  # to 8192 elements, of all
_OF_2 = "shape0] or shape1] or shape2]"  # of those with two dimensions or more

ATTORCH = (
    attorch("act_layers", 40, _ALL, {
        "test_act_layers[True-input_dtype1-0.0-Softplus-": _IN_FLOAT,
        "test_act_layers[True-input_dtype1-0.5-Tanh-": f"{_ROUNDED}; by torch's CUDA formula 200 of 200 draws fail",
        "test_act_layers[True-input_dtype1-0.5-Sigmoid-": _ROUNDED,
    }),
    attorch("batch_norm_layer", 30, _OF_2, {
        "test_batch_norm_layer[True-input_dtype1-hardshrink_0.5-": "the norm's half is 0.5, which torch's hardshrink makes 0; before that rounding it is 0.5002, which attorch's keeps",
        "test_batch_norm_layer[True-input_dtype1-logsigmoid-": _TWICE,
        "test_batch_norm_layer[True-input_dtype1-softshrink_0.5-": "torch rounds the norm to half before 0.5 is taken off it, which leaves that rounding in what remains; attorch's kernel rounds once",
    }),
    attorch("conv_layer", 8, "2-1-16-shape5] and not stride2", {  # every second pixel of 224 x 224, to 16 channels: the least
        f"test_conv2d_layer[{amp}-input_dtype{dtype}-{bias}--1-": "three groups do not divide 16 channels: torch.nn.Conv2d's ValueError"
        for amp in (False, True) for dtype in (0, 1) for bias in (False, True)
    }),
    attorch("cross_entropy_loss_layer", 20, _OF_2, {
        "test_cross_entropy_loss_layer[True-input_dtype1-True-shape2]": "torch's cross_entropy gives log_softmax its dtype (LossNLL.cpp), so that autocast leaves it half; weights that sum to -0.23 make 0.015 of that",
    }),
    attorch("dropout_layer", 20, _ALL),
    attorch("glu_layer", 30, _ALL, {"test_glu_layer[True-input_dtype1-": _ROUNDED}),
    attorch("layer_norm_layer", 30, _ALL),
    attorch("linear_layer", 20, _OF_2, {f"test_linear_layer[True-{one}": _TWICE for one in ("input_dtype1-logsigmoid-", "input_dtype1-sigmoid-", "input_dtype0-selu-False-384-")}),
    attorch("multi_head_attention_layer", 8, "shape0]", {"test_multi_head_attention_layer[": "its constructor raises that it is deprecated"}),
    attorch("nll_loss_layer", 20, _OF_2),
    attorch("p_loss_layers", 30, _ALL, {"test_p_loss_layers[True-input_dtype1-none-L1Loss-": "p_loss_kernels.py line 130: where halves are equal, the gradient is 1, torch's 0"}),
    attorch("rms_norm_layer", 30, _ALL, {"test_rms_norm_layer[True-input_dtype1-": _IN_FLOAT}),
    attorch("softmax_layers", 30, _ALL, {"test_softmax_layers[True-input_dtype1-Softmax-shape7]": _COMPILES}),
)

_LANES_DIFFER = (
    "line 152, in Triton's sum: each lane of two warps stores its replica of a sum to one word, in no order; as summands"
    " cancel, replicas differ by 1.8e-6 of it, more than the 2^-20 of a note: a data race by the ISA (8.7.1)"
)
_AT_64 = ("dtype0-1e-05-1e-05-2-8-64]", "dtype1-0.02-0.02-2-8-64]")

LIGER = tuple(
    Suite("Liger", f"test/transformers/test_{part}.py", count, words, path=("src",), known=known)
    for part, count, words, known in (
        ("layer_norm", 12, "not 512", {
            **{f"test_liger_layer_norm{of}[{at}": _LANES_DIFFER for of in ("", "_functional") for at in _AT_64},
            "test_liger_layer_norm[dtype1-0.02-0.02-4-16-128]": "lines 78, 79: mean and rstd are kept in bfloat16; with them in float, the gradient of the weight is torch's to the bit",
        }),
        ("multi_token_attention", 20, "", {}),
        ("softmax", 12, "shape0 or shape1 or shape2", {}),
    )
)

TORCHAO = (Suite("torchao", "test/prototype/mx_formats/test_mx_tensor.py", 6, "not compile"),)

MAMBA = (Suite("Mamba", "tests/ops/triton/test_selective_state_update.py", 19, "2048 and not 4096"),)

# With DEV=CUDA. What it compares on its CPU device wants a clang: that of pip's ziglang, with -g0
TINYGRAD = (Suite("tinygrad", "test/backend/test_ops.py", 40),)

# With cuRAND's headers by CPATH and its library; of `driver` all tests but those of textures, which CUDA 12 has not, and of pools of 50 GB
PYCUDA = (
    Suite("pycuda", "test/test_driver.py", 20, "not mempool", known={
        "TestDriver::test_recursive_launch": "a kernel that launches kernels is refused by name",
        "TestDriver::test_jit_link_module": "its kernel launches a kernel, which is refused by name",
    }),
    Suite("pycuda", "test/test_gpuarray.py", 20, "not 8gb and not 16gb and not big_array"),
)

SUITES = (TRITON, *ATTORCH, *LIGER, *TORCHAO, *MAMBA, *TINYGRAD, *PYCUDA)
