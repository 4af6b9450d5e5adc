"""Tables in markdown: `markdown` writes cells, `table` records, by columns that are a head and what makes its cells."""

from collections.abc import Callable, Iterable

Column = tuple[str, Callable[[dict], str]]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in markdown with this head and these rows, without a newline at its end."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def table(columns: Iterable[Column], rows: list[dict]) -> str:
    """Return a table of these records in markdown, without the columns that are empty: of who was not timed."""
    of_columns = [(head, [cell(x) for x in rows]) for head, cell in columns]
    heads, cells = zip(*(column for column in of_columns if any(column[1])))
    return markdown([*heads], [[*row] for row in zip(*cells)])


def value(x: dict, name: str) -> float | None:
    """Return a record's time of this name in microseconds, else its entry, None where it has neither."""
    return x["us"].get(name, x.get(name))


def figure(name: str, form: str = ".1f") -> Callable[[dict], str]:
    """Return the cell of a `value`: empty where there is none."""
    return lambda x: "" if value(x, name) is None else format(value(x, name), form)


def ratio(name: str, other: str) -> Callable[[dict], str]:
    """Return the cell of one `value` over another: empty where either is missing."""

    def cell(x: dict) -> str:
        of, over = value(x, name), value(x, other)
        return "" if of is None or over is None else f"{of / over:.2f}"

    return cell
