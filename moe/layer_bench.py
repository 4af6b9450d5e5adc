"""python -m moe.layer_bench: the layer, its stages and its peers, timed on this GPU."""

from moe.measure.layer import main

if __name__ == "__main__":
    main()
