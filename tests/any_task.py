"""Judge submissions to tasks of gpu-mode/reference-kernels, of which a checkout is given, and record what came out.

    git clone https://github.com/gpu-mode/reference-kernels
    python -m tests.any_task reference-kernels           # all of them, about ten minutes
    python -m tests.any_task reference-kernels vectoradd # those whose folder's name contains a word

Of each task its smallest case is judged: the template in its folder, a submission from tests/tasks/submissions (for
two of NVIDIA's problems this repository's), which has to pass, and the same with one edit, which has to fail. Not
part of `make test`: the tasks stay in their repository. `python -m worklog.pages` then redraws docs/any_task.md. The
exit code is 1 if a right one fails or a wrong one passes.
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
EDIT = re.compile(r"wrong: `(.*)` -> `(.*)`")
# Tasks for which submission.py is one -> an edit that makes it wrong
OURS = {
    "nvidia/nvfp4_group_gemm": ("cvt.rn.f16x2.f32 $0, $2, $1;", "cvt.rn.f16x2.f32 $0, $1, $2;"),
    "nvidia/nvfp4_dual_gemm": ("mul.f32 $0, x, $2;", "mul.f32 $0, x, $1;"),
}
BOARDS = {
    "pmpp_v2": ("conv2d_py", "grayscale_py", "histogram_py", "matmul_py", "prefixsum_py", "sort_py", "vectoradd_py",
                "vectorsum_py"),
    "nvidia": ("nvfp4_gemv", "nvfp4_gemm", "nvfp4_dual_gemm", "nvfp4_group_gemm"),
    "bioml": ("trimul",),
    "linalg": ("cholesky_py", "eigh_py", "qr_py", "qr_v2"),
    "amd": ("fp8-mm",),
    "helion": ("fp8_quant_py",),
}  # fmt: skip


def submissions(task: str) -> tuple[str, str, str]:
    """Finds what a submission to a task is written in, its text, and the wrong one's."""
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


def judged(folder: Path, case: int, text: str) -> dict:
    """Runs `eval.py test` on a case: its status, its reason, and the seconds of the calls."""
    with tempfile.TemporaryDirectory() as scratch:
        submission, result = Path(scratch, "submission.py"), Path(scratch, "result.json")
        submission.write_text(text)
        given = "--task-dir", folder, "--submission", submission, "--json", result, "--case", case, "--jobs", 1
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
        case = min(range(len(folder.tests)), key=lambda number: size(folder.tests[number].args))
        door, right, wrong = submissions(task)
        row = {"case": folder.tests[case].spec, "door": door, "compared by": folder.tolerance()}
        for name, text in (("template", (path / "submission.py").read_text()), ("right", right), ("wrong", wrong)):
            row[name] = judged(path, case, text)
            said = f"{task}, {name}: {row[name]['status']}, {row[name]['seconds']:.1f} s"
            click.echo(f"{said}  {row[name]['reason'].splitlines()[0][:120] if row[name]['reason'] else ''}")
        bad += (row["right"]["status"], row["wrong"]["status"]) != ("pass", "fail")
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        known[task] = row
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    sys.exit(min(bad, 1))


if __name__ == "__main__":
    main()
