"""Runs peers' own tests with ragged_moe's functions in their kernels' place: python -m ragged_moe check peers

DIR is what the peer publishes: vLLM's source distribution, a checkout of FlashInfer's repository, or SGLang's wheel,
unpacked, which has no such tests: a layer of ours runs in its MoeRunner. Nothing of it has to be built or installed;
pytest has to be. A row a test function says what came of it (PEERS.md). The files of DIR run
with your rights: read them first.

On a Hopper or Blackwell GPU if there is one, else on an emulated one, where tests of large sizes are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch

SUITE = Path(__file__).parents[1] / "checks" / "peers" / "suite.py"
MOST, SECONDS = 2**26, 120  # of a test on an emulated GPU: the product of its sizes, and how long it may take
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.option("--vllm", type=FOLDER, metavar="DIR", help="Where vLLM's sources lie, vllm/ and tests/.")
@click.option("--flashinfer", type=FOLDER, metavar="DIR", help="Where FlashInfer's lie, flashinfer/ and tests/.")
@click.option("--sglang", type=FOLDER, metavar="DIR", help="Where SGLang's wheel was unpacked, sglang/.")
@click.option("--emulated", type=click.Choice(["h200", "b200"]), help="This GPU instead of a real one.")
@click.option("--each", type=click.IntRange(1), default=2, show_default=True, help="Parameters of a function to run.")
@click.option("--only", default="", metavar="EXPRESSION", help="Those tests alone, as of pytest's -k.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write all rows there.")
def main(
    vllm: Path | None, flashinfer: Path | None, sglang: Path | None, emulated: str | None, each: int, only: str,
    file: Path | None,
) -> None:  # fmt: skip
    """Run peers' tests, and print what came of those that were applicable. Exits with 1 if one failed."""
    given = {"vllm": vllm, "flashinfer": flashinfer, "sglang": sglang}
    peers = {name: path for name, path in given.items() if path}
    if not peers:
        raise click.UsageError("nothing to run: give --vllm, --flashinfer or --sglang")
    on_gpu = torch.cuda.is_available() and not emulated
    rows = []
    for peer, path in peers.items():
        rows += [{"peer": peer} | row for row in run_tests(peer, path.resolve(), None if on_gpu else emulated or "h200",
                                                     (str(each), only))]  # fmt: skip
    for row in rows:
        if row["outcome"] != "not applicable":
            click.echo(f"{row['outcome']:8} {row['peer']} {row['test']} {row['run']} of {row['of']}: {row['why']}")
    counts = [f"{sum(x['outcome'] == y for x in rows)} {y}" for y in ("passes", "fails", "refused", "not applicable")]
    click.echo(f"{len(rows)} test functions: {', '.join(counts)}")
    if file:
        file.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(int(any(row["outcome"] == "fails" for row in rows)))


def run_tests(peer: str, sources: Path, machine: str | None, asked: tuple[str, str]) -> list[dict]:
    """Run a peer's tests in a process of its own; return its table. machine: the emulated one, None a GPU."""
    on = [sys.executable]
    if machine:
        on += ["-m", "emulated_gpu", "run", "--machine", machine]
    most, seconds = (MOST, SECONDS) if machine else (0, 10 * SECONDS)
    with tempfile.TemporaryDirectory(prefix="ragged-moe-peers-") as folder:
        table = Path(folder) / "table.json"
        options = ["--each", asked[0], "--only", asked[1], "--most", str(most), "--seconds", str(seconds)]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        command = [*on, str(SUITE), peer, str(sources), *options, "--table", str(table)]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=False)
        if not table.exists():
            raise click.ClickException(f"{peer}'s tests ended before their table was written")
        return json.loads(table.read_text())
