"""The clock that the power limit leaves calls of seconds, against an H200's, and what a report makes of it."""

import json

import pytest

from emulated_gpu.model import report
from emulated_gpu.model.profile import load
from emulated_gpu.model.sm_clock import sustained_ghz, sustained_us
from silicon.probes import power_clock

B200, H200 = load("b200"), load("h200")
ROWS = json.loads(power_clock.TABLE.read_text())["points"]


@pytest.mark.parametrize("name", [name for name in ROWS if "randn" in name])
def test_the_clock_of_long_rows_of_gemms(name):
    """On noise. Matrices of 4096 x 4096 were not fitted."""
    row = ROWS[name]
    error = 0.01 if name.startswith("8192") else 0.04
    assert sustained_ghz(H200, power_clock.share(row)) == pytest.approx(row["ghz"], rel=error)


def test_zeros_take_less_power_than_noise():
    """So the figures are those of noise, on which the clock is the lowest."""
    for name, row in ROWS.items():
        if "zeros" in name:
            assert sustained_ghz(H200, power_clock.share(row)) <= row["ghz"] * 1.01


def test_more_work_has_a_lower_clock_and_little_work_the_highest():
    ghz = [sustained_ghz(B200, share / 20) for share in range(21)]
    assert ghz[0] == ghz[6] == B200.clock_ghz and ghz[20] == B200["power"]["all_ghz"]
    assert sorted(ghz, reverse=True) == ghz
    assert sustained_us(B200, 10.0, 1.0) == pytest.approx(10 * 1.85 / 1.24)


def test_a_report_says_it_where_it_slows():
    assert report.sustained({"us": 10.0, "sustained_us": 10.0}) == []
    assert "12.00 us at most for 10.00" in report.sustained({"us": 10.0, "sustained_us": 12.0})[0]
