"""tcgen05.ld.red: min and max of each thread's columns, against integers of Python (PTX ISA 9.7.16.8.3)."""

import numpy as np
import pytest
from corpus.kernels import HEADER

import emulated_gpu
from emulated_gpu.chip import CHIPS
from emulated_gpu.device import DEVICE
from emulated_gpu.errors import Unsupported

COLUMNS = 32
NAN = 0x7FC00001
WORDS = [0, 0x80000000, 0x3F800000, 0xC0000000, 0x7F800000, 0xFF800000, NAN, 0xFFC00000, 1, 0x80000001]
FORMS = [
    ("32x32b.x32.max.f32", ""), ("32x32b.x32.f32.min", ""), ("32x32b.x16.max.abs.f32", ""),
    ("32x32b.x8.min.NaN.f32", ""), ("16x32bx2.x4.min.abs.NaN.f32", ", 16"), ("16x32bx2.x8.max.f32", ", 9"),
    ("32x32b.x2.u32.max", ""), ("32x32b.x32.min.u32", ""), ("32x32b.x4.s32.max", ""), ("16x32bx2.x2.min.s32", ", 2"),
]  # fmt: skip


def kernel(*loads):
    """A warp stores 32 words each to tensor memory; loads: (form, offset of the second half), of which each gives
    its registers' last word and what they were reduced to."""
    vector = lambda n: "{" + ", ".join(f"v{i}" for i in range(n)) + "}"  # noqa: E731
    fill = "".join(f"ld.global.b32 v{i}, [in + {4 * i}];\n" for i in range(COLUMNS))
    body = ""
    for i, (form, split) in enumerate(loads):
        num, result = int(form.split(".")[1][1:]), ("x", "{x}")[i % 2]  # Triton writes {x}
        body += f"""
tcgen05.ld.red.sync.aligned.{form} {vector(num)}, {result}, [r1]{split};
tcgen05.wait::ld.sync.aligned;
st.global.v2.b32 [out + {8 * i}], {{v{num - 1}, x}};"""
    return HEADER.replace("sm_100a", "sm_103a") + f"""
.visible .entry k(.param .u64 p, .param .u64 q) {{
.reg .u32 r<3>; .reg .b32 v<{COLUMNS}>; .reg .b32 x; .reg .u64 in; .reg .u64 out; .shared .align 4 .b32 at;
ld.param.u64 out, [p];
ld.param.u64 in, [q];
mov.u32 r2, %tid.x;
mad.wide.u32 in, r2, {4 * COLUMNS}, in;
mad.wide.u32 out, r2, {8 * len(loads)}, out;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [at], 32;
bar.sync 0;
ld.shared.b32 r1, [at];
{fill}
tcgen05.st.sync.aligned.32x32b.x{COLUMNS}.b32 [r1], {vector(COLUMNS)};
tcgen05.wait::st.sync.aligned;
{body}
tcgen05.dealloc.cta_group::1.sync.aligned.b32 r1, 32;
ret;
}}
"""


def run(loads, words):
    out = np.zeros((32, len(loads), 2), np.uint32)
    with DEVICE.as_chip(CHIPS["b300"]), emulated_gpu.session():
        emulated_gpu.launch(kernel(*loads), "k", 1, 32, [out, words])
    return out


def reduced(words, modes):
    """What the modes, such as max, abs, NaN, f32, make of a list of words."""
    take = max if "max" in modes else min
    if "f32" not in modes:
        sign = int("s32" in modes) << 31
        return take(word ^ sign for word in words) ^ sign
    words = [word & (0x7FFFFFFF if "abs" in modes else 0xFFFFFFFF) for word in words]
    numbers = [word for word in words if word & 0x7FFFFFFF <= 0x7F800000]
    if not numbers or "NaN" in modes and len(numbers) < len(words):
        return 0x7FFFFFFF
    return take(numbers, key=lambda word: -(word & 0x7FFFFFFF) - 1 if word >> 31 else word)  # -0 is less than +0


def test_min_and_max_of_the_columns_of_each_thread():
    words = np.random.default_rng(0).choice(np.array(WORDS, np.uint32), (32, COLUMNS))
    words[::5, :12], words[1::5, 0:12] = NAN, 0x3F800000  # nothing but NaNs, and no NaN, in some
    out = run(FORMS, words)
    for i, (form, split) in enumerate(FORMS):
        shape, num, *modes = form.split(".")
        for thread in range(32):
            lane, first = thread, 0
            if shape == "16x32bx2":
                lane, first = thread % 16, thread // 16 * int(split[2:])
            taken = words[lane, first : first + int(num[1:])].tolist()
            assert out[thread, i].tolist() == [taken[-1], reduced(taken, modes)], (form, thread)


@pytest.mark.parametrize("form, says", [
    ("32x32b.x1.max.f32", "at least .x2"), ("16x64b.x2.max.f32", "16x64b.x2"), ("32x32b.x2.max.abs.u32", "abs"),
])  # fmt: skip
def test_what_the_isa_has_not_is_refused(form, says):
    with pytest.raises(Unsupported, match=says):
        run([(form, "")], np.zeros((32, COLUMNS), np.uint32))


def test_a_reduction_that_is_not_waited_for_is_noted():
    loads, notes = [("32x32b.x2.max.f32", "")], []
    for text in kernel(*loads), kernel(*loads).replace("tcgen05.wait::ld.sync.aligned;", ""):
        with DEVICE.as_chip(CHIPS["b300"]), emulated_gpu.session() as session:
            emulated_gpu.launch(text, "k", 1, 32, [np.zeros((32, 2), np.uint32), np.zeros((32, COLUMNS), np.uint32)])
        notes.append([note.note for note in session.notes])
    assert notes == [[], ["unwaited-load"]]
