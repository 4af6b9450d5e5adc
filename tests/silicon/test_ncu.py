"""Nsight Compute's CSV beside the model: what is compared, what is named as wrong, and what is no such CSV."""

import json
import sys

import pytest

from silicon import calibrate, ncu

# Made up, in the form that `ncu --import FILE --page details --csv` writes; rows of rules have no metric.
HEAD = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"\n'
)
METRICS = [
    ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "41.5"),
    ("GPU Speed Of Light Throughput", "Elapsed Cycles", "cycle", "12,000"),
    ("GPU Speed Of Light Throughput", "Duration", "us", "10.00"),
    ("Memory Workload Analysis", "Memory Throughput", "Tbyte/s", "2.50"),
    ("Memory Workload Analysis", "L2 Hit Rate", "%", "60.00"),
    ("Launch Statistics", "Registers Per Thread", "register/thread", "50"),
    ("Occupancy", "Achieved Occupancy", "%", "n/a"),
]


def details(kernel: str = "kernel_cutlass_kernel_0", metrics=METRICS, number: int = 0) -> str:
    place = f'"{number}","7","python3","host","{kernel}","1","7","(224, 1, 1)","(144, 1, 1)","0","10.0"'
    rows = [",".join([place, *(f'"{item}"' for item in metric), '"","",""\n']) for metric in metrics]
    return "".join([*rows, f'{place},"SpeedOfLight","","","","Bottleneck","OPT","This, among others"\n'])


def modelled(**more) -> dict:
    kernel = {"kernel": "kernel_cutlass_kernel_0", "title": "kernel", "first_us": 7.0, "hbm_bytes": 24e6}
    return {"kernels": [kernel | {"l2_hits": 0.63, "registers": 50} | more]}


def test_what_is_compared():
    (launch, kernel), *_ = ncu.pairs(ncu.read("==PROF== Connected\n" + HEAD + details()), modelled()["kernels"])
    found = {one.name: (one.measured, one.modelled) for one in ncu.figures(launch, kernel, 1.5)}
    assert found == {
        "time": (12_000, pytest.approx(10_500)), "HBM traffic": (pytest.approx(25.0), pytest.approx(24.0)),
        "L2 hits": (60.0, pytest.approx(63.0)), "registers": (50, 50),
    }  # fmt: skip


def test_what_is_wrong_is_named_the_worst_first():
    right = ncu.report(HEAD + details(), modelled(first_us=8.0), 0, 1.5)
    assert right[0] == "kernel:" and right[-1] == "  every figure is within 10 %"
    wrong = ncu.report(HEAD + details(), {"cases": [{}, modelled(first_us=4.0, l2_hits=0.75)]}, 1, 1.5)
    assert [line.split(":")[0] for line in wrong[-2:]] == [
        "  the model's time is 50 % too small", "  the model's L2 hits is 25 % too large",
    ]  # fmt: skip


def test_kernels_are_matched_by_name():
    text = HEAD + details("fill") + details("kernel_cutlass_kernel_0(int)", number=1) + details("copy", number=2)
    ((launch, _),) = ncu.pairs(ncu.read(text), modelled()["kernels"])
    assert launch["kernel"] == "kernel_cutlass_kernel_0(int)"
    with pytest.raises(ValueError, match=r"none of the card's kernels \(a, b\) is one of the model's \(kernel_cutlass"):
        ncu.pairs(ncu.read(HEAD + details("a") + details("b", number=1)), modelled()["kernels"])


def test_the_command_line(tmp_path, monkeypatch, capsys):
    """Files that fit, and one sentence for those that do not."""
    given, model = tmp_path / "details.csv", tmp_path / "model.json"
    monkeypatch.setattr(sys, "argv", ["calibrate", "--ncu", str(given), "--model", str(model)])
    model.write_text(json.dumps(modelled()))
    given.write_text(HEAD + details())
    calibrate.main()
    assert "HBM traffic" in capsys.readouterr().out
    for text, kernels, sentence in (
        ("nothing\n", modelled(), "this is no CSV of ncu's details page"),
        ('"ID","Name"\n', modelled(), "no column Kernel Name, Metric Name, Metric Unit, Metric Value"),
        (HEAD, modelled(), "it has no launch"),
        (HEAD + details(), {"error": "no time"}, "the model's report has no kernels: no time"),
        (HEAD + details(), {"cases": []}, "the model's report has no case 0: it has 0"),
    ):
        given.write_text(text)
        model.write_text(json.dumps(kernels))
        with pytest.raises(SystemExit, match=sentence):
            calibrate.main()
    monkeypatch.setattr(sys, "argv", ["calibrate", "--ncu", str(given)])
    with pytest.raises(SystemExit):
        calibrate.main()
    assert "--ncu FILE and --model FILE go together" in capsys.readouterr().err
