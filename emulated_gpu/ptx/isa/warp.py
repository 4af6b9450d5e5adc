"""Instructions that look across the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13.1, 9.7.13.9-9.7.13.14)."""

from __future__ import annotations

from ..syntax import SINK, Imm
from .registry import is_signed, op, pair, width

# Costs: measured (chain/shfl, latency/elect). No measurement: vote and activemask as elect, match and redux as shfl;
# the guide has fewer results of those two. barrier.warp.sync as a vote: it waits for lanes, not for warps.


def _members(w, operand) -> tuple[str, str]:
    """Wait for the lanes of a member mask; returns the mask, and how it is told to what lanes of each mask do apart."""
    members = w.read(operand, 32)
    w.wait_unless(f"g.converged({members})")
    return members, "" if isinstance(operand, Imm) else f", members={members}"


@op("shfl.sync", cost="shuffle", dst=1, blocking=True, collective=True)
def _shfl(w, i, m):
    mode = m.one_of("up", "down", "bfly", "idx")
    m.type()
    a, b, c, members = (w.read(o, 32) for o in i.operands[1:5])
    w.wait_unless(f"g.converged({members})")
    d, p = pair(i.operands[0])
    followed = w.follow_shuffle(f"{mode!r}, {b}, {c}")
    w.write_all([d, p if p is not None else SINK], f"lanes.shuffle(g.lanes, {mode!r}, {a}, {b}, {c}{followed})")


@op("vote", cost="vote", dst=1, blocking=True, collective=True)
def _vote(w, i, m):
    m.one_of("sync")  # before or behind the mode: CUB has vote.ballot.sync
    mode = m.one_of("all", "any", "uni", "ballot")
    m.type()
    _, apart = _members(w, i.operands[2])
    w.write(i.operands[0], f"lanes.vote(g.lanes, {mode!r}, {w.read(i.operands[1], 1)}{apart})")


@op("match.any.sync", "match.all.sync", cost="shuffle", dst=1, blocking=True, collective=True)
def _match(w, i, m):
    bits = width(m.type())
    _, apart = _members(w, i.operands[2])
    d, p = pair(i.operands[0])
    a = w.read(i.operands[1], bits)
    if i.op.startswith("match.any"):
        w.write(d, f"lanes.match_any(g.lanes, {a}{apart})")
    else:
        w.write_all([d, p if p is not None else SINK], f"lanes.match_all(g.lanes, {a}{apart})")


@op("redux.sync", cost="shuffle", dst=1, blocking=True, collective=True)
def _redux(w, i, m):
    mode = m.one_of("add", "min", "max", "and", "or", "xor")
    absolute, nan = m.take("abs"), m.take("NaN")
    kind = m.type()
    _, apart = _members(w, i.operands[2])
    a = w.read(i.operands[1], 32)
    if kind == "f32":
        w.write(i.operands[0], f"lanes.reduce_float(g.lanes, {mode!r}, {a}, {absolute}, {nan}{apart})")
    else:
        w.write(i.operands[0], f"lanes.reduce(g.lanes, {mode!r}, {a}, {is_signed(kind)}{apart})")


@op("activemask", cost="vote", dst=1)
def _activemask(w, i, m):
    m.type()
    w.write(i.operands[0], "g.lane_mask")


@op("elect.sync", cost="vote", dst=1, blocking=True, collective=True)
def _elect(w, i, m):
    members, _ = _members(w, i.operands[1])
    d, p = pair(i.operands[0])
    w.write_all([d, p], f"g.elect({members})")


@op("bar.warp.sync", "barrier.warp.sync", cost="vote", dst=0, blocking=True, collective=True)
def _warp_sync(w, i, m):
    _members(w, i.operands[0])
    w.emit("fences.publish(g)")
