"""What the parser makes of literals, constant expressions, scopes and calls, seen in what small kernels compute."""

import textwrap

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu.errors import Fault, Unsupported
from emulated_gpu.ptx.parse import parse

HEADER = ".version 8.8\n.target sm_100a\n.address_size 64\n"
LANES = 40  # a whole warp and a part of one


def run(body: str, functions: str = "", params: str = "", args=(), lanes: int = LANES) -> list[int]:
    """Values of register `d` (b32) of every thread after `body`; `tid` holds the thread's number."""
    text = f"""{HEADER}{functions}
    .visible .entry kernel(.param .u64 result{params}) {{
        .reg .b32 d, tid, x, y; .reg .b64 at, w; .reg .pred p; .reg .b16 h;
        mov.u32 tid, %tid.x; mov.b32 d, 0;
        {{ {body} }}
        ld.param.u64 at, [result]; mad.wide.u32 at, tid, 4, at; st.global.b32 [at], d; ret; }}"""
    out = np.zeros(lanes, np.uint32)
    emulated_gpu.launch(textwrap.dedent(text), "kernel", 1, lanes, [out, *args])
    return out.tolist()


# -- literals ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "expression, value",
    [
        ("3-2", 1), ("3 - -2", 5), ("2 + 3 * 4", 14), ("(2 + 3) * 4", 20), ("20 - 4 - 3", 13), ("1 << 4 | 3", 19),
        ("-7 / 2", -3), ("-7 % 4", -3), ("7 % -4", 3), ("1 + 2 << 3", 24), ("6 & 3 == 3", 0), ("~5 & 0xf", 10),
        ("!0 + !7", 1), ("2 > 1 && 3 <= 2 || 5 != 4", 1), ("8 >> 1 ^ 1", 5), ("-(3)", -3), ("0b101 + 010", 13),
        ("WARP_SZ", 32), ("0xFFFFFFFFU", 0xFFFFFFFF),
    ],
)  # fmt: skip
def test_constant_expressions(expression, value):
    assert run(f"mov.b32 d, {expression};", lanes=1) == [value & 0xFFFFFFFF]


def test_division_by_zero_in_an_expression_is_refused():
    with pytest.raises(Unsupported, match="division by zero"):
        run("mov.b32 d, 1 / (2 - 2);")


@pytest.mark.parametrize("expression", ["1 << 99999999", "1 >> -1", "0xffffffffff * 0xffffffffff"])
def test_an_expression_beyond_64_bits_is_refused(expression):
    with pytest.raises(Unsupported, match="a shift by|a constant of more than 64 bits"):
        run(f"mov.b64 d, {expression};")


@pytest.mark.parametrize("literal", ["1.5", "-2.5e-3", "0.1", "1e10", ".25", "3.", "0f3DCCCCCD", "0d3FB999999999999A"])
def test_float_literals(literal):
    plain = {"0f3DCCCCCD": 0.1, "0d3FB999999999999A": 0.1}
    expected = np.float32(plain.get(literal) or float(literal)).view(np.uint32)
    assert run(f"mov.f32 d, {literal};", lanes=1) == [expected]
    double = np.float64(float(np.float32(0.1)) if literal[:2] == "0f" else plain.get(literal) or float(literal))
    halves = run(f"mov.f64 w, {literal}; mov.b64 {{x, y}}, w; xor.b32 d, x, y;", lanes=1)
    assert halves == [int(double.view(np.uint64)) >> 32 ^ int(double.view(np.uint64)) & 0xFFFFFFFF]


def test_a_float_literal_of_16_bits_is_refused():
    with pytest.raises(Unsupported):
        run("mov.b16 h, 1.5;")


def test_initialisers():
    variables = ".global .f32 f[3] = {1.5, 0f40000000, -2.0e1}; .global .f64 g = 0.1; .const .s8 c[4] = {-1, 2, 0x7f};"
    module = parse(HEADER + variables)
    f, g, c = (module.variables[name].init for name in "fgc")
    assert f == np.array([1.5, 2, -20], np.float32).tobytes()
    assert g == np.float64(0.1).tobytes()
    assert c == bytes([255, 2, 127, 0])
    with pytest.raises(Unsupported, match="names other, which is not declared"):
        parse(HEADER + ".global .u64 p = {other};\n")


def test_initialisers_that_are_addresses():
    """Of variables; one of a function is 0, since a call through it is refused."""
    text = HEADER + """.func f(); .global .b32 t[4] = {5, 6, 7, 8}; .global .u64 p[3] = {t+4, generic(t)+12, f};
        .visible .entry k(.param .u64 result) { .reg .b64 out, a; .reg .b32 x, y; ld.param.u64 out, [result];
        ld.global.u64 a, [p]; ld.b32 x, [a]; ld.global.u64 a, [p+8]; ld.b32 y, [a]; st.global.v2.b32 [out], {x, y};
        ld.global.u64 a, [p+16]; st.global.b64 [out+8], a; ret; }"""
    out = np.full(4, 9, np.uint32)
    emulated_gpu.launch(text, "k", 1, 1, [out])
    assert out.tolist() == [6, 8, 0, 0]


@pytest.mark.parametrize("name, exact", [("rcp", lambda x: 1 / x), ("rsqrt", lambda x: 1 / np.sqrt(x))])
def test_approximations_of_doubles(name, exact):
    """Within what the ISA allows, the low half 0; zeros, infinities, NaN and what is too small or too large."""
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-320, -5e-320, 1e308, -2.0]
    x = np.array([*np.random.default_rng(0).uniform(0.1, 1e6, 23), *odd])
    text = HEADER + f""".visible .entry k(.param .u64 pin, .param .u64 pout) {{
        .reg .b64 i, o, at; .reg .f64 x; .reg .b32 t;
        ld.param.u64 i, [pin]; ld.param.u64 o, [pout]; mov.u32 t, %tid.x; mul.wide.u32 at, t, 8; add.u64 i, i, at;
        add.u64 o, o, at; ld.global.f64 x, [i]; {name}.approx.ftz.f64 x, x; st.global.f64 [o], x; ret; }}"""
    out = np.zeros(32)
    emulated_gpu.launch(text, "k", 1, 32, [x, out])
    with np.errstate(all="ignore"):
        expected = exact(np.where(np.abs(x) < 1e-300, np.copysign(0, x), x))
    expected = np.where((x == 1e308) & (name == "rcp"), 0, expected)  # subnormal
    np.testing.assert_allclose(out, expected, rtol=2**-20)
    assert not (out[:23].view(np.uint64) & np.uint64(0xFFFFFFFF)).any()


# -- parameters and local memory ---------------------------------------------------------------------------------------
def test_parameters_are_read_by_the_lanes_of_the_guard():
    """Each lane reads its own address, the others keep the register; nobody reads if the guard is false everywhere."""
    table = np.arange(100, 116, dtype=np.uint32).tobytes()
    body = """
        setp.lt.u32 p, tid, 16; mov.b32 d, 7; mov.b64 w, table; mad.wide.u32 w, tid, 4, w;
        @p ld.param.b32 d, [w];
        setp.gt.u32 p, tid, 99; @p ld.param.b32 d, [w+4000]; @p ld.global.b32 d, [w]; @p ld.b32 d, [w];"""
    assert run(body, params=", .param .align 4 .b8 table[64]", args=[table]) == [*range(100, 116)] + [7] * (LANES - 16)


def test_reading_behind_the_parameters_is_a_fault():
    with pytest.raises(Fault, match="ld.param"):
        run("ld.param.b32 d, [table+64];", params=", .param .align 4 .b8 table[64]", args=[bytes(64)])


ARRAYS = ".const .align 4 .u32 table[4] = {10, 20, 30, 40};\n.const .align 8 .v2 .u32 pairs[2] = {1, 2, 3, 4};\n"


@pytest.mark.parametrize(
    "body, value",
    [
        ("ld.const.u32 d, table[2];", 30),
        ("ld.const.u32 d, [table[1]];", 20),
        ("ld.const.u32 d, [table[1]+8];", 40),
        ("ld.const.u32 d, table[WARP_SZ - 31];", 20),
        ("mov.u64 w, table[3]; ld.const.u32 d, [w];", 40),
        ("mov.u64 w, table+4; ld.const.u32 d, [w+4];", 30),
        ("ld.const.v2.u32 {x, d}, pairs[1];", 4),
        (".local .align 8 .u64 a[4]; mov.u64 w, a[1]; st.local.b32 [w+4], 7; ld.local.u32 d, [a+12];", 7),
        (".shared .align 4 .u32 s[8]; mov.u64 w, s[2]; st.shared.b32 [w], 9; ld.shared.u32 d, s[2];", 9),
    ],
)
def test_an_element_of_an_array_is_where_its_index_says(body, value):
    assert run(body, ARRAYS, lanes=1) == [value]


def test_an_element_of_what_is_no_array_is_refused():
    with pytest.raises(Unsupported, match="an element of kernel2, which is no array"):
        run("mov.u64 w, kernel2[1];", ".func kernel2() { ret; }")


def test_local_arrays_are_declared_in_a_body():
    body = """.local .align 8 .b8 a[16]; .local .b32 b;
        st.local.b32 [a+4], tid; st.local.b32 [b], 5; ld.local.b32 d, [a+4]; ld.local.b32 x, [b]; add.u32 d, d, x;"""
    assert run(body) == [t + 5 for t in range(LANES)]


def test_local_memory_that_a_lane_has_not_written():
    """Nothing of it, if that is used; of a part, padding may be the rest."""
    body = ".local .align 8 .b8 a[16]; setp.lt.u32 p, tid, 16; st.local.b32 [a], tid; @p st.local.b32 [a+8], tid;"
    assert run(f"{body} ld.local.b64 w, [a]; cvt.u32.u64 d, w;") == list(range(LANES))
    assert run(f"{body} ld.local.v2.b32 {{d, x}}, [a];") == list(range(LANES))
    with pytest.raises(Fault, match="of which lane 16 has written none") as found:
        run(f"{body} ld.local.b64 w, [a+8]; cvt.u32.u64 d, w;")
    assert found.value.kind == "uninitialized-read"


# -- branch tables -----------------------------------------------------------------------------------------------------
def test_vectors_of_registers():
    body = """.reg .v4 .u32 v; .reg .v2 .b32 u<2>; .shared .align 16 .u32 s[4];
              mov.u32 v.x, 1; add.u32 v.y, v.x, 1; mov.u32 v.b, 40; mov.u32 v.w, tid;
              st.shared.v4.u32 [s], v; ld.shared.v2.u32 u1, [s+8]; mov.b64 w, u1; cvt.u32.u64 x, w;
              ld.shared.u32 y, [s+4]; mad.lo.u32 d, x, y, v.r;"""
    assert run(body, lanes=1) == [40 * 2 + 1]


def test_branch_tables_belong_to_their_scope():
    """Two tables of one name, in scopes whose labels have the same names too."""
    block = """{ TABLE: .branchtargets A, B; and.b32 x, tid, 1; brx.idx x, TABLE;
        A: add.u32 d, d, %d; bra.uni END; B: add.u32 d, d, %d; END: }"""
    assert run(block % (1, 10) + block % (200, 3000)) == [201 if t % 2 == 0 else 3010 for t in range(LANES)]


# -- calls -------------------------------------------------------------------------------------------------------------
TRIANGLE = """
.func (.reg .b32 sum) triangle(.reg .b32 n) {
    .reg .pred p;
    mov.b32 sum, 0;
AGAIN: setp.eq.u32 p, n, 0;
    @p ret;
    add.u32 sum, sum, n; sub.u32 n, n, 1;
    bra AGAIN; }
"""


def test_lanes_leave_a_function_at_different_times():
    """The argument's register is the function's own: it counts down, the caller's does not."""
    body = "and.b32 x, tid, 7; call (d), triangle, (x); mad.lo.u32 d, x, 1000, d;"
    assert run(body, TRIANGLE) == [(t % 8) * 1000 + (t % 8) * (t % 8 + 1) // 2 for t in range(LANES)]


def test_a_guarded_call_is_made_by_some_lanes():
    body = "setp.ge.u32 p, tid, 30; mov.b32 d, 9; @!p call.uni (d), triangle, (4);"
    assert run(body, TRIANGLE) == [10] * 30 + [9] * 10


def test_functions_call_functions():
    functions = (
        TRIANGLE
        + """
    .func (.reg .b32 r) twice(.reg .b32 n) { .reg .b32 t; call (t), triangle, (n); call (r), triangle, (t); ret; }"""
    )
    assert run("call (d), twice, (3); call (x), twice, (2); add.u32 d, d, x;", functions, lanes=2) == [27, 27]


def test_structures_are_passed_in_param_variables():
    """By value: 16 bytes in, 8 out, read and written through symbols and through an address."""
    functions = """
    .func (.param .align 8 .b8 result[8]) pick(.param .align 16 .b8 s[16], .param .b32 which) {
        .reg .b64 at, v; .reg .b32 k;
        ld.param.b32 k, [which]; mov.b64 at, s; mad.wide.u32 at, k, 8, at; ld.param.b64 v, [at];
        st.param.b64 [result], v; ret; }"""
    body = """
        { .param .align 16 .b8 a[16]; .param .b32 b; .param .align 8 .b8 r[8];
          mul.wide.u32 w, tid, 3; st.param.b64 [a], w; mul.wide.u32 w, tid, 5; st.param.b64 [a+8], w;
          and.b32 x, tid, 1; st.param.b32 [b], x;
          call (r), pick, (a, b); ld.param.b32 d, [r]; }
        { .param .align 16 .b8 a[16]; .param .b32 b; .param .align 8 .b8 r[8];
          st.param.v2.b64 [a], {100, 200}; st.param.b32 [b], 1;
          call.uni (r), pick, (a, b); ld.param.b32 x, [r]; add.u32 d, d, x; }"""
    assert run(body, functions) == [200 + t * (5 if t % 2 else 3) for t in range(LANES)]


def test_param_variables_stand_for_registers():
    body = "{ .param .b32 a; .param .b32 r; st.param.b32 [a], tid; call (r), triangle, (a); ld.param.b32 d, [r]; }"
    assert run(body, TRIANGLE) == [t * (t + 1) // 2 for t in range(LANES)]


def test_a_function_keeps_its_branch_tables_and_variables():
    """Called twice, its table and its local array serve both."""
    functions = """
    .func (.reg .b32 r) f(.reg .b32 k) {
        .local .b32 a; .reg .b32 x;
        st.local.b32 [a], k; and.b32 x, k, 1;
        T: .branchtargets EVEN, ODD;
        brx.idx x, T;
        EVEN: ld.local.b32 r, [a]; ret;
        ODD: mov.b32 r, 1000; }"""
    expected = [(t if t % 2 == 0 else 1000) + (t + 1 if t % 2 else 1000) for t in range(LANES)]
    assert run("call (d), f, (tid); add.u32 x, tid, 1; call (x), f, (x); add.u32 d, d, x;", functions) == expected


def test_branch_tables_behind_a_call_follow_their_labels():
    body = """call (x), triangle, (2); T: .branchtargets A, B; and.b32 y, tid, 1; brx.idx y, T;
        A: add.u32 d, x, 10; bra END; B: add.u32 d, x, 20; END:"""
    assert run(body, TRIANGLE) == [13 if t % 2 == 0 else 23 for t in range(LANES)]


def test_a_result_may_be_dropped():
    assert run("mov.b32 d, 4; call (_), triangle, (d);", TRIANGLE, lanes=1) == [4]


SUM = """.func (.reg .b32 r) sum(.reg .b32 n) {
    .reg .b32 m, s; .reg .pred odd, more;
    and.b32 m, n, 1; setp.ne.u32 odd, m, 0; setp.ne.u32 more, n, 0; mov.b32 s, 0; sub.u32 m, n, 1;
    @more call (s), sum, (m);
    add.u32 r, s, n; @odd add.u32 r, r, 1000; @more ret; ret; }"""
FIBONACCI = """.func (.param .b32 r) fibonacci(.param .b32 n) {
    .reg .b32 a, b; .reg .pred p; .local .b32 kept[2];
    ld.param.b32 a, [n]; setp.lt.u32 p, a, 2; @p bra END;
    { .param .b32 x; .param .b32 y; sub.u32 b, a, 1; st.param.b32 [x], b;
      call.uni (y), fibonacci, (x); ld.param.b32 b, [y]; }
    st.local.b32 [kept+4], b;
    { .param .b32 x; .param .b32 y; sub.u32 b, a, 2; st.param.b32 [x], b;
      call.uni (y), fibonacci, (x); ld.param.b32 b, [y]; }
    ld.local.b32 a, [kept+4]; add.u32 a, a, b;
    END: st.param.b32 [r], a; ret; }"""
EVEN = """.func (.reg .b32 r) odd(.reg .b32 n);
    .func (.reg .b32 r) even(.reg .b32 n) {
    .reg .pred p; .reg .b32 m; setp.eq.u32 p, n, 0; mov.b32 r, 1; @p ret; sub.u32 m, n, 1; call (r), odd, (m); ret; }
    .func (.reg .b32 r) odd(.reg .b32 n) {
    .reg .pred p; .reg .b32 m; setp.eq.u32 p, n, 0; mov.b32 r, 0; @p ret;
    sub.u32 m, n, 1; call (r), even, (m); ret; }"""
POINTED = """.func set(.reg .b64 at, .reg .b32 n) {
    .reg .pred p; .reg .b64 mine; .reg .b32 m, v; .local .b32 own[2];
    setp.eq.u32 p, n, 0; @p st.local.b32 [at], 7; @p ret;
    sub.u32 m, n, 1; mov.b64 mine, own; add.u64 mine, mine, 4; call set, (mine, m);
    ld.local.b32 v, [own+4]; add.u32 v, v, n; st.local.b32 [at], v; ret; }"""


@pytest.mark.parametrize("functions, call, wanted", [
    (SUM, "call (d), sum, (tid);", lambda n: n * (n + 1) // 2 + 1000 * ((n + 1) // 2)),
    (FIBONACCI, "{ .param .b32 x; .param .b32 y; and.b32 d, tid, 7; st.param.b32 [x], d; call (y), fibonacci, (x); "
                "ld.param.b32 d, [y]; }", lambda n: [0, 1, 1, 2, 3, 5, 8, 13][n % 8]),
    (EVEN, "call (d), even, (tid);", lambda n: 1 - n % 2),
    (EVEN, "call (d), odd, (tid); call (x), even, (tid); shl.b32 x, x, 4; add.u32 d, d, x;",
     lambda n: n % 2 + 16 * (1 - n % 2)),
    (POINTED, "{ .local .b32 own; .reg .b64 at; mov.b64 at, own; and.b32 x, tid, 3; call set, (at, x); "
              "ld.local.b32 d, [own]; }", lambda n: 7 + [0, 1, 3, 6][n % 4]),
], ids=["lanes of other depths, a predicate kept", "parameters, a variable", "two functions", "two calls of two",
        "an address in the frame before"])  # fmt: skip
def test_functions_that_call_themselves(functions, call, wanted):
    assert run(call, functions) == [wanted(n) for n in range(LANES)]


def test_a_recursion_has_64_frames():
    assert run("call (d), sum, (63);", SUM, lanes=1) == [2016 + 32000]
    with pytest.raises(Unsupported, match="sum calls itself more than 63 times, and a stack has 64 frames here"):
        run("call (d), sum, (64);", SUM, lanes=1)


RECURSIVE = ".func (.reg .b32 r) f(.reg .b32 n) { .reg .b32 m; sub.u32 m, n, 1; call (r), f, (m); ret; }"
OUTSIDE = ".extern .func (.param .b32 status) outside(.param .b64 format, .param .b64 values);"


@pytest.mark.parametrize(
    "call, functions",
    [
        ("call (d), f, (3);", RECURSIVE),
        ("{ .param .b64 a; .param .b64 b; .param .b32 r; call.uni (r), outside, (a, b); }", OUTSIDE),
        ("T: .callprototype (.reg .b32 _) _ (.reg .b32 _); mov.b64 w, 16; call (d), w, (3), T;", TRIANGLE),
    ],
    ids=["recursion without an end", "no body", "a pointer to no function"],
)
def test_calls_that_cannot_be_expanded_are_refused_when_made(call, functions):
    assert run(f"setp.gt.u32 p, tid, 99; mov.b32 d, 3; @!p bra SKIP; {call} SKIP:", functions) == [3] * LANES
    with pytest.raises(Unsupported, match="PTX line"):
        run(call, functions)


def test_calls_through_pointers():
    """From a table, by lanes that go to different functions and come back together; by .calltargets and prototypes."""
    functions = (
        TRIANGLE
        + """
    .func (.reg .b32 r) twice(.reg .b32 n) { add.u32 r, n, n; ret; }
    .func (.reg .b32 r) other(.reg .b64 n) { mov.b32 r, 7; ret; }
    .func (.param .b32 r) apply(.param .b64 f, .param .b32 n) { .reg .b64 g; .reg .b32 m, k;
        T: .calltargets triangle, twice;
        ld.param.b64 g, [f]; ld.param.b32 m, [n]; call (k), g, (m), T; st.param.b32 [r], k; ret; }
    .global .u64 table[3] = {twice, triangle, other};"""
    )
    body = """P: .callprototype (.reg .b32 _) _ (.reg .b32 _);
        and.b32 x, tid, 1; mad.wide.u32 w, x, 8, 0; mov.u64 at, table; add.u64 at, at, w; ld.global.u64 w, [at];
        setp.lt.u32 p, tid, 30; mov.b32 d, 500; @p call (d), w, (tid), P;
        { .param .b64 a; .param .b32 b; .param .b32 r; st.param.b64 [a], w; st.param.b32 [b], 4;
          call (r), apply, (a, b); ld.param.b32 y, [r]; mad.lo.u32 d, y, 1000, d; }"""

    def expected(t):
        return (10000 if t % 2 else 8000) + (500 if t >= 30 else t * (t + 1) // 2 if t % 2 else 2 * t)

    assert run(body, functions) == [expected(t) for t in range(LANES)]


def test_the_shared_memory_that_the_system_has():
    parts = "mov.u32 d, %reserved_smem_offset_begin; mov.u32 x, %reserved_smem_offset_end; mad.lo.u32 d, d, 10000, x;"
    assert run(f"{parts} mov.u32 x, %reserved_smem_offset_cap; sub.u32 d, d, x;", lanes=1) == [0]
    assert run(".shared .b32 s; mov.u32 d, s; mov.u32 x, %reserved_smem_offset_end; sub.u32 d, d, x;", lanes=1) == [0]


def test_a_call_that_does_not_match_is_refused():
    with pytest.raises(Unsupported, match="does not match"):
        run("call (d), triangle, (1, 2);", TRIANGLE)


@pytest.mark.parametrize("text", ["add .u32 d, tid, 1;", "add\t.u32\n d, tid, 1;", "mad.lo .u32 d, tid, 1, 1;"])
def test_a_blank_may_come_before_a_modifier(text):
    assert run(text, lanes=2) == [1, 2]


def test_blanks_that_ptxas_does_not_need():
    """CUTLASS's headers write `tcgen05.ld....b32{%r1}, [%r2]`. ptxas of CUDA 13 takes the text as it is here."""
    text = HEADER + """
    .extern.shared.align 16 .b8 dynamic[];
    .visible.global.align 8 .b32 g[2] = {1,2};
    .visible.func(.param.b32 r)plus_one(.param.b32 x) {
      .reg.b32%r<2>; ld.param.b32%r1,[x]; add.u32%r1,%r1,1; st.param.b32[r],%r1; ret;
    }
    .visible.entry kernel(.param.u64 a) {
      .reg.b64%rd<3>; .reg.b32%r<4>; .reg.pred%p<2>; .shared.align 8 .b32 s[2];
      ld.param.u64%rd1,[a]; st.shared.v2.b32[s],{3,4}; ld.shared.v2.u32{%r1,%r2},[s]; mov.b64%rd2,{%r1,%r2};
      setp.ne.u32%p1,%r1,0; @%p1 st.global.b64[%rd1],%rd2;
      {.param.b32 in; .param.b32 out; st.param.b32[in],%r1; call(out),plus_one,(in); ld.param.b32%r3,[out];}
      st.global.b32[%rd1+8],%r3; ret;
    }"""
    out = np.zeros(3, np.uint32)
    emulated_gpu.launch(text, "kernel", 1, 1, [out])
    assert out.tolist() == [3, 4, 4]
    glued = "tcgen05.ld.sync.aligned.32x32b.x1.b32{%r1},[%r2];"
    (instr,) = parse(f"{HEADER}.entry k() {{ .reg .b32 %r<3>; {glued} }}").kernels["k"].instrs
    assert instr.op == "tcgen05.ld.sync.aligned.32x32b.x1.b32" and len(instr.operands) == 2
