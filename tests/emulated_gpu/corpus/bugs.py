"""One mistake at a time, planted in the kernels of `kernels.py` by replacing text that occurs exactly once."""

from __future__ import annotations

from dataclasses import dataclass

from .kernels import _COMMIT, _LOAD, COPY, FENCE, INSTRUCTION, MATRIX, STORE, wait


@dataclass(frozen=True)
class Bug:
    """kinds: the classes that name it; which one can depend on the schedule.

    launches: replaces the kernel's. read_only: of "out" and "source", what the kernel may only read.
    """

    name: str
    kernel: str
    edits: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    launches: tuple = ()
    read_only: str = ""


def bug(kernel: str, name: str, kinds: str, *edits: tuple[str, str], **options) -> Bug:
    return Bug(name, kernel, edits, tuple(kinds.split()), **options)


FULL, DONE = wait("full", "0"), wait("done", "0")
READY = "ready:\nbar.sync 0;"
INIT = "mbarrier.init.shared::cta.b64 [full], 1;"
SLEEP = "mov.u32 k, 0;\nrest:\nnanosleep.u32 100;\nadd.u32 k, k, 1;\nsetp.lt.u32 p, k, 100;\n@p bra rest;"  # longer than any copy
INIT_FENCE = "fence.mbarrier_init.release.cluster;"
SECOND = "add.u32 r0, t, 70;\nst.shared.b32 [r1], r0;\n" + FENCE
WAIT_LD = "tcgen05.wait::ld.sync.aligned;"
RELEASE = "@elected mbarrier.arrive.shared::cta.b64 _, [free];"
CLUSTER_BARRIER = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"

BUGS = [
    # -- a bulk copy into shared memory and its mbarrier
    bug("copy", "data read before the copy is waited for", "race", (FULL, "")),
    bug("copy", "sleep instead of a wait", "race", (FULL, SLEEP)),
    bug("copy", "sleep instead of a barrier after the init", "mbarrier", (READY, "ready:\n" + SLEEP)),
    bug("copy", "fewer bytes expected than come", "mbarrier", ("_, [full], 1024", "_, [full], 1008")),
    bug("copy", "more bytes expected than come", "hang", ("_, [full], 1024", "_, [full], 1040")),
    bug("copy", "bytes expected nowhere", "race mbarrier", ("arrive.expect_tx.shared::cta.b64 _, [full], 1024", "arrive.shared::cta.b64 _, [full]")),
    bug("copy", "barrier not initialised", "mbarrier", (INIT, "")),
    bug("copy", "barrier initialised for two arrivals", "hang", (INIT, INIT.replace("1;", "2;"))),
    bug("copy", "barrier initialised for none", "mbarrier", (INIT, INIT.replace("1;", "0;"))),
    bug("copy", "barrier initialised twice", "mbarrier", (INIT, INIT + INIT)),
    bug("copy", "init not fenced for the async proxy", "mbarrier", (INIT_FENCE, "")),
    bug("copy", "init not published to the other warp", "mbarrier", (READY, "ready:")),
    bug("copy", "barrier freed before the other warp has waited", "mbarrier", ("bar.sync 0;\n@first mbarrier.inval", "@first mbarrier.inval")),
    bug("copy", "barrier freed with bytes outstanding", "mbarrier", ("read:\n", "@first mbarrier.inval.shared::cta.b64 [full];\nread:\n")),
    bug("copy", "one arrival too many", "mbarrier", ("read:\n", "@first mbarrier.arrive.shared::cta.b64 _, [full];\nread:\n")),
    bug("copy", "wait for a phase that nobody completes", "hang", (FULL, wait("full", "0") + wait("full", "1"))),
    bug("copy", "generic store over the barrier", "mbarrier", (READY, READY + "\n@first st.shared.b32 [full], t;")),
    bug("copy", "generic load of the barrier", "mbarrier", ("mov.u32 r1, buffer;", "mov.u32 r1, full;"), ("t, 4, r1", "t, 0, r1")),
    bug("copy", "barrier at an address of four", "misaligned", (INIT, INIT.replace("[full]", "[full+4]"))),
    bug("copy", "copy from a misaligned address", "misaligned", ("[buffer], [src], 1024", "[buffer], [src+8], 1024")),
    bug("copy", "copy beyond the source", "out-of-bounds", ("[buffer], [src], 1024", "[buffer], [src+1040], 1024")),
    bug("copy", "copy beyond shared memory", "out-of-bounds", ("[buffer], [src], 1024", "[buffer+512], [src], 1024")),
    bug("copy", "copy over the barrier", "mbarrier", ("[buffer], [src], 1024", "[buffer+16], [src], 1024")),
    bug("copy", "generic store into a buffer that the copy writes", "race", ("read:\n", "st.shared.b32 [buffer], t;\nread:\n")),
    bug("copy", "two copies into one buffer", "race", ("read:\n", f"@first {COPY} [buffer], [src], 1024, [full];\nread:\n")),
    bug("copy", "exit while the copy is under way", "unfinished", (FULL, ""), ("ld.shared.b32 r0, [r1];", "mov.b32 r0, t;"), ("@first mbarrier.inval.shared::cta.b64 [full];", "")),
    bug("copy", "shared memory read beyond its end", "out-of-bounds", ("t, 4, r1", "t, 64, r1")),
    bug("copy", "shared memory read misaligned", "misaligned", ("ld.shared.b32 r0, [r1]", "ld.shared.b32 r0, [r1+2]")),
    bug("copy", "shared memory read that nothing writes", "uninitialized-read", ("[buffer], [src], 1024", "[buffer], [src], 128"), ("_, [full], 1024", "_, [full], 128")),
    bug("copy", "register that nothing writes", "uninitialized-register", ("ld.shared.b32 r0, [r1];", "ld.shared.b32 r7, [r1];")),
    bug("copy", "tensor map in shared memory", "address-space", (f"{COPY} [buffer], [src], 1024, [full];", "mov.u32 r1, 0;\nmov.u32 r2, buffer;\ncvt.u64.u32 d0, r2;\ncvta.shared.u64 d0, d0;\ncp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [buffer], [d0, {r1}], [full];")),
    bug("copy", "trap", "trap", ("read:\n", "trap;\nread:\n")),
    bug("copy", "register count below the minimum", "setmaxnreg", (READY, READY + "\nsetmaxnreg.dec.sync.aligned.u32 16;")),
    bug("copy", "more threads than a block has", "launch", launches=(("copy", 1, 1056, None, False),)),
    bug("copy", "more threads than the kernel's bounds", "launch", ("p_src)\n{", "p_src)\n.maxntid 8, 4\n{")),
    bug("copy", "more shared memory than a block has", "launch", ("buffer[1024]", "buffer[233000]")),
    # -- a ring of two buffers
    bug("ring", "no wait for an empty buffer", "race mbarrier", (wait("r2", "phase"), "")),
    bug("ring", "no wait for a full buffer", "race uninitialized-read", (wait("r3", "phase"), "")),
    bug("ring", "producer starts in the wrong phase", "hang", ("mov.u32 phase, 1;", "mov.u32 phase, 0;")),
    bug("ring", "consumer starts in the wrong phase", "race uninitialized-read", ("mov.u32 phase, 0;", "mov.u32 phase, 1;")),
    bug("ring", "buffer released before it is read", "race", ("ld.shared.b32 r5, [r4];\nadd.u32 r0, r0, r5;\n", ""), ("mbarrier.arrive.shared::cta.b64 _, [r2];", "mbarrier.arrive.shared::cta.b64 _, [r2];\nld.shared.b32 r5, [r4];\nadd.u32 r0, r0, r5;")),
    bug("ring", "half of the arrivals counted", "race mbarrier hang", ("[empty], 32", "[empty], 16")),
    bug("ring", "one arrival more counted than come", "hang", ("[empty], 32", "[empty], 33")),
    bug("ring", "both buffers at one address", "race", ("mad.lo.u32 r4, slot, 128, r4;\nmad.wide.u32 at", "mad.wide.u32 at")),
    # -- bulk stores from shared memory
    bug("store", "no proxy fence", "missing-proxy-fence", (SECOND, SECOND.replace(FENCE, ""))),
    bug("store", "only one lane fences", "missing-proxy-fence", (SECOND, SECOND.replace(FENCE, "@first " + FENCE))),
    bug("store", "fence before the write", "missing-proxy-fence", (SECOND, FENCE + SECOND.replace(FENCE, ""))),
    bug("store", "no barrier before the store", "race uninitialized-read missing-proxy-fence", (SECOND + "\nbar.sync 0;", SECOND)),
    bug("store", "buffer rewritten while it is read", "race", ("cp.async.bulk.wait_group.read 0;\nstored0:", "stored0:")),
    bug("store", "exit while the buffer is read", "unfinished", ("cp.async.bulk.wait_group.read 0;\nstored256:", "stored256:")),
    bug("store", "sleep instead of a wait", "race", ("cp.async.bulk.wait_group.read 0;\nstored0:\nbar.sync 0;", "stored0:\n" + SLEEP)),
    bug("store", "store not committed to a group", "race", ("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\nstored0:", "cp.async.bulk.wait_group.read 0;\nstored0:")),
    bug("store", "more bytes stored than written", "uninitialized-read", ("buffer[256]", "buffer[512]"), ("add.u64 at, out, 0;\ncp.async.bulk.global.shared::cta.bulk_group [at], [buffer], 256", "add.u64 at, out, 0;\ncp.async.bulk.global.shared::cta.bulk_group [at], [buffer], 512")),
    bug("store", "store to a misaligned address", "misaligned", ("add.u64 at, out, 0;", "add.u64 at, out, 4;")),
    bug("store", "store beyond the output", "out-of-bounds", ("add.u64 at, out, 256;", "add.u64 at, out, 272;")),
    bug("store", "store to an input", "write-to-input", read_only="out"),
    # -- the tensor core
    bug("product", "accumulator read before its commit is waited for", "tmem-race tmem-uninitialised", (DONE, "")),
    bug("product", "sleep instead of a wait", "tmem-race", (DONE, SLEEP.replace("rest", "rest2"))),
    bug("product", "operand overwritten after a sleep", "race", (DONE, SLEEP.replace("rest", "rest2") + "\n@first st.shared.b32 [a], r2;\n" + DONE)),
    bug("product", "no commit", "hang", (_COMMIT + "[done];", "")),
    bug("product", "relaxed wait without a fence", "tmem-race", (DONE, wait("done", "0", "mbarrier.try_wait.parity.relaxed.cta.shared::cta.b64")), ("tcgen05.fence::after_thread_sync;\n", "")),
    bug("product", "operands not fenced", "missing-proxy-fence", ("filled:\n\n" + FENCE, "filled:\n")),
    bug("product", "operands not waited for", "race uninitialized-read missing-proxy-fence", (FENCE + "\nbar.sync 0;\n", FENCE + "\n")),
    bug("product", "first product accumulates", "tmem-uninitialised", ("setp.ne.u32 q, t, t;", "setp.eq.u32 q, t, t;\n")),
    bug("product", "operand overwritten while it is read", "race", ("issued:\n", "@first st.shared.b32 [a], r2;\nissued:\n")),
    bug("product", "operand outside shared memory", "out-of-bounds", ("mov.u32 r1, b;\nshr.u32", "mov.u32 r1, 0x20000;\nshr.u32")),
    bug("product", "descriptor of another version", "matrix-descriptor", (f"or.b64 d0, d0, {MATRIX};", f"or.b64 d0, d0, {MATRIX & ~(1 << 46)};")),
    bug("product", "instruction descriptor without M", "instruction-descriptor", (f"mov.b32 r2, {INSTRUCTION};", f"mov.b32 r2, {INSTRUCTION & 0xFFFFFF};")),
    bug("product", "product outside the allocation", "tmem-out-of-bounds", ("setp.ne.u32 q, t, t;\n", "setp.ne.u32 q, t, t;\nadd.u32 r20, r20, 20;\n")),
    bug("product", "accumulator read outside the allocation", "tmem-out-of-bounds", (_LOAD, _LOAD.replace("[r21]", "[r21+30]"))),
    bug("product", "cells read that the product does not write", "tmem-uninitialised", (_LOAD, _LOAD.replace("[r21]", "[r21+16]"))),
    bug("product", "lanes of another warp read", "tmem-lane-access", ("shl.b32 r21, w, 21;", "shl.b32 r21, w, 20;")),
    bug("product", "all warps read at the first one's lanes", "tmem-lane-access", ("shl.b32 r21, w, 21;", "mov.u32 r21, 0;")),
    bug("product", "lanes counted on from 128", "tmem-lane-access", ("shl.b32 r21, w, 21;", "shl.b32 r21, w, 21;\nadd.u32 r21, r21, 0x800000;")),
    bug("product", "half a warp reads", "divergence", (_LOAD, f"setp.lt.u32 p, lane, 16;\n@p bra skip;\n{_LOAD}\nskip:")),
    bug("product", "columns that are no power of two", "tmem-alloc", ("[address], 32;", "[address], 48;")),
    bug("product", "allocation after the permit is given up", "tmem-alloc", ("allocated:\n", "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], 32;\nallocated:\n")),
    bug("product", "fewer columns freed", "tmem-alloc", ("r20, 32;", "r20, 64;")),
    bug("product", "tensor memory not freed", "tmem-leak", ("tcgen05.dealloc.cta_group::1.sync.aligned.b32 r20, 32;", "")),
    bug("product", "more tensor memory than an SM has", "hang", ("[address], 32;\ntcgen05.relinq", "[address], 512;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [address], 32;\ntcgen05.relinq")),
    bug("product", "freed before the loads are waited for", "tmem-race", (f"{WAIT_LD}\nmov.b32 r0, f3;\n{STORE}", ""), ("freed:\n", f"freed:\nmov.b32 r0, f3;\n{STORE}")),
    bug("product", "freed before the other warps have read", "tmem-race tmem-out-of-bounds", ("bar.sync 0;\nsetp.ne.u32 p, w, 0;\n@p bra freed;", "setp.ne.u32 p, w, 0;\n@p bra freed;")),
    bug("product", "barrier of the commit not initialised", "mbarrier", ("mbarrier.init.shared::cta.b64 [done], 1;", "")),
    # -- an accumulator that is handed back and forth
    bug("tiles", "accumulator overwritten before it is free", "tmem-race mbarrier", (wait("free", "phase"), "")),
    bug("tiles", "accumulator read before it is done", "tmem-race tmem-uninitialised", (wait("done", "phase"), "")),
    bug("tiles", "accumulator handed back before its loads are waited for", "tmem-race", (f"{WAIT_LD}\ntcgen05.fence::before_thread_sync;\n{RELEASE}", f"{RELEASE}\n{WAIT_LD}")),
    bug("tiles", "one of four warps counted", "mbarrier tmem-race hang", ("[free], 4;", "[free], 1;")),
    bug("tiles", "phase not flipped", "mbarrier tmem-race", ("[done];\nxor.b32 phase, phase, 1;", "[done];")),
    # -- tensor memory written by threads and by copies
    bug("tensor_memory", "stored cells read before the stores are waited for", "tmem-race", ("tcgen05.wait::st.sync.aligned;", "")),
    bug("tensor_memory", "copied cells read before the copy is waited for", "tmem-race tmem-uninitialised", (DONE, "")),
    bug("tensor_memory", "copied cells read behind a wait for stores", "tmem-race tmem-uninitialised", (DONE, "tcgen05.wait::st.sync.aligned;\n")),
    bug("tensor_memory", "cells read that nothing writes", "tmem-uninitialised", ("tcgen05.cp.cta_group::1.128x256b [r3], d0;", "")),
    bug("tensor_memory", "copy outside the allocation", "tmem-out-of-bounds", ("add.u32 r3, r20, 8;", "add.u32 r3, r20, 28;")),
    bug("tensor_memory", "repetition that does not exist", "tmem-shape", ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {r7}, [r6];", "tcgen05.ld.sync.aligned.16x256b.x64.b32 {r7}, [r6];")),
    # -- clusters
    bug("pair", "no cluster barrier before remote accesses", "cluster", ("ready:\n" + CLUSTER_BARRIER, "ready:\nbar.sync 0;\n")),
    bug("pair", "CTA outside the cluster", "out-of-bounds", ("xor.b32 r6, r5, 1;", "add.u32 r6, r5, 2;")),
    bug("pair", "remote data not waited for", "race uninitialized-read", (wait("full", "0", "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"), "")),
    bug("pair", "arrivals at the peer with the scope of a CTA", "race", ("arrive.release.cluster.shared::cluster", "arrive.release.cta.shared::cluster")),
    bug("pair", "a third of the arrivals counted", "race uninitialized-read mbarrier", ("[full], 64;", "[full], 21;")),
    bug("pair", "exit before the neighbour's arrivals", "unfinished cluster", (wait("full", "0", "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"), ""), ("ld.shared.b32 r0, [r1];", "mov.b32 r0, t;"), ("st.global.b32 [to], r0;\n" + CLUSTER_BARRIER, "st.global.b32 [to], r0;\n")),
    bug("pair", "exit before the neighbour's arrivals, which bring nothing", "unfinished cluster", ("st.shared::cluster.b32 [r2], r3;\n", ""), (wait("full", "0", "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64"), ""), ("ld.shared.b32 r0, [r1];", "mov.b32 r0, t;"), ("st.global.b32 [to], r0;\n" + CLUSTER_BARRIER, "st.global.b32 [to], r0;\n")),
    bug("pair", "half the CTAs wait", "hang", ("st.global.b32 [to], r0;\n", "st.global.b32 [to], r0;\nsetp.eq.u32 p, r5, 0;\n@p bra again2;\nagain1:\nbar.sync 2, 96;\nagain2:\n")),
    bug("pair", "cluster wider than sixteen", "launch", launches=(("pair", 32, 64, 32, False),)),
    # -- named barriers and lanes
    bug("meet", "other warp's data not waited for", "race uninitialized-read", ("bar.sync 1, 64;", "")),
    bug("meet", "sleep instead of a barrier", "race", ("bar.sync 1, 64;", SLEEP)),
    bug("meet", "counts that differ", "barrier", ("bar.sync 1, 64;", "bar.sync 1, 96;")),
    bug("meet", "count that is no multiple of a warp", "barrier", ("bar.arrive 1, 64;", "bar.arrive 1, 48;")),
    bug("meet", "barrier that does not exist", "barrier", ("bar.arrive 1, 64;", "bar.arrive 16, 64;")),
    bug("meet", "nobody arrives", "hang", ("bar.arrive 1, 64;\n", "")),
    bug("meet", "lanes outside the member mask", "divergence", ("31, 0xffffffff;", "31, 0x0000ffff;")),
    bug("meet", "lanes that do not come", "divergence hang", ("shfl.sync", "setp.ge.u32 p, lane, 16;\n@p bra finish;\nshfl.sync")),
    bug("meet", "barrier in divergent code", "divergence", ("bar.sync 1, 64;", "setp.ge.u32 p, lane, 16;\n@p bra other;\nbar.sync 1, 64;\nbra both;\nother:\nbar.sync 1, 64;\nboth:")),
    # -- plain memory
    bug("reuse", "words used again before all have read them", "race", ("bar.sync 0; // second\n", "")),
    bug("plain", "vector at an address of its element", "misaligned", ("[at];", "[at+4];")),
    bug("plain", "read beyond the input", "out-of-bounds", ("mad.wide.u32 at, t, 8, src;", "mad.wide.u32 at, t, 16, src;")),
    bug("plain", "write beyond the output", "out-of-bounds", ("mad.wide.u32 to, t, 4, out;", "mad.wide.u32 to, t, 8, out;")),
    bug("plain", "write to an input", "write-to-input", ("[to], r0;", "[at], r0;"), read_only="source"),
    bug("plain", "local memory beyond its end", "out-of-bounds", ("st.local.b32 [stack+4]", "st.local.b32 [stack+16]")),
    bug("plain", "local memory misaligned", "misaligned", ("st.local.b32 [stack+4]", "st.local.b32 [stack+2]")),
    bug("plain", "parameter that does not exist", "out-of-bounds", ("[p_out];", "[p_out+16];")),
    bug("plain", "global address taken for a shared one", "address-space", ("st.local.b32 [stack+4], r4;", "cvta.to.shared.u64 at, src;\nst.local.b32 [stack+4], r4;")),
    # -- dependent launches
    bug("chain", "no wait for the previous launch", "missing-dependency-wait", ("griddepcontrol.wait;\nld.global.b32 r0, [to];\nadd.u32 r0, r0, 1;\nst.global.b32 [to], r0;\ngriddepcontrol.launch_dependents;\n\nret;\n}\n\n.visible .entry end", "ld.global.b32 r0, [to];\nadd.u32 r0, r0, 1;\nst.global.b32 [to], r0;\ngriddepcontrol.launch_dependents;\n\nret;\n}\n\n.visible .entry end")),
    bug("chain", "write before the wait", "missing-dependency-wait", ("prefetch.global.L2 [to];\ngriddepcontrol.wait;\nmov.u32 r0, t;", "prefetch.global.L2 [to];\ngriddepcontrol.wait;\nmov.u32 r0, t;"), launches=(("begin", 1, 32, None, False), ("early", 1, 32, None, True))),
    bug("chain", "the launch between never waits", "missing-dependency-wait", launches=(("begin", 1, 32, None, False), ("idle", 1, 32, None, True), ("end", 1, 32, None, True))),
    # -- tensor maps
    bug("remap", "changed tensor map not acquired", "missing-proxy-fence", ("fence.proxy.tensormap::generic.acquire.gpu [to], 128;", "")),
    bug("remap", "box of another rank", "tensormap", ("cp.async.bulk.tensor.1d", "cp.async.bulk.tensor.2d"), ("{r4}", "{r4, r4}")),
    bug("remap", "box that does not start on 16 bytes", "tensormap", ("mov.u32 r4, 0;", "mov.u32 r4, 1;")),
    bug("remap", "tensor beyond its allocation", "out-of-bounds", ("add.u64 at, src, 128;", "add.u64 at, src, 144;")),
    bug("remap", "misaligned destination", "misaligned", ("[buffer], [to", "[buffer+64], [to")),
    bug("remap", "only the storing lane fences, and before it can see", "missing-proxy-fence", (FENCE + "\nbar.warp.sync 0xffffffff;\n@!first", "@first " + FENCE + "\nbar.warp.sync 0xffffffff;\n@!first")),
    # -- the tensor core of sm_90
    bug("warpgroup", "first fence missing", "missing-wgmma-fence", ("wgmma.fence.sync.aligned; // first", "")),
    bug("warpgroup", "accumulator changed with no fence after it", "missing-wgmma-fence", ("wgmma.fence.sync.aligned; // second", "")),
    bug("warpgroup", "accumulator read before the wait", "wgmma-race", ("wgmma.wait_group.sync.aligned 0; // first", "")),
    bug("warpgroup", "wait for all groups but the latest", "wgmma-race", ("aligned 0; // first", "aligned 1;")),
    bug("warpgroup", "products not committed", "wgmma-race", ("wgmma.commit_group.sync.aligned; // first", "")),
    bug("warpgroup", "accumulator written before the wait", "wgmma-race", ("wgmma.commit_group.sync.aligned; // first", "cvt.rn.f32.u32 f2, t;\nwgmma.commit_group.sync.aligned;")),
    bug("warpgroup", "A overwritten in registers before the wait", "wgmma-race", ("wgmma.commit_group.sync.aligned; // first", "wgmma.commit_group.sync.aligned;\nadd.u32 r3, t, 0;")),
    bug("warpgroup", "A overwritten in shared memory before the wait", "race", ("wgmma.commit_group.sync.aligned; // first", "wgmma.commit_group.sync.aligned;\nmov.u32 r1, a;\nst.shared.b32 [r1], r10;")),
    bug("warpgroup", "an accumulator of another shape in its registers", "wgmma-race", ("wgmma.commit_group.sync.aligned; // first", "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {f0, f1}, d0, d1, p, 1, 1, 0, 0;\nwgmma.commit_group.sync.aligned;")),
    bug("warpgroup", "operands not fenced", "missing-proxy-fence", (FENCE + " // second", "")),
    bug("warpgroup", "operands of others not waited for", "race missing-proxy-fence", ("bar.sync 0; // second", "")),
    bug("warpgroup", "a warp that never comes", "hang", ("wgmma.fence.sync.aligned; // first", "setp.eq.u32 q, w, 3;\n@q bra gone;\nwgmma.fence.sync.aligned;"), ("cvt.rzi.u32.f32 r0, f0;", "cvt.rzi.u32.f32 r0, f0;\ngone:")),
    bug("warpgroup", "warps give different descriptors", "divergence", ("cvt.rn.f32.u32 f0, t;", "cvt.rn.f32.u32 f0, t;\ncvt.u64.u32 d2, w;\nadd.u64 d0, d0, d2;")),
    bug("warpgroup", "lanes give different descriptors", "divergence", ("cvt.rn.f32.u32 f0, t;", "cvt.rn.f32.u32 f0, t;\ncvt.u64.u32 d2, lane;\nadd.u64 d1, d1, d2;")),
    bug("warpgroup", "fewer warps than a warpgroup", "divergence", launches=(("warpgroup", 1, 96, None, False),)),
    bug("warpgroup", "reserved bits in a descriptor", "matrix-descriptor", ("cvt.rn.f32.u32 f0, t;", "cvt.rn.f32.u32 f0, t;\nor.b64 d1, d1, 0x0000c00000000000;")),
    bug("warpgroup", "exit while a product is under way", "unfinished", ("aligned 0; // second", "aligned 1;"), ("cvt.rzi.u32.f32 r0, f0;", "mov.u32 r0, t;")),
    # -- per-thread copies
    bug("gather", "copies not waited for", "race", ("cp.async.wait_group 0;", "")),
    bug("gather", "copies of others not waited for", "race uninitialized-read", ("bar.sync 0;\n", "")),
    bug("tail", "more read than there is", "out-of-bounds", ("[at], 16, r3", "[at], 16")),
]  # fmt: skip
