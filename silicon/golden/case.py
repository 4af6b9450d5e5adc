"""A golden case: a PTX kernel, its launch and its buffers; and helpers that write PTX for the case files.

Everything is bytes: inputs come from `noise(seed)` or explicit arrays, outputs start as POISON, so that a byte which
the kernel must not touch is checked too. Needs only NumPy: the same declarations run on the machine with the GPU.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import numpy as np

from silicon.cuda_driver import SM_90A

POISON = 0xCD
TENSORMAP_BYTES = 128


@dataclass(frozen=True)
class Buffer:
    """A device allocation. If `written`, the kernel may change it, and its final bytes are recorded."""

    data: np.ndarray  # uint8 [nbytes], the contents before the launch
    written: bool


@dataclass(frozen=True)
class TensorMap:
    """A tensor map passed by value, as arguments of cuTensorMapEncodeTiled.

    Sizes are in elements, strides and offset in bytes.
    """

    dtype: str  # a key of DTYPES
    buffer: int  # index of the argument that it points into
    dims: tuple[int, ...]  # innermost first
    strides: tuple[int, ...]  # of dims[1:]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()  # () = all ones
    swizzle: int = 0  # 0 none, 1 32B, 2 64B, 3 128B
    nan_fill: bool = False
    promotion: int = 0  # L2 sector promotion: 0 none, 1 64B, 2 128B, 3 256B
    offset: int = 0
    words: tuple[int, ...] = ()  # 64-bit words 1.. to use instead of the driver's encoding

    @property
    def item(self) -> int:
        return DTYPES[self.dtype][1]

    @property
    def box_bytes(self) -> int:
        """Bytes that one box moves: a box of n with element stride s holds ceil(n / s)."""
        steps = (1, *self.element_strides[1:]) if self.element_strides else (1,) * len(self.box)
        return int(np.prod([-(-b // s) for b, s in zip(self.box, steps)])) * self.item


# name -> (CUtensorMapDataType, bytes)
DTYPES = {
    "u8": (0, 1),
    "u16": (1, 2),
    "u32": (2, 4),
    "s32": (3, 4),
    "u64": (4, 8),
    "s64": (5, 8),
    "f16": (6, 2),
    "f32": (7, 4),
    "f64": (8, 8),
    "bf16": (9, 2),
    "f32.ftz": (10, 4),
    "tf32": (11, 4),
    "tf32.ftz": (12, 4),
}


@dataclass(frozen=True)
class Result:
    """Says where an instruction's results lie in a `per_thread` case's output, so that a mismatch can name it."""

    text: str
    offset: int  # bytes
    width: int  # bytes per thread
    tolerance: float = 0.0  # largest distance in units in the last place; 0 = the same bits


@dataclass(frozen=True)
class Case:
    """Kernels that run in order on the same arguments, each after the first as a dependent launch if `pdl`.

    A case with `faults` is a kernel that the GPU must refuse to finish; recorded is the driver's error.
    """

    name: str
    ptx: str
    args: tuple[Buffer | TensorMap | int, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (128, 1, 1)
    cluster: tuple[int, int, int] | None = None
    shared: int = 0
    kernels: tuple[str, ...] = ("kernel",)
    pdl: bool = False
    results: tuple[Result, ...] = ()
    faults: bool = False

    @property
    def digest(self) -> str:
        """Changes with anything that the GPU saw: what was recorded of another text must not be compared."""
        h = hashlib.sha256(self.ptx.encode())
        for arg in self.args:
            h.update(arg.data.tobytes() if isinstance(arg, Buffer) else repr(arg).encode())
        h.update(repr((self.grid, self.block, self.cluster, self.shared, self.kernels, self.pdl)).encode())
        return h.hexdigest()[:16]


def noise(nbytes: int, seed: int) -> np.ndarray:
    """Random bytes of splitmix64, uint8 [nbytes]: the same everywhere and for ever, unlike a library's."""
    with np.errstate(over="ignore"):
        z = np.arange(1, -(-nbytes // 8) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z += np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return z.view(np.uint8)[:nbytes].copy()


def patterns(words: str, dtype: type) -> np.ndarray:
    """An array of bit patterns given in hexadecimal."""
    return np.array([int(word, 16) for word in words.split()], dtype)


def raw(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1).copy()


def source(array: np.ndarray) -> Buffer:
    return Buffer(raw(array), written=False)


def output(nbytes: int) -> Buffer:
    return Buffer(np.full(nbytes, POISON, np.uint8), written=True)


def updated(array: np.ndarray) -> Buffer:
    return Buffer(raw(array), written=True)


def entry(params: str, body: str, name: str = "kernel", directives: str = "") -> str:
    """PTX of one kernel. `params`, e.g. "ptr src, b32 n, map tm", are loaded into registers of their names.

    The register of a map holds its generic address.
    """
    decls, loads = [], []
    for param in params.split(","):
        kind, reg = param.split()
        if kind == "map":
            decls.append(f".param .align 64 .b8 arg_{reg}[128]")
            loads.append(f".reg .b64 {reg};\n    mov.b64 {reg}, arg_{reg};\n    cvta.param.u64 {reg}, {reg};")
        elif kind == "ptr":
            decls.append(f".param .u64 arg_{reg}")
            loads.append(
                f".reg .b64 {reg};\n    ld.param.u64 {reg}, [arg_{reg}];\n    cvta.to.global.u64 {reg}, {reg};"
            )
        else:
            decls.append(f".param .{kind} arg_{reg}")
            loads.append(f".reg .{kind} {reg};\n    ld.param.{kind} {reg}, [arg_{reg}];")
    prologue = "\n    ".join(loads)
    return f"""
.visible .entry {name}({", ".join(decls)}) {directives}
{{
    .reg .pred p, q, r, s, %p<16>;
    .reg .b16 %h<32>;
    .reg .b32 %r<64>, tid, ntid, smem, thread;
    .reg .f32 %f<32>;
    .reg .b64 %rd<32>;
    {prologue}
    mov.u32 tid, %tid.x;
    mov.u32 ntid, %ntid.x;
    mov.u32 thread, %ctaid.x;
    mad.lo.u32 thread, thread, ntid, tid;
    mov.u32 smem, dynamic;
{body}
    ret;
}}
"""


def module(*entries: str, globals: str = "") -> str:
    return SM_90A + ".extern .shared .align 1024 .b8 dynamic[];\n" + globals + "".join(entries)


def of_body(name: str, params: str, body: str, args: tuple, threads: int = 64, **launch) -> Case:
    """A case of a kernel with this body, in CTAs of this many threads; `launch`: the Case's other fields."""
    return Case(name, module(entry(params, body)), args, block=(threads, 1, 1), **launch)


def halves(seed: int, kind: str, count: int) -> np.ndarray:
    """uint16 bits of floats of this kind, f16 or bf16, near one."""
    bias, shift = (15, 10) if kind == "f16" else (127, 7)
    x = noise(2 * count, seed).view(np.uint16)
    near = (x >> np.uint16(shift)) % np.uint16(5) + np.uint16(bias - 2)
    return (x & np.uint16(0x8000 | (1 << shift) - 1)) | near << np.uint16(shift)


def singles(seed: int, count: int) -> np.ndarray:
    """Floats of 32 bits near one."""
    x = noise(4 * count, seed).view(np.uint32)
    near = (x >> np.uint32(23)) % np.uint32(9) + np.uint32(123)
    return ((x & np.uint32(0x807FFFFF)) | near << np.uint32(23)).view(np.float32)


# Subnormal numbers, in f32 and as pairs of 16 bits, and what is added to them: 64 words each
SMALL = np.resize(patterns("1 80000001 7FFFFF 800000 80800001 400000 0 80000000", np.uint32), 64)
SMALL2 = np.resize(np.array([2, 5, 0x80000003, 0x80000001, 0x00800000, 0, 0x3F800000], np.uint32), 64)


def per_thread(
    name: str,
    ops: list[str | tuple[str, float]],
    inputs: dict[str, np.ndarray] | None = None,
    threads: int = 96,
    prelude: str = "",
    globals: str = "",
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] | None = None,
    extra: tuple[tuple[str, Buffer], ...] = (),
    **launch,
) -> Case:
    """A case whose threads load their element of every input into the register of that name and run `ops` in order.

    An op is PTX text that writes d8?/d16, d32 or d64 (its result, stored to the output) and may be paired with a
    tolerance. Inputs are named by register, "a32" for example; `extra` are further pointer parameters.
    """
    inputs = inputs or {}
    block = block or (threads, 1, 1)
    total = int(np.prod(block) * np.prod(grid))
    body, results, size = [prelude], [], 0
    for reg, array in inputs.items():
        width = array.dtype.itemsize
        assert array.shape == (total,), (name, reg, array.shape, total)
        body.append(
            f".reg .b{8 * width} {reg};\n    mad.wide.u32 %rd0, thread, {width}, in_{reg};"
            f" ld.global.b{8 * width} {reg}, [%rd0];"
        )
    for op in ops:
        text, tolerance = op if isinstance(op, tuple) else (op, 0.0)
        text = text if text.rstrip().endswith((";", "}")) else text + ";"
        (bits,) = set(re.findall(r"\bd(16|32|64)\b", text))
        width = int(bits) // 8
        size = -(-size // width) * width
        body.append(
            f"{{ .reg .b{bits} d{bits};\n      {text}\n"
            f"      mad.wide.u32 %rd0, thread, {width}, out; st.global.b{bits} [%rd0+{size}], d{bits}; }}"
        )
        results.append(Result(text, size, width, tolerance))
        size += width * total
    params = ", ".join(["ptr out", *(f"ptr in_{r}" for r in inputs), *(f"ptr {r}" for r, _ in extra)])
    ptx = module(entry(params, "    " + "\n    ".join(body)), globals=globals)
    args = (output(size), *(source(a) for a in inputs.values()), *(b for _, b in extra))
    return Case(name, ptx, args, grid=grid, block=block, results=tuple(results), **launch)


# Text for whole-CTA loops and waits. Labels repeat: PTX scopes them to the enclosing braces.


def _words(nbytes: int, step: str) -> str:
    assert nbytes % 4 == 0
    return f"""
    {{ .reg .b32 i, x, at; .reg .b64 g; .reg .pred done;
      mov.u32 i, tid;
    AGAIN:
      setp.ge.u32 done, i, {nbytes // 4};
      @done bra FINISHED;
      {step}
      add.u32 i, i, ntid;
      bra AGAIN;
    FINISHED: }}"""


def fill_shared(offset: int, nbytes: int, word: int = POISON * 0x01010101) -> str:
    return _words(nbytes, f"mad.lo.u32 at, i, 4, smem; st.shared.b32 [at+{offset}], {word};")


def read_shared(offset: int, nbytes: int) -> str:
    """PTX that copies shared memory from `offset` on to global `out`."""
    load = f"mad.lo.u32 at, i, 4, smem; ld.shared.b32 x, [at+{offset}];"
    return _words(nbytes, f"{load} mad.wide.u32 g, i, 4, out; st.global.b32 [g], x;")


def write_shared(offset: int, nbytes: int) -> str:
    """PTX that copies global `src` to shared memory from `offset` on."""
    load = "mad.wide.u32 g, i, 4, src; ld.global.b32 x, [g];"
    return _words(nbytes, f"{load} mad.lo.u32 at, i, 4, smem; st.shared.b32 [at+{offset}], x;")


def wait(barrier: str, parity: int | str) -> str:
    return f"""
    {{ .reg .pred done;
    SPIN:
      mbarrier.try_wait.parity.shared::cta.b64 done, [{barrier}], {parity};
      @!done bra SPIN; }}"""


def spread(edges: np.ndarray, count: int, stride: int, seed: int) -> np.ndarray:
    """Operands, [count]: three quarters walk through the edge values by `stride`, the rest are random bits."""
    n = count * 3 // 4
    i = np.arange(n)
    structured = edges[(i * stride + i // len(edges)) % len(edges)]
    return np.concatenate([structured, noise((count - n) * edges.itemsize, seed).view(edges.dtype)])
