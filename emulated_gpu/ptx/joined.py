"""Several PTX texts as one, as a linker makes it.

What one text defines for all stands for the others' `.extern` declarations of it; of weak definitions the first stays.
Names that a text keeps to itself, if others have them, too, and its numbers of files get its own number.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from typing import NamedTuple

from ..errors import WrongCall
from .parse import statements

NOT_LINKED = 218  # CUDA_ERROR_INVALID_PTX
NAME = re.compile(
    r"(?:\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?|\.(?:global|const|shared)\b(?:\s*\.\w+(?:\(\.\w+\)|\s+\d+)?)*?\s*\.\w+\s+)"
    r"([\w$]+)\s*(?=[(\[={]|$)"
)
NUMBER = re.compile(r"(\.(?:file|loc)\s+|\binlined_at\s+)(\d+)|(\$L__info_string)(?=\d)")
DIRECTIVE, DECLARATION, VARIABLE, FUNCTION = range(4)  # in this order they stand


class Statement(NamedTuple):
    """Of a module. linkage: extern, visible, weak or common; "": its own."""

    kind: int
    text: str
    name: str
    linkage: str

    @property
    def defines(self) -> bool:
        return self.kind in (VARIABLE, FUNCTION) and self.linkage != "extern"


def split(text: str) -> list[Statement]:
    found = []
    for header, whole in statements(text):
        name, linkage = NAME.search(header), re.match(r"\.(extern|visible|weak|common)\b", header)
        function = re.search(r"\.(func|entry)\b", header)
        kind = (FUNCTION if whole.endswith("}\n") else DECLARATION) if function else VARIABLE if name else DIRECTIVE
        found.append(Statement(kind, whole, name[1] if name else "", linkage[1] if linkage else ""))
    return found


def joined(texts: list[str]) -> str:
    """Return the text that several make. Raises WrongCall for a name that two of them define for all."""
    if len(texts) == 1:
        return texts[0]
    parts = [split(text) for text in texts]
    names = Counter(name for part in parts for name in {one.name for one in part})
    taken: dict[str, str] = {}  # name that is defined for all -> linkage
    kept: list[Statement] = []
    for number, part in enumerate(parts):
        own = [one.name for one in part if one.defines and not one.linkage and names[one.name] > 1]
        pattern = re.compile(r"(?<![\w$.%])(" + "|".join(map(re.escape, own)) + r")(?![\w$])") if own else None
        for one in part:
            if number and one.text.startswith((".version", ".target", ".address_size")):
                continue
            if one.defines and one.linkage:
                if one.name in taken:
                    if "weak" not in (one.linkage, taken[one.name]):
                        raise WrongCall(f"two of the linked texts define {one.name}", NOT_LINKED)
                    continue
                taken[one.name] = one.linkage
            text = pattern.sub(rf"\1$of_{number}", one.text) if pattern else one.text
            kept.append(one._replace(text=NUMBER.sub(functools.partial(numbered, number), text)))
    known = [
        one._replace(text=one.text.replace(".extern", f".{taken.get(one.name, 'extern')}", 1))
        if one.kind == DECLARATION else one
        for one in kept if one.linkage != "extern" or one.name not in taken or one.kind == DECLARATION
    ]  # fmt: skip
    return "".join(one.text for one in sorted(known, key=lambda one: one.kind))


def numbered(number: int, found: re.Match) -> str:
    """The number of a file, or the name of a string, as the text of this number has it."""
    return f"{found[1]}{int(found[2]) + 1000 * number}" if found[1] else f"{found[3]}_{number}_"
