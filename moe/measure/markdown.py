"""Tables in markdown."""


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table with this head, a line a row, without a newline at its end."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
