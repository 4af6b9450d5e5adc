"""No modifier is accepted unread, and what the code of instructions calls exists."""

import ast
import inspect
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from corpus.kernels import HEADER, KERNELS, entry

import emulated_gpu
from emulated_gpu.__main__ import Probe
from emulated_gpu.formats import alu, convert, lanes
from emulated_gpu.machine.warp import UNITS, Group
from emulated_gpu.model import charges, machine_code
from emulated_gpu.model.issue import kind
from emulated_gpu.model.profile import load
from emulated_gpu.ptx import isa
from emulated_gpu.ptx.control_flow import BlockWriter, ControlFlow
from emulated_gpu.ptx.isa import registry
from emulated_gpu.ptx.isa.arithmetic import SOURCES
from emulated_gpu.ptx.parse import parse
from emulated_gpu.ptx.syntax import Instr
from silicon.golden.cases import CASES
from silicon.golden.coverage import refused

# What neither the kernels run on an H200 nor those of the corpus have
OTHERS = """
.reg .b128 answer;
applypriority.global.L2::evict_normal [out], 128;
bar.cta.arrive 1, 64;
bar.cta.red.popc.u32 r1, 1, p;
bar.cta.sync 1;
barrier.arrive 1, 64;
barrier.cta.arrive.aligned 1, 64;
barrier.cta.sync.aligned 1, 64;
barrier.warp.sync 0xffffffff;
brkpt;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [r0], [r1];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {r0, r1, r2, r3}, answer;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 r0, answer;
clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 r0, answer;
clusterlaunchcontrol.query_cancel.get_first_ctaid::z.b32.b128 r0, answer;
cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [out, {r0, r1}], d1;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [out, {r0, r1}], [r2], d1;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [r0], [out, {r1, r2}], [r3];
cp.async.wait_all;
discard.global.L2 [out], 128;
fence.proxy.alias;
fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;
fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;
pmevent.mask 1;
st.global.v8.b32 [out], {r0, r1, r2, r3, r4, r5, r6, r7};
st.bulk.weak.shared::cta [r0], 128, 0;
suld.b.a2d.v2.b32.clamp {r0, r1}, [d0, {r1, r2, r3, r3}];
suq.width.b32 r0, [d0];
sured.b.add.1d.u32.zero [d0, {r1}], r2;
sust.b.3d.b32.trap [d0, {r1, r2, r3, r3}], r0;
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [r0], 3;
tcgen05.ld.red.sync.aligned.32x32b.x2.max.u32 {r1, r2}, r3, [r0];
tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16.collector::a::use [r0], d0, d1, r1, [r2], [r3], p;
tcgen05.mma.cta_group::1.kind::tf32.ashift.collector::a::discard [r0], [r1], d1, r2, p;
tcgen05.shift.cta_group::1.down [r0];
tex.level.acube.v4.s32.f32 {r0, r1, r2, r3}, [d0, {r0, f0, f1, f2}], f0;
tld4.a.a2d.v4.f32.f32 {r0, r1, r2, r3}, [d0, {r0, f0, f1, f1}];
txq.num_mipmap_levels.b32 r0, [d0];
wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {r0, r1, r2, r3, r4, r5, r6, r7}, [r0], r1;
wmma.load.b.sync.aligned.row.m16n16k16.shared.f16 {r0, r1, r2, r3, r4, r5, r6, r7}, [r0], r1;
wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {r0, r1, r2, r3, r4, r5, r6, r7}, [r0], r1;
wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {r0, r1}, {r2}, {r3}, {r4, r5};
wmma.store.d.sync.aligned.row.m8n8k32.shared.s32 [r0], {r1, r2}, r3;
"""
OTHERS += "".join(
    f"v{what}{parts}.u32.s32.s32 r0, r1, r2, r3;"
    for what in ("absdiff", "add", "avrg", "max", "min", "sub") for parts in (2, 4)
)  # fmt: skip
TEXTS = [*(c.ptx for c in CASES), *(k.header + k.ptx for k in KERNELS.values()), HEADER + entry("others", OTHERS)]


# What the code of a block may call, by the name of whom it calls; the attributes are those that handlers use
CALLED = {name: set(dir(module)) for name, module in {"alu": alu, "convert": convert, "lanes": lanes, **UNITS}.items()}
CALLED["g"] = {*dir(Group), "R", "carry", "clock", "fetching", "garbage", "lanes", "lane_mask"}
PTX = Path(emulated_gpu.__file__).parent / "ptx"


def refusal(program: ControlFlow, instruction: Instr) -> str | None:
    """Why an instruction is not executed, or None."""
    probe = Probe(program, 0)
    probe.instruction(instruction)
    return probe.reason


@pytest.fixture(scope="module")
def forms() -> dict[str, list[tuple[ControlFlow, Instr]]]:
    """An instruction of each form, by the name that the emulator knows it under."""
    found = defaultdict(dict)
    for text in TEXTS:
        for kernel in parse(text).kernels.values():
            program = ControlFlow(kernel)
            for instruction in kernel.instrs:
                handler = isa.lookup(instruction)
                found[handler.name].setdefault(instruction.op, (program, instruction))
    return {name: list(of.values()) for name, of in found.items()}


def test_every_instruction_has_a_form_here(forms):
    assert set(isa.HANDLERS) - refused() - {"call"} == set(forms)


def calls(text: str) -> set[tuple[str, str]]:
    """(owner, name) of each member that Python code uses of what a name stands for."""
    members = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name))
    return {(n.value.id, n.attr) for n in members}


def calls_in_strings(text: str) -> set[tuple[str, str]]:
    """(owner, name) of what the strings of a Python file call, but for names of which a part is computed."""
    tree = ast.parse(text)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            string = "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            string = node.value
        else:
            continue
        found |= set(re.findall(r"\b(g)\.(\w+)(?![\w{])", string))
        found |= set(re.findall(rf"\b({'|'.join(CALLED)})\.(\w+)\(", string))
    return found


def missing(used: set[tuple[str, str]]) -> list[str]:
    return sorted(f"{owner}.{name}" for owner, name in used if name not in CALLED[owner])


@pytest.mark.parametrize(
    "file", [PTX / "control_flow.py", *sorted((PTX / "isa").glob("*.py"))], ids=lambda file: file.stem
)
def test_what_handlers_write_exists(file):
    assert not missing(calls_in_strings(file.read_text()))


def test_what_the_code_of_every_form_calls_exists(forms):
    """The names as they come out, those too of which a handler computes a part."""
    used = set()
    for program, instruction in (form for of in forms.values() for form in of):
        writer = BlockWriter(program, 0)
        writer.instruction(instruction)
        used |= calls(writer.finish()[0])
    assert not missing(used)


def test_a_call_of_what_does_not_exist_is_seen():
    text = 'w.call(f"barriers.bar_synch(g, {n})"); w.emit("g.lanes, g.lane, alu.shl"); w.emit(f"alu.f{name}(g.{part})")'
    assert missing(calls_in_strings(text)) == ["barriers.bar_synch", "g.lane"]
    assert calls_in_strings(text) >= {("g", "lanes")} and ("alu", "f") not in calls_in_strings(text)
    assert missing(calls("access.load(g, access.lode(g.R))")) == ["access.lode"]


@pytest.mark.parametrize("profile, family_of_others", [("b200", "wgmma"), ("h200", "tcgen05")])
def test_the_cost_of_every_form_has_figures(forms, profile, family_of_others):
    """And each figure of a profile is of some form here, but for those that depend on more than a name."""
    costs = {instruction.op: kind(instruction) for of in forms.values() for _, instruction in of}
    figures = set(load(profile)["issue"])
    here = {form: cost for form, cost in costs.items() if not form.startswith(family_of_others)}
    families = ("wmma.", "tcgen05.ld.red", "tex.", "tld4.", "txq.", "suld.", "sust.", "sured.", "suq.")
    families += ("vabsdiff", "vadd", "vavrg", "vmax", "vmin", "vsub")
    untimed = {"brkpt", "fns.b32", *(x for x in here if x.startswith(families) or "mma.sync" in x and "kind::" in x)}
    without = {form: cost for form, cost in here.items() if cost not in figures}
    if profile == "b200":  # nobody has measured it there
        assert {without.pop(x)[:4] for x in list(without) if x.startswith("mma.sync") and x not in untimed} == {"mma_"}
    assert without == dict.fromkeys(untimed, registry.UNTIMED)
    compiled = {machine_code.SHARED_ADDRESS, machine_code.SAME_B, machine_code.OTHER_B}
    assert figures - set(here.values()) <= {"packed", *compiled}


Named = tuple[str, str]  # a unit and a function of it


def hooks(units) -> tuple[dict[Named, set[str]], dict[Named, set[Named]]]:
    """For each function of the units: the methods of the clock that it calls, and functions of units that it names."""
    own = {unit.__name__: name for name, unit in units.items()}
    tells, names = {}, {}
    for name, unit in units.items():
        for function in ast.parse(inspect.getsource(unit)).body:
            if not isinstance(function, ast.FunctionDef):
                continue
            key, nodes = (name, function.name), list(ast.walk(function))
            members = [n for n in nodes if isinstance(n, ast.Attribute)]
            tells[key] = {n.attr for n in members if isinstance(n.value, ast.Attribute) and n.value.attr == "clock"}
            named = [getattr(unit, n.id, None) for n in nodes if isinstance(n, ast.Name)]
            of_others = [n for n in members if isinstance(n.value, ast.Name)]
            named += [getattr(getattr(unit, n.value.id, None), n.attr, None) for n in of_others]
            functions = [f for f in map(inspect.unwrap, filter(inspect.isroutine, named)) if inspect.isfunction(f)]
            names[key] = {(own[f.__module__], f.__name__) for f in functions if f.__module__ in own}
    return tells, names


def reached(begin: set[Named], tells: dict[Named, set[str]], names: dict[Named, set[Named]]) -> set[str]:
    """What functions and those that they name, and so on, tell the clock."""
    seen, work = set(), list(begin & tells.keys())
    while work:
        function = work.pop()
        if function not in seen:
            seen.add(function)
            work += names[function]
    return set().union(*(tells[function] for function in seen))


def test_every_form_tells_the_clock_what_the_table_of_accesses_says_of_its_opcode(forms):
    """And what is not in that table tells it of nothing but waits."""
    table = defaultdict(set)
    for access in charges.ACCESSES:
        table[isa.lookup(Instr(access.form.split(" ")[0].rstrip(";"), (), None, False, 0, "")).name].add(access.tells)
    tells, names = hooks(UNITS)
    silent, others = [], []
    for name, of in forms.items():
        for program, instruction in of:
            writer = BlockWriter(program, 0)
            writer.instruction(instruction)
            told = reached(calls(writer.finish()[0]), tells, names)
            if name in table and table[name] != {charges.CLASS} and not told & table[name]:
                silent.append(instruction.op)
            if name not in table and told - {"fence", "landed", "mma_sync"} and kind(instruction) != registry.UNTIMED:
                others.append(instruction.op)
    assert not silent and not others
    assert sum(len(forms[name]) for name in table) > 350  # forms have been looked at
    without = {function: told - {"async_load"} for function, told in tells.items()}
    assert not reached({("async_copy", "cp_async")}, without, names) & table["cp.async"]  # a copy for nothing is seen


def test_an_opcode_without_a_cost_is_refused():
    with pytest.raises(TypeError, match="cost"):
        registry.op("made_up")


@pytest.mark.parametrize("modifier", ["bogus", "L2::bogus", "collector::a::bogus"])
@pytest.mark.parametrize("name", sorted(set(isa.HANDLERS) - refused() - {"call"}))
def test_a_made_up_modifier_is_refused(forms, name, modifier):
    """In front of the others and behind them."""
    for program, instruction in forms[name]:
        assert refusal(program, instruction) is None, instruction.text
        first = f"{name}.{modifier}{instruction.op.removeprefix(name)}"
        for op in (first, f"{instruction.op}.{modifier}"):
            assert refusal(program, replace(instruction, op=op)), f"{op} is executed as {instruction.op}"


def test_other_operands_are_refused(forms):
    """Without its last operand an instruction is another one, or none; it is never an exception of the emulator."""
    for program, instruction in (form for of in forms.values() for form in of):
        if instruction.operands:
            left = instruction.operands[:-1]
            found = refusal(program, replace(instruction, operands=left))
            assert found or len(left) - 1 in SOURCES.get(instruction.parts[0], range(-1, 9)), instruction.text


@pytest.mark.parametrize(
    "operands, why", [("{0, 0, r0, 0}, p", "disable-output-lane"), ("p, 1", "scale-input-d: PTX line 5")]
)
def test_parts_of_mma_that_are_not_implemented(operands, why):
    """As values: a zero would do nothing, and is accepted."""
    mma = f"tcgen05.mma.cta_group::1.kind::f16 [0], 0, 0, 0x8100010, {operands};"
    body = f".reg .pred p; .reg .b32 r0; setp.eq.u32 p, 0, 0; mov.u32 r0, 1;\n{mma}\nret;"
    with pytest.raises(emulated_gpu.Unsupported, match=why):
        emulated_gpu.launch(f"{HEADER}.visible .entry kernel() {{{body}}}", "kernel", 1, 32, [])
