"""Chooses each token's experts from a router's logits: a warp a token, a lane consecutive experts.

    scores   softmax, sigmoid or sqrt(softplus) of the logits, in f32
    keys     what experts are chosen by: score + bias, or without a bias the logit, which orders them as scores do
    groups   of the keys: the sum of the two largest with a bias, else the largest; those outside of the best are out
    choice   top_k maxima over the warp, of equals the lowest expert ──► topk_ids, topk_weights

Scores grow with logits, so that choosing by logits also tells apart those whose scores are rounded to the same number.
"""

import dataclasses

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from ragged_moe.kernels.host import own_place, words_and_launch
from ragged_moe.kernels.ptx import (
    as_float,
    as_int,
    follow_previous_kernel,
    load_global_bfloat,
    load_global_float,
    maximum,
    minimum,
    select,
    select_float,
    store_global_word,
)
from ragged_moe.kernels.routing import LOWEST, key_of, value_of

WARPS = 4
THREADS = 32 * WARPS

WORDS = 7


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a router chooses top_k of its experts, those of top_groups of its groups.

    bias: whether one is added to the scores for the choice. bf16_logits, bf16_bias: else they are f32. With several
    groups, experts are a multiple of 32, and the groups a power of two up to 32: each is that of whole lanes. A group
    has two experts at least.
    """

    experts: int
    top_k: int
    scoring: str
    renormalize: bool
    groups: int = 1
    top_groups: int = 1
    bias: bool = False
    bf16_logits: bool = False
    bf16_bias: bool = False


class Router:
    """The kernel writes topk_ids and topk_weights: ragged_moe.reference.router.route.

    Its words: addresses of logits [T, experts], bias [experts], topk_ids int32 [T, top_k], topk_weights f32 [T, top_k];
    T; bits of the factor; CUDA stream.
    """

    def __init__(self, choice: Choice):
        self.choice, self.own = choice, -(-choice.experts // 32)

    @cute.jit
    def __call__(self, host: cute.Pointer):
        (*addresses, tokens, factor), launch = words_and_launch(host, WORDS)
        ctas = (Int32(tokens) + (WARPS - 1)) // WARPS
        launch(self.kernel(*addresses, Int32(tokens), Int32(factor)), ctas, THREADS)

    @cute.kernel
    def kernel(self, logits: Int64, bias: Int64, ids: Int64, weights: Int64, tokens: Int32, factor: Int32):
        warp, lane, block, _ = own_place()
        token = block * WARPS + warp
        follow_previous_kernel()
        if token < tokens:
            self.choose(logits, bias, ids, weights, token, as_float(factor), lane)

    def choose(self, logits, bias, ids, weights, token, factor, lane) -> None:
        """Choose one token's experts in a warp, and write them."""
        of, own = self.choice, self.own
        experts = [lane * own + i for i in range(own)]
        there = [select(expert < of.experts, 1, 0) for expert in experts]
        load = load_global_bfloat if of.bf16_logits else load_global_float
        size, row = 2 if of.bf16_logits else 4, Int64(token) * of.experts
        x = [load(logits + (row + Int64(e)) * size, y) for e, y in zip(experts, there)]
        scores = self.scores(x, there)
        keys = [key_of(select_float(v == 0.0, 0.0, v)) for v in x]  # -0 is 0
        if of.bias:
            load, size = (load_global_bfloat, 2) if of.bf16_bias else (load_global_float, 4)
            keys = [key_of(s + load(bias + Int64(e) * size, y)) for s, e, y in zip(scores, experts, there)]
        keys = [select(y != 0, key, LOWEST) for key, y in zip(keys, there)]
        if of.top_groups < of.groups:
            kept = self.is_kept(keys, lane)
            keys = [select(kept, key, LOWEST) for key in keys]

        expert, score, total = Int32(0), Float32(0.0), Float32(0.0)  # lane j has the j-th choice
        for j in range(of.top_k):
            best, which, own_score = keys[0], Int32(0), scores[0]
            for i in range(1, own):
                better = keys[i] > best
                which, own_score = select(better, i, which), select_float(better, scores[i], own_score)
                best = maximum(best, keys[i])
            winners = cute.arch.vote_ballot_sync(best == cute.arch.warp_redux_sync(best, "max"))
            winner = cute.arch.popc((winners & -winners) - 1)
            chosen = cute.arch.shuffle_sync(lane * own + which, winner)
            its_score = cute.arch.shuffle_sync(own_score, winner)
            keys = [select((winner == lane) & (which == i), LOWEST, key) for i, key in enumerate(keys)]
            expert, score = select(lane == j, chosen, expert), select_float(lane == j, its_score, score)
            total = total + its_score
        if of.renormalize:
            score = score / (total + Float32(1e-20))
        at, mine = (Int64(token) * of.top_k + Int64(lane)) * 4, select(lane < of.top_k, 1, 0)
        store_global_word(ids + at, expert, mine)
        store_global_word(weights + at, as_int(score * factor), mine)

    def scores(self, x: list[Float32], there: list[Int32]) -> list[Float32]:
        """Return the scores of a lane's logits; the scores of missing ones are undefined."""
        if self.choice.scoring == "sigmoid":
            return [Float32(1.0) / (Float32(1.0) + cute.math.exp(-v)) for v in x]
        if self.choice.scoring == "sqrtsoftplus":
            return [cute.math.sqrt(softplus(v)) for v in x]
        most = Int32(LOWEST)
        for v, y in zip(x, there):
            most = maximum(most, select(y != 0, key_of(v), LOWEST))
        largest = value_of(cute.arch.warp_redux_sync(most, "max"))
        powers = [select_float(y != 0, cute.math.exp(v - largest), 0.0) for v, y in zip(x, there)]
        total = Float32(0.0)
        for power in powers:
            total = total + power
        for step in (1, 2, 4, 8, 16):
            total = total + cute.arch.shuffle_sync_bfly(total, step)
        return [power / total for power in powers]

    def is_kept(self, keys: list[Int32], lane: Int32):
        """Return whether the group of this lane's experts is one of the best."""
        of = self.choice
        lanes = 32 // of.groups
        high, low = Int32(LOWEST), Int32(LOWEST)  # the group's two largest
        for key in keys:
            low = maximum(low, minimum(high, key))
            high = maximum(high, key)
        for step in [1 << i for i in range(5) if 1 << i < lanes]:
            other_high = cute.arch.shuffle_sync_bfly(high, step)
            other_low = cute.arch.shuffle_sync_bfly(low, step)
            low = maximum(maximum(low, other_low), minimum(high, other_high))
            high = maximum(high, other_high)
        score = key_of(value_of(high) + value_of(low)) if of.bias else high
        rank, group = Int32(0), lane // lanes
        for g in range(of.groups):
            other = cute.arch.shuffle_sync(score, g * lanes)
            rank = rank + select((other > score) | ((other == score) & (group > g)), 1, 0)
        return rank < of.top_groups


def softplus(x: Float32) -> Float32:
    """Return log(1 + exp(x)), to some units in the last place for every x.

    It is max(x, 0) + log(1 + y), y = exp(-|x|); log(1 + y) = 2 atanh(z), z = y / (2 + y) <= 1/3, whose series' first
    eight terms leave 2e-9 of it.
    """
    y = cute.math.exp(Float32(-cute.math.absf(x)))
    z = y / (Float32(2.0) + y)
    square, sum = z * z, Float32(1 / 15)
    for n in range(13, 0, -2):
        sum = sum * square + Float32(1 / n)
    return Float32(cute.arch.fmax(x, Float32(0.0)) + 2.0 * z * sum)
