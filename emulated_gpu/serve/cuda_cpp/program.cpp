// Preloaded into a program that was linked against CUDA: starts Python in it, before its own constructors run.

#include "python.hpp"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>

static void end() {
  if (!emulator_run("in_program.end()")) std::_Exit(1);
}

__attribute__((constructor)) static void begin() {
  char path[PATH_MAX + 1] = {};
  const char *program = std::getenv("EMULATED_GPU_PROGRAM");
  if (readlink("/proc/self/exe", path, PATH_MAX) < 0 || !program || std::strcmp(path, program)) return;  // one it starts
  if (!emulator_python() || !emulator_run("from emulated_gpu.serve import in_program\nin_program.begin()"))
    std::_Exit(1);
  std::atexit(end);
}
