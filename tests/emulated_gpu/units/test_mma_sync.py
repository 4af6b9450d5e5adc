"""mma.sync beyond what silicon/golden/mma_sync.py has recorded: forms that must be refused, missing lanes."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported

PTX = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out) {{
.reg .b64 o; .reg .b32 t, a<4>, b<2>, d<4>; .reg .pred p;
ld.param.u64 o, [out]; mov.u32 t, %tid.x; mad.wide.u32 o, t, 16, o; setp.lt.u32 p, t, {lanes};
mov.b32 a0, 0x3c003c00; mov.b32 a1, a0; mov.b32 a2, a0; mov.b32 a3, a0; mov.b32 b0, a0; mov.b32 b1, a0;
mov.b32 d0, 0; mov.b32 d1, 0; mov.b32 d2, 0; mov.b32 d3, 0;
@!p bra END;
{form} {{d0, d1, d2, d3}}, {{{a}}}, {{b0, b1}}, {{d0, d1, d2, d3}};
st.global.v4.b32 [o], {{d0, d1, d2, d3}};
END: ret; }}"""
GOOD = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
FOUR = "a0, a1, a2, a3"


def launch(form: str, lanes: int = 32, a: str = FOUR) -> np.ndarray:
    out = np.zeros((32, 4), np.float32)
    emulated_gpu.launch(PTX.format(form=form, lanes=lanes, a=a), "k", 1, 32, [out])
    return out


def test_a_product_of_ones_on_a_b200():
    assert (launch(GOOD) == 16).all()


@pytest.mark.parametrize(
    "form",
    [
        GOOD.replace("row.col", "col.row"),
        GOOD.replace("k16", "k32"),
        GOOD.replace("f16.f16", "f16.bf16"),
        GOOD.replace("f32.f16", "f16.f16", 1),
        GOOD.replace("m16n8k16", "m16n8k16.satfinite"),
        GOOD.replace("aligned", "aligned.kind::f8f6f4"),
        GOOD.replace("mma", "mma.sp"),
    ],
)
def test_what_the_isa_does_not_list_is_refused_by_its_line(form):
    with pytest.raises(Unsupported, match="PTX line 10"):
        launch(form)


def test_a_wrong_number_of_registers_is_refused():
    with pytest.raises(Unsupported, match="registers of A, B and C"):
        launch(GOOD, a="a0, a1")


def test_half_a_warp_is_a_fault():
    with pytest.raises(Fault, match="needs all lanes") as found:
        launch(GOOD, lanes=16)
    assert found.value.kind == "divergence"


def test_a_warp_of_sixteen_threads_is_a_fault():
    out = np.zeros((32, 4), np.float32)
    with pytest.raises(Fault, match="needs all lanes of its warp together: 0xffff of 0xffffffff"):
        emulated_gpu.launch(PTX.format(form=GOOD, lanes=32, a=FOUR), "k", 1, 16, [out])
