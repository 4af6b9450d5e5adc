"""`markdown` writes a table."""


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in markdown with this head and these rows, without a newline at its end."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
