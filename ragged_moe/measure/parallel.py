"""`torchrun --nproc-per-node 2 -m ragged_moe bench parallel --json FILE` times ExpertParallel on the GPUs of
this host.

Contestants: ours by one-sided stores and by collectives; DeepGEMM's mega MoE (sgl-deep-gemm 0.1.4.post1), where it is
installed; and ragged_moe.experts on each GPU alone, for the tokens that all ranks send it: the same rows, no
communication. A timing is CALLS calls back to back, after a fill that flushes L2 and a barrier that lets all GPUs begin
together; that of the slowest rank; the median of --repeats timings, contestants in random order each time. Calls go
round several sets of tokens, whose experts are drawn at random from all, with the same weights: DeepSeek-V3's sizes, 32
experts a rank, or
--experts of the whole layer, a token's in 4 of 8 groups. Ranks of a parallel layer wait for the slower one in each
call, a GPU alone does not: "slowest of each call" is the mean over the sets of what the slowest rank alone takes.
"""

import functools
import json
import random
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import click
import torch
import torch.distributed as dist

from ragged_moe.checks.parallel import draw, join
from ragged_moe.layers.experts import experts as experts_of_one_gpu
from ragged_moe.measure import timing
from ragged_moe.measure.contest import GRAPH, Contest, Contestant
from ragged_moe.measure.markdown import markdown
from ragged_moe.measure.timing import CALLS, captured, record
from ragged_moe.parallel.expert_parallel import ExpertParallel
from ragged_moe.reference import layer as d
from ragged_moe.runtime.sizes import BF16, Sizes

TOKENS = (1, 8, 16, 64, 128, 512, 2048)
TOP_K = 8
STAGE = re.compile(r"moekernels(dispatch|assign|permute|frame|combine)")  # in a kernel's name
ONE_SIDED, SINGLE, MEGA = "one-sided", "single GPU, same rows", "DeepGEMM mega MoE"
SLOWEST = "slowest of each call"


def elapsed(calls: list[Callable], fill: torch.Tensor, value: int) -> float:
    """Microseconds that these calls take back to back on the slowest rank, all having begun together."""
    us = timing.elapsed(calls, fill, value, lambda: dist.all_reduce(torch.ones(1, device="cuda")))
    slowest = torch.tensor([us], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.item()


class MegaMoe:
    """DeepGEMM's mega MoE for these weights, W13 gate first, up to this many tokens. ImportError if not installed."""

    def __init__(self, group: dist.ProcessGroup, num_experts: int, tokens: int, sizes: Sizes, weights: tuple):
        import deep_gemm

        self.deep_gemm = deep_gemm
        of = group, num_experts, tokens, TOP_K, sizes.hidden, sizes.intermediate
        self.buffer = deep_gemm.get_symm_buffer_for_mega_moe(*of, use_fp8_dispatch=True)
        self.weights = deep_gemm.transform_weights_for_mega_moe_sm90(weights[:2], weights[2:])

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, given: torch.Tensor, out: torch.Tensor) -> None:
        b = self.buffer
        self.deep_gemm.mega_moe_pre_dispatch_sm90(
            x, ids, given, b.x, b.x_sf, b.topk_idx, b.topk_weights, x.shape[0]
        )  # fmt: skip
        self.deep_gemm.fp8_mega_moe(out, *self.weights, b)


def everybodys(x: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, one behind the other."""
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x)
    return torch.cat(found)


def timeline(calls: Callable, keep: slice) -> list[dict]:
    """When each kernel of our layer's `calls` ran on each rank, in us: of those calls that are to be kept.

    Of each rank by a clock of its own; they are taken to read the same, on average, when `combine` ends.
    """
    for _ in range(3):
        calls()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        calls()
        torch.cuda.synchronize()
    mine = [(x.name, x.time_range.start, x.time_range.end) for x in profile.events()]
    of_ranks: list[list[tuple]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_ranks, mine)
    return in_common([of_calls(x)[keep] for x in of_ranks])


def of_calls(events: list[tuple[str, float, float]]) -> list[list[dict]]:
    """The stages of each call of our layer among a rank's kernels."""
    made: list[list[dict]] = []
    for name, start, end in sorted(events, key=lambda x: x[1]):
        found = STAGE.search(name)
        if found and found[1] == "dispatch":
            made.append([])
        if found:
            second = any(x["stage"] == "GEMM1" for x in made[-1])
            stage = f"GEMM{1 + second}" if found[1] == "frame" else found[1]
            made[-1].append({"stage": stage, "start": start, "end": end})
    return made


def in_common(of_ranks: list[list[list[dict]]]) -> list[dict]:
    """One list of the calls' stages on all ranks, beginning at 0."""
    rows = []
    for rank, calls in enumerate(of_ranks):
        meet = statistics.mean(x["end"] for call in calls for x in call if x["stage"] == "combine")
        for i, call in enumerate(calls):
            rows += [{"rank": rank, "call": i} | x | {k: x[k] - meet for k in ("start", "end")} for x in call]
    first = min(x["start"] for x in rows)
    return [x | {k: round(x[k] - first, 1) for k in ("start", "end")} for x in rows]


def measure(
    tokens: int, sizes: Sizes, weights: tuple, repeats: int, rng: random.Random, seed: int,
    groups: tuple[int, int] | None, traced: bool,
) -> dict:  # fmt: skip
    """Time all contestants with this many tokens a rank; return the row of the results."""
    group, rank, ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    everywhere = ranks * sizes.local
    generator = torch.Generator("cuda").manual_seed(1000 * seed + rank)
    sets = [
        draw(ranks, sizes.local, TOP_K, tokens, sizes.hidden, generator, groups=groups)
        for _ in range(3 if tokens > 900 else 12)
    ]
    contest = Contest({"T": tokens})

    def written(layer: Callable, like: str | None = None) -> list[Contestant]:
        """Return the calls of a layer, given tokens, their experts, weights and where to write."""
        outs = [torch.empty(tokens, sizes.hidden, dtype=BF16, device="cuda") for _ in sets]
        return [Contestant(functools.partial(layer, *s, out), lambda out=out: out, like) for s, out in zip(sets, outs)]

    def of_ours(one_sided: bool) -> Callable:
        options = {"one_sided": one_sided, "gate_first": True, "timeout": 20}
        layer = ExpertParallel(group, everywhere, tokens, sizes.hidden, TOP_K, **options)
        return lambda x, ids, given, out: layer(x, ids, given, *weights, out=out)

    contest.add([{ONE_SIDED: x} for x in written(of_ours(True))])
    contest.add([{"collectives": x} for x in written(of_ours(False), ONE_SIDED)])
    sums = torch.empty(ranks * tokens, sizes.hidden, dtype=BF16, device="cuda")
    of = {"local_expert_offset": rank * sizes.local, "num_experts": everywhere, "gate_first": True, "out": sums}
    alone = [functools.partial(experts_of_one_gpu, *map(everybodys, s), *weights, **of) for s in sets]
    contest.add([{SINGLE: Contestant(call)} for call in alone])
    contest.admit(MEGA, lambda: written(MegaMoe(group, everywhere, tokens, sizes, weights), ONE_SIDED))
    timed = contest.calls
    for name, calls in list(timed.items()):
        try:
            timed[name + GRAPH] = captured(calls)
        except Exception as error:
            contest.refused[name + GRAPH] = f"{type(error).__name__}: {error}"[:300]
    of_set = [f"{SINGLE}, set {i}" for i in range(len(sets))]
    for name, call in zip(of_set, alone):
        timed[name] = captured([call] * CALLS)
    contest.time(repeats, rng, elapsed)
    row = contest.row()
    us = row["us"]
    slowest = [us.pop(name) for name in of_set]
    us[SLOWEST + GRAPH] = statistics.mean(slowest[i % len(sets)] for i in range(CALLS))
    if traced:
        row["timeline"] = timeline(timed[ONE_SIDED + GRAPH][0], slice(CALLS // 2, CALLS // 2 + 2))
    return row


def table(rows: list[dict], mode: str = GRAPH) -> str:
    """Return a table in markdown; times are in microseconds."""
    names = list(dict.fromkeys(name.removesuffix(GRAPH) for x in rows for name in x["us"]))
    body = [[str(x["T"]), *(f"{x['us'][n + mode]:.1f}" if n + mode in x["us"] else "" for n in names)] for x in rows]
    return markdown(["tokens a rank", *names], body)


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the results there.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Timings, of 15 calls each.")
@click.option("--tokens", default=",".join(map(str, TOKENS)), show_default=True, help="Tokens of each rank.")
@click.option("--local", type=click.IntRange(1), default=32, show_default=True, help="Experts of each rank.")
@click.option("--experts", type=click.IntRange(1), help="Of all ranks, in 8 groups, of which a token uses 4.")
@click.option("--trace", type=int, help="This many tokens: when each kernel ran, on each rank, goes to the results.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of tokens, and of the order of contestants.")
def main(
    file: Path | None, repeats: int, tokens: str, local: int, experts: int | None, trace: int | None,
    seed: int,
) -> None:  # fmt: skip
    """Time expert parallelism, and the peers that are installed, on the GPUs that torchrun gave."""
    join()
    if experts:
        local = experts // dist.get_world_size()
    groups = (8, 4) if experts else None
    sizes, rows, rng = Sizes(local=local), [], random.Random(seed)
    weights = d.draw(sizes, 1, seed=dist.get_rank(), device="cuda").tensors()[4:]
    for count in map(int, tokens.split(",")):
        rows.append(measure(count, sizes, weights, repeats, rng, seed, groups, count == trace))
        torch.cuda.empty_cache()
        result = record(repeats, rows, ranks=dist.get_world_size(), local=local)
        if dist.get_rank() == 0:
            click.echo(table(rows[-1:]).splitlines()[-1] + f"  {rows[-1]['difference']} {rows[-1]['refused']}")
            if file:
                file.write_text(json.dumps(result, indent=1) + "\n")
    if dist.get_rank() == 0:
        for mode in (GRAPH, ""):
            click.echo(f"\n{result['ranks']} x {result['gpu']}, us{mode or ', as called'}\n\n{table(rows, mode)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
