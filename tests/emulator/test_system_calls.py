"""printf and assert of kernels, which are calls of functions without PTX."""

import numpy as np
import pytest

import emulator
from emulator.errors import Fault, Unsupported

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
    emulator.launch(PTX, "k", 1, 2, [out, asked])
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
