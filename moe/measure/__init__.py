"""These modules time the kernels and their peers, on a real GPU or on the emulator's timing model."""
