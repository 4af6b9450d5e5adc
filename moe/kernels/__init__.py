"""The kernels: a frame with roles (loads, scales, mainloop, epilogue), and the layer's other launches."""
