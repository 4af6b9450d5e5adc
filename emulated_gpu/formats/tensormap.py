"""The tensor map: the 128-byte object that tells the TMA unit where a tensor lies and which box of it to copy.

PTX ISA 5.5.8 (tensor-map, opaque), 9.7.9.28 (`tensormap.replace`) and the argument rules of the driver's
`cuTensorMapEncodeTiled`. The bit layout is not documented. `FIELDS` was recovered by varying one argument at a time, of
the host code that CuTe DSL emits (it packs the words itself) and of the driver on an H200; both agree on every field
below except `version` and `large`, which only CuTe DSL sets. Only the first 64 bytes carry meaning. How a map of
im2col mode is stored is not known: `IM2COL_FIELDS`, in bits that are zero in tiled maps or their boxes', is ours alone.
Rules: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TENSOR__MEMORY.html
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from ..errors import Fault, Unsupported

NBYTES = 128  # what the object occupies
USED = 64  # what of it is read here

# field -> (first bit, bits), for one dimension where there are several; bit 0 is bit 0 of byte 0
FIELDS = {
    "address": (0, 64),
    "version": (64, 4),  # CuTe DSL writes 2, the driver 0
    "rank": (68, 3),  # minus 1
    "elemtype": (71, 4),  # STORED_TYPES, a numbering of its own
    "interleave": (75, 2),
    "swizzle": (77, 2),  # 0 none, 1 32B, 2 64B, 3 128B
    "oob_nan": (79, 1),
    "tf32": (80, 1),
    "l2_promotion": (81, 2),
    "atomicity": (83, 2),
    "large": (85, 1),  # set by CuTe DSL for tensors of 128 KiB and more; no effect is known
    "stride": (96, 32),  # of dimension 1, bytes >> 4; dimension i is 32 * (i - 1) bits on
    "stride_high": (224, 4),  # bits 32..35 of the same; 4 * (i - 1) bits on
    "dim": (256, 32),  # minus 1; 32 * i bits on
    "element_stride": (416, 3),  # minus 1; 3 * i bits on
    "box": (440, 8),  # minus 1; 8 * i bits on
}
RESERVED = ((240, 16), (431, 9))  # zero in every sample, as `mode` is
IM2COL = 0x2A5  # the mode, which no tiled map has by a bit or two that are wrong
IM2COL_FIELDS = {
    "mode": (86, 10),
    "channels": (440, 8),  # minus 1
    "pixels": (448, 10),  # minus 1
    "lower": (464, 16),  # corners by dimension from W on, as many bits each as CORNER_BITS says
    "upper": (480, 16),
}
FIELDS |= IM2COL_FIELDS
CORNER_BITS = {3: 16, 4: 8, 5: 5}  # of a signed offset, by rank (cuTensorMapEncodeIm2col)

BITS = {
    "u8": 8, "u16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64, "f16": 16, "bf16": 16, "f32": 32, "f32.ftz": 32,
    "f64": 64, "tf32": 32, "tf32.ftz": 32, "b4x16": 4, "b4x16_p64": 4, "b6x16_p32": 6,
}  # fmt: skip
# Sixteen elements of these, dense in global memory, get a gap behind them in shared memory: (bytes, bytes with the gap)
PADDED = {"b4x16_p64": (8, 16), "b6x16_p32": (12, 16)}
PADDED_BOX = 128  # elements that a row of a box has then
FLOATS = {"f16", "bf16", "f32", "f32.ftz", "f64", "tf32", "tf32.ftz"}
# code in the object (plus the tf32 bit) -> PTX name. 12 is what CuTe DSL 4.5.2 writes for FP4 with internal_type Uint8
STORED_TYPES = {
    (0, 0): "u8", (1, 0): "u16", (2, 0): "u32", (3, 0): "s32", (4, 0): "u64", (5, 0): "s64", (6, 0): "f16",
    (7, 0): "f32", (8, 0): "f32.ftz", (9, 0): "f64", (10, 0): "bf16", (7, 1): "tf32", (8, 1): "tf32.ftz",
    (11, 0): "b4x16", (12, 0): "b4x16_p64", (13, 0): "b6x16_p32",
}  # fmt: skip
STORED_CODES = {name: code for code, name in STORED_TYPES.items()}
# operand of `tensormap.replace.elemtype` -> PTX name (ISA 9.7.9.28, table 33)
PTX_TYPES = [
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32.ftz", "f64", "bf16", "tf32", "tf32.ftz", "b4x16",
    "b4x16_p64", "b6x16_p32",
]  # fmt: skip
# CUtensorMapDataType -> PTX name; CUtensorMapSwizzle -> bytes, atom (cuda.h)
DRIVER_TYPES = [
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz", "b4x16",
    "b4x16_p64", "b6x16_p32",
]  # fmt: skip
DRIVER_SWIZZLES = [(0, 16), (32, 16), (64, 16), (128, 16), (128, 32)]
SWIZZLES = [0, 32, 64, 128]  # bytes
ATOMS = [16, 32]  # bytes; codes 2 and 3 (32B + 8B flip, 64B) were never seen in an object
L2_PROMOTIONS = [0, 64, 128, 256]  # bytes


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor map. Dimension 0 is innermost and dense; sizes count elements, strides and addresses bytes.

    Raises Fault("tensormap") when built from values that break a rule of `cuTensorMapEncodeTiled`.
    """

    address: int
    elem: str  # PTX name, a key of BITS
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]  # of dimensions 1 .. rank - 1
    box: tuple[int, ...]
    element_strides: tuple[int, ...]  # the first is ignored without interleave
    swizzle: int = 0  # 0, 32, 64 or 128 bytes
    atom: int = 16  # swizzle atomicity, 16 or 32 bytes
    oob_nan: bool = False
    l2_promotion: int = 0  # bytes

    def __post_init__(self):
        def require(condition: bool, rule: str):
            if not condition:
                raise Fault("tensormap", f"{rule}: {self}")

        rank, row_bits = len(self.dims), self.box[0] * self.bits
        if self.elem in PADDED:
            row_bits = 8 * self.placed_row_bytes
        require(1 <= rank <= 5, "rank must be 1..5")
        require(len(self.element_strides) == len(self.strides_bytes) + 1 == rank, "ranks must agree")
        require(0 <= self.address < 1 << 64 and self.address % 16 == 0, "the address must be a multiple of 16")
        require(all(0 < dim <= 1 << 32 for dim in self.dims), "dimensions must be 1..2**32")
        require(all(0 <= stride < 1 << 40 and stride % 16 == 0 for stride in self.strides_bytes),
                "strides must be multiples of 16 below 2**40")  # fmt: skip
        for held, rule in self._rules_of_box():
            require(held, rule)
        require(all(1 <= step <= 8 for step in self.element_strides), "element strides must be 1..8")
        require(row_bits % 128 == 0, "the inner box size must be a multiple of 16 bytes")
        require(self.elem != "b4x16" or self.dims[0] % 2 == 0, "a 4-bit tensor needs an even inner dimension")
        require(self.swizzle in SWIZZLES, "swizzle must be 0, 32, 64 or 128 bytes")
        require(not self.swizzle or row_bits <= 8 * self.swizzle, "the inner box size must fit the swizzle span")
        require(self.atom == 16 or self.swizzle == 128, "32-byte swizzle atoms need the 128-byte swizzle")
        if self.elem in PADDED:
            require(self.address % 32 == 0, "a padded type needs an address that is a multiple of 32")
            require(all(stride % 32 == 0 for stride in self.strides_bytes), "and strides that are multiples of 32")
            require(self.dims[0] % PADDED_BOX == 0, "and an inner dimension that is a multiple of 128")
            require(self.box[0] == PADDED_BOX, "and a box of 128 elements")
            require(self.swizzle in (0, 128), "and no swizzle but that of 128 bytes")
        require(not self.oob_nan or self.elem in FLOATS, "NaN fill needs a floating-point type")

    def _rules_of_box(self) -> list[tuple[bool, str]]:
        """The rules about the box: whether each holds, and its words."""
        return [
            (len(self.box) == self.rank, "ranks must agree"),
            (all(0 < box <= 256 for box in self.box), "box sizes must be 1..256"),
        ]

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return BITS[self.elem]

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """Elements of each dimension from one element of the box to the next."""
        return (1, *self.element_strides[1:])

    @cached_property
    def pitches(self) -> tuple[int, ...]:
        """Bytes of global memory from one box index to the next in dimensions 1 .. rank - 1."""
        return tuple(step * stride for step, stride in zip(self.steps[1:], self.strides_bytes))

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """Elements that a box copies along each dimension: ceil(box / element stride)."""
        return tuple(-(-box // step) for box, step in zip(self.box, self.steps))

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of one row (dimension 0) of the box in global memory."""
        return self.box[0] * self.bits // 8

    @cached_property
    def placed_row_bytes(self) -> int:
        """Bytes of one row in shared memory, with the gaps of a padded type."""
        data, whole = PADDED.get(self.elem, (1, 1))
        return self.row_bytes // data * whole

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that a copy of the box moves, which is what complete_tx counts: out-of-bounds elements, but no gaps.

        CUTLASS expects as many for a padded type (TmaTransactionBytes of sm100_mma_warpspecialized.hpp).
        """
        return self.row_bytes * prod(self.extent[1:])

    @cached_property
    def shared_bytes(self) -> int:
        """Bytes of shared memory from the first to behind the last row: a swizzled row takes its whole span."""
        return (self.swizzle or self.placed_row_bytes) * prod(self.extent[1:])


@dataclass(frozen=True)
class Im2colMap(TensorMap):
    """A tensor map of im2col mode (PTX ISA 5.5.4): dimensions are C, W, H, D, N or fewer, box is (channels, pixels).

    lower, upper: corners of the box in which pixels are counted, from W on: from `lower` to dims - 1 + `upper`.
    """

    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    def _rules_of_box(self) -> list[tuple[bool, str]]:
        reach = 1 << CORNER_BITS.get(self.rank, 1) - 1
        corners = (*self.lower, *self.upper)
        return [
            (3 <= self.rank <= 5, "the rank of im2col mode must be 3..5"),
            (len(self.box) == 2 and 0 < self.box[0] <= 256, "channels of a pixel must be 1..256"),
            (0 < self.box[1] <= 1024, "pixels of a column must be 1..1024"),
            (len(self.lower) == len(self.upper) == self.rank - 2, "corners have a value for each of W, H, D"),
            (all(-reach <= corner < reach for corner in corners), f"corners must be {-reach}..{reach - 1}"),
            (self.elem not in PADDED, "a padded type has no im2col mode here"),
        ]

    @property
    def extent(self) -> tuple[int, ...]:
        """Channels and pixels that a copy moves: element strides lead from pixel to pixel, and leave none out."""
        return self.box


def _get(word: int, field: str, index: int = 0) -> int:
    bit, width = FIELDS[field]
    return word >> (bit + width * index) & ((1 << width) - 1)


def _set(word: int, field: str, value: int, index: int = 0) -> int:
    bit, width = FIELDS[field]
    if not 0 <= value < 1 << width:
        raise Fault("tensormap", f"{field} does not fit its {width} bits: {value:#x}")
    bit += width * index
    return word & ~(((1 << width) - 1) << bit) | value << bit


def _set_stride(word: int, stride: int, index: int) -> int:
    if stride % 16 or not 0 <= stride < 1 << 40:
        raise Fault("tensormap", f"strides must be multiples of 16 below 2**40: {stride}")
    word = _set(word, "stride", (stride >> 4) & 0xFFFFFFFF, index)
    return _set(word, "stride_high", stride >> 36, index)


def _set_type(word: int, name: str) -> int:
    if name not in STORED_CODES:
        raise Unsupported(f"tensor map element type .{name}")
    code, tf32 = STORED_CODES[name]
    return _set(_set(word, "elemtype", code), "tf32", tf32)


def decode(raw: bytes) -> TensorMap:
    """The tensor map in `raw` (64 bytes or more). Raises Fault("tensormap") or Unsupported. Cached by content."""
    if len(raw) < USED:
        raise ValueError(f"a tensor map has {NBYTES} bytes, of which {USED} are read: {len(raw)}")
    return _decode(bytes(raw[:USED]))


@lru_cache(maxsize=4096)
def _decode(raw: bytes) -> TensorMap:
    word = int.from_bytes(raw, "little")
    known = _get(word, "version") in (0, 2) and _get(word, "mode") in (0, IM2COL)
    if not known or any(word >> bit & ((1 << width) - 1) for bit, width in RESERVED):
        raise Unsupported(f"not a tensor map of a known kind: {raw.hex()}")
    if _get(word, "interleave"):
        raise Unsupported("tensor map with an interleaved layout")
    kind = (_get(word, "elemtype"), _get(word, "tf32"))
    if kind not in STORED_TYPES:
        raise Unsupported(f"tensor map element type code {kind[0]}" + (" with tf32 rounding" if kind[1] else ""))
    if _get(word, "atomicity") >= len(ATOMS):
        raise Unsupported(f"tensor map swizzle atomicity code {_get(word, 'atomicity')}")
    rank = _get(word, "rank") + 1
    if rank > 5:
        raise Fault("tensormap", f"rank must be 1..5: {rank}")
    more = {"box": tuple(_get(word, "box", i) + 1 for i in range(rank))}
    kind_of_map = TensorMap
    if _get(word, "mode"):
        kind_of_map, bits = Im2colMap, CORNER_BITS.get(rank, 1)
        more = {"box": (_get(word, "channels") + 1, _get(word, "pixels") + 1)}
        more |= {name: _corners(_get(word, name), bits, rank - 2) for name in ("lower", "upper")}
    return kind_of_map(
        address=_get(word, "address"),
        elem=STORED_TYPES[kind],
        dims=tuple(_get(word, "dim", i) + 1 for i in range(rank)),
        strides_bytes=tuple(
            (_get(word, "stride_high", i) << 32 | _get(word, "stride", i)) << 4 for i in range(rank - 1)
        ),
        element_strides=tuple(_get(word, "element_stride", i) + 1 for i in range(rank)),
        swizzle=SWIZZLES[_get(word, "swizzle")],
        atom=ATOMS[_get(word, "atomicity")],
        oob_nan=bool(_get(word, "oob_nan")),
        l2_promotion=L2_PROMOTIONS[_get(word, "l2_promotion")],
        **more,
    )


def _corners(stored: int, bits: int, count: int) -> tuple[int, ...]:
    """Signed offsets of this many bits, the first in the lowest ones."""
    found = (stored >> bits * i & (1 << bits) - 1 for i in range(count))
    return tuple(value - (value >> bits - 1 << bits) for value in found)


def encode(tm: TensorMap) -> bytes:
    """The 128 bytes that CuTe DSL's host code would write for `tm` (the half that it leaves unwritten is zero)."""
    word = _set(0, "address", tm.address)
    word = _set(word, "version", 2)
    word = _set(word, "rank", tm.rank - 1)
    word = _set_type(word, tm.elem)
    word = _set(word, "swizzle", SWIZZLES.index(tm.swizzle))
    word = _set(word, "atomicity", ATOMS.index(tm.atom))
    word = _set(word, "oob_nan", int(tm.oob_nan))
    word = _set(word, "l2_promotion", L2_PROMOTIONS.index(tm.l2_promotion))
    span = tm.dims[0] * tm.bits // 8 + sum((d - 1) * s for d, s in zip(tm.dims[1:], tm.strides_bytes))
    word = _set(word, "large", int(span >= 1 << 17))
    for i, stride in enumerate(tm.strides_bytes):
        word = _set_stride(word, stride, i)
    for i in range(tm.rank):
        word = _set(word, "dim", tm.dims[i] - 1, i)
        word = _set(word, "element_stride", tm.element_strides[i] - 1, i)
    if isinstance(tm, Im2colMap):
        bits = CORNER_BITS[tm.rank]
        word = _set(_set(word, "mode", IM2COL), "channels", tm.box[0] - 1)
        word = _set(word, "pixels", tm.box[1] - 1)
        for name, corners in (("lower", tm.lower), ("upper", tm.upper)):
            word = _set(word, name, sum((c & (1 << bits) - 1) << bits * i for i, c in enumerate(corners)))
        return word.to_bytes(NBYTES, "little")
    for i in range(tm.rank):
        word = _set(word, "box", tm.box[i] - 1, i)
    return word.to_bytes(NBYTES, "little")


# Fields of tensormap.replace (9.7.9.28): (name of the bits, how many there are) and (name of the bits, how many codes)
INDEXED = {
    "box_dim": ("box", 5), "global_dim": ("dim", 5), "global_stride": ("stride", 4),
    "element_stride": ("element_stride", 5),
}  # fmt: skip
CODES = {
    "interleave_layout": ("interleave", 3), "swizzle_mode": ("swizzle", 4), "swizzle_atomicity": ("atomicity", 2),
    "fill_mode": ("oob_nan", 2),
}  # fmt: skip
OF_96_BYTES = ": 96 bytes, of sm_103a; no public text says how far apart its rows lie, nor its bits in a map"
REPLACEABLE = "global_address", "rank", "elemtype", *INDEXED, *CODES


def replace(raw: bytearray, field: str, ord: int | None, value: int) -> None:
    """`tensormap.replace.tile.<field>` on `raw`, in place.

    `ord` is the dimension of box_dim, global_dim, global_stride (0 is the stride of dimension 1) and element_stride,
    None otherwise. `value` is the instruction's operand: bytes for addresses and strides, the rank minus 1, table 33 of
    the ISA for the enumerations. Kernels also write dimensions above the rank, which are not read. Validity as a whole
    is checked by `decode`, since a kernel replaces one field at a time.
    """
    assert (ord is not None) == (field in INDEXED), f"ord {ord} with field {field}"
    word = int.from_bytes(bytes(raw[:USED]), "little")
    if _get(word, "mode") == IM2COL:
        raise Unsupported(f"tensormap.replace.{field} on a tensor map of im2col mode")
    if field in INDEXED and ord is not None:
        name, count = INDEXED[field]
        if not 0 <= ord < count:
            raise Fault("tensormap", f"tensormap.replace.{field}: ordinal {ord} is not below {count}")
        if field == "global_stride":
            word = _set_stride(word, value, ord)
        else:
            if value == 0 and ord <= _get(word, "rank"):
                raise Fault("tensormap", f"tensormap.replace.{field}: dimension {ord} must not be 0")
            word = _set(word, name, max(value - 1, 0), ord)
    elif field == "global_address":
        word = _set(word, "address", value)
    elif field == "rank":
        if not 0 <= value < 5:
            raise Fault("tensormap", f"tensormap.replace.rank: {value} + 1 is not 1..5")
        word = _set(word, "rank", value)
    elif field == "elemtype":
        if not 0 <= value < len(PTX_TYPES):
            raise Fault("tensormap", f"tensormap.replace.elemtype: unknown code {value}")
        word = _set_type(word, PTX_TYPES[value])
    elif field in CODES:
        name, count = CODES[field]
        if not 0 <= value < count:
            why = OF_96_BYTES if (field, value) == ("swizzle_mode", 4) else ""
            raise Unsupported(f"tensormap.replace.{field} with code {value}{why}")
        word = _set(word, name, value)
    else:
        raise Unsupported(f"tensormap.replace.{field}; there are {', '.join(REPLACEABLE)}")
    memoryview(raw)[:USED] = word.to_bytes(USED, "little")
