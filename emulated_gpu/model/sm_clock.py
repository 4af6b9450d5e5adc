"""The clock of the SMs, which sinks while their tensor cores work (timing only, no data).

Measured on an H200 (silicon/probes/tensor_clock.py), wherever nvidia-smi says 1980 MHz: with an SM's first wgmma the
clock of its GPC falls to 1.71 GHz, stays at 1.79 from 1.5 us on, and is back 1.4 us after the last one. It falls
further as more of the chip's tensor cores work, by the square of their share, on operands that are noise; on zeros it
does not. A wgmma takes as many cycles as ever. What copies out of the L2 bring into all SMs does not change: it has a
clock of its own, and so has the HBM.

Times stay cycles of the fastest clock; what an SM does takes `slower` times as many of them.

Apart from that, and after milliseconds, the card's power limit slows all SMs (`sustained_ghz`): a timed run is of calls
that are over before, as benchmarks of some tens of calls are.
"""

from __future__ import annotations

import math

RECENT_NS = 1000.0  # over which the share of the tensor cores that work is taken: so long does the clock take to sink


def sustained_ghz(profile, tensor: float) -> float:
    """Return the clock that the power limit leaves where calls follow each other for longer than [power] after_ms.

    tensor: the share of the time for which the tensor cores of all SMs multiply, which is noise. Power goes with the
    share and with the clock and its voltage: so the clock that is left goes with a power of the share, measured on an
    H200 (silicon/probes/power_clock.py).
    """
    power = profile["power"]
    return min(profile.clock_ghz, power["all_ghz"] * max(tensor, 1e-9) ** -power["exponent"])


def sustained_us(profile, us: float, tensor: float) -> float:
    """Return what a call of `us` microseconds takes at that clock, if all it does waits for the SMs."""
    return us * profile.clock_ghz / sustained_ghz(profile, tensor)


class Clocked:
    """One SM's clock: when it sank, until when, and how many ticks it has not made."""

    __slots__ = ("since", "until", "slower", "at", "lost")

    def __init__(self):
        self.since = self.until = -math.inf
        self.slower = 1.0  # while it is low
        self.at = self.lost = 0.0  # ticks that had not been made at that time

    def missed(self, time: float) -> float:
        """Return how many ticks this clock has not made until then."""
        if time > self.at:
            low = max(0.0, min(time, self.until) - self.at)
        else:  # a warp that lags behind
            low = min(0.0, max(time, self.since) - self.at)
        return self.lost + low * (1 - 1 / self.slower)


class SmClocks:
    """The clocks of all SMs; with a profile without [tensor_clock] they never sink."""

    def __init__(self, profile, sms: int):
        figures = profile.get("tensor_clock")
        self.sinks = figures is not None
        self.clocks = [Clocked() for _ in range(sms)]
        if figures is None:
            return
        fastest = profile.clock_ghz
        self.onset, self.low = fastest / figures["onset_ghz"], fastest / figures["ghz"]
        self.onset_cycles = profile.cycles(figures["onset_ns"])
        self.hold_cycles = profile.cycles(figures["hold_ns"])
        self.all_busy = figures["ghz"] / figures["all_ghz"] - 1
        self.recent = profile.cycles(RECENT_NS)
        self.work = self.worked_at = 0.0  # cycles of tensor cores of late, all SMs together

    def slower(self, sm: int, time: float) -> float:
        """Return how many cycles of the fastest clock one cycle of this SM takes."""
        clock = self.clocks[sm]
        return clock.slower if time < clock.until else 1.0

    def works(self, sm: int, now: float, start: float, cycles: float) -> float:
        """Give a tensor core cycles of work from `start` on; returns how many of the fastest clock they take."""
        if not self.sinks:
            return cycles
        clock = self.clocks[sm]
        sinks = start >= clock.until
        counted = start if sinks else now
        clock.lost, clock.at = clock.missed(counted), counted
        if sinks:
            clock.since = start
        base = self.onset if start < clock.since + self.onset_cycles else self.low
        if now > self.worked_at:
            self.work *= math.exp((self.worked_at - now) / self.recent)
            self.worked_at = now
        self.work += cycles
        share = min(1.0, self.work / self.recent / len(self.clocks))
        clock.slower = base * (1 + self.all_busy * share**2)
        clock.until = start + cycles * clock.slower + self.hold_cycles
        return cycles * clock.slower

    def ticks(self, sm: int, time: float) -> float:
        """Return the reading of the SM's clock, in its own cycles."""
        return time - self.clocks[sm].missed(time)
