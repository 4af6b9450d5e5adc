"""Judge submissions to tasks of gpu-mode/reference-kernels, of which a checkout is given, and record what came out.

    git clone https://github.com/gpu-mode/reference-kernels
    python -m tests.any_task reference-kernels           # all 42 of them, about twenty minutes
    python -m tests.any_task reference-kernels vectoradd # those whose folder's name contains a word

Of each task its smallest case, or a smaller one of SPECS, is judged: the template in its folder, a submission from
tests/tasks/submissions (for NVIDIA's last two problems this repository's, for the first boards a line of LINES), which
has to pass, and the same with one edit, which has to fail. Not part of `make test`: the tasks stay in their
repository. `python -m worklog.pages` then redraws docs/any_task.md. The exit code is 1 if a right one fails or a wrong
one passes.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from evaluation import ROOT
from evaluation.tasks.estimate import size
from evaluation.tasks.folder import TaskFolder

RESULTS = ROOT / "worklog" / "results" / "any_task.json"
SUBMISSIONS = ROOT / "tests" / "tasks" / "submissions"
TEMPLATES = "submission.py", "template.py"
EDIT = re.compile(r"wrong: `(.*)` -> `(.*)`")
# Tasks for which submission.py is one -> an edit that makes it wrong
OURS = {
    "nvidia/nvfp4_group_gemm": ("cvt.rn.f16x2.f32 $0, $2, $1;", "cvt.rn.f16x2.f32 $0, $1, $2;"),
    "nvidia/nvfp4_dual_gemm": ("in (gates, ups):", "in (gates, gates):"),
}
OURS["nvidia/modal_nvfp4_dual_gemm"] = OURS["nvidia/nvfp4_dual_gemm"]
# pmpp's functions are pmpp_v2's without room for the output: the line of each, and an edit that makes it wrong
LINES = {
    "pmpp/conv2d_py": ("return torch.nn.functional.conv2d(*data)", "conv2d(*data)", "conv2d(-data[0], data[1])"),
    "pmpp/grayscale_py": ("return data @ torch.tensor([0.2989, 0.587, 0.114], device='cuda')", "0.114", "0.144"),
    "pmpp/histogram_py": ("return torch.bincount(data, minlength=256)", "data,", "data // 2,"),
    "pmpp/matmul_py": ("return data[0] @ data[1]", "data[1]", "data[1].T"),
    "pmpp/prefixsum_py": ("return data.double().cumsum(0)", "cumsum(0)", "sort()[0].cumsum(0)"),
    "pmpp/sort_py": ("return data.sort()[0]", "sort()", "sort(descending=True)"),
    "pmpp/vectoradd_py": ("return data[0] + data[1]", "+", "-"),
    "pmpp/vectorsum_py": ("return data.double().sum().float()", "data", "data[1:]"),
}
# Smaller cases than a task's own, where those need more than ten GiB or ten minutes
SPECS = {
    "amd/mla-decode": "batchsize: 4; dim: 7168; dq: 1536; prefill: 128; seed: 9247",
    "amd/moe": "dhidden: 512; dexpert: 256; nroutedexperts: 4; nsharedexperts: 1; nexpertspertoken: 4; bs: 1; "
    "seqlen: 64; seed: 9371",
}
PMPP = ("conv2d_py", "grayscale_py", "histogram_py", "matmul_py", "prefixsum_py", "sort_py", "vectoradd_py",
        "vectorsum_py")  # fmt: skip
BOARDS = {
    "pmpp_v2": PMPP,
    "nvidia": ("nvfp4_gemv", "nvfp4_gemm", "nvfp4_dual_gemm", "nvfp4_group_gemm", "modal_nvfp4_dual_gemm"),
    "bioml": ("trimul",),
    "linalg": ("cholesky_py", "eigh_py", "qr_py", "qr_v2"),
    "amd": ("fp8-mm", "identity", "mla-decode", "moe"),
    "amd_202602": ("mixed-mla", "moe-mxfp4", "mxfp4-mm"),
    "amd_distributed": ("ag-gemm", "all2all", "gemm-rs"),
    "helion": ("causal_conv1d_py", "fp8_quant_py", "gated_deltanet_chunk_fwd_h_py", "gated_deltanet_chunk_fwd_o_py",
               "gated_deltanet_recompute_w_u_py"),
    "pmpp": PMPP,
    "princeton": ("cross_entropy_py",),
}  # fmt: skip


def submissions(task: str) -> tuple[str, str, str] | None:
    """Finds what a submission to a task is written in, its text, and the wrong one's; None where there is none."""
    if task in LINES:
        line, old, new = LINES[task]
        texts = [f"import torch\n\ndef custom_kernel(data):\n    {one}\n" for one in (line, line.replace(old, new))]
        return "torch", *texts
    if task not in OURS and not (SUBMISSIONS / f"{Path(task).name}.py").exists():
        return None
    if task in OURS:
        text, (old, new), door = (ROOT / "submission.py").read_text(), OURS[task], "CuTe DSL"
    else:
        text = (SUBMISSIONS / f"{Path(task).name}.py").read_text()
        old, new = EDIT.search(text).groups()
        door = text[3:].partition(". wrong: ")[0]
    head, body = text.split('"""\n', 1)  # the edit itself is in the head
    if body.count(old) != 1:
        raise ValueError(f"{task}: '{old}' is {body.count(old)} times in its submission")
    return door, text, f'{head}"""\n{body.replace(old, new)}'


def judged(folder: Path, case: tuple, text: str) -> dict:
    """Runs `eval.py test` on a case (an option that names it): its status, its reason, and the seconds of the
    calls."""
    with tempfile.TemporaryDirectory() as scratch:
        submission, result = Path(scratch, "submission.py"), Path(scratch, "result.json")
        submission.write_text(text)
        given = "--task-dir", folder, "--submission", submission, "--json", result, *case, "--jobs", 1
        given += "--timeout", 900  # load_inline builds
        process = subprocess.run(
            [sys.executable, ROOT / "eval.py", "test", *map(str, given)], capture_output=True, text=True
        )
        if not result.exists():
            return {"status": "none", "reason": process.stderr.strip().splitlines()[-1], "seconds": 0.0}
        (row,) = json.loads(result.read_text())["cases"]
        if process.returncode != (row["status"] != "pass"):
            raise ValueError(f"{folder}: {row['status']} with exit code {process.returncode}")
        return {key: row[key] for key in ("status", "reason", "seconds")}


@click.command(help=__doc__)
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("word", default="")
def main(checkout: Path, word: str):
    bad = 0
    for task in (f"{board}/{name}" for board, names in BOARDS.items() for name in names):
        if word not in task:
            continue
        path = checkout / "problems" / task
        folder = TaskFolder.read(str(path))
        number = min(range(len(folder.tests)), key=lambda at: size(folder.tests[at].args))
        case = ("--spec", SPECS[task]) if task in SPECS else ("--case", number)
        texts = {"template": next(path / name for name in TEMPLATES if (path / name).exists()).read_text()}
        row = {"case": SPECS.get(task) or folder.tests[number].spec, "compared by": folder.tolerance(), "door": "-"}
        if found := submissions(task):
            row["door"], texts["right"], texts["wrong"] = found
        for name, text in texts.items():
            row[name] = judged(path, case, text)
            said = f"{task}, {name}: {row[name]['status']}, {row[name]['seconds']:.1f} s"
            click.echo(f"{said}  {row[name]['reason'].splitlines()[0][:120] if row[name]['reason'] else ''}")
        if found:
            bad += (row["right"]["status"], row["wrong"]["status"]) != ("pass", "fail")
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known[task] = row
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    sys.exit(min(bad, 1))


if __name__ == "__main__":
    main()
