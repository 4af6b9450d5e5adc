"""python -m moe.experts_bench: moe.experts and moe.batched_experts at models' sizes, and their peers, on this GPU."""

from moe.measure.experts import main

if __name__ == "__main__":
    main()
