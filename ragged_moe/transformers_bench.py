"""python -m ragged_moe.transformers_bench: transformers' FP8 experts and ragged_moe.experts in a random model, on this
GPU."""

from ragged_moe.measure.transformers import main

if __name__ == "__main__":
    main()
