"""The first answer about launches that take long to model: from the first that has ended, while the others go on."""

from __future__ import annotations

from ..model import report, uncertainty
from ..model.run import TimedRun
from ..model.timeline import Timeline
from ..model.trace import Trace
from ..page import hot
from ..page.verdicts import weighed


def first_answer(run: TimedRun) -> str:
    """Say what the launch that has ended last takes, what its floors are, and what holds it up most; of a run without
    a trace, the time alone. It may be asked while the run goes on, by what the run itself calls."""
    last = [launch for launch in run.launches if launch.end is not None][-1]
    row = report.of_launch(last)
    may_be = f" ({uncertainty.written(row['us_interval'])})" if row["us_interval"] else ""
    said = [f"launch {last.number} ({row['title']}) takes {row['us_corrected']:.2f} us{may_be}"]
    if isinstance(run.clock.trace, Trace):
        trace = run.clock.trace.of_launch(last.number)
        timeline = Timeline(run, trace)
        timeline.launches = [last]
        lines = hot.lines(hot.instructions(timeline), trace)
        read, back, _ = report.traffic(run, [last.number])
        floors = report.floors_us(run, trace, [last.number], read + back)
        said.append("floors: " + ", ".join(f"{name} {us:.2f} us" for name, us in floors.items()))
        if found := weighed(timeline, lines):
            worst = max(found, key=lambda one: one["weight"])
            said.append(worst["text"] + (f" ({worst['shown']})" if worst.get("shown") else ""))
    return "; ".join(said)
