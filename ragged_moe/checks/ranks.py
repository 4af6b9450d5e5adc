"""What each rank of `python -m ragged_moe check parallel --emulated` runs, under `python -m emulated_gpu run
--devices N`.

Calls of ExpertParallel one behind the other, in buffers that all of them use; the emulator looks for races between GPUs
meanwhile. Results are the reference's; what each rank prints of them is the same under every schedule.
"""

import hashlib
import os
from collections.abc import Callable

import click
import torch
import torch.distributed as dist

from ragged_moe.checks.emulated_ranks import FAULTS
from ragged_moe.checks.layer import close
from ragged_moe.checks.parallel import draw, weights_of
from ragged_moe.kernels import combine, dispatch, exchange, program
from ragged_moe.kernels.ptx import ptx_if, select
from ragged_moe.parallel.expert_parallel import ExpertParallel
from ragged_moe.reference.experts import experts
from ragged_moe.reference.layer import distance, quantised
from ragged_moe.runtime.device import gpu
from ragged_moe.runtime.sizes import Sizes

SIZES = Sizes(hidden=128, intermediate=128, local=2)  # of a rank
TOP_K, MOST, SMS = 2, 4, 2
Tokens = Callable[[int, int], int]  # of a rank of this many
CALLS: list[tuple[str, Tokens, str]] = [  # the tokens of a rank, and whose experts they have
    ("uneven", lambda rank, ranks: (3 + 2 * rank) % (MOST + 1), "any"),
    ("some entries nobody's", lambda rank, ranks: MOST - rank % 2, "some"),
    ("all to one rank's experts", lambda rank, ranks: 1 + rank % 3, "one"),
    ("one rank's alone", lambda rank, ranks: MOST * (rank == ranks - 1), "any"),
    ("none anywhere", lambda rank, ranks: 0, "any"),
    ("as many as can be", lambda rank, ranks: MOST, "any"),
]
TIMEOUT, SOON = 0.05, 2e-5  # seconds that ranks wait for each other, and for one that is lost
LOST = "has ended", "is late"  # what becomes of the last rank, instead of a second call


def unreleased(module, name: str) -> None:
    """Let a store that releases be relaxed."""
    setattr(module, name, lambda address, x, condition: ptx_if(
        condition, "st.relaxed.sys.global.b32 [$0], $1;", "l,r", address, x
    ))  # fmt: skip


def elsewhere(ids, wide: bool, entry, wanted, local, ranks: int, owner=exchange.owner):
    """`exchange.owner` that names the next rank."""
    rank, expert = owner(ids, wide, entry, wanted, local, ranks)
    return select(rank < 0, rank, select(rank + 1 < ranks, rank + 1, 0)), expert


PLANT: dict[str, Callable[[], None]] = {
    "tokens without release": lambda: setattr(dispatch, "fence_system", lambda: None),
    "sums without release": lambda: unreleased(combine, "store_release_system"),
    "a window written again too early": lambda: setattr(dispatch.Dispatch, "await_freed", lambda *_: None),
    "a wrong rank": lambda: setattr(exchange, "owner", elsewhere),
}
assert set(FAULTS) == set(PLANT) | {f"a rank that {how}" for how in LOST}


def prepare(rank: int) -> None:
    """Use this rank's GPU, a small part of it, with programs that one rank compiles for all."""
    torch.cuda.set_device(rank)
    gpu(torch.device("cuda", rank)).sms = SMS  # CTAs for all SMs would take long
    if not hasattr(program.compiled, "made"):
        compile_, made = program.compiled, {}

        def compiled(host, variant: str, pointer):
            key = type(host), variant
            if key not in made:
                made[key] = compile_(host, variant, pointer)
            return made[key]

        compiled.made, program.compiled = made, compiled


def expected(drawn: tuple, weights: list[tuple], local: int) -> torch.Tensor:
    """Compute what one GPU with all experts would give, rounded as the ranks round."""
    x, ids, given = drawn
    parts = [experts(*quantised(x.float()), ids, given, *of, r * local) for r, of in enumerate(weights)]
    return sum(part.bfloat16().float() for part in parts).bfloat16()


class Rank:
    """This rank's calls of one layer for this many experts of a token."""

    def __init__(self, top_k: int = TOP_K, sizes: Sizes = SIZES, timeout: float = TIMEOUT):
        self.rank, self.ranks, self.sizes, self.top_k = dist.get_rank(), dist.get_world_size(), sizes, top_k
        self.weights = weights_of(sizes, self.ranks, "cpu")
        self.own = [x.cuda() for x in self.weights[self.rank]]
        self.layer = ExpertParallel(
            dist.group.WORLD, self.ranks * sizes.local, MOST, sizes.hidden, top_k, one_sided=True, timeout=timeout
        )

    def call(self, seed: int, tokens: Tokens, where: str) -> tuple[tuple, torch.Tensor]:
        """(what is drawn by this seed, the result), which nobody has waited for."""
        generator = torch.Generator().manual_seed(1000 * seed + self.rank)
        count = tokens(self.rank, self.ranks)
        drawn = draw(self.ranks, self.sizes.local, self.top_k, count, self.sizes.hidden, generator, where)
        return drawn, self.layer(*(x.cuda() for x in drawn), *self.own)

    def compare(self, name: str, drawn: tuple, found: torch.Tensor) -> None:
        """SystemExit if a result is wrong."""
        must = expected(drawn, self.weights, self.sizes.local)
        off = distance(found, must) if len(must) else 0.0
        values = int((drawn[1] >= 0).sum()) * self.sizes.intermediate
        if found.shape != must.shape or not off <= close(values):
            raise SystemExit(f"rank {self.rank}, {name}: {off:.3g} of the norm from the reference")

    def run(self, calls: list[tuple[str, Tokens, str]]) -> str:
        """Make these calls; return a digest of all results. SystemExit for what is wrong."""
        made = [(name, *self.call(i, tokens, where)) for i, (name, tokens, where) in enumerate(calls)]
        digest = hashlib.blake2b(digest_size=8)
        for name, drawn, out in made:
            found = out.cpu()
            self.compare(name, drawn, found)
            digest.update(found.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def lose(self, how: str) -> None:
        """Lose the last rank before a call; RuntimeError, or SystemExit, with what the layer says on the others."""
        path = self.layer.path
        path.seconds, path.patience = SOON, round(SOON * 1e9)  # nothing is slow any more
        if self.rank == self.ranks - 1:
            if how == "has ended":
                return
            dist.barrier()
        try:
            self.call(1, CALLS[0][1], "any")[1].cpu()
        except Exception:
            self.layer.check()
            raise
        raise SystemExit(f"rank {self.rank} waits for nobody")


@click.command()
@click.option("--top-k", type=click.IntRange(0), default=0, help="Instead, layers for 1 up to this many experts.")
@click.option("--fault", type=click.Choice(list(FAULTS)), help="What to plant.")
def main(top_k: int, fault: str | None) -> None:
    """Check expert parallelism as one of the ranks that the emulator started."""
    rank = int(os.environ["LOCAL_RANK"])
    if fault in PLANT and rank == 0:  # which runs first, and compiles for all
        PLANT[fault]()
    prepare(rank)
    dist.init_process_group("nccl")
    if fault and fault not in PLANT:
        made = Rank()
        made.run(CALLS[:1])
        made.lose(fault.removeprefix("a rank that "))
    elif not top_k:
        click.echo(f"rank {rank} has {Rank().run(CALLS)}")
    for k in range(1, top_k + 1):
        local = -(-top_k // dist.get_world_size())
        Rank(k, Sizes(SIZES.hidden, SIZES.intermediate, local)).run(CALLS[:2])


if __name__ == "__main__":
    main(standalone_mode=False)
