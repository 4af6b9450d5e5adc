"""python -m moe.transformers_bench: transformers' FP8 experts and moe.experts in a random model, on this GPU."""

from moe.measure.transformers import main

if __name__ == "__main__":
    main()
