"""The worklog can be read and cited: its table rows are short, and every row that a text names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "worklog").glob("*.md"))
LONGEST = 200  # characters of a table row
ROW = r"(?:[FGLST]\d{1,3}|[BDMR]\d{1,2})"  # B200 and M256 are no rows
LETTERED = rf"{ROW}(?:(?:,| and| to) {ROW})*\b"
NUMBERED = r"rows? \d+(?:(?:,| and| to) \d+)*\b"
# "worklog/moe.md, G64", "[worklog](../worklog/moe.md), rows 3 and 4", "the worklog (L38, G92 to G95)"
CITATION = rf"worklog(?:/\w+\.md)?[`\])]*(?:\([^)\s]+\))?,? \(?(?:(?:rows? )?({LETTERED})|({NUMBERED}))"


def rows(text: str) -> list[str]:
    """Names of the rows that the tables of a page have: G64, 37."""
    return re.findall(rf"^\| ({ROW}|\d+) \| [^|]*[^\d|. ]", text, re.MULTILINE)


def folded(text: str) -> list[str]:
    """Names of the rows of which the folds below the tables say more."""
    return re.findall(rf"^- \*\*({ROW}|\d+)\.\*\*", text, re.MULTILINE)


def names(matches: list[str]) -> set[str]:
    return {name for match in matches for name in re.findall(rf"\b(?:{ROW}|\d+)\b", match)}


def one_line(text: str) -> str:
    """The text without line breaks, also not those of a comment's lines."""
    return re.sub(r"\s*\n\s*(?:# )?", " ", text)


def cited(text: str) -> set[str]:
    """Names of the worklog's rows that code or a page cites."""
    return names(["".join(match) for match in re.findall(CITATION, one_line(text))])


def cited_within(text: str) -> set[str]:
    """Names of rows that a page of the worklog itself mentions: numbers only where its own rows have numbers."""
    numbered = any(name.isdigit() for name in rows(text))
    return names(re.findall(rf"\b{ROW}\b" + rf"|\b{NUMBERED}" * numbered, one_line(text)))


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.lstrip().startswith("|") and len(line) > LONGEST]


def sources() -> list[Path]:
    """Code and pages of the repository: what hidden folders have, environments among them, is not ours."""
    folders = [ROOT, *(x for x in ROOT.iterdir() if x.is_dir() and not x.name.startswith("."))]
    found = [p for folder in folders for p in (folder.iterdir() if folder == ROOT else folder.rglob("*"))]
    return [p for p in found if p.suffix in (".md", ".py", ".toml", ".yml") and p.is_file()]


ROWS = [name for page in PAGES for name in rows(page.read_text())]


def test_table_rows_are_short():
    assert {page.name: too_long(page.read_text()) for page in PAGES} == {page.name: [] for page in PAGES}


def test_a_row_has_a_name_of_its_own():
    assert len(ROWS) > 200 and len(ROWS) == len(set(ROWS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_folds_say_more_of_rows_that_the_page_has(page):
    told = folded(page.read_text())
    assert len(told) == len(set(told)) and set(told) <= set(rows(page.read_text()))


def test_cited_rows_exist():
    missing = {p.relative_to(ROOT).as_posix(): cited(p.read_text()) - set(ROWS) for p in sources()}
    assert not {path: rows for path, rows in missing.items() if rows}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_that_the_worklog_mentions_exist(page):
    assert not cited_within(page.read_text()) - set(ROWS)


@pytest.mark.parametrize(
    "place, expected",
    [
        ("{}/moe.md, G64", {"G64"}),
        ("({}, M7)", {"M7"}),
        ("the {} (L38, G92\nto G95)", {"L38", "G92", "G95"}),
        ("# by prefetches ({}, row\n    # 37)", {"37"}),
        ("[{0}](../{0}/moe.md), rows 3, 5 and G101", {"3", "5"}),
        ("[{0}](../{0}/moe.md) G101", {"G101"}),
        ("`{}/README.md`, D8", {"D8"}),
        ("a row of {}/results.jsonl, 200 at most; {} B200", set()),
    ],
)
def test_citations_are_seen(place, expected):
    assert cited(place.replace("{0}", "{}").replace("{}", "worklog")) == expected
