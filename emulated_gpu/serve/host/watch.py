"""What a launch is at while it runs: a heartbeat on stderr, and an end to one that takes too long."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable

from ...errors import Hang
from ...machine.launch import Launch
from .beside import beside

SAYS = "emulated-gpu: "  # begins a line on stderr
FIRST_BEAT_S, BEAT_S = 10.0, 30.0  # when the first heartbeat comes, and how long it is to each later one


def on_stderr(text: str, begin: str = SAYS) -> None:
    """Write a line at once, so that threads that do so have a line each: print() writes its end separately."""
    sys.stderr.write(f"{begin}{text}\n")
    sys.stderr.flush()


def refreshes(stream) -> bool:
    """Whether a line on this stream can be written over: on a terminal that is not a dumb one."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def watched(running: Callable[[], list[Launch]], limit: float = 0.0, say: Callable[[str], None] = on_stderr):
    """Tell where launches are that share an engine, while the block runs, from another thread.

    running: returns those that run at the moment. limit: seconds after which the block ends with a Hang that says where
    the warps are; 0 for none. say: is given the sentences.
    """
    began = time.monotonic()

    def beat(over: threading.Event) -> None:
        following, ends = began + FIRST_BEAT_S, began + limit if limit else math.inf
        first, since, looked = None, began, began  # the launch that is told of, and when it was not yet
        while not over.wait(max(0.0, min(following, ends) - time.monotonic())):
            now, launches = time.monotonic(), running()
            if launches and now >= ends:
                launches[0].engine.at(-math.inf, lambda stopped=launches: stop(stopped, limit))
                return
            if launches and launches[0] is not first:
                first, since = launches[0], looked
            if launches:
                say(describe(launches, now - since))
            following, looked = now + BEAT_S, now

    with beside(beat):
        yield


def stop(launches: list[Launch], limit: float) -> None:
    """End the launches: called by their engine. Raises Hang."""
    moving = places(launches, moving=True)
    message = f"{launches[0].program.kernel.title} still runs after {limit:g} s, the --timeout"
    error = Hang("\n".join([f"{message}; warps that go on, and where:", *(f"  {place}" for place in moving)]))
    if not moving:
        error = Hang("\n".join([f"{message}:", *(line for launch in launches for line in launch.waiting())]))
    error.where = f"kernel {launches[0].program.kernel.title}" + f", {moving[0]}" * bool(moving)
    raise error


def places(launches: list[Launch], moving: bool, most: int = 8) -> list[str]:
    """Say where warps are that go on, or else that wait."""
    found = []
    for launch in launches:
        for group in launch.groups():
            if (group.waiting_for is None) is moving:
                instr = launch.instruction(group)
                loc = f" ({instr.loc})" if instr.loc else ""
                found.append(f"{group.warp} at PTX line {instr.line} ({instr.op}){loc}")
                if len(found) == most:
                    return found
    return found


def describe(launches: list[Launch], seconds: float) -> str:
    """Say how far the launches are after these seconds, and where one of their warps is."""
    launch = launches[0]
    done, clusters = launch.started - len(launch.running), launch.clusters
    left = f", about {seconds * (clusters - done) / done:.0f} s left" if done else ""
    what = "CTAs" if math.prod(launch.cluster) == 1 else "clusters"
    place = place_of_one(launches)
    title, number = launch.program.kernel.title, launch.number
    return f"{seconds:.0f} s in {title} (launch {number}), {done} of {clusters} {what} done{left}: {place}"


def place_of_one(launches: list[Launch]) -> str:
    """Say where one warp of some launches is, one that goes on if there is one."""
    for _ in range(3):
        with contextlib.suppress(RuntimeError, IndexError):  # warps come and go while we look
            return [*places(launches, True, 1), *places(launches, False, 1), "no warp"][0]
    return "warps come and go"
