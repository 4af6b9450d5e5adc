"""What instructions do when a warp executes them: accesses, asynchronous copies, tensor cores.

A file a unit; a second kind of tensor core has its room beside tcgen05.py."""
