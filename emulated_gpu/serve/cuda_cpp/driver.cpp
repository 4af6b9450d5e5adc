// Stands in for libcuda, whose functions are in the stand-in for the runtime. In a process where nobody has given these
// something to lead to, which is one that a script has started, it starts the emulated device.

#include "python.hpp"

#include <cstdlib>

extern "C" bool emulator_is_set();

__attribute__((constructor)) static void begin() {
  if (emulator_is_set() || std::getenv("EMULATED_GPU_PROGRAM") || !std::getenv("EMULATED_GPU_RUN")) return;
  if (emulator_python()) emulator_run("from emulated_gpu.serve import in_program\nin_program.join()");
}
