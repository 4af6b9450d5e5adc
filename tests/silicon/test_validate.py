"""What ties modelled values to a version of the model: silicon/timing/validate.py's digest."""

import sys

import pytest

from silicon.timing.validate import code, main

TEXT = '"""A module."""\n\n\ndef f(x):\n    """Adds one."""\n    return x + 1\n'


@pytest.mark.parametrize("changed", [TEXT.replace("Adds one.", "One more."), TEXT.replace("A module.", "Another."),
                                     TEXT.replace("x + 1", "(x  +  1)  # one")])  # fmt: skip
def test_words_about_the_model_are_not_the_model(changed):
    assert changed != TEXT and code(changed) == code(TEXT)


@pytest.mark.parametrize("changed", [TEXT.replace("+ 1", "+ 2"), TEXT + "f(1)\n", TEXT.replace("return", "yield")])
def test_what_it_does_is(changed):
    assert code(changed) != code(TEXT)


def test_a_table_of_no_points_is_not_written(monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- h200 -->\nkept\n<!-- /h200 -->\n")
    given = ["validate", "--results", str(tmp_path / "none.jsonl"), "--known", "--write", str(page)]
    monkeypatch.setattr(sys, "argv", given)
    with pytest.raises(SystemExit):
        main()
    assert "kept" in page.read_text() and "no point is left" in capsys.readouterr().err
