"""What each call takes: one declaration of its operands and options, from which checks and torch's operators are made.

Nothing here needs CuTe DSL, so that `import ragged_moe` may read it.
"""

from typing import NamedTuple

import torch

from ragged_moe.runtime.operands import MAX_ROWS
from ragged_moe.runtime.signature import Option, Result, Signature, Size, Tensor, flag, number, whole
from ragged_moe.runtime.sizes import BF16, E4M3, EXPERTS, F32, I32, MAX_EXPERTS, MAX_LOCAL, MAX_TOP_K, SCORINGS

F16, U8, I64 = torch.float16, torch.uint8, torch.int64
MAX_TOKENS = 65536  # of experts and route
MAX_LAYER_TOKENS = 16384  # of run
HOPPER, BLACKWELL = (9, 0), (10, 0)  # compute capabilities
TILE = 64  # weight rows, and K, that packed weights have together on Hopper
MX_K = 128  # what K of MXFP4 is rounded up to for Blackwell: four blocks, an atom's
ATOM_ROWS, ATOM = 128, 512  # weight rows, and bytes, of the scales that tcgen05.cp copies at once
TMA_FP4_BYTES = 32  # at a multiple of which a tensor begins whose FP4 numbers a TMA gives a byte's room each
LAYOUTS = {
    "tokens_first": '"tokens_first" for hidden_scale [T, H/128]',
    "blocks_first": '"blocks_first" for hidden_scale [H/128, T]',
}  # of hidden_scale, whose dimensions its shape does not tell where T == H/128


def size(letter: str, operand: str, dimension: int, multiple: int = 1, least: int | None = None, most: int = MAX_ROWS,
         **of) -> Size:  # fmt: skip
    """A size; from its multiple on, if nothing else is said."""
    return Size(letter, operand, dimension, multiple, multiple if least is None else least, most, **of)


# ------------------------------------------------------------------------------------------------------------- experts

SWIGLU = (
    flag("gate_first"), number("limit", "=None", "a number above 0, or None", above=0),
    number("alpha", "=1.0"), number("shift", "=0.0"),
)  # fmt: skip
WEIGHTS = (
    Tensor("w13", (E4M3,), "E 2I H", aligned=True), Tensor("w13_scale", (F32,), "E 2I/128 H/128 | E 2I"),
    Tensor("w2", (E4M3,), "E H I", aligned=True), Tensor("w2_scale", (F32,), "E H/128 I/128 | E H"),
)  # fmt: skip
BY_TOKEN = Tensor("hidden_scale", (F32,), "T H/128", optional=True, any_strides=True)
BY_BLOCK = BY_TOKEN._replace(shape="H/128 T")
LAYOUT = Option(
    "hidden_scale_layout", "str?", "=None", " or ".join(LAYOUTS.values()),
    lambda x: x is None or isinstance(x, str) and x in LAYOUTS,
)  # fmt: skip
MAPS = (Tensor("expert_map", (I32,), "L | L R", optional=True), Tensor("replica_counts", (I32,), "L", optional=True))
MOST_MAPPED = 2**20  # of the router's experts, and of replicas
OF_PACKED = "w13_global", "w2_global", "w13_bias", "w2_bias", "w13_input_scale", "w2_input_scale"
EXPERTS_CALL = Signature(
    "experts",
    (
        Tensor("hidden", (BF16, E4M3), "T H", aligned=True),
        Tensor("topk_ids", (I32, I64), "T k"),
        Tensor("topk_weights", (F32,), "T k"),
        *(x._replace(optional=x.dtypes == (F32,)) for x in WEIGHTS),
        BY_TOKEN,
        *(Tensor(name, (F32,), "", optional=True) for name in OF_PACKED),  # declared with the forms that have them
        *MAPS,
    ),
    (
        size("T", "hidden", 0, 1, 0, MAX_TOKENS), size("H", "hidden", 1, 128), size("I", "w2", 2, 128),
        size("E", "w2", 0, most=MAX_EXPERTS), size("k", "topk_ids", 1, most=MAX_TOP_K),
        size("L", "expert_map", 0, most=MOST_MAPPED), size("R", "expert_map", 1, most=MOST_MAPPED),
    ),
    (
        LAYOUT,
        *SWIGLU,
        flag("apply_router_weight_on_input"),
        whole("local_expert_offset", "an int", "=0"), whole("num_experts", "an int, or None", "=None"),
        whole("sms", "an int from 2 on, or None", "=None", least=2),
    ),
    (Result(BF16, "T H"),), out="out", overwritable="hidden",
    positional=("w13_scale", "w2_scale", "num_experts"),
    pairs=(("w13_bias", "w2_bias"), ("w13_input_scale", "w2_input_scale")),
)  # fmt: skip


class Packing(NamedTuple):
    """How weights [E, n, k] in e2m1 lie in memory: the shapes of them and their scales, by the letters of n and k."""

    weights: str
    scale: str
    sizes: tuple[Size, ...]  # of experts
    step: int  # what n is a multiple of
    multiple: int = 16  # of bytes, at which operands begin

    def tensors(self, name: str, n: str, k: str, because: str = "") -> tuple[Tensor, Tensor]:
        """The weights and their scales, `name` and `name`_scale."""
        shapes = [x.format(n=n, k=k) for x in (self.weights, self.scale)]
        return tuple(Tensor(x, (U8,), y, True, because=because) for x, y in zip((name, f"{name}_scale"), shapes))


IN_TILES = size("H", "hidden", 1, TILE), size("I", "w2", 2, TILE, times=TILE)
PACKINGS = {
    "for Hopper": Packing("E {n}/64 {k}/64 2048", "E {n}/64 {k}/64 256", IN_TILES, TILE),
    "for Blackwell and tokens in bf16": Packing("E {n}/64 {k}/64 2048", "E {n}/64 {k}/64 256", IN_TILES, TILE),
    "for Hopper and tokens in e4m3": Packing("E {n}/64 {k}/64 2048", "E {n}/64 {k}/64 128", IN_TILES, TILE),
    "as NVFP4 for Blackwell": Packing(
        "E {n} {k}/2", f"E {{n}}/{ATOM_ROWS} {{k}}/{TILE} {ATOM}", (size("I", "w2", 2, 128, times=2),), ATOM_ROWS
    ),
    "as MXFP4 for Blackwell": Packing(
        f"E {{n}} {{k}}^{MX_K}/2", f"E {{n}}^{ATOM_ROWS}/{ATOM_ROWS} {{k}}^{MX_K}/{MX_K} 32 16",
        (size("H", "hidden", 1, TILE), size("I", "w13", 1, TILE, over=2)), TILE, TMA_FP4_BYTES,
    ),
}  # fmt: skip


def packing(capability: tuple[int, int], mxfp4: bool = False, activation: str | None = None) -> str:
    """The name of the packing that this GPU reads. mxfp4: weights are that. activation: as of pack_mxfp4; ValueError if
    the GPU has no kernel for it.
    """
    if activation not in (None, "bf16", "fp8"):
        raise ValueError(f'activation is {activation!r}, but must be None, "bf16" or "fp8"')
    if capability != BLACKWELL:
        return "for Hopper and tokens in e4m3" if activation == "fp8" else "for Hopper"
    if activation == "fp8":
        raise ValueError(f'activation is "fp8", but must be None or "bf16" for {BLACKWELL}')
    if activation == "bf16":
        return "for Blackwell and tokens in bf16"
    return "as MXFP4 for Blackwell" if mxfp4 else "as NVFP4 for Blackwell"


def experts_form(name: str) -> Signature:
    """What experts takes with weights of this packing."""
    of, each_row = PACKINGS[name], name == "for Hopper and tokens in e4m3"
    as_packed = f", packed {name}"
    biases = name != "as NVFP4 for Blackwell"
    declared = (
        Tensor("hidden", (BF16,), "T H", aligned=True, because=", as weights are packed"),
        *of.tensors("w13", "2I", "H", as_packed), *of.tensors("w2", "H", "I", as_packed),
        Tensor("w13_global", (F32,), "E 2I" if each_row else "E | E 2"),
        Tensor("w2_global", (F32,), "E H" if each_row else "E"),
        Tensor("w13_bias", (F32,), "E 2I", aligned=of.multiple == TMA_FP4_BYTES, optional=True),
        Tensor("w2_bias", (F32,), "E H", aligned=of.multiple == TMA_FP4_BYTES, optional=True),
        *(Tensor(x, (F32,), "1 |", optional=True) for x in OF_PACKED[4:]),
    )  # fmt: skip
    without = "w13_input_scale w2_input_scale" if biases else "w13_bias w2_bias"
    return EXPERTS_CALL.replace(
        f"weights packed {name}", of.sizes, f"hidden_scale {without}", of.multiple, **{x.name: x for x in declared}
    )


EXPERTS_FORMS = {name: experts_form(name) for name in PACKINGS}
E4M3_EXPERTS = {
    layout: EXPERTS_CALL.replace(
        "weights in e4m3", leave_out=" ".join(OF_PACKED), hidden_scale=scale, **{x.name: x for x in WEIGHTS}
    )
    for layout, scale in ((None, BY_TOKEN), ("tokens_first", BY_TOKEN), ("blocks_first", BY_BLOCK))
}

BF16_EXPERTS = EXPERTS_CALL.replace(
    "weights in bf16", leave_out=" ".join(("hidden_scale", "w13_scale", "w2_scale", *OF_PACKED)),
    **{x.name: x._replace(dtypes=(BF16,), because=", as w2 is bf16") for x in (EXPERTS_CALL.tensors[0], *WEIGHTS[::2])},
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------ batched experts

MOST_BATCHED = 2**20  # E * M
BATCHED_CALL = Signature(
    "batched_experts",
    (
        Tensor("hidden", (BF16, E4M3), "E M H", aligned=True), Tensor("counts", (I32,), "E"), *WEIGHTS,
        BY_TOKEN._replace(shape="E M H/128"),
    ),
    (
        size("E", "w2", 0, most=MAX_EXPERTS), size("M", "hidden", 1, 1, 0, MOST_BATCHED), size("H", "hidden", 2, 128),
        size("I", "w2", 2, 128),
    ),
    (*SWIGLU, whole("expected_m", "an int from 1 on", "=None", least=1)),
    (Result(BF16, "E M H"),), out="out", overwritable="hidden",
)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- router

ROUTE_CALL = Signature(
    "route",
    (Tensor("logits", (F32, BF16), "T E"), Tensor("bias", (F32, BF16), "E", optional=True)),
    (size("T", "logits", 0, 1, 0, MAX_TOKENS), size("E", "logits", 1, most=MAX_EXPERTS)),
    (
        whole("top_k", "an int"),
        Option("scoring", "str", '="softmax"', f"one of {', '.join(map(repr, SCORINGS))}",
               lambda x: isinstance(x, str) and x in SCORINGS),
        flag("renormalize", True), whole("num_expert_group", "an int", "=1"), whole("topk_group", "an int", "=1"),
        number("routed_scaling_factor", "=1.0"),
    ),
    (Result(I32, "T top_k"), Result(F32, "T top_k")),
    positional=("top_k",),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------------- grouped GEMMs

GEMM_SIZES = (
    size("total_M", "a", 0, 1, 0), size("N", "b", 1, 128), size("K", "a", 1, 128), size("E", "b", 0, most=MAX_EXPERTS)
)
GEMM_CALL = Signature(
    "grouped_gemm_fp8",
    (
        Tensor("a", (E4M3,), "total_M K", aligned=True), Tensor("a_scale", (F32,), "K/128 total_M", aligned=True),
        Tensor("b", (E4M3,), "E N K", aligned=True), Tensor("b_scale", (F32,), "E N/128 K/128"),
        Tensor("m_indptr", (I32,), "E+1"),
    ),
    GEMM_SIZES,
    results=(Result(BF16, "total_M N"),), out="out",
)  # fmt: skip


def gemm_form(name: str) -> Signature:
    """What grouped_gemm_nvfp4 takes with weights of this packing, in the order of its kernels' words."""
    of = PACKINGS[name]
    rows = size("N", "b", 1, of.step, times=TILE if of.sizes is IN_TILES else 1)
    sizes = (
        size("total_M", "a", 0, 1, 0), rows, size("K", "a", 1, TILE),
        size("E", "b", 0, most=MAX_EXPERTS),
    )  # fmt: skip
    return Signature(
        "grouped_gemm_nvfp4",
        (
            Tensor("a", (BF16, F16) if name == "for Hopper" else (BF16,), "total_M K", aligned=True),
            Tensor("b_global", (F32,), "E N" if name == "for Hopper and tokens in e4m3" else "E"),
            *of.tensors("b", "N", "K"),
            Tensor("m_indptr", (I32,), "E+1"),
        ),
        sizes, results=(Result(BF16, "total_M N"),), out="out", form=f"weights packed {name}", multiple=of.multiple,
    )  # fmt: skip


GEMM_FORMS = {name: gemm_form(name) for name in PACKINGS}

# ---------------------------------------------------------------------------------------------- DeepSeek-V3's own layer

LAYER_CALL = Signature(
    "run",
    (
        Tensor("routing_logits", (F32,), f"T {EXPERTS}", aligned=True),
        Tensor("routing_bias", (BF16, F32), f"{EXPERTS}", aligned=True),
        Tensor("hidden_states", (E4M3,), "T H", aligned=True), Tensor("hidden_states_scale", (F32,), "H/128 T"),
        Tensor("gemm1_weights", (E4M3,), "E 2I H", aligned=True),
        Tensor("gemm1_weights_scale", (F32,), "E 2I/128 H/128"),
        Tensor("gemm2_weights", (E4M3,), "E H I", aligned=True),
        Tensor("gemm2_weights_scale", (F32,), "E H/128 I/128"),
    ),
    (
        size("T", "hidden_states", 0, 1, 0, MAX_LAYER_TOKENS), size("H", "hidden_states", 1, 128),
        size("I", "gemm2_weights", 2, 128), size("E", "gemm2_weights", 0, most=MAX_LOCAL),
    ),
    (whole("local_expert_offset", "an int"), number("routed_scaling_factor", "", "a finite number of the host's")),
    (Result(BF16, "T H"),), out="output", overwritable="hidden_states", makes_results=False, leads="hidden_states",
)  # fmt: skip
