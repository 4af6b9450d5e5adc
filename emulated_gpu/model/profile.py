"""Machine profiles: every number of the timing model, with its source, in profiles/*.toml."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from ..errors import Unsupported

FOLDER = Path(__file__).parent / "profiles"


class Profile(dict):
    """profile["unit"]["figure"]: a number. Sources and confidence stay in the file, under the same name + `_source`."""

    def __init__(self, name: str, units: dict, contest: bool = False):
        super().__init__(units)  # a figure is looked up at every event
        self.name = name
        self.contest = contest  # of times of kernels for a contest's problem: see uncertainty.py
        self.clock_ghz = units["sm"]["clock_ghz"]

    @property
    def validation(self) -> str:
        """How far the profile's times are from measurements, in a few words."""
        return self.get("validation", {}).get("error", "unknown")

    def cycles(self, ns: float) -> float:
        return ns * self.clock_ghz

    def us(self, cycles: float) -> float:
        return cycles / self.clock_ghz / 1e3

    def bytes_per_cycle(self, tb_s: float) -> float:
        return tb_s * 1e3 / self.clock_ghz

    def with_(self, overrides: dict[str, float]) -> Profile:
        """A copy with some figures replaced, e.g. {"hbm.read_tb_s": 7.0}: a measured patch, or a what-if."""
        units = {k: dict(v) for k, v in self.items()}
        for key, value in overrides.items():
            unit, figure = key.split(".")
            if figure not in units.get(unit, {}):
                raise KeyError(f"profile {self.name} has no figure {key}")
            units[unit][figure] = value
        return Profile(self.name, units, self.contest)


def names() -> list[str]:
    """Return the machines that have a profile, and so modelled times."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str, contest: bool = False) -> Profile:
    """Return the profile profiles/<name>.toml, which may have a `base`, whose figures it has unless it has its own.

    contest: for kernels of a contest's problem. Raises Unsupported with the names that exist.
    """
    path = FOLDER / f"{name}.toml"
    if not path.exists():
        raise Unsupported(f"times of {name!r}: no profile says how fast it is; there are {', '.join(names())}")
    return Profile(name, {unit: dict(figures) for unit, figures in read(path).items()}, contest)


@functools.cache
def read(path: Path) -> dict[str, dict]:
    """Return the figures of a file, unit by unit; it is parsed once."""
    raw = tomllib.loads(path.read_text())
    units = load(raw.pop("base")) if "base" in raw else {}
    for unit, figures in raw.items():
        own = {k: v["value"] if isinstance(v, dict) and "value" in v else v for k, v in figures.items()}
        units[unit] = units.get(unit, {}) | own
    return units
