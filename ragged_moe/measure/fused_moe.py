"""SGLang's Triton fused MoE, the peer of whole experts: `fused_moe_triton_kernels` as SGLang 0.5.23 ships it.

`load(folder)`: the folder that `unzip sglang-0.5.23-*.whl` filled. The rest of SGLang is not imported; what the file
takes from it says that the GPU is NVIDIA's, and nothing that is called here.
"""

import json
import types
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import triton
import triton.language as tl

from ragged_moe.measure.contest import Contestant
from ragged_moe.measure.sglang_files import enter
from ragged_moe.measure.timing import captured, elapsed
from ragged_moe.runtime.sizes import BF16, E4M3, F32, I32

BLOCK = 128
DEFAULT = dict(BLOCK_SIZE_M=64, BLOCK_SIZE_N=128, BLOCK_SIZE_K=128, GROUP_SIZE_M=32, num_warps=4, num_stages=3)
FEW = dict(BLOCK_SIZE_M=16, BLOCK_SIZE_N=128, BLOCK_SIZE_K=128, GROUP_SIZE_M=1, num_warps=4, num_stages=3)
CONFIGS = "srt/layers/moe/moe_runner/triton_utils/configs"
NEEDED = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py", f"sglang/{CONFIGS}"
PACKAGES = ("", ".kernels", ".kernels.ops", ".kernels.ops.moe")
STUBS = {
    "kernels.jit.utils": {"is_arch_support_pdl": lambda: True},
    "kernels.ops.quantization.fp8_kernel": dict.fromkeys(
        ("per_token_group_quant_fp8", "scaled_fp8_quant", "sglang_per_token_group_quant_fp8")
    ),
    "kernels.ops.quantization.int8_kernel": dict.fromkeys(
        ("per_token_group_quant_int8", "per_token_quant_int8", "sglang_per_token_group_quant_int8")
    ),
    "srt.batch_invariant_ops": {"is_batch_invariant_mode_enabled": lambda: False},
    "srt.environ": {"envs": types.SimpleNamespace(SGLANG_USE_AITER=types.SimpleNamespace(get=lambda: False))},
    "srt.layers.moe.utils": {"get_moe_padding_size": lambda use_aiter: 0},
    "srt.utils": {
        "cpu_has_amx_support": lambda: False, "is_cpu": lambda: False, "is_cuda": lambda: True,
        "is_hip": lambda: False, "is_sm90_supported": lambda: True,
    },
}  # fmt: skip


def load(folder: Path):
    """Return the module fused_moe_triton_kernels. ValueError if the folder has no SGLang."""
    enter(folder, NEEDED, PACKAGES, STUBS)
    from sglang.kernels.ops.moe import fused_moe_triton_kernels

    return fused_moe_triton_kernels


def configs(folder: Path, tokens: int) -> list[tuple[dict, dict]]:
    """Pairs of configs for GEMM1 and GEMM2 to try: SGLang's default, one with 16 tokens a tile, and of each of its
    files for this GPU and blocks of 128 x 128, whatever the sizes that they were tuned for, those for the number of
    tokens next to this one.
    """
    gpu = torch.cuda.get_device_name().replace(" ", "_")
    found = [(DEFAULT, DEFAULT), (FEW, FEW)]
    of_gpu = f"*/*device_name={gpu},dtype=fp8_w8a8,block_shape=*128].json"
    for file in sorted((folder / "sglang" / CONFIGS).glob(of_gpu)):
        down = file.with_name(file.stem + "_down.json")
        of_up = json.loads(file.read_text())
        of_down = json.loads(down.read_text()) if down.exists() else of_up
        pair = tuple(x[min(x, key=lambda m: abs(int(m) - tokens))] for x in (of_up, of_down))
        found += [pair] if pair not in found else []
    return found


def gate_first(w13: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a copy of e4m3 weights [E, up | gate, H] and their scales with gate before up, as SGLang has them."""
    swapped = torch.cat([x for x in w13.view(torch.uint8).chunk(2, 1)][::-1], 1).view(E4M3)
    return swapped, torch.cat(scale.chunk(2, 1)[::-1], 1)


def fastest(
    pairs: Iterable[tuple[dict, dict]], make: Callable[[tuple[dict, dict]], list[Contestant]], fill: torch.Tensor
) -> tuple[list[Contestant], tuple[dict, dict]]:
    """Return the calls of the pair of configs that is fastest in a CUDA graph, and the pair.

    make: returns a pair's calls, made once; a pair for which it raises is left out. ValueError if all are.
    """
    tried = []
    for pair in pairs:
        try:
            made = make(pair)
        except Exception:  # Triton has many for what does not compile
            continue
        graph = captured([x.call for x in made])
        tried.append((min(elapsed(graph, fill, i) for i in range(3)), len(tried), made, pair))
    if not tried:
        raise ValueError("none of its configs compiles, and is right")
    return min(tried)[2:]


class Memory:
    """The large tensors, by name, that the calls of a contestant share."""

    def __init__(self):
        self.tensors = {}

    def of(self, name: str, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor of this name, made or made larger if need be."""
        size = max(torch.Size(shape).numel(), 1)
        found = self.tensors.get((name, dtype))
        if found is None or found.numel() < size:
            found = self.tensors[name, dtype] = torch.zeros(
                size, dtype=torch.uint8 if dtype == E4M3 else dtype, device="cuda"
            )
        return found[: torch.Size(shape).numel()].view(dtype).view(shape)


def lists(ids: torch.Tensor, local: int, tile: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what moe_align_block_size makes of ids [T, k] of local experts, -1 of others: entries by expert, each
    expert's padded to `tile`, first those of no expert; the expert of each tile; how many entries there are."""
    flat = ids.flatten().long() + 1
    numel, count = flat.numel(), torch.bincount(flat, minlength=local + 1)
    padded = (count + tile - 1) // tile * tile
    starts, before = padded.cumsum(0) - padded, count.cumsum(0) - count
    room = numel + (local + 1) * (tile - 1) if numel > local else numel * tile
    room = -(-room // 4) * 4
    order = torch.full((room,), numel, dtype=I32, device=ids.device)
    entries = flat.argsort(stable=True)
    of = flat[entries]
    order[starts[of] + torch.arange(numel, device=ids.device) - before[of]] = entries.int()
    experts = torch.full((-(-room // tile),), -1, dtype=I32, device=ids.device)
    of_tiles = torch.arange(-1, local, device=ids.device, dtype=I32).repeat_interleave(padded // tile)
    experts[: len(of_tiles)] = of_tiles
    return order, experts, padded.sum()[None].int()


@triton.jit
def quantise(x, ids, c, c_scale, N: tl.constexpr, SIZE: tl.constexpr, STEP: tl.constexpr):
    """Quantise rows to e4m3, a scale for 128 columns, but for those of no expert: sglang_per_token_group_quant_fp8.

    SIZE: N, rounded up to a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ids + row // STEP) >= 0:
        column, block = tl.arange(0, SIZE), tl.arange(0, SIZE // 128)
        v = tl.load(x + row * N + column, mask=column < N, other=0).to(tl.float32)
        v = tl.reshape(v, (SIZE // 128, 128))
        most = tl.maximum(tl.max(tl.abs(v), 1), 1e-10)
        value = tl.reshape((v * (448.0 / most)[:, None]).to(c.dtype.element_ty), (SIZE,))
        tl.store(c + row * N + column, value, mask=column < N)
        tl.store(c_scale + row * (N // 128) + block, most * (1 / 448.0), mask=block < N // 128)


class FusedMoe:
    """A call of it is SGLang's GEMM1, SwiGLU, quantisation, GEMM2 and sum, under a config for each GEMM.

    operands: hidden e4m3 [T, H], its scale f32 [T, H/128], w13 and its scale, gate first, w2 and its scale. chosen: ids
    int32 [T, k] of local experts, -1 of others, and weights f32 [T, k]. of_tiles: `lists` of them. pair: two configs.
    Rows of other GPUs' experts are zeros that the sum reads. Memory of the calls is `memory`'s, by names.
    """

    def __init__(self, kernels, operands: tuple, chosen: tuple, of_tiles: tuple, out: torch.Tensor, pair, memory):
        (ids, weights), w2 = chosen, operands[4]
        self.kernels, self.operands, self.out, self.ids, self.k = kernels, operands, out, ids, ids.shape[1]
        first, second = pair
        self.first, self.first_tma = without_tma(first)
        self.second, self.second_tma = without_tma(second | {"BLOCK_SIZE_M": first["BLOCK_SIZE_M"]})
        self.tile = first["BLOCK_SIZE_M"]
        order, self.experts, _ = of_tiles
        self.lists = weights, ids, *of_tiles
        rows, self.i = len(order) if self.second_tma else ids.numel(), w2.shape[2]  # by expert, or as the tokens are
        self.g, self.act = memory.of("g", (rows, 2 * self.i), BF16), memory.of("act", (rows, self.i), BF16)
        self.c, self.sc = memory.of("c", (rows, self.i), E4M3), memory.of("sc", (rows, self.i // BLOCK), F32)
        self.o = memory.of("o", (len(ids), self.k, w2.shape[1]), BF16)

    def __call__(self) -> None:
        hidden, scale, w13, w13_scale, w2, w2_scale = self.operands
        by_expert, run = self.second_tma, self.kernels.invoke_fused_moe_kernel
        common = {
            "compute_type": tl.bfloat16, "use_fp8_w8a8": True, "use_int8_w8a8": False, "use_int8_w8a16": False,
            "use_int4_w4a16": False, "per_channel_quant": False, "block_shape": [BLOCK, BLOCK], "filter_expert": True,
        }  # fmt: skip
        run(hidden, w13, None, self.g, scale, w13_scale, None, *self.lists, False, self.k, dict(self.first),
            c_sorted=by_expert, b_use_tma=self.first_tma, **common)  # fmt: skip
        self.kernels.act_and_mul_triton(self.g, self.act, self.first | {"BLOCK_SIZE_M": self.tile}, self.ids,
                                        self.experts, by_expert, "silu")  # fmt: skip
        quantise[(self.g.shape[0],)](
            self.act, self.experts if by_expert else self.ids, self.c, self.sc, N=self.i,
            SIZE=triton.next_power_of_2(self.i), STEP=self.tile if by_expert else 1, num_warps=4,
        )  # fmt: skip
        run(self.c, w2, None, self.o, self.sc, w2_scale, None, *self.lists, True, 1, dict(self.second),
            a_use_tma=by_expert, b_use_tma=by_expert, router_topk=self.k, **common)  # fmt: skip
        self.kernels.moe_sum_reduce_triton(self.o, self.out, 1.0)


def without_tma(config: dict) -> tuple[dict, bool]:
    """Split a config into what the kernel takes and whether it is to load by TMA."""
    return {name: x for name, x in config.items() if name != "USE_TMA"}, bool(config.get("USE_TMA"))
