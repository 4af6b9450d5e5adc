"""What silicon/entry/h200_real.py has recorded of an H200 is what the worklog says of it. Nothing is measured here."""

import json

import submission
from silicon.entry import h200_real

RECORD = json.loads(h200_real.RESULTS.read_text())
TIMES = {x["case"]: x for x in RECORD["times"]}


def test_everything_that_could_be_checked_was_right():
    checks = dict(RECORD["checks"])
    assert "CUDA_ERROR_INVALID_CONTEXT" in checks.pop("HardwareInfo in a new thread")  # alone, as CuTe DSL has it
    assert checks.pop("case 2 in a new thread") == "right"
    assert all("must have" in said for said in checks.pop("refused").values())
    assert checks.pop("clusters at once") == {"2": 66, "4": 30}
    for i, (ms, n, _) in enumerate(submission.CONFIG_MAP):
        assert checks.pop(f"case {i}") == f"{sum(ms) * n} elements of C right"
    for i, (m, n, _) in enumerate(submission.DUAL_CONFIG_MAP):
        assert checks.pop(f"dual case {i}") == f"{m * n} elements of C right"
    assert len(checks) == 4 and all(said.endswith("elements of C right") for said in checks.values())


def test_what_was_chosen_is_within_a_percent_of_the_fastest():
    assert len(TIMES) == 8
    for name, x in TIMES.items():
        fastest = min(us for config, us in x["us"].items() if config.startswith("config"))
        near = [x["us"][f"config {i}"] <= 1.01 * fastest for i in x["chosen"]]
        assert len(near) == h200_real.TRIALS and sum(near) == x["within 1 % of the fastest"]
        assert sum(near) >= (8 if name == "dual case 2" else 9)  # by the 24 rounds of that day, not the 48 of today
        assert x["GB of scratch"] <= 3 and x["GB of scratch left"] == 0
        assert x["seconds to compile"] + x["seconds of a first call, compiled before"] < 20


def test_the_table_has_a_row_a_case():
    rows = [row.strip("| ").split(" | ") for row in h200_real.table(RECORD).splitlines() if row.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [*(f"case {i}" for i in range(4)), *(f"dual case {i}" for i in range(4))]
    assert rows[1][:3] == ["case 0", "38.35", "41.11"] and rows[1][-1] == "10 of 10"
    assert rows[7][-2:] == ["1 1 1 1 1 1 1 1 1 1", "10 of 10"]


def test_configs_have_the_ctas_that_an_h200_runs_at_once():
    for configs in submission.CONFIG_MAP.values():
        for config in configs:
            fitted = h200_real.fitted(config)
            assert fitted.sms == min(config.sms, {2: 132, 4: 120}[config.cluster]) and fitted.sms % config.cluster == 0
