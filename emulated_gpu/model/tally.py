"""What a launch moves and multiplies, counted while it runs."""

from __future__ import annotations

from ..formats import wgmma_form
from ..machine.clock import Clock
from ..machine.launch import Launch


class Tally:
    """A clock that also counts what a launch moves and multiplies, which no schedule and no clock changes.

    counted: bytes of each way to move them (lanes that load from one address do it once), the number of MMAs, and their
    multiplications and additions.
    """

    def __init__(self, clock: Clock):
        copies = "tma_load", "bulk_load", "tma_store", "bulk_store"
        self.counted = dict.fromkeys([*copies, "global_load", "global_store", "mma", "flops"], 0)
        self._clock = clock
        for name in dir(clock):  # not by __getattr__, at every instruction
            if not name.startswith("_") and name not in vars(Tally):
                setattr(self, name, getattr(clock, name))

    def tma_load(self, group, tm, map_at, coords, nbytes, ctas, policy):
        self.counted["tma_load"] += nbytes
        return self._clock.tma_load(group, tm, map_at, coords, nbytes, ctas, policy)

    def bulk_load(self, group, address, nbytes, ctas, policy):
        self.counted["bulk_load"] += nbytes
        return self._clock.bulk_load(group, address, nbytes, ctas, policy)

    def tma_store(self, group, tm, map_at, coords, nbytes):
        self.counted["tma_store"] += nbytes
        return self._clock.tma_store(group, tm, map_at, coords, nbytes)

    def bulk_store(self, group, address, nbytes):
        self.counted["bulk_store"] += nbytes
        return self._clock.bulk_store(group, address, nbytes)

    def global_load(self, group, addresses, size, strong):
        together = len(addresses) > 1 and (addresses == addresses[0]).all()
        self.counted["global_load"] += (1 if together else len(addresses)) * size
        return self._clock.global_load(group, addresses, size, strong)

    def global_store(self, group, addresses, size, row=False):
        self.counted["global_store"] += len(addresses) * size
        return self._clock.global_store(group, addresses, size, row)

    def global_bytes(self, loaded, stored):
        self.counted["global_load"] += loaded
        self.counted["global_store"] += stored

    def mma(self, group, description, pair, a_in_tmem):
        self.counted["mma"] += 1
        self.counted["flops"] += 2 * description.m * description.n * description.k
        return self._clock.mma(group, description, pair, a_in_tmem)

    def wgmma(self, group, form):
        self.counted["mma"] += 1
        self.counted["flops"] += 2 * wgmma_form.M * form.n * form.k
        return self._clock.wgmma(group, form)


def tallied(launch: Launch) -> dict[str, int]:
    """The counts of a launch that has not started, which grow as it runs."""
    launch.clock = Tally(launch.clock)
    return launch.clock.counted
