"""torchrun --nproc-per-node 2 -m ragged_moe.parallel_bench: expert parallelism and its peers, timed on these GPUs."""

from ragged_moe.measure.parallel import main

if __name__ == "__main__":
    main()
