"""What each instruction that touches memory costs: there is none that is free, and none that is not in these tables.

ACCESSES has a form of each opcode that is handed an address or a descriptor, with what it tells the clock (beside the
cost of its class, `cost` in ptx/isa), what it moves, as model/tally.py counts it, and where the figures come from.
UNTIMED ones are refused by name in a timed run. CHARGES has the functions of the units that access global memory.
`tests/emulated_gpu/model/test_charges.py` holds both to the code, and runs each form;
`tests/emulated_gpu/ptx/test_isa.py` follows what all other forms of these opcodes call.
"""

from __future__ import annotations

from typing import NamedTuple

POINTS, RELEASE, PROBE = "silicon/timing", "silicon/probes/release.py", "silicon/probes/accesses.py"
CLASS = ""  # nothing but the cost of its class, which is all that it takes


class Access(NamedTuple):
    """A form of an opcode. tells: the clock's method, or CLASS. moves: a count of tally.py, or why there is none.

    In a form g is an address in global memory, s and far are in shared memory of the CTA and of another one of its
    cluster, c, l and p in constant, local and parameter memory, t in tensor memory; bar and farbar are mbarriers, map
    is a tensor map, desc the descriptor of a matrix, q a predicate.
    """

    form: str
    tells: str
    moves: str
    source: str

    @property
    def counted(self) -> bool:
        """Whether `moves` is a count, and not a sentence."""
        return " " not in self.moves


INSIDE = "stays in the SM"
FLAG = "an mbarrier of 8 bytes in the SM"
SEEN = "nothing: it computes an address"

ACCESSES = (
    Access("ld.global.u32 x, [g];", "global_load", "global_load", f"{POINTS}: latency/ld.global"),
    Access("ld.u32 x, [g];", "global_load", "global_load", f"{POINTS}: latency/ld.global"),
    Access("ldu.global.u32 x, [g];", "global_load", "global_load", "as ld: no measurement"),
    Access("ld.global.nc.u32 x, [g];", "global_load", "global_load", "as ld: no measurement"),
    Access("ld.shared.u32 x, [s];", "shared_access", INSIDE, f"{POINTS}: issue/shared"),
    Access("ld.shared::cluster.u32 x, [far];", "cluster_access", "cluster", f"{PROBE}: ld.cluster"),
    Access("ld.local.u32 x, [l];", CLASS, INSIDE, "profiles: issue, local"),
    Access("ld.param.u64 d, [p];", "parameter_load", "64 bytes a line, once an SM", f"{POINTS}: mechanisms/ld.param"),
    Access("ld.const.u32 x, [c];", "constant_load", "constant_load", f"{PROBE}: ld.const"),
    Access("st.global.u32 [g], x;", "global_store", "global_store", f"{POINTS}: issue/st.global, stores"),
    Access("st.release.gpu.global.u32 [g], x;", "global_store", "global_store", RELEASE),
    Access("st.shared.u32 [s], x;", "shared_access", INSIDE, f"{POINTS}: issue/shared"),
    Access("st.shared::cluster.u32 [far], x;", "cluster_access", "cluster", f"{PROBE}: st.cluster"),
    Access("st.local.u32 [l], x;", CLASS, INSIDE, "profiles: issue, local"),
    Access(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [far], x, [farbar];",
        "remote", "cluster", f"{PROBE}: st.async",
    ),
    Access("st.bulk.weak.shared::cta [s], 128, 0;", "shared_access", INSIDE, "as st.shared of a warp: no measurement"),
    Access("atom.global.add.u32 x, [g], 1;", "atomic", "global_atomic", f"{PROBE}: atom"),
    Access("atom.release.gpu.global.add.u32 x, [g], 1;", "atomic", "global_atomic", f"{PROBE}: atom; {RELEASE}"),
    Access("atom.acq_rel.gpu.global.cas.b32 x, [g], 0, 1;", "atomic", "global_atomic", f"{PROBE}: atom; {RELEASE}"),
    Access("atom.shared.add.u32 x, [s], 1;", "atomic", INSIDE, f"{PROBE}: atom.shared"),
    Access("atom.shared::cluster.add.u32 x, [far], 1;", "cluster_access", "cluster", f"{PROBE}: atom.cluster"),
    Access("red.global.add.u32 [g], 1;", "atomic", "global_reduction", f"{PROBE}: red"),
    Access("red.release.gpu.global.add.u32 [g], 1;", "atomic", "global_reduction", f"{PROBE}: red; {RELEASE}"),
    Access("red.shared.add.u32 [s], 1;", "atomic", INSIDE, f"{PROBE}: red.shared"),
    Access("red.shared::cluster.add.u32 [far], 1;", "cluster_access", "cluster", f"{PROBE}: red.cluster"),
    Access(
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [far], x, [farbar];",
        "remote", "cluster", f"{PROBE}: red.async",
    ),
    Access("prefetch.global.L2 [g];", "line_prefetch", "prefetch", f"{POINTS}: prefetch"),
    Access("prefetchu.L1 [g];", "line_prefetch", "prefetch", f"{PROBE}: prefetch.L1"),
    Access("prefetch.tensormap [map];", "descriptor_prefetch", "128 bytes, if they are not known", f"{POINTS}: maps"),
    Access(
        "applypriority.global.L2::evict_normal [g], 128;", CLASS, "nothing: a hint", f"{PROBE}: 19 to 25 cycles for two"
    ),
    Access("discard.global.L2 [g], 128;", CLASS, "nothing: lines are dropped", f"{PROBE}: 19 to 25 cycles for two"),
    Access("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {x}, [s];", "matrix_load", INSIDE, "silicon/probes/mma_sync.py"),
    Access("stmatrix.sync.aligned.m8n8.x1.shared.b16 [s], {x};", "shared_access", INSIDE, f"{POINTS}: issue/shared"),
    Access("mapa.shared::cluster.u32 x, s, 0;", CLASS, SEEN, "as alu, which it mostly is: no measurement"),
    # -- copies
    Access("cp.async.ca.shared.global [s], [g], 16;", "async_load", "async_load", f"{PROBE}: cp.async"),
    Access("cp.async.mbarrier.arrive.noinc.shared.b64 [bar];", "copied", FLAG, "when the copies have landed"),
    Access(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [g], 16, [bar];",
        "bulk_load", "bulk_load", f"{POINTS}: latency/bulk, loads/bulk",
    ),
    Access(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [far], [s], 16, [farbar];",
        "shared_copy", "cluster", "sync.remote_cycles, sm.ingest_bytes_per_cycle: no measurement",
    ),
    Access(
        "cp.async.bulk.global.shared::cta.bulk_group [g], [s], 16;", "bulk_store", "bulk_store", f"{POINTS}: stores"
    ),
    Access(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [g], [s], 16;",
        "bulk_store", "bulk_store", f"{PROBE}: bulk reduce",
    ),
    Access("cp.async.bulk.prefetch.L2.global [g], 128;", "bulk_prefetch", "prefetch", f"{POINTS}: prefetch"),
    Access(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [s], [map, {0, 0}], [bar];",
        "tma_load", "tma_load", f"{POINTS}: latency/tensor, loads/tensor",
    ),
    Access(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {0, 0}], [s];",
        "tma_store", "tma_store", f"{POINTS}: stores",
    ),
    Access(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [map, {0, 0}], [s];",
        "tma_store", "tma_store", f"{PROBE}: bulk reduce",
    ),
    Access(
        "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [map, {0, 0}];",
        "tma_prefetch", "prefetch", f"{POINTS}: loads/tensor, prefetch",
    ),
    Access(
        "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [s], g;", CLASS, INSIDE, f"{POINTS}: maps/edit"
    ),
    Access(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [g], [s], 128;",
        CLASS, "128 bytes: the time is that of its class", f"{POINTS}: maps/edit",
    ),
    Access(
        "fence.proxy.tensormap::generic.acquire.gpu [g], 128;", "tensormap_acquire", "nothing: it waits",
        f"{POINTS}: maps/edit",
    ),
    Access(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [s], [bar];",
        "remote", "16 bytes in the SM", "as an arrival in another CTA: no measurement",
    ),
    # -- mbarriers
    Access("mbarrier.init.shared.b64 [bar], 1;", CLASS, FLAG, "as st.shared"),
    Access("mbarrier.inval.shared.b64 [bar]; mbarrier.init.shared.b64 [bar], 1;", CLASS, FLAG, "as st.shared"),
    Access("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 0;", CLASS, FLAG, "as st.shared"),
    Access("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 0;", CLASS, FLAG, "as st.shared"),
    Access("mbarrier.arrive.shared.b64 _, [bar];", CLASS, FLAG, f"{POINTS}: latency/mbarrier"),
    Access("mbarrier.arrive.shared::cluster.b64 _, [farbar];", "remote", FLAG, f"{POINTS}: latency/mbarrier"),
    Access("mbarrier.arrive_drop.shared.b64 _, [bar];", CLASS, FLAG, "as mbarrier.arrive"),
    Access("mbarrier.test_wait.parity.shared.b64 q, [bar], 1;", CLASS, FLAG, f"{POINTS}: latency/try_wait"),
    Access("mbarrier.try_wait.parity.shared.b64 q, [bar], 1;", CLASS, FLAG, f"{POINTS}: latency/try_wait"),
    # -- tensor memory, of a B200
    Access(
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s], 32;", CLASS, INSIDE, "profiles: issue, tmem_alloc"
    ),
    Access("tcgen05.ld.sync.aligned.32x32b.x1.b32 {x}, [t];", "tmem_load", INSIDE, "profiles: tensor, load_*"),
    Access(
        "tcgen05.st.sync.aligned.32x32b.x1.b32 [t], {x};", "tmem_store", "tensor_store", "profiles: tensor, store_*"
    ),
    Access("tcgen05.cp.cta_group::1.128x256b [t], desc;", "tensor_copy", INSIDE, "profiles: tensor, copy_*"),
    Access("tcgen05.shift.cta_group::1.down [t];", "tensor_copy", INSIDE, "as tcgen05.cp: no measurement"),
    Access(
        "tcgen05.mma.cta_group::1.kind::f16 [t], desc, desc, 0x8100010, q;",
        "mma", "flops", "profiles: tensor",
    ),
    Access(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];",
        "commit", FLAG, "profiles: tensor, commit_cycles",
    ),
    # -- tensor cores that read shared memory, of an H200
    Access(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {f0, f1, f2, f3}, desc, desc, q, 1, 1, 0, 0;"
        " wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;",
        "wgmma", "flops", f"{POINTS}: wgmma",
    ),
)  # fmt: skip

# Function of a unit that has the launch's memory in its hands -> (function that tells the clock, what it tells)
CHARGES = {
    "access.load_one": ("access._loaded", "global_load"),
    "access.gather": ("access._loaded", "global_load"),
    "access.store": ("access.store", "global_store"),
    "access._leave_out": ("access.store", "global_store"),
    "access._changed": ("access.store", "global_store"),
    "access.store_one": ("access.store", "global_store"),
    "access.scatter": ("access.store", "global_store"),
    "access.atomic": ("access.atomic", "atomic"),
    "async_copy.changes_nothing": ("async_copy.tma_store", "tma_store"),
    "async_copy.tma_load": ("async_copy.tma_load", "tma_load"),
    "async_copy._store_later": ("async_copy.tma_store", "tma_store"),
    "async_copy._bulk_to_shared": ("async_copy._bulk_to_shared", "bulk_load"),
    "async_copy._bulk_to_global": ("async_copy._bulk_to_global", "bulk_store"),
    "async_copy.bulk_prefetch": ("async_copy.bulk_prefetch", "bulk_prefetch"),
    "async_copy._land_copies": ("async_copy._ask_for", "async_load"),
}
OTHERWISE = {
    "access.apply_priority": "a hint, which the memory checks",
    "access.discard": "moves nothing",
    "system_calls.malloc": "`call` is refused in a timed run",
    "system_calls.free": "`call` is refused in a timed run",
    "tensor_maps.descriptor_bytes": "its fetch is part of the time of the copy that uses it",
    "tensor_maps.replace": "the cost of its instruction, replace_tensormap",
    "tensor_maps.copy": "the cost of its instruction, publish_tensormap",
}
