"""Which code runs on which machine, and which instructions a target has: by the rules, held against ptxas."""

import contextlib
import re
import subprocess
from functools import lru_cache

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu import Fault, Unsupported
from emulated_gpu.chip import B200, CHIPS, FOLDER, tomllib
from emulated_gpu.device import DEVICE
from emulated_gpu.page.sass import tools
from emulated_gpu.ptx.parse import parse
from emulated_gpu.target import check, form_of, lacks, parts

F = "{f1,f2,f3,f4}"
A, B = "{r1,r1,r1,r1},{r1,r1}", "{r1,r1,r1,r1}"
BULK = "shared::cluster.global.mbarrier::complete_tx::bytes"
MMA = "mma.sync.aligned.m16n8k"
FORMS = [
    "cp.async.ca.shared.global [s], [d1], 16;",
    "mbarrier.init.shared.b64 [s], 1;",
    "mbarrier.try_wait.parity.shared.b64 p, [s], 0;",
    "mbarrier.arrive.expect_tx.shared.b64 d2, [s], 16;",
    f"cp.async.bulk.{BULK} [s+64], [d1], 16, [s];",
    f"cp.async.bulk.tensor.2d.{BULK} [s+64], [d1, {{r1,r1}}], [s];",
    f"cp.async.bulk.tensor.2d.{BULK}.multicast::cluster [s+64], [d1, {{r1,r1}}], [s], h;",
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
    "[s+64], [d1, {r1,r1,r1,r1,r1}], [s];",
    "fence.proxy.async.shared::cta;",
    "elect.sync r1|p, -1;",
    "griddepcontrol.wait;",
    "barrier.cluster.arrive.aligned;",
    "mapa.shared::cluster.u32 r1, r1, 0;",
    "stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {r1};",
    "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r1}, [s];",
    "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64 {r1}, [s];",
    "setmaxnreg.dec.sync.aligned.u32 40;",
    "wgmma.fence.sync.aligned;",
    "tcgen05.wait::ld.sync.aligned;",
    "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32 {f1, f2}, f3, [r1];",
    "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [s], [s+64];",
    f"{MMA}16.row.col.f32.f16.f16.f32 {F},{A},{F};",
    f"{MMA}32.row.col.f32.e4m3.e4m3.f32 {F},{A},{F};",
    f"{MMA}32.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {F},{A},{F};",
    f"{MMA}64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3 "
    f"{F},{A},{F},{{r1}},{{0,0}},{{r1}},{{0,0}};",
    "cvt.rn.satfinite.e4m3x2.f32 h, f1, f2;",
    "cvt.rn.satfinite.e2m1x2.f32 b, f1, f2;",
    "add.rn.f32x2 d2, d2, d2;",
    "ld.global.v8.b32 {r1,r2,r3,r4,r5,r6,r7,r8}, [d1];",
    "redux.sync.add.s32 r1, r1, -1;",
    "redux.sync.max.f32 f1, f1, -1;",
    "multimem.ld_reduce.global.add.f32 f1, [d1];",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.inc.u32 [r1], r2, [r3];",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [r1], r2, [r3];",
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [s], d1;",
    "atom.global.add.noftz.bf16x2 r1, [d1], r2;",
    "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32"
    f".ue8m0 {F},{B},{B},{F},r1,0x0,{{r1}},{{0,1}},{{r1}},{{0,1}};",
    f"mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32 {F},{B},{B},{F},r1,0x0;",
    f"mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e4m3.e4m3.f32 {F},{B},{B},{F},r1,0x0;",
    f"{MMA}32.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32 {F},{A},{F};",
    f"{MMA}4.row.col.f64.f64.f64.f64 {{g1,g2,g1,g2}},{{g1,g2}},{{g1}},{{g1,g2,g1,g2}};",
    "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {g1,g2},{g1},{g1},{g1,g2};",
    *(
        f"{one};"
        for one in """
stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [s], {r1}
cp.async.bulk.global.shared::cta.bulk_group.cp_mask [d1], [s], 16, h
cp.async.bulk.tensor.3d.shared::cluster.global.im2col::w.mbarrier::complete_tx::bytes [s], [d1, {r1,r1,r1}], [s], {h, h}
mbarrier.arrive.shared.b64 d2, [s], 2; mbarrier.arrive.shared.b64 d2, [s]
mbarrier.arrive.noComplete.shared.b64 d2, [s], 1; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [r1]
mbarrier.test_wait.relaxed.cta.shared::cta.b64 p, [s], d2; fence.acq_rel.cluster; fence.acq_rel.gpu; fence.acquire.gpu
ld.acquire.cluster.global.u32 r1, [d1]; ld.acquire.gpu.u32 r1, [d1]; ld.shared::cluster.u32 r1, [r1]
isspacep.shared::cluster p, d1; atom.acq_rel.cluster.global.add.u32 r1, [d1], r2; mov.u32 r1, %clusterid.x
mov.u32 r1, %nclusterid.x; mov.u32 r1, %aggr_smem_size; mov.pred p, %is_explicit_cluster; mov.u32 r1, %cluster_ctarank
mov.u32 r1, %total_smem_size; atom.global.exch.b128 q, [d1], q; red.global.add.v2.f32 [d1], {f1,f2}
red.global.add.noftz.f16x2 [d1], r1; st.async.release.gpu.global.u32 [d1], r1; fma.rn.oob.f16x2 r1, r1, r2, r3
fma.rn.bf16x2 r1, r1, r2, r3; add.bf16 h, h, h; mul.bf16x2 r1, r1, r2; min.bf16 h, h, h; setp.eq.bf16 p, h, h
set.eq.u32.bf16x2 r1, r1, r2; tanh.approx.bf16x2 r1, r2; tanh.approx.f16 h, h; ex2.approx.ftz.bf16 h, h
min.xorsign.abs.f32 f1, f2, f3; min.f32 f1, f2, f3, f4; min.NaN.f32 f1, f2, f3; min.relu.s32 r1, r1, r2
min.s32 r1, r1, r2; add.u16x2 r1, r1, r2; max.u16x2 r1, r1, r2; add.f32.f16 f1, h, f2; fma.rn.f32.bf16 f1, h, h, f2
cvt.rn.tf32.f32 r1, f1; cvt.rn.satfinite.tf32.f32 r1, f1; cvt.rna.tf32.f32 r1, f1; cvt.rna.satfinite.tf32.f32 r1, f1
cvt.rn.bf16.s32 h, r1; cvt.rzi.s32.bf16 r1, h; cvt.f64.bf16 g1, h; cvt.f16.bf16 h, h; cvt.f32.bf16 f1, h
cvt.rn.bf16.f32 h, f1; cvt.rs.f16x2.f32 r1, f1, f2, r3; cvt.rs.satfinite.e4m3x4.f32 r1, {f1,f2,f3,f4}, r3
tcgen05.mma.cta_group::1.kind::f16 [r1], d1, d2, r2, p; tcgen05.mma.cta_group::1.kind::i8 [r1], d1, d2, r2, p
tcgen05.shift.cta_group::1.down [r1]; tcgen05.mma.sp.cta_group::1.kind::mxf4.block_scale [r1],d1,d2,[r1],r2,[r2],[r3],p
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes.cta_group::1 [s], [d1, {r1,r1}], [s]
cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes [s],[d1, {r1,r1,r1,r1,r1}],[s]
cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [d1, {r1,r1,r1,r1,r1}], [s]
cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 [d1, {r1,r1,r1,r1,r1}]
cp.async.bulk.prefetch.tensor.3d.L2.global.im2col::w [d1, {r1,r1,r1}], {h, h}
cp.async.bulk.tensor.3d.shared::cta.global.im2col::w.mbarrier::complete_tx::bytes [s], [d1, {r1,r1,r1}], [s], {h, h}
mbarrier.test_wait.acquire.cluster.shared::cta.b64 p, [s], d2; mbarrier.arrive.release.cluster.shared::cta.b64 d2, [s]
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 [s], [s+64]
multimem.ld_reduce.weak.global.add.e5m2x4 r1, [d1]; prefetch.param.tensormap [d1]; cvta.shared::cluster.u64 d2, d1
membar.proxy.async; cvta.to.shared::cluster.u64 d2, d1; fence.proxy.alias
tensormap.replace.tile.swizzle_atomicity.global.b1024.b32 [d1], 1
tensormap.replace.tile.elemtype.global.b1024.b32 [d1], 12
tensormap.replace.tile.elemtype.global.b1024.b32 [d1], 13; tensormap.replace.tile.elemtype.global.b1024.b32 [d1], 15
tensormap.replace.tile.swizzle_mode.global.b1024.b32 [d1], 3
tensormap.replace.tile.swizzle_mode.global.b1024.b32 [d1], 4
""".replace("\n", "; ")
        .strip("; ")
        .split("; ")
    ),
]
FIRST = 9  # the line of what a kernel is given
TARGETS = "sm_80 sm_86 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f sm_103a sm_107a sm_107f sm_120 sm_120a".split()
TARGETS += ["sm_120f", "sm_121a"]


def kernel(target: str, body: str = "") -> str:
    return f""".version 9.{4 if "107" in target else 0}\n.target {target}\n.address_size 64
.visible .entry k(.param .u64 out) {{
  .reg .pred p; .reg .b8 b; .reg .b16 h; .reg .b32 r<10>; .reg .f32 f<6>; .reg .b64 d<4>; .reg .f64 g<3>; .reg .b128 q;
  .shared .align 128 .b8 s[1024];
  ld.param.u64 d1, [out]; mov.u64 d2, 0; mov.b16 h, 1; mov.u32 r1, 0; mov.u32 r2, 0; mov.u32 r3, 0;
  mov.f32 f1, 0f00000000; mov.f32 f2, f1; mov.f32 f3, f1; mov.f32 f4, f1;
  {body} ret;
}}
"""


@lru_cache
def texts() -> list[str]:
    """What the rules are asked with, of each form."""
    return [
        form_of(one) for one in parse(kernel("sm_100a", "\n".join(FORMS))).kernels["k"].instrs[-1 - len(FORMS) : -1]
    ]


def ptxas() -> str | None:
    return next(tools("ptxas"), None)


@pytest.mark.skipif(ptxas() is None, reason="no ptxas: pip install nvidia-cuda-nvcc")
@pytest.mark.parametrize("target", TARGETS)
def test_rules_say_what_ptxas_says(target, tmp_path):
    (file := tmp_path / "k.ptx").write_text(kernel(target, "\n".join(FORMS)))  # a line each, of which ptxas tells each
    done = subprocess.run([ptxas(), f"-arch={target}", file, "-o", "/dev/null"], capture_output=True, text=True)
    if "not defined for option 'gpu-name'" in done.stderr or "Unsupported .version" in done.stderr:
        pytest.skip(f"ptxas is older than {target}")
    refused = {int(line) - FIRST for line in re.findall(r"line (\d+); error", done.stderr)}
    said = {form: i not in refused for i, form in enumerate(FORMS)}
    assert said == {form: lacks(text, *parts(target)) is None for form, text in zip(FORMS, texts())}


def test_conversions_of_a_later_ptx_are_those_of_blackwell():
    """As ptxas 13.4 says for .version 9.4."""
    blackwell = {target for target in TARGETS if parts(target)[0] >= 100 and parts(target)[1]}
    for form in ("cvt.rn.satfinite.e4m3x2.bf16x2 2", "cvt.rn.relu.bf16x2.e5m2x2 2", "cvt.rn.bf16x2.e2m1x2 2"):
        assert {target for target in TARGETS if lacks(form, *parts(target)) is None} == blackwell
    with_a = {target for target in blackwell if target.endswith("a")}
    assert {target for target in TARGETS if lacks("cvt.rn.satfinite.s2f6x2.f32 3", *parts(target)) is None} == with_a


def test_one_kernel_has_one_cta_group(tmp_path):
    """As ptxas says, where there is one."""
    alone = "mov.u32 r1, s; tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [r1], 32; bar.sync 0;"
    alone += "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;"
    alone += "tcgen05.dealloc.cta_group::1.sync.aligned.b32 r2, 32;"
    for body, wrong in ((alone, False), (alone.replace("permit.cta_group::1", "permit.cta_group::2"), True)):
        text = kernel("sm_100a", body)
        instructions = parse(text).kernels["k"].instrs
        with pytest.raises(Fault, match="all its tcgen05 instructions") if wrong else contextlib.nullcontext():
            check("sm_100a", instructions, B200)
        (file := tmp_path / "k.ptx").write_text(text)
        command = [ptxas() or "true", "-arch=sm_100a", file, "-o", "/dev/null"]
        assert ptxas() is None or bool(subprocess.run(command, capture_output=True).returncode) is wrong


def test_forms_tell_targets_apart():
    """Each form is had by some target, and but for what sm_80 has, too, each is lacked by some."""
    everywhere = set()
    for form, text in zip(FORMS, texts()):
        answers = {lacks(text, *parts(target)) is None for target in TARGETS}
        assert True in answers, form
        if False not in answers:
            everywhere.add(form.split(".")[0])
    assert everywhere == set("cp cvt fence fma ld ldmatrix mbarrier min mma mov red redux tanh".split())


NEWEST = "b200 b300 rubin rtx5090 dgx-spark"
# Where code of a target runs (PTX ISA, 11.1.2)
RUNS = {
    "sm_75": " ".join(CHIPS), "sm_80": " ".join(CHIPS), "sm_86": f"rtx3090 rtx4090 l40s h100 h200 {NEWEST}",
    "sm_87": f"rtx4090 l40s h100 h200 {NEWEST}", "sm_89": f"rtx4090 l40s h100 h200 {NEWEST}",
    "sm_90": f"h100 h200 {NEWEST}", "sm_90a": "h100 h200",
    "sm_100": NEWEST, "sm_100a": "b200", "sm_100f": "b200 b300 rubin", "sm_103": "b300 rubin rtx5090 dgx-spark",
    "sm_103a": "b300", "sm_103f": "b300 rubin", "sm_107": "rubin rtx5090 dgx-spark", "sm_107a": "rubin",
    "sm_107f": "rubin", "sm_110": "rtx5090 dgx-spark", "sm_110a": "", "sm_110f": "",
    "sm_120": "rtx5090 dgx-spark", "sm_120a": "rtx5090", "sm_120f": "rtx5090 dgx-spark", "sm_121": "dgx-spark",
    "sm_121a": "dgx-spark", "sm_121f": "dgx-spark",
}  # fmt: skip


@pytest.mark.parametrize("machine", CHIPS)
def test_each_machine_runs_its_targets_and_refuses_the_others_in_a_sentence(machine):
    chip = CHIPS[machine]
    assert machine in RUNS[chip.arch].split()
    for target, machines in RUNS.items():
        said = f"launch: code of {target} does not run on an {chip.name}, which is {chip.arch}"
        way = pytest.raises(Fault, match=re.escape(said))
        with DEVICE.as_chip(chip), contextlib.nullcontext() if machine in machines.split() else way:
            with emulated_gpu.session():
                emulated_gpu.launch(kernel(target), "k", 1, 32, [np.zeros(8)])


@pytest.mark.parametrize("machine", CHIPS)
def test_each_machine_refuses_what_its_target_lacks_by_name(machine):
    """Whatever of FORMS ptxas does not take for the target: the test above says that the rules know it."""
    chip = CHIPS[machine]
    assert chip.arch in TARGETS
    number, suffix = parts(chip.arch)
    instructions = parse(kernel(chip.arch, "\n".join(FORMS))).kernels["k"].instrs[-1 - len(FORMS) : -1]
    for line, (one, text) in enumerate(zip(instructions, texts()), FIRST):
        refused = contextlib.nullcontext()
        if lacks(text, number, suffix):
            refused = pytest.raises(Unsupported, match=re.escape(f"{one.op} in code of {chip.arch} (PTX line {line})"))
        with refused:
            check(chip.arch, [one], chip)


@pytest.mark.parametrize("target, body, error, says", [
    ("sm_90a", "", Fault, "launch: code of sm_90a does not run on an NVIDIA GeForce RTX 4090 (emulated), which is"),
    ("sm_100", "", Fault, "launch: code of sm_100 does not run on an NVIDIA GeForce RTX 4090 (emulated), which is"),
    ("sm_89", f"cp.async.bulk.{BULK} [s+64], [d1], 16, [s];", Unsupported,
     f"unsupported: cp.async.bulk.{BULK} in code of sm_89 (PTX line 9): sm_90 and later have it"),
])  # fmt: skip
def test_what_does_not_is_refused_by_name_and_line(target, body, error, says):
    with DEVICE.as_chip(CHIPS["rtx4090"]), pytest.raises(error) as refused, emulated_gpu.session():
        emulated_gpu.launch(kernel(target, body), "k", 1, 32, [np.zeros(8)])
    assert str(refused.value).startswith(says)


def test_the_same_text_is_checked_for_each_machine():
    text = kernel("sm_89")
    for name, right in ("h200", True), ("rtx4090", True), ("a100", False), ("b200", True), ("a100", False):
        refused = pytest.raises(Fault, match="code of sm_89 does not run on an NVIDIA A100")
        with DEVICE.as_chip(CHIPS[name]), contextlib.nullcontext() if right else refused, emulated_gpu.session():
            emulated_gpu.launch(text, "k", 1, 32, [np.zeros(8)])


@pytest.mark.parametrize("machine, shared, cluster", [("rtx4090", 150_000, None), ("rtx3090", 1024, 2)])
def test_limits_of_a_machine(machine, shared, cluster):
    """150 KB of shared memory fit on a data centre's card alone, and clusters begin with Hopper."""
    text = kernel("sm_80")
    refused = pytest.raises(Fault, match="shared memory|cluster of 2 CTAs: at most 1 on an NVIDIA GeForce RTX 3090")
    for name, way in (machine, refused), ("h200", contextlib.nullcontext()):
        with DEVICE.as_chip(CHIPS[name]), way, emulated_gpu.session():
            emulated_gpu.launch(text, "k", 2, 32, [np.zeros(8)], shared=shared, cluster=cluster)


@pytest.mark.parametrize("machine", CHIPS)
def test_every_value_of_a_machine_has_a_source(machine):
    values = tomllib.loads((FOLDER / f"{machine}.toml").read_text())
    bare = {name for name, value in values.items() if not isinstance(value, dict)}
    assert bare == {"name", "arch"} and all(x["source"] for x in values.values() if isinstance(x, dict))
