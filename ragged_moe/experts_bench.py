"""python -m ragged_moe.experts_bench: ragged_moe.experts and ragged_moe.batched_experts at models' sizes, and their
peers, on this GPU."""

from ragged_moe.measure.experts import main

if __name__ == "__main__":
    main()
