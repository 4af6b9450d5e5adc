"""Types of the task."""

import dataclasses


@dataclasses.dataclass
class Options:
    """Says what is added."""

    constant: float
