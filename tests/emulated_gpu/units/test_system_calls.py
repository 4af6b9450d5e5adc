"""printf and assert of kernels, which are calls of functions without PTX."""

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported

PTX = """.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.extern .func __assertfail (.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);
.extern .func other (.param .b64 f);
.global .align 1 .b8 text[28] = {116, 32, 37, 100, 32, 37, 46, 50, 102, 32,
 37, 35, 108, 108, 120, 32, 37, 117, 37, 37, 10};
.visible .entry k(.param .u64 out, .param .u32 which) {
.local .align 8 .b8 room[32]; .reg .b64 o, f, a, v; .reg .b32 t, n, asked; .reg .pred p, q;
ld.param.u64 o, [out]; ld.param.u32 asked, [which]; mov.u32 t, %tid.x;
mov.u64 v, room; cvta.local.u64 a, v; neg.s32 n, t; st.local.b32 [v], n;
mov.b64 f, 0x3ff8000000000000; st.local.b64 [v+8], f;
mov.b64 f, 0x1234567890; st.local.b64 [v+16], f; st.local.b32 [v+24], n;
mov.u64 f, text; cvta.global.u64 f, f;
{ .param .b64 p0; .param .b64 p1; .param .b32 r0;
st.param.b64 [p0], f; st.param.b64 [p1], a;
call.uni (r0), vprintf, (p0, p1);
ld.param.b32 n, [r0]; mad.wide.u32 o, t, 4, o; st.global.b32 [o], n; }
setp.eq.u32 p, asked, 1; setp.eq.u32 q, asked, 2;
@!p bra NEXT;
{ .param .b64 m; .param .b64 f1; .param .b32 l; .param .b64 n1; .param .b64 c;
st.param.b64 [m], f; st.param.b64 [f1], f; st.param.b32 [l], 17; st.param.b64 [n1], f; st.param.b64 [c], 1;
call.uni __assertfail, (m, f1, l, n1, c); }
NEXT: @!q bra END;
{ .param .b64 m; st.param.b64 [m], f; call.uni other, (m); }
END: ret; }"""


def launch(asked: int) -> np.ndarray:
    out = np.zeros(2, np.int32)
    emulated_gpu.launch(PTX, "k", 1, 2, [out, asked])
    return out


def test_printf_prints_what_every_lane_says_and_returns_how_many(capfd):
    assert launch(0).tolist() == [4, 4]
    assert capfd.readouterr().out == "t 0 1.50 0x1234567890 0%\nt -1 1.50 0x1234567890 4294967295%\n"


def test_an_assertion_that_fails_says_where():
    with pytest.raises(Fault, match="(?s)assertion failed: t %d.*:17") as found:
        launch(1)
    assert found.value.kind == "trap"


def test_another_function_without_a_body_is_refused_by_name():
    with pytest.raises(Unsupported, match="call of other"):
        launch(2)


HEAP = """.version 8.8
.target sm_100a
.address_size 64
.extern .func (.param .b64 r) malloc (.param .b64 n);
.extern .func free (.param .b64 p);
.visible .entry k(.param .u64 out, .param .u64 bytes, .param .u32 frees, .param .u32 late) {
.reg .b64 o, n, a; .reg .b32 t, v, f, l; .reg .pred p, q;
ld.param.u64 o, [out]; ld.param.u64 n, [bytes]; ld.param.u32 f, [frees]; ld.param.u32 l, [late];
mov.u32 t, %tid.x; mad.wide.u32 o, t, 4, o; mov.u32 v, 77;
{ .param .b64 p0; .param .b64 r0; st.param.b64 [p0], n; call.uni (r0), malloc, (p0); ld.param.b64 a, [r0]; }
setp.eq.u64 q, a, 0; setp.ne.u32 p, l, 0;
@q bra DONE;
st.b32 [a+4], t;
bar.sync 0;
ld.b32 v, [a+4];
AGAIN: setp.eq.u32 q, f, 0;
@q bra DONE;
{ .param .b64 p0; st.param.b64 [p0], a; call.uni free, (p0); }
sub.u32 f, f, 1;
bra AGAIN;
DONE: @p ld.b32 v, [a];
st.global.b32 [o], v; ret; }"""


def heap(size: int, frees: int, late: int = 0) -> list[int]:
    out = np.zeros(40, np.uint32)
    emulated_gpu.launch(HEAP, "k", 1, 40, [out, np.uint64(size), frees, late])
    return out.tolist()


def test_every_lane_has_memory_of_its_own_until_it_is_full():
    assert heap(8, frees=1) == list(range(40))
    assert heap(9 << 20, frees=0) == [77] * 40  # more than the heap has: address 0


@pytest.mark.parametrize("frees, late, says", [(2, 0, "free of 0x.*is free already"), (1, 1, "outside global memory")])
def test_memory_that_was_freed_is_nobodys(frees, late, says):
    with pytest.raises(Fault, match=says):
        heap(8, frees, late)
