// Python in a process that may not be Python's: entered where it runs already, else started.

#include "python.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

static void *python = RTLD_DEFAULT;  // where its functions are

template <class Function> static Function function(const char *name) {
  return reinterpret_cast<Function>(dlsym(python, name));
}

// Sets a variable while Python starts.
struct Setting {
  const char *name;
  bool had;
  std::string old;
  Setting(const char *name, const char *value) : name(name) {
    const char *before = std::getenv(name);
    had = before, old = before ? before : "";
    if (value) setenv(name, value, 1);
  }
  ~Setting() { had ? setenv(name, old.c_str(), 1) : unsetenv(name); }
};

bool emulator_python() {
  auto runs = function<int (*)()>("Py_IsInitialized");
  if (runs && runs()) return true;
  const char *library = std::getenv("EMULATED_GPU_LIBPYTHON");
  python = library ? dlopen(library, RTLD_NOW | RTLD_GLOBAL) : nullptr;
  if (!python) {
    std::fprintf(stderr, "emulated-gpu: %s\n", library ? dlerror() : "no libpython, with which the device runs");
    return false;
  }
  Setting home("PYTHONHOME", std::getenv("EMULATED_GPU_PYTHONHOME"));
  Setting path("PYTHONPATH", std::getenv("EMULATED_GPU_PYTHONPATH"));
  function<void (*)(int)>("Py_InitializeEx")(0);
  function<void *(*)()>("PyEval_SaveThread")();
  return true;
}

bool emulator_run(const char *text) {
  int state = function<int (*)()>("PyGILState_Ensure")();
  int failed = function<int (*)(const char *)>("PyRun_SimpleString")(text);  // it has printed why
  function<void (*)(int)>("PyGILState_Release")(state);
  return !failed;
}
