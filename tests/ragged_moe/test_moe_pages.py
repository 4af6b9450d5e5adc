"""ragged_moe/'s pages: their tables are those of the results, their links lead somewhere, the configs that they name
exist.

Their examples are run by kernel_checks.py and layer_checks.py.
"""

import re

import pytest

from ragged_moe.measure import pages
from ragged_moe.tuning import sm90, sm100

PAGES = pytest.mark.parametrize("page", pages.PLACES, ids=lambda page: str(page.relative_to(pages.MOE)))


@PAGES
def test_tables_are_those_of_the_results(page):
    """If not: python -m ragged_moe.measure.plot."""
    assert page.read_text() == pages.redrawn(page)


def test_a_table_without_a_place_is_missed(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("<!-- table a -->\nold\n<!-- end -->\n")
    monkeypatch.setitem(pages.PLACES, page, {"a": (lambda result: "new", "layer_b200")})
    assert pages.redrawn(page) == "<!-- table a -->\nnew\n<!-- end -->\n"
    pages.PLACES[page]["b"] = pages.PLACES[page]["a"]
    with pytest.raises(ValueError, match=r"page.md has places for the tables \['a'\], but must have \['a', 'b'\]"):
        pages.redrawn(page)


@PAGES
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert links and not missing


def test_named_configs_are_in_the_tables():
    tables = sm90.GEMM, sm90.GEMM1, sm90.FP4_BY_E4M3, sm100.GEMM, sm100.GEMM1, *sm100.FP4.values(), sm100.FP4_BF16
    known = {str(config) for table in tables for config in table}
    for page in (pages.MOE / "kernels" / "README.md", pages.MOE / "LAYER.md"):
        named = re.findall(r"`(\d+x\d+x\d+[^`]*)`", page.read_text())
        assert named and not set(named) - known
