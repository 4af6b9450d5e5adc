// Preloaded into a program that was linked against CUDA: starts Python in it, before its own constructors run.

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static void *python;

template <class Function> static Function function(const char *name) {
  return reinterpret_cast<Function>(dlsym(python, name));
}

static void run(const char *text) {
  int state = function<int (*)()>("PyGILState_Ensure")();
  if (function<int (*)(const char *)>("PyRun_SimpleString")(text)) std::_Exit(1);  // it has printed why
  function<void (*)(int)>("PyGILState_Release")(state);
}

static void end() { run("in_program.end()"); }

__attribute__((constructor)) static void begin() {
  char path[PATH_MAX + 1] = {};
  const char *program = std::getenv("EMULATED_GPU_PROGRAM"), *library = std::getenv("EMULATED_GPU_LIBPYTHON");
  if (readlink("/proc/self/exe", path, PATH_MAX) < 0 || !program || std::strcmp(path, program)) return;  // one it starts
  python = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  if (!python) {
    std::fprintf(stderr, "emulated-gpu: %s\n", dlerror());
    std::_Exit(1);
  }
  function<void (*)(int)>("Py_InitializeEx")(0);
  function<void *(*)()>("PyEval_SaveThread")();
  run("from emulated_gpu.serve import in_program\nin_program.begin()");
  std::atexit(end);
}
