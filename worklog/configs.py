"""Runs the submission under many configs on the emulated B200, with all checks, and compares its results bit by bit.

    .venv/bin/python -m worklog.configs [--schedules 20] [--only CONFIGS]

Configs: each entry of CONFIG_MAP and DEFAULT, on all SMs and on one cluster (which then runs many tiles), and 32 drawn
ones. tests/submission/test_results.py runs a sample.
"""

import argparse
import dataclasses
import itertools
import random
import time

OTHERS = 32
VALUES = {
    "sharers": (1, 2),
    "token_sharers": (1, 2),
    "wide_token_box": (48, 96, 128),
    "gran": (32, 64, 128),
    "tokens": (32, 64, 96, 128, 160, 192, 256),
    "token_cost": (0, 100),
    "waves": (1, 2, 6),
    "token_box": (16, 32, 64, 128),
    "stages": (0, 2, 3),
    "store_boxes": (1, 2),
    "epilogue_warps": (4, 8),
    "weight_policy": ("evict_first", "evict_normal", "evict_last"),
    "token_policy": ("evict_normal", "evict_last"),
    "store_policy": ("evict_first", "evict_normal", "evict_last"),
    "pdl": (True, False),
    "prefetch": (0, 1, 6),
    "sms": (4, 12, 148),
}


def drawn(config_type, count: int = OTHERS) -> list:
    """Different valid configs, the same in every run; every value of every hyperparameter is in some of them."""
    draw, made = random.Random(0), {}
    while len(made) < count:
        entries = {name: draw.choice(values) for name, values in VALUES.items()}
        try:
            made[config_type(**entries)] = None
        except AssertionError:
            pass  # not valid
    for name, values in VALUES.items():
        assert {getattr(config, name) for config in made} == set(values), name
    return list(made)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=20, help="orders in which the warps take turns")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of configs")
    options = parser.parse_args()

    import emulated_gpu

    emulated_gpu.install()
    import submission
    from tests.submission.test_results import VARIED, check, problem

    mapped = list(dict.fromkeys([*itertools.chain(*submission.CONFIG_MAP.values()), submission.DEFAULT]))
    configs = [dataclasses.replace(config, sms=sms) for config in mapped for sms in (config.sms, config.cluster)]
    configs += drawn(submission.Config)
    for number, config in enumerate(configs):
        if options.only is not None and number not in options.only:
            continue
        begin = time.monotonic()
        submission.DEFAULT = config
        submission.plan.cache_clear()
        for schedule in range(options.schedules):
            check(submission, problem(VARIED, full_range=True, seed=schedule), schedule)
        submission.compiled.cache_clear()
        print(f"{number + 1} of {len(configs)}: exact in {options.schedules} schedules", end=", ")
        print(f"{time.monotonic() - begin:.0f} s: {config}", flush=True)


if __name__ == "__main__":
    main()
