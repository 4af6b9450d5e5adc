"""What the translator adds to `Code` for instructions of a whole warp, as arithmetic.py and exchange.py call it."""

from __future__ import annotations

from ..jit.llvm import Code, Value


class WarpCode(Code):
    """Writes code of a warp. `Translator` has what these do."""

    def bail_where(self, condition: Value) -> None:
        """Leave the instruction to Python if the condition holds in any lane."""
        raise NotImplementedError

    def need_whole_warp(self) -> None:
        """Leave the instruction to Python unless all lanes are here."""
        raise NotImplementedError

    def lane_numbers(self) -> Value:
        """Return each lane's number."""
        raise NotImplementedError

    def across(self, what: str, a: Value) -> Value:
        """Reduce a over the lanes."""
        raise NotImplementedError

    def permute(self, a: Value, source: Value) -> Value:
        """Return a[source], lane by lane."""
        raise NotImplementedError

    def library(self, name: str, x: Value) -> Value:
        """Call a function of the C library with a double, or with each lane's."""
        raise NotImplementedError
