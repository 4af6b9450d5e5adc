"""The pages: their tables and the picture are those of the recorded results, and their links lead to something."""

import functools
import json
import re
import shutil
import tokenize
from pathlib import Path

import pytest

from emulated_gpu.model import uncertainty
from worklog import figures, pages, picture

ROOT = Path(__file__).resolve().parents[1]
LINES = {  # of pages for one kind of reader each, at most
    "README.md": 100, "ARCHITECTURE.md": 150, "emulated_gpu/README.md": 120, "emulated_gpu/RUN.md": 150,
    "emulated_gpu/VALIDATION.md": 150, "ragged_moe/README.md": 120, "ragged_moe/EXPERTS.md": 120,
    "ragged_moe/NVFP4.md": 120, "ragged_moe/CHECKPOINTS.md": 60, "ragged_moe/LAYER.md": 110,
    "evaluation/README.md": 150, "evaluation/THREATS.md": 80,
}  # fmt: skip
OBSCURE = re.compile(r"\b(?:those of which|so many|it is none|, those of)\b", re.IGNORECASE)  # who has to read twice
WORDY = re.compile(r"\b(?:those of which|so many|it is none)\b", re.IGNORECASE)  # in docstrings and comments
CODE = "emulated_gpu", "ragged_moe", "evaluation", "silicon", "worklog"
EARLIER = re.compile(r"\b(?:worklog,? [FGL]\d|earlier (?:version|kernel)|of the kernels? before)", re.IGNORECASE)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@functools.cache
def markdown_files() -> list[Path]:
    """The pages; folders with a dot, environments above all, are not entered."""
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    found = [file for top in tops for file in (top.rglob("*.md") if top.is_dir() else [top]) if file.suffix == ".md"]
    return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(ROOT).parts))


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Links to files or headings that are not there."""
    found = []
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or anchor and file.suffix == ".md" and anchor not in anchors(file):
            found.append(f"{target}#{anchor}")
    return found


def test_tables_and_picture_are_of_the_results():
    assert pages.stale() == []


@pytest.fixture
def copy(tmp_path, monkeypatch) -> Path:
    """A copy of the pages and the results, in place of those of the repository."""
    for page in pages.TABLES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(figures.RESULTS, tmp_path / "results")
    shutil.copy(picture.FILE, tmp_path / "standing.png")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(picture, "FILE", tmp_path / "standing.png")
    return tmp_path


def test_a_figure_that_the_results_do_not_have_is_found(copy):
    text = (copy / "README.md").read_text()
    changed = text.replace("| 27.9 |", "| 27.8 |")
    assert changed != text
    (copy / "README.md").write_text(changed)
    assert pages.stale() == ["README.md: standing"]
    pages.write_pages()
    assert pages.stale() == [] and (copy / "README.md").read_text() == text


def test_results_that_the_pages_do_not_have_are_found(copy):
    file = copy / "results" / "public.json"
    leaderboard = json.loads(file.read_text())
    leaderboard["leaderboard"]["nvfp4_group_gemm"]["best geomean, us"]["gau.nernst"] = 11.0
    file.write_text(json.dumps(leaderboard))
    assert pages.stale() == ["README.md: standing", "standing.png"]
    pages.write_pages()
    assert pages.stale() == []


def test_points_that_the_pages_do_not_have_are_found(copy, monkeypatch):
    points = [
        point | {"modelled_us": 27.0} if point == figures.points_of("gau.nernst, v6b")[0] else point
        for point in uncertainty.POINTS["plain"]
    ]
    monkeypatch.setattr(uncertainty, "POINTS", uncertainty.POINTS | {"plain": points})
    of_model = [f"emulated_gpu/VALIDATION.md: {table}" for table in ("intervals", "cases")]
    of_model.append("silicon/whole_kernels/README.md: record")
    tables = ["README.md: standing", "README.md: exam", "docs/dual.md: standing", *of_model]
    assert pages.stale() == [*tables, "standing.png"]
    pages.write_pages()
    assert pages.stale() == []


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading, of two\n[a](page.md#a-heading-of-two) [b](#a-heading) [c](none.md) [d](https://x.org/y)\n"
    )
    assert broken(page) == ["#a-heading", "none.md#"]


BETWEEN = re.compile(r"(?<![\d.,])(\d+\.?\d*)(?: us)? \((\d+\.?\d*) to (\d+\.?\d*)\)")


def outside(text: str) -> list[str]:
    """Times that do not lie in the interval behind them, as `24.2 (25.2 to 29.2)`."""
    return [m[0] for m in BETWEEN.finditer(text) if not float(m[2]) <= float(m[1]) <= float(m[3])]


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_time_lies_in_its_own_interval(page):
    assert outside(page.read_text()) == []


def test_a_time_outside_of_its_interval_is_found():
    assert outside("24.2 (25.2 to 29.2), 43 us (36.6 to 42), 27.1 (25.2 to 29.2)") == [
        "24.2 (25.2 to 29.2)", "43 us (36.6 to 42)",
    ]  # fmt: skip
    assert len(BETWEEN.findall((ROOT / "README.md").read_text())) == 20


@pytest.mark.parametrize("page, most", LINES.items())
def test_a_page_for_one_reader_is_short(page, most):
    assert len((ROOT / page).read_text().splitlines()) <= most


@pytest.mark.parametrize("page", markdown_files(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_read_once(page):
    """The worklog keeps its own words."""
    assert page.parent == ROOT / "worklog" or OBSCURE.findall(page.read_text()) == []


def test_docstrings_and_comments_are_read_once():
    files = [*ROOT.glob("*.py"), *(file for top in CODE for file in (ROOT / top).rglob("*.py"))]
    said = {}
    for file in files:
        with tokenize.open(file) as text:
            every = list(tokenize.generate_tokens(text.readline))
        tokens = [x for x in every if x.type in (tokenize.STRING, tokenize.COMMENT)]
        if found := [f"line {x.start[0]}: {word}" for x in tokens for word in WORDY.findall(x.string)]:
            said[str(file.relative_to(ROOT))] = found
    assert len(files) > 400 and said == {}


@pytest.mark.parametrize("page", [page for page in LINES if page.startswith(("README", "ragged_moe"))])
def test_a_page_for_users_is_of_one_version(page):
    assert EARLIER.findall((ROOT / page).read_text()) == []


def test_what_is_obscure_or_of_an_earlier_version_is_found():
    assert WORDY.findall("of so many bytes") and not WORDY.findall("this many")
    assert OBSCURE.findall("kernels, those of which run") and OBSCURE.findall("So many rows")
    assert not OBSCURE.findall("many rows")
    assert EARLIER.findall("of the kernels before F50") and EARLIER.findall("an earlier kernel")
