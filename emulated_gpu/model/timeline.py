"""A timed run to look at: a Perfetto timeline, a picture, and where the time of a launch goes.

    with emulated_gpu.timing("b200", trace := Trace()) as timed: ...
    timeline.write_timeline(Timeline(timed.run, trace), Path("somewhere"))

The format of timeline.json.gz is the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open:
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Its times are microseconds, too.
"""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np

from ..ptx.control_flow import ControlFlow
from .run import TimedLaunch, TimedRun
from .trace import Span, Trace

BIN_NS = 10.0  # resolution of the breakdown
BUSY = 0.85  # of the peak rate: from there on HBM counts as the bottleneck
DUTIES = {"load": "loads", "mma": "MMA", "tmem": "epilogue"}  # what makes a role; who only stores has that one
SMOOTH_NS = 300.0  # over which its rate is averaged: about a round trip
COLOURS = {
    "tensor busy": "#2a9d3a", "waiting for loads, HBM at its limit": "#d1495b", "waiting for loads": "#f4a259",
    "MMA warp waits for others": "#8e6bbf", "waiting for the launch before": "#cfe1f2", "prologue": "#7fa7d6",
    "epilogue and exit": "#3b6ea5", "SM runs": "#b8b8b8",
    "SM idle, other SMs run": "#5c5c5c", "between launches": "#111111",
}  # fmt: skip


def role_with(duties: set[str]) -> str:
    """Name the role of a warp with these duties; who has one beside stores is named by that."""
    parts = [name for duty, name in DUTIES.items() if duty in duties]
    if len(parts) == 1:
        return "TMA loads" if parts == ["loads"] else parts[0]
    return ", ".join(parts) or ("stores" if "store" in duties else "other")


class Timeline:
    """Spans of a run by launch, CTA and role, and what follows from them. Times are in cycles unless they say us."""

    def __init__(self, run: TimedRun, trace: Trace):
        self.run, self.trace, self.us = run, trace, run.profile.us
        self.launches = [launch for launch in run.launches if launch.end is not None]
        self.program_of = {launch.number: launch.launch.program for launch in run.launches}
        self.warps = {launch.launch.program: -(-math.prod(launch.launch.block) // 32) for launch in run.launches}
        self._roles: dict[ControlFlow, list[str]] = {}  # of the warps of a program
        self.ctas: dict[tuple[int, int], list[Span]] = {}  # (launch, cta) -> its spans
        for span in trace.spans:
            self.ctas.setdefault((span.launch, span.cta), []).append(span)
        # The clusters' first CTAs issue the mma of a pair: waits of its MMA warp hold for both.
        self.sm_of = {key: spans[0].sm for key, spans in self.ctas.items()}
        self.life = {}
        for key, spans in self.ctas.items():
            warps = [span for span in spans if span.kind == "warp"]
            if warps:
                self.life[key] = min(w.start for w in warps), max(w.end for w in warps)

    def role(self, program: ControlFlow, warp: int) -> str:
        """Name a warp's role by what it did: the part that it has alone, or several; "all" where warps share all."""
        if program not in self._roles:
            did = [self.trace.duties.get((program, one), set()) for one in range(self.warps[program])]
            named = [role_with(one) for one in did]
            self._roles[program] = named if any(one != did[0] for one in did) else ["all"] * len(did)
        return self._roles[program][warp]

    def role_of(self, span: Span) -> str:
        """Name the role of the warp of a span."""
        return self.role(self.program_of[span.launch], span.warp)

    def reason_of(self, span: Span) -> str:
        """Return the reason for a span that is a wait."""
        return self.reason(self.program_of[span.launch], span.what)

    def reason(self, program: ControlFlow, what: str) -> str:
        """Return the reason for a wait in a program, with warp roles in place of warp numbers."""
        if what.startswith("warp "):
            roles = {self.role(program, int(number)) for number in what[5:].split("+")}
            return f"arrivals of {' and '.join(sorted(roles))}"
        names = {"mma": "the tensor core", "loads": "loads", "bulk async-groups": "stores to leave shared memory"}
        return names.get(what, "the launch before" if what.startswith("the completion") else what)

    # -- rates -------------------------------------------------------------------------------------------------
    @property
    def shown(self) -> TimedLaunch:
        """The launch that is looked at: the last but one, if there are two."""
        return self.launches[max(0, len(self.launches) - 2)]

    def loaded(self) -> dict[int, int]:
        """Return the bytes that each SM loads in the launch that is looked at."""
        loaded, number = dict[int, int](), self.shown.number
        for span in self.trace.spans:
            if span.kind == "load" and span.launch == number:
                loaded[span.sm] = loaded.get(span.sm, 0) + span.nbytes
        return loaded

    def rates(self, edges: np.ndarray) -> dict[str, np.ndarray]:
        """TB/s of HBM reads, HBM writes and L2, and MB of loads in flight, between `edges` (cycles)."""
        log = np.array(self.run.clock.memory.log or [(0.0, 0, 0, 0)], float)
        seconds = np.diff(edges) / (self.run.profile.clock_ghz * 1e9)
        rates = {
            name: np.histogram(log[:, 0], edges, weights=log[:, column])[0] / seconds / 1e12
            for column, name in ((1, "HBM read"), (2, "HBM write"), (3, "L2 to SMs"))
        }
        loads = [span for span in self.trace.spans if span.kind == "load"]
        flying = sum(
            sign * np.histogram([at(span) for span in loads], edges, weights=[span.nbytes for span in loads])[0]
            for sign, at in ((1, lambda span: span.start), (-1, lambda span: span.end))
        )
        rates["in flight"] = np.cumsum(flying) / 1e6 if len(loads) else np.zeros(len(edges) - 1)
        return rates

    # -- breakdown ---------------------------------------------------------------------------------------------
    def window(self) -> tuple[float, float]:
        """The interval to look at: between two ends of launches, with the beginning of the next one in it."""
        ends = [launch.interval[1] for launch in self.launches]
        if len(ends) < 3:
            return (ends[-2], ends[-1]) if len(ends) > 1 else (0.0, ends[-1])
        return ends[-3], ends[-2]

    def edges(self, start: float, end: float, ns: float) -> np.ndarray:
        return np.linspace(start, end, max(2, round((end - start) / self.run.profile.cycles(ns))) + 1)

    def states(self, edges: np.ndarray) -> tuple[list[str], np.ndarray]:
        """(names, state [SMs, bins]) of what every SM does; what is painted last covers what was there before."""
        names = list(COLOURS)
        number = {name: i for i, name in enumerate(names)}
        state = np.full((len(self.run.placement.sms), len(edges) - 1), number["between launches"], np.int8)

        def paint(sm: int, start: float, end: float, name: str):
            low, high = np.searchsorted(edges, (start, end))
            state[sm, max(low - 1, 0) : max(high - 1, 0)] = number[name]

        for key, (start, end) in self.life.items():
            paint(self.sm_of[key], start, end, "SM runs")
        running = (state != number["between launches"]).any(axis=0)
        state[(state == number["between launches"]) & running[None, :]] = number["SM idle, other SMs run"]
        waits = []
        for key, (start, end) in self.life.items():
            spans = self.ctas[key]
            loads = [span.start for span in spans if span.kind == "load"]
            busy = [span for span in spans if span.kind == "tensor"]
            if loads:
                paint(self.sm_of[key], start, min(loads), "prologue")
            for span in spans:
                if span.kind == "wait" and span.what.startswith("the completion"):
                    paint(span.sm, span.start, span.end, "waiting for the launch before")
            if busy:
                paint(self.sm_of[key], max(span.end for span in busy), end, "epilogue and exit")
            # the even CTA of a pair issues the mma of both SMs
            issuer = key if any(span.warp >= 0 for span in busy) or not busy else (key[0], key[1] & ~1)
            program = self.program_of[key[0]]
            for span in self.ctas.get(issuer, ()):
                mine = "mma" in self.trace.duties.get((program, span.warp), ()) if busy else span.what == "loads"
                if span.kind == "wait" and mine:
                    name = "waiting for loads" if span.what == "loads" else "MMA warp waits for others"
                    begin = max(span.start, min(loads, default=start))
                    finish = min(span.end, max((mma.end for mma in busy), default=end))
                    waits.append((self.sm_of[key], begin, max(begin, finish), name))
        for wait in waits:
            paint(*wait)
        for span in self.trace.spans:
            if span.kind == "tensor":
                paint(span.sm, span.start, span.end, "tensor busy")
        limited = self.hbm_share(edges) >= BUSY
        waiting = (state == number["waiting for loads"]) & limited[None, :]
        state[waiting] = number["waiting for loads, HBM at its limit"]
        return names, state

    def hbm_share(self, edges: np.ndarray) -> np.ndarray:
        """HBM traffic as a share of the peak read rate, averaged over SMOOTH_NS."""
        rates = self.rates(edges)
        share = (rates["HBM read"] + rates["HBM write"]) / self.run.profile["hbm"]["read_tb_s"]
        width = max(1, round(self.run.profile.cycles(SMOOTH_NS) / (edges[1] - edges[0])))
        padded = np.pad(share, (width // 2, width - 1 - width // 2), "edge")
        return np.convolve(padded, np.ones(width) / width, "valid")

    def breakdown(self) -> dict:
        """shares: of the time of all SMs in the window, by state; facts: sentences with numbers; and the numbers."""
        start, end = self.window()
        edges = self.edges(start, end, BIN_NS)
        names, state = self.states(edges)
        counts = np.bincount(state.ravel(), minlength=len(names)) / state.size
        shares = {name: float(count) for name, count in zip(names, counts)}
        rates, interval = self.rates(edges), end - start
        hbm = {name: float(rates[f"HBM {name}"].mean()) for name in ("read", "write")}
        inside = [span for span in self.trace.spans if start <= span.end <= end]
        waits: dict[str, float] = {}  # us per warp
        lives: dict[str, int] = {}  # role -> the warps of it that ended here
        for span in inside:
            if span.kind == "warp":
                lives[self.role_of(span)] = lives.get(self.role_of(span), 0) + 1
        for span in inside:
            if span.kind == "wait":
                name = f"{self.role_of(span)} for {self.reason_of(span)}"
                warps = lives.get(self.role_of(span), 1)
                waits[name] = waits.get(name, 0.0) + self.us(span.end - span.start) / warps
        shown, loaded = self.shown, self.loaded()
        ends = sorted(life[1] for key, life in self.life.items() if key[0] == shown.number)
        begins = sorted(life[0] for key, life in self.life.items() if key[0] == shown.number)
        peak = self.run.profile["hbm"]["read_tb_s"]
        used, limit = sum(hbm.values()) / peak, (self.hbm_share(edges) >= BUSY).mean()
        facts = [
            f"steady interval {self.us(interval):.2f} us; HBM read {hbm['read']:.2f} and written {hbm['write']:.2f} "
            f"TB/s: {100 * used:.0f} % of {peak:g}, and {100 * limit:.0f} % of the time at its limit",
            f"launch {shown.number}: CTAs start over {self.us(begins[-1] - begins[0]):.2f} us and end over "
            f"{self.us(ends[-1] - ends[0]):.2f} us (tail), {self.us(shown.interval[1] - ends[-1]):.2f} us before its "
            "own end",
        ]
        if loaded:
            mean = sum(loaded.values()) / len(loaded)
            worst = max(loaded, key=loaded.__getitem__)
            facts.append(
                f"loads of an SM: {mean / 1e6:.3f} MB in the mean, at most {loaded[worst] / 1e6:.3f} MB "
                f"({100 * (loaded[worst] / mean - 1):+.1f} %, SM {worst})"
            )
        following = self.run.following(shown)
        if following is not None and following.start is not None:
            first = min((life[0] for key, life in self.life.items() if key[0] == following.number), default=None)
            if first is not None:
                gap = self.us(first - shown.interval[1])
                order = "before" if gap < 0 else "after"
                facts.append(f"first CTA of the next launch {abs(gap):.2f} us {order} its end")
        total = {name: us for name, us in sorted(waits.items(), key=lambda item: -item[1])[:6]}
        if total:
            facts += [f"a warp waits, in us: {', '.join(f'{name} {us:.2f}' for name, us in total.items())}"]
        return {
            "interval_us": self.us(interval),
            "shares": {name: share for name, share in shares.items() if share >= 0.0005},
            "hbm_tb_s": hbm,
            "waits_us": waits,
            "facts": facts,
        }

    # -- files -------------------------------------------------------------------------------------------------
    def events(self) -> list[dict]:
        """Trace events: a process per SM with a track per warp, a process of launches, and counters."""
        us, events = self.us, []
        launches, counters = 1_000, 1_001  # process numbers beyond any SM

        def track(process: int, thread: int, name: str, order: int | None = None):
            events.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}})
            order = thread if order is None else order
            index = {"sort_index": order}
            events.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": index})

        def bar(process: int, thread: int, name: str, start: float, end: float, **args):
            event = {"ph": "X", "pid": process, "tid": thread, "name": name, "ts": us(start), "dur": us(end - start)}
            events.append(event | ({"args": args} if args else {}))

        for process, name, order in ((launches, "launches", -2), (counters, "memory", -1)):
            events.append({"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}})
            events.append({"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": order}})
        for launch in self.launches:
            lives = [life for key, life in self.life.items() if key[0] == launch.number]
            row = launch.number % 2  # neighbours overlap
            first, last = min(life[0] for life in lives), max(life[1] for life in lives)
            trigger = us(launch.trigger) if launch.trigger is not None else None
            bar(launches, row, f"launch {launch.number}", *launch.interval, all_triggered_us=trigger)
            bar(launches, row, "CTAs", first, last)
        track(launches, 0, "even launches")
        track(launches, 1, "odd launches")

        tracks: set[tuple[int, int]] = set()
        lanes: dict[tuple[int, int], list[float]] = {}
        for span in self.trace.spans:
            if span.kind == "tensor":
                thread, name, label = 90, "tensor core", "mma"
            elif span.kind in ("load", "store"):
                thread, label = self._lane(lanes, span), f"{span.kind} {span.nbytes} B"
                name = f"copies {thread - 100}"
            else:
                thread, name = span.warp, f"warp {span.warp}: {self.role_of(span)}"
                label = f"launch {span.launch}" if span.kind == "warp" else f"wait for {self.reason_of(span)}"
            if (span.sm, thread) not in tracks:
                tracks.add((span.sm, thread))
                track(span.sm, thread, name)
            bar(span.sm, thread, label, span.start, span.end)
        for sm in sorted({process for process, _ in tracks}):
            events.append({"ph": "M", "pid": sm, "name": "process_name", "args": {"name": f"SM {sm}"}})

        edges = self.edges(0.0, max(launch.interval[1] for launch in self.launches), 50.0)
        for name, values in self.rates(edges).items():
            title = f"{name} [{'MB' if name == 'in flight' else 'TB/s'}]"
            for at, value in zip(edges[:-1], values):
                counter = {"ph": "C", "pid": counters, "name": title, "ts": us(at), "args": {"value": round(value, 3)}}
                events.append(counter)
        return events

    @staticmethod
    def _lane(lanes: dict, span: Span) -> int:
        """A track of its SM's copies on which this one overlaps no other."""
        for thread in range(100, 164):
            if lanes.get((span.sm, thread), 0.0) <= span.start:
                break
        lanes[span.sm, thread] = span.end
        return thread

    def picture(self, path: Path) -> None:
        """Launches, four SMs, all SMs and the memory over time, in one PNG. Needs matplotlib."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.colors import ListedColormap
        from matplotlib.patches import Patch

        us = self.us
        window = self.window()
        margin = 0.35 * (window[1] - window[0])
        start, end = max(0.0, window[0] - margin), min(window[1] + margin, max(x.interval[1] for x in self.launches))
        figure, axes = pyplot.subplots(
            4, 1, figsize=(15, 13), sharex=True, height_ratios=(1, 4, 3, 2.2), constrained_layout=True
        )
        edges = self.edges(start, end, BIN_NS)
        names, state = self.states(edges)

        top = axes[0]
        for launch in self.launches:
            lives = [life for key, life in self.life.items() if key[0] == launch.number]
            begun, ended = launch.interval
            if not lives or ended < start or begun > end:
                continue
            row, first, last = launch.number % 2, min(x[0] for x in lives), max(x[1] for x in lives)
            top.broken_barh([(us(begun), us(ended - begun))], (row - 0.4, 0.8), color="#d9d9d9")
            top.broken_barh([(us(first), us(last - first))], (row - 0.25, 0.5), color="#3b6ea5")
            if launch.trigger is not None:
                top.plot([us(launch.trigger)] * 2, [row - 0.4, row + 0.4], color="#d1495b")
            middle = us(max(first, start) + min(last, end)) / 2
            top.text(middle, row, f"launch {launch.number}", ha="center", va="center", color="white", fontsize=9)
        top.set_yticks([])
        top.set_title("launches: grey from start to end, blue while CTAs run, red when all have triggered", loc="left")

        shown = self._representative()
        ticks, place = [], 0.0
        gantt = axes[1]
        for sm, why in shown:
            spans = [span for span in self.trace.spans if span.sm == sm and span.end > start and span.start < end]
            warps = [s for s in spans if s.kind == "warp"]
            rows = [("warps", warps, "#5c5c5c", 0.9 / max(1, len({s.warp for s in warps})))]
            rows.append(("TMA loads in flight", [s for s in spans if s.kind == "load"], "#3b6ea5", 0.12))
            rows.append(("tensor core", [s for s in spans if s.kind == "tensor"], "#2a9d3a", 1.0))
            for role in sorted({self.role_of(s) for s in warps}):
                waits = [s for s in spans if s.kind == "wait" and self.role_of(s) == role]
                alpha = 1 / max(1, len({s.warp for s in waits}))
                rows.append((f"{role} waits", waits, "#f4a259" if "MMA" in role else "#8e6bbf", alpha))
            rows.append(("TMA stores", [s for s in spans if s.kind == "store"], "#111111", 0.4))
            for name, group, colour, alpha in (row for row in rows if row[1]):  # a kernel without TMA has no row of it
                bars = [(us(s.start), us(s.end - s.start)) for s in group]
                gantt.broken_barh(bars, (place - 0.4, 0.8), color=colour, alpha=alpha, linewidth=0)
                ticks.append((place, f"SM {sm} ({why}): {name}" if group is warps else name))
                place += 1
            place += 0.7
        gantt.set_yticks([at for at, _ in ticks], [name for _, name in ticks], fontsize=8)
        gantt.set_ylim(place, -1)
        gantt.set_title("representative SMs", loc="left")

        axes[2].imshow(
            state, aspect="auto", interpolation="nearest", cmap=ListedColormap([COLOURS[name] for name in names]),
            vmin=0, vmax=len(names) - 1, extent=(us(start), us(end), len(state) - 0.5, -0.5),
        )  # fmt: skip
        axes[2].set_ylabel("SM")
        axes[2].set_title("what each SM does", loc="left")
        patches = [Patch(color=COLOURS[name], label=name) for i, name in enumerate(names) if (state == i).any()]
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.02), "frameon": False}
        axes[2].legend(handles=patches, ncol=5, fontsize=8, **below)

        coarse = self.edges(start, end, 50.0)
        at, rates = us((coarse[1:] + coarse[:-1]) / 2), self.rates(coarse)
        memory = axes[3]
        memory.stackplot(
            at, rates["HBM read"], rates["HBM write"], labels=("HBM read", "HBM write"), colors=("#d1495b", "#f0b7bf")
        )
        memory.plot(at, rates["L2 to SMs"], color="#3b6ea5", label="L2 to SMs")
        memory.axhline(self.run.profile["hbm"]["read_tb_s"], color="#111111", linestyle=":", label="HBM peak")
        flying = memory.twinx()
        flying.plot(at, rates["in flight"], color="#2a9d3a", linewidth=1, label="loads in flight (right)")
        flying.set_ylabel("MB")
        flying.set_ylim(0)
        memory.set_ylabel("TB/s")
        memory.set_xlabel("us since the first launch")
        lines = [axis.get_legend_handles_labels() for axis in (memory, flying)]
        above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
        memory.legend(lines[0][0] + lines[1][0], lines[0][1] + lines[1][1], ncol=5, fontsize=8, **above)
        memory.set_ylim(0, 1.25 * max(1.0, *rates["L2 to SMs"], *(rates["HBM read"] + rates["HBM write"])))
        for axis in axes:
            axis.set_xlim(us(start), us(end))
            for edge in window:
                axis.axvline(us(edge), color="#111111", linewidth=0.8, linestyle="--")
        profile = self.run.profile
        figure.suptitle(
            f"modelled, not measured: profile {profile.name}; steady interval {us(window[1] - window[0]):.2f} us "
            "between the dashed lines"
        )
        figure.savefig(path, dpi=100)
        pyplot.close(figure)

    def _representative(self) -> list[tuple[int, str]]:
        """Choose four SMs of the last launch but one: those that end first, halfway and last, and that load most."""
        ends = sorted((life[1], self.sm_of[key]) for key, life in self.life.items() if key[0] == self.shown.number)
        loaded = self.loaded()
        chosen = [(ends[0][1], "ends first"), (ends[len(ends) // 2][1], "in the middle"), (ends[-1][1], "ends last")]
        if loaded:
            chosen.append((max(loaded, key=loaded.__getitem__), "loads most"))
        merged: dict[int, list[str]] = {}
        for sm, why in chosen:
            merged.setdefault(sm, []).append(why)
        return [(sm, ", ".join(why)) for sm, why in merged.items()]


def write_timeline(timeline: Timeline, folder: Path) -> list[str]:
    """Writes timeline.json.gz and, where matplotlib is installed, overview.png; returns sentences about what is not."""
    folder.mkdir(parents=True, exist_ok=True)
    note = {"what": "modelled, not measured", "profile": timeline.run.profile.name}
    with gzip.open(folder / "timeline.json.gz", "wt", compresslevel=5) as file:
        file.write(json.dumps({"traceEvents": timeline.events(), "displayTimeUnit": "ns", "otherData": note}))
    try:
        timeline.picture(folder / "overview.png")
    except ModuleNotFoundError as error:
        return [f"no overview.png: {error.name} is not installed"]
    return []
