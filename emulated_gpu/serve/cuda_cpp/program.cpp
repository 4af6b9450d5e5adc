// Preloaded into a program that was linked against CUDA: starts Python in it, before its own constructors run.

#include "python.hpp"

#include <dlfcn.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>

// Memory from the heap that a CUDA graph uses, and whether it has been freed since it was captured.
static struct { const char *begin, *end; bool freed; } kept[1024];
static std::atomic<unsigned> keeps;

extern "C" unsigned emulator_keeps(const char *begin, size_t size) {
  if (keeps < 1024) kept[keeps] = {begin, begin + size, false};
  return keeps < 1024 ? ++keeps : 0;
}
extern "C" bool emulator_freed(unsigned number) { return number && kept[number - 1].freed; }
extern "C" void free(void *p) {
  static void (*next)(void *) = nullptr;
  if (!next) {
    next = [](void *) {};  // dlsym may free something itself
    next = reinterpret_cast<void (*)(void *)>(dlsym(RTLD_NEXT, "free"));
  }
  for (unsigned n = p ? keeps.load() : 0; n--;)
    kept[n].freed |= kept[n].begin < static_cast<char *>(p) + malloc_usable_size(p) && p < kept[n].end;
  next(p);
}

static void end() {
  if (!emulator_run("in_program.end()")) std::_Exit(1);
}

__attribute__((constructor)) static void begin() {
  char path[PATH_MAX + 1] = {};
  const char *program = std::getenv("EMULATED_GPU_PROGRAM");
  if (readlink("/proc/self/exe", path, PATH_MAX) < 0 || !program || std::strcmp(path, program)) return;  // one it starts
  if (!emulator_python() || !emulator_run("from emulated_gpu.serve import in_program\nin_program.lead_runtime()"))
    std::_Exit(1);
  std::atexit(end);
}
