"""`python -m ragged_moe check parallel` runs these checks of ExpertParallel: on GPUs a process a rank,
emulated all in one.

Import this after emulated_gpu.install, if GPUs are emulated.
"""

import os
import random

import click
import torch
import torch.distributed as dist

from ragged_moe.layers.experts import experts
from ragged_moe.parallel.expert_parallel import ExpertParallel
from ragged_moe.reference import layer as d
from ragged_moe.runtime.sizes import BF16, F32, Sizes

TOLERANCE = 0.01  # of the norm: a rank's sums are rounded to bf16 before they are added
SLEEP = 1 << 20  # cycles that a rank is late, at most


def join() -> None:
    """Make this process the rank that torchrun says, on its GPU. Raises ClickException if there is none."""
    rank, here = int(os.environ.get("LOCAL_RANK", -1)), torch.cuda.device_count()
    if rank < 0:
        raise click.ClickException("start this by torchrun, with as many processes as there are GPUs")
    if rank >= here:
        raise click.ClickException(f"rank {rank} has no GPU: this machine has {here}")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))


def draw(
    ranks: int, local: int, top_k: int, tokens: int, hidden: int, generator: torch.Generator, where: str = "any",
    groups: tuple[int, int] | None = None,
):  # fmt: skip
    """hidden bf16, topk_ids int32, topk_weights f32 of a rank's tokens, on the generator's device.

    where: "any" expert; those of "one" rank; or "some", with entries that are no expert's. groups: (of how many groups
    of experts, how many a token uses), if not all.
    """
    device, everywhere = generator.device, ranks * local
    scores = torch.rand(tokens, everywhere, generator=generator, device=device)
    if groups:
        of_groups = torch.rand(tokens, groups[0], generator=generator, device=device)
        scores += torch.zeros_like(of_groups).scatter_(1, of_groups.topk(groups[1], 1).indices, 2.0).repeat_interleave(
            everywhere // groups[0], 1
        )
    if where == "one":
        scores[:, local:] -= 2
    ids = scores.topk(min(top_k, everywhere), 1).indices.int()
    if where == "some":
        ids[torch.rand(ids.shape, generator=generator, device=device) < 0.4] = -1
    x = torch.randn(tokens, hidden, generator=generator, device=device).bfloat16()
    return x, ids, torch.rand(ids.shape, generator=generator, device=device)


def weights_of(sizes: Sizes, ranks: int, device: str) -> list[tuple[torch.Tensor, ...]]:
    """(w13, w13_scale, w2, w2_scale) of each rank."""
    return [d.draw(sizes, 1, seed=rank, device=device).tensors()[4:] for rank in range(ranks)]


def single(x, ids, given, weights: list[tuple], local: int, everywhere: int) -> torch.Tensor:
    """Compute on one GPU what all ranks' experts give these tokens: ragged_moe.experts of each rank's, added in
    order."""
    total = torch.zeros(x.shape, dtype=F32, device=x.device)
    for rank, of_rank in enumerate(weights):
        total += experts(x, ids, given, *of_rank, local_expert_offset=rank * local, num_experts=everywhere)
    return total.to(BF16)


def check_on_gpus(group: dist.ProcessGroup, calls: int) -> None:
    """Call on all ranks with random sizes, one of them late, and in graphs; ClickException for what is wrong."""
    rank, ranks, device = dist.get_rank(group), dist.get_world_size(group), "cuda"
    sizes, top_k, most = Sizes(hidden=1024, intermediate=512, local=16), 8, 256
    everywhere, say = ranks * sizes.local, click.echo if rank == 0 else lambda _: None
    weights = weights_of(sizes, ranks, device)
    made = [
        ExpertParallel(group, everywhere, most, sizes.hidden, top_k, one_sided=which) for which in (True, False)
    ]
    same, rng = random.Random(0), random.Random(rank)  # of all ranks, and of this one
    generator = torch.Generator(device).manual_seed(rank)
    wrong, off = torch.zeros(1, device=device), torch.zeros(1, device=device)

    def one(bound: int, layers: list[ExpertParallel], tokens: int | None = None) -> None:
        tokens = rng.choice((0, bound, rng.randint(0, bound))) if tokens is None else tokens
        drawn = draw(ranks, sizes.local, top_k, tokens, sizes.hidden, generator, rng.choice(("any", "one", "some")))
        if same.random() < 0.25 and rank == same.randrange(ranks):
            torch.cuda._sleep(rng.randrange(SLEEP))
        outs = [layer(*drawn, *weights[rank], most=bound) for layer in layers]
        if len(outs) > 1:
            wrong.add_((outs[0].view(torch.int16) != outs[1].view(torch.int16)).sum())
            if tokens:
                expected = single(*drawn, weights, sizes.local, everywhere).float()
                distance = (outs[0].float() - expected).norm() / expected.norm().clamp(min=1e-9)
                off.copy_(torch.maximum(off, distance))

    for number in range(calls):
        bound = same.choice((1, 2, 7, 16, 40, 100, most))
        one(bound, made if number % 4 == 0 else made[:1])
    torch.cuda.synchronize()
    for x in (wrong, off):
        dist.all_reduce(x, dist.ReduceOp.MAX, group=group)
    say(f"{calls} calls of random sizes, ranks late at random: {int(wrong)} values other than the collectives', at "
        f"most {off.item():.2g} of the norm from a single GPU's")  # fmt: skip
    if wrong or off.isnan().any() or off > TOLERANCE:
        raise click.ClickException("results are wrong")

    bound = 32
    x, ids, given = draw(ranks, sizes.local, top_k, bound - rank, sizes.hidden, generator)
    expected = [layer(x, ids, given, *weights[rank], most=bound) for layer in made]
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(x)
    with torch.cuda.graph(graph):
        for _ in range(3):
            for layer in made:
                layer(x, ids, given, *weights[rank], most=bound, out=out)
    other = draw(ranks, sizes.local, top_k, bound - rank, sizes.hidden, generator)
    for _ in range(50):
        if rank == same.randrange(ranks):
            torch.cuda._sleep(rng.randrange(SLEEP))
        graph.replay()
        equal = torch.equal(out, expected[0])
    for tensor, of_other in zip((x, ids, given), other):
        tensor.copy_(of_other)
    graph.replay()
    equal &= torch.equal(out, made[0](*other, *weights[rank], most=bound))
    torch.cuda.synchronize()
    say(f"51 replays of a graph of 6 calls: {'the same bits' if equal else 'OTHER BITS'}")
    if not equal:
        raise click.ClickException("graphs give other bits")
