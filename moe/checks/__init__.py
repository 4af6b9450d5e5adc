"""These modules hold the kernels to their references, on a real GPU or an emulated one."""
