"""Launches on several emulated devices: they go on together, and only what the ISA says orders them."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

import emulated_gpu
from emulated_gpu import Fault, Unsupported
from emulated_gpu.chip import H200
from emulated_gpu.device import DEVICE, allocate
from emulated_gpu.model.profile import load
from tests import forked

HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"
# Every thread stores its number + `value`, then one raises the flag.
SEND = HEAD + """.visible .entry send(.param .u64 data, .param .u64 flag, .param .u32 value, .param .u32 call) {
  .reg .b64 %d, %f, %o;
  .reg .b32 %v, %t, %c;
  .reg .pred %p;
  ld.param.u64 %d, [data]; ld.param.u64 %f, [flag]; ld.param.u32 %v, [value]; ld.param.u32 %c, [call];
  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %d, %d, %o; add.u32 %v, %v, %t;
  st.global.u32 [%d], %v;
  bar.sync 0;
  setp.eq.u32 %p, %t, 0;
  FENCE;
  @%p STORE [%f], %c;
  ret;
}"""
# One thread waits for the flag, then all copy what was sent.
TAKE = HEAD + """.visible .entry take(.param .u64 data, .param .u64 flag, .param .u64 out, .param .u32 call) {
  .reg .b64 %d, %f, %o, %u;
  .reg .b32 %v, %t, %c;
  .reg .pred %p;
  ld.param.u64 %d, [data]; ld.param.u64 %f, [flag]; ld.param.u64 %u, [out]; ld.param.u32 %c, [call];
  mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.u64 %d, %d, %o; add.u64 %u, %u, %o;
  setp.ne.u32 %p, %t, 0;
  @%p bra join;
again:
  LOAD %v, [%f];
  setp.lt.u32 %p, %v, %c;
  @%p bra again;
  FENCE;
join:
  bar.sync 0;
  ld.global.u32 %v, [%d];
  st.global.u32 [%u], %v;
  ret;
}"""
STORE, LOAD = "st.release.sys.global.u32", "ld.acquire.sys.global.u32"
NUMBERS = np.arange(64, dtype=np.uint32)


@pytest.fixture(autouse=True)
def two():
    with DEVICE.as_node(2):
        yield


def zeros(count: int = 64) -> np.ndarray:
    return np.zeros(count, np.uint32)


def send(data, flag, value=5, call=1, store=STORE, fence="", device=0):
    ptx = SEND.replace("STORE", store).replace("FENCE;", fence)
    emulated_gpu.launch(ptx, "send", 1, 64, [data, flag, value, call], device=device)


def take(data, flag, out, call=1, load=LOAD, fence="", device=1):
    ptx = TAKE.replace("LOAD", load).replace("FENCE;", fence)
    emulated_gpu.launch(ptx, "take", 1, 64, [data, flag, out, call], device=device)


def passed(seed=0, taker_first=True, **how) -> np.ndarray:
    """What device 1 gets of device 0."""
    data, flag, out = zeros(), zeros(1), zeros()
    sender = {name: how[name] for name in ("store", "fence") if name in how}
    taker = {name: how["take_" + name] for name in ("load", "fence") if "take_" + name in how}
    with emulated_gpu.session(seed):
        if taker_first:  # it spins until the other device's kernel, which is called later, has come so far
            take(data, flag, out, **taker)
        send(data, flag, **sender)
        if not taker_first:
            take(data, flag, out, **taker)
    return out


def finding(kind: str, **how) -> str:
    with pytest.raises(emulated_gpu.EmulatorError) as error:
        passed(**how)
    assert error.value.kind == kind, error.value
    return str(error.value)


@pytest.mark.parametrize("seed", range(0, 12, 2))
def test_a_flag_of_the_system_orders_devices(seed):
    assert (passed(seed, taker_first=seed % 4 == 0) == NUMBERS + 5).all()


@pytest.mark.parametrize("how", [
    {"store": "red.release.sys.global.add.u32"},
    {"store": "st.relaxed.sys.global.u32", "fence": "fence.acq_rel.sys;"},
    {"store": "st.volatile.global.u32", "fence": "membar.sys;"},
    {"take_load": "ld.relaxed.sys.global.u32", "take_fence": "fence.acq_rel.sys;"},
    {"take_load": "ld.volatile.global.u32", "take_fence": "fence.sc.sys;"},
])  # fmt: skip
def test_other_ways_to_order_devices(how):
    assert (passed(**how) == NUMBERS + 5).all()


@pytest.mark.parametrize(("kind", "how"), [
    ("race", {"store": "st.relaxed.sys.global.u32"}),  # a flag without a release
    ("race", {"store": "st.relaxed.sys.global.u32", "fence": "fence.acq_rel.gpu;"}),  # or with one of its device
    ("race", {"take_load": "ld.relaxed.sys.global.u32"}),  # a flag that is not acquired
    ("race", {"take_load": "ld.relaxed.sys.global.u32", "take_fence": "fence.acq_rel.gpu;"}),
    ("race", {"take_load": "ld.global.u32"}),  # a stale read
    ("race", {"store": "st.global.u32", "fence": "fence.acq_rel.sys;"}),  # a weak flag
    ("scope", {"store": "st.release.gpu.global.u32"}),
    ("scope", {"store": "red.release.gpu.global.add.u32"}),
    ("scope", {"take_load": "ld.acquire.gpu.global.u32"}),
])  # fmt: skip
def test_what_does_not_order_devices_is_found(kind, how):
    said = finding(kind, **how)
    first, second = re.findall(r"of CTA \(0, 0, 0\), launch \d of device (\d)", said)[:2]
    assert {first, second} == {"0", "1"} and said.count("PTX line") >= 2, said


def test_within_a_device_the_scope_of_the_device_is_enough():
    data, flag, out = zeros(), zeros(1), zeros()
    with emulated_gpu.session():
        send(data, flag, store="st.release.gpu.global.u32", device=1)
        take(data, flag, out, load="ld.acquire.gpu.global.u32")
    assert (out == NUMBERS + 5).all()


@pytest.mark.parametrize("buffers", [1, 2])
@pytest.mark.parametrize("read", ["ld.global", "ld.relaxed.gpu.global", "ld.volatile.global"])
def test_a_buffer_that_is_used_again_too_early(buffers, read, monkeypatch):
    """With two of them, device 0 waits for an answer to the call before: the one before that has been read then."""
    monkeypatch.setitem(globals(), "TAKE", TAKE.replace("ld.global.u32 %v, [%d]", f"{read}.u32 %v, [%d]"))
    data, flags, outs = [zeros() for _ in range(buffers)], [zeros(1), zeros(1)], [zeros() for _ in range(4)]

    def calls():
        with emulated_gpu.session():
            for call in range(1, 5):
                send(data[call % buffers], flags[0], call * 100, call)
                take(data[call % buffers], flags[0], outs[call - 1], call)
                send(zeros(), flags[1], 0, call, device=1)
                if buffers == 2:
                    take(zeros(), flags[1], zeros(), call, device=0)
            emulated_gpu.synchronize()

    if buffers == 2:
        calls()
        assert all((out == NUMBERS + 100 * call).all() for call, out in enumerate(outs, 1))
    else:
        with pytest.raises(Fault, match="write of argument 0 .* load of warp . .* device 1 .* may still read"):
            calls()


def test_a_hang_names_who_waits_on_which_device():
    data, flag, out = zeros(), zeros(1), zeros()
    with pytest.raises(emulated_gpu.Hang) as error, emulated_gpu.session():
        take(data, flag, out, device=0)
        take(data, flag, out, device=1)
    said = str(error.value)
    looked = "spins, having looked at byte 0 of argument 1 of device 0, which no kernel has written: it is 0"
    for device in range(2):
        assert re.search(rf"warp 0 of CTA \(0, 0, 0\), launch \d of device {device} lanes 0 .* {looked}", said), said
    assert (passed() == NUMBERS + 5).all()  # and it is over


def test_a_device_that_runs_nothing_is_said():
    data, flag, out = zeros(), zeros(1), zeros()
    with pytest.raises(emulated_gpu.Hang, match="device 0 runs nothing"), emulated_gpu.session():
        take(data, flag, out, call=2)
        send(data, flag)


def test_memory_of_another_device_needs_access():
    data = zeros()
    with DEVICE.on(1):
        DEVICE.adopt(data, "data")
    message = "is in data of device 1, to which this device has no peer access"
    with pytest.raises(emulated_gpu.Fault, match=message), emulated_gpu.session():
        send(data.ctypes.data, zeros(1))
    DEVICE.enable_peer_access(1)
    with emulated_gpu.session():
        send(data.ctypes.data, zeros(1))
    assert (data == NUMBERS + 5).all()


def test_what_a_host_has_waited_for_is_in_order():
    data, outs = zeros(), [zeros(), zeros()]
    with emulated_gpu.session():
        send(data, zeros(1))
        emulated_gpu.synchronize(0)
        take(data, zeros(1), outs[0], call=0)
    assert (outs[0] == NUMBERS + 5).all()
    for launches_between in range(2):  # with one, what was sent is there, but nobody has waited for it
        with pytest.raises(Fault, match="which store of .* device 0 .* may still write"), emulated_gpu.session():
            send(data, zeros(1), 6)
            for _ in range(launches_between):
                take(zeros(), zeros(1), zeros(), call=0)
            take(data, zeros(1), outs[1], call=0)


@pytest.mark.parametrize("host_waits", [True, False])
def test_what_a_host_has_waited_for_while_the_other_device_runs(host_waits):
    """What lets device 1 go on orders nothing."""
    data, go, out = zeros(), zeros(1), zeros()

    def calls():
        with emulated_gpu.session():
            take(zeros(), go, zeros())
            send(data, zeros(1))
            if host_waits:
                emulated_gpu.synchronize(0)
            take(data, zeros(1), out, call=0)
            send(zeros(), go, store="st.relaxed.sys.global.u32")

    if host_waits:
        calls()
        assert (out == NUMBERS + 5).all()
    else:
        with pytest.raises(emulated_gpu.Fault, match="which store of .* device 0 .* may still write"):
            calls()


def test_findings_go_on_to_the_next_launch():
    data, flag, out = zeros(), zeros(1), zeros()
    with pytest.raises(emulated_gpu.EmulatorError), emulated_gpu.session(most=9) as session:
        take(data, flag, out)
        send(data, flag, store="st.relaxed.sys.global.u32")
        emulated_gpu.synchronize()
        take(data, flag, out, call=7)
        emulated_gpu.synchronize()
        raise session.errors[0]
    assert [error.kind for error in session.errors] == ["race", "hang"], session.errors


@pytest.mark.parametrize("waits_first", [False, True])
def test_a_ring_of_four_devices(waits_first):
    data, flags, outs = [zeros() for _ in range(4)], [zeros(1) for _ in range(4)], [zeros() for _ in range(4)]
    with DEVICE.as_node(4), pytest.raises(emulated_gpu.Hang) if waits_first else emulated_gpu.session(3):
        calls = [
            lambda d: send(data[(d + 1) % 4], flags[(d + 1) % 4], d, device=d),
            lambda d: take(data[d], flags[d], outs[d], device=d),
        ]
        for call in reversed(calls) if waits_first else calls:
            for device in range(4):
                call(device)
        emulated_gpu.synchronize()
    assert waits_first or all((out == NUMBERS + (device - 1) % 4).all() for device, out in enumerate(outs))


def test_launches_of_both_are_timed_together():
    """Device 1 gets the flag when device 0's fence is over and the store has come; a second call begins behind that."""
    data, flag, outs, profile = zeros(), zeros(1), [zeros(), zeros()], load("h200")
    with DEVICE.as_chip(H200), emulated_gpu.timing(profile) as timed:
        take(data, flag, outs[0])
        send(data, flag)
        take(data, flag, outs[1])
    sent, (taken, again) = timed.runs[0].launches[0], timed.runs[1].launches
    link = profile["link"]
    come = sent.start + link["fence_cycles"] + link["write_cycles"]
    assert all((out == NUMBERS + 5).all() for out in outs)
    assert come < taken.end < come + 3000 and sent.end < taken.end < again.start
    assert timed.ends_us == [profile.us(one.end) for one in (taken, sent, again)]


@pytest.mark.parametrize("waits", (False, True), ids=("at once", "when it has been waited for"))
def test_memory_that_a_device_fills_is_not_written_by_kernels_of_another_one(waits):
    """As zero_ of torch does with a signal pad."""
    data, flag = allocate(256), zeros(1)
    wrong = contextlib.nullcontext() if waits else pytest.raises(Fault, match="which a fill on device 1 may")
    with emulated_gpu.session(), wrong:
        DEVICE.adopt(data, "a signal pad")
        DEVICE.share(data)
        pad = DEVICE.region_at(data.ctypes.data, data.nbytes)
        DEVICE.peers_touch(pad, 1, data.ctypes.data + np.array([[0, 128], [128, 256]]), True, "a fill")
        if waits:
            DEVICE.synchronize(1)
        send(data, flag)
        emulated_gpu.synchronize()


def test_what_cannot_be_timed_is_refused():
    data, flag = zeros(), zeros(1)
    with pytest.raises(Unsupported, match="times of several devices: profile b200 has no figures of a link"):
        with emulated_gpu.timing("b200"):
            send(data, flag)
    with pytest.raises(emulated_gpu.Unsupported, match="times between events of several devices"):
        with emulated_gpu.session() as session:
            session.timed = []
            send(data, flag)
    with pytest.raises(emulated_gpu.Hang, match="warp 0 of CTA .* spins|waits"), emulated_gpu.timing("h200"):
        take(data, flag, zeros())


def test_a_profile_of_two_ranks(tmp_path):
    script, file = tmp_path / "ranks.py", tmp_path / "report.json"
    script.write_text(
        "import os, sys, numpy as np, emulated_gpu\n"
        f"sys.path.append({str(Path(__file__).parents[3])!r})\n"
        "from tests.emulated_gpu.machine.test_devices import SEND, STORE, zeros\n"
        "rank = int(os.environ['RANK'])\n"
        "for _ in range(1 + rank):\n"
        "    ptx = SEND.replace('STORE', STORE).replace('FENCE;', '')\n"
        "    emulated_gpu.launch(ptx, 'send', 1, 64, [zeros(), zeros(1), 5, 1], device=rank)\n"
    )
    options = "--machine", "h200", "--devices", 2, "--json", file, "--out", tmp_path / "out"
    done = forked.emulated_gpu("profile", *options, script)
    assert done.returncode == 0 and "device 1" in done.stdout, done.stdout + done.stderr
    devices = json.loads(file.read_text())["devices"]
    assert [len(device["launches"]) for device in devices] == [1, 2]
    assert (tmp_path / "out" / "device1" / "timeline.json.gz").exists()


def test_a_script_of_torchrun():
    """Two ranks of a script that is right up to its last line, where they call different collectives."""
    script = Path(__file__).with_name("two_ranks.py")
    done = forked.emulated_gpu("run", "--devices", 2, script)
    assert sorted(done.stdout.splitlines()) == ["right 0", "right 1"], done.stderr
    assert re.search(r"rank \d calls .* where rank \d calls .*: ranks of a group call the same", done.stderr)
    assert done.returncode == 1 and "emulated-gpu: 2 launches, 0 findings" in done.stderr, done.stderr
