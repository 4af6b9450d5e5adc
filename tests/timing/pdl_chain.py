"""How the launches of a PDL chain follow each other on one SM: from a CTA's end to the next CTA's start and its wait.

    cd tests && python3 -m timing.pdl_chain           on an H200
    python -m tests.timing.pdl_chain                  on the model, profile h200

Each of 8 launches has a CTA on every SM, whose shared memory leaves no room for a second one. A CTA releases the next
launch at once, executes griddepcontrol.wait, spins, and stores its clocks: nothing but the launch itself takes time.
"""

MEASURED = {  # CTAs per cluster -> cycles from end to start and from start to the return of the wait: median (min, max)
    1: ("348 (264, 448)", "693 (544, 821)"),
    2: ("628 (322, 893)", "405 (156, 772)"),
}  # NVIDIA H200, driver 580.159.04, 1980 MHz, 2026-11-21
LAUNCHES, SMS, THREADS, SHARED, SPIN = 8, 132, 352, 200 << 10, 6000

PTX = """.version 8.8
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel(.param .u64 out)
{
  .reg .pred p; .reg .b32 r<4>; .reg .b64 start, passed, stop, spent, sm, at;
  mov.u64 start, %clock64;
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
  mov.u64 passed, %clock64;
SPIN: mov.u64 stop, %clock64; sub.u64 spent, stop, passed; setp.lt.u64 p, spent, 6000; @p bra SPIN;
  mov.u32 r1, %tid.x; setp.ne.u32 p, r1, 0; @p bra DONE;
  mov.u32 r2, %ctaid.x; mov.u32 r3, %smid; cvt.u64.u32 sm, r3;
  ld.param.u64 at, [out]; mad.wide.u32 at, r2, 32, at;
  st.global.v2.u64 [at], {start, passed};
  mov.u64 stop, %clock64;
  st.global.v2.u64 [at+16], {stop, sm};
DONE: ret;
}
"""


def readings(clocks) -> tuple[str, str]:
    """Median (min, max) of the two distances of clocks [LAUNCHES, SMS, (start, passed, stop, SM)]."""
    import numpy as np

    to_start, to_pass = [], []
    for before, now in zip(clocks[1:-1], clocks[2:]):
        stop = {sm: stop for _, _, stop, sm in before.tolist()}
        to_start += [start - stop[sm] for start, _, _, sm in now.tolist()]
        to_pass += [passed - start for start, passed, _, _ in now.tolist()]
    return tuple(f"{np.median(x):.0f} ({min(x)}, {max(x)})" for x in (to_start, to_pass))


def on_the_card(cluster: int):
    """Clocks that an H200 gives."""
    import ctypes

    import numpy as np
    from golden.run_on_gpu import (
        CLUSTER_DIMENSION,
        MAX_DYNAMIC_SHARED,
        PROGRAMMATIC_SERIALIZATION,
        Attribute,
        LaunchConfig,
    )

    from .run_on_gpu import TimingGpu

    gpu, module, function = TimingGpu(), ctypes.c_void_p(), ctypes.c_void_p()
    gpu.call("cuModuleLoadData", ctypes.byref(module), PTX.encode() + b"\0")
    gpu.call("cuModuleGetFunction", ctypes.byref(function), module, b"kernel")
    gpu.call("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, SHARED)
    nbytes, keep = LAUNCHES * SMS * 32, []
    results = gpu.allocate(nbytes)
    three = ctypes.c_uint * 3
    for _ in range(2):  # the first time meets cold caches
        gpu.spin()
        for i in range(LAUNCHES):
            out = ctypes.c_uint64(results + i * SMS * 32)
            arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
            values = {PROGRAMMATIC_SERIALIZATION: (1,), CLUSTER_DIMENSION: (cluster, 1, 1)}
            attributes = (Attribute * 2)(*(Attribute(k, 0, (ctypes.c_uint32 * 16)(*v)) for k, v in values.items()))
            config = LaunchConfig(three(SMS, 1, 1), three(THREADS, 1, 1), SHARED, gpu.queue, attributes, 2)
            keep.append((out, arguments, attributes, config))
            gpu.call("cuLaunchKernelEx", ctypes.byref(config), function, arguments, None)
        gpu.sync()
    return gpu.read(results, nbytes).view(np.uint64).reshape(LAUNCHES, SMS, 4).astype(np.int64)


def on_the_model(cluster: int):
    """Clocks that the timing model gives."""
    import numpy as np

    import emulator
    from emulator.device import DEVICE, allocate
    from emulator.profile import load

    outputs = [allocate(SMS * 32) for _ in range(LAUNCHES)]
    with emulator.timing(load("h200")):
        for out in outputs:
            out[:] = 0
            DEVICE.adopt(out, "clocks")
            emulator.launch(PTX, "kernel", SMS, THREADS, [out], cluster=cluster, shared=SHARED, pdl=True)
    return np.array([out.view(np.uint64).reshape(SMS, 4) for out in outputs]).astype(np.int64)


if __name__ == "__main__":
    clocks_of = on_the_model if __package__ == "tests.timing" else on_the_card
    for cluster, measured in MEASURED.items():
        found = readings(clocks_of(cluster))
        print(f"clusters of {cluster}: end to start {found[0]}, start to wait {found[1]}; recorded {measured}")
