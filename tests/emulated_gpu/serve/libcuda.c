// A program of the driver's functions, found by dlopen as interpreters and JIT compilers find them. It prints OK, or
// what went wrong. With an argument it makes launches, too, that the driver refuses.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *ptx =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry twice(.param .u64 p) {\n"
    ".reg .u64 %rd<4>; .reg .u32 %r<4>;\nld.param.u64 %rd1, [p];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
    "add.u64 %rd3, %rd1, %rd2;\nld.global.u32 %r2, [%rd3];\nadd.u32 %r2, %r2, %r2;\nst.global.u32 [%rd3], %r2;\nret;\n}\n";

typedef int Function();
typedef unsigned long long Address;
static int (*get)(const char *, void *, int, Address);  // the form of CUDA 11, without a status

static Function *of(const char *name, int version) {
  Function *found = 0;
  get(name, &found, version, 0);
  return found;
}

#define WANT(what) if (!(what)) return printf("%s\n", #what), 1

struct Copy2D {
  size_t source_x, source_y; int source_type; const void *source_host; Address source_device; void *source_array;
  size_t source_pitch, x, y; int type; void *host; Address device; void *array; size_t pitch, width, height;
};

static int called;
static void call(void *by) { *(int *)by = 7; }

int main(int count, char **words) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  WANT(library);
  *(void **)&get = dlsym(library, "cuGetProcAddress");
  WANT(get && of("cuInit", 13000));
  int devices;
  Address early;
  WANT(of("cuDeviceGetCount", 13000)(&devices) == 3 && of("cuMemAlloc", 12000)(&early, (size_t)16) == 3);
  WANT(of("cuInit", 13000)(0) == 0 && of("cuDeviceGetCount", 13000)(&devices) == 0);
  WANT(!of("cuCtxCreate", 2000 - 1) && !of("cuNoSuchFunction", 13000));

  void *context = 0, *module, *kernel, *queue_context = 0;
  WANT(of("cuDevicePrimaryCtxRetain", 13000)(&context, 0) == 0 && of("cuMemAlloc", 12000)(&early, (size_t)16) == 201);
  WANT(of("cuCtxPopCurrent", 13000)(&context) == 201 && of("cuCtxGetCurrent", 13000)(&context) == 0 && !context);
  WANT(of("cuCtxCreate", 11000)(&context, 0, 0) == 0 && context);  // three parameters
  void *queue = 0;
  Address number = 0;  // a function's address and 64 bits of a result are no ints
  WANT(of("cuStreamCreate", 13000)(&queue, 1) == 0 && of("cuStreamGetId", 13000)(queue, &number) == 0);
  WANT(queue && number == (Address)queue && of("cuLaunchHostFunc", 13000)(queue, call, &called) == 0 && called == 7);
  context = 0;
  WANT(of("cuCtxCreate", 13000)(&context, (void *)0, 0, 0) == 0 && context);  // four
  WANT(of("cuCtxDestroy", 13000)(context) == 0 && of("cuCtxSetCurrent", 13000)((void *)0) == 0);
  WANT(of("cuMemAlloc", 12000)(&early, (size_t)16) == 201 && of("cuModuleLoadData", 12000)(&module, ptx) == 201);
  WANT(of("cuCtxPushCurrent", 13000)(context) == 0);
  int major = 0, minor = 0;
  WANT(of("cuDeviceComputeCapability", 12000)(&major, &minor, 0) == 0 && major >= 8);
  WANT(of("cuStreamGetCtx", 12000)((void *)0, &queue_context) == 0 && queue_context == context);
  size_t limit = 0;
  WANT(of("cuCtxGetLimit", 12000)(&limit, 0) == 0 && limit == 1024);
  WANT(of("cuCtxGetLimit", 12000)(&limit, 99) == 215);

  Address memory = 0, start = 0;
  size_t size = 0, pitch = 0;
  int values[32], back[32], i;
  for (i = 0; i < 32; ++i) values[i] = i;
  WANT(of("cuMemAlloc", 12000)(&memory, (size_t)128) == 0);
  WANT(of("cuMemGetAddressRange", 12000)(&start, &size, memory + 4) == 0 && start == memory && size == 128);
  WANT(of("cuMemcpyHtoD", 12000)(memory, values, (size_t)128) == 0);
  WANT(of("cuModuleLoadData", 12000)(&module, ptx) == 0);
  WANT(of("cuModuleGetFunction", 12000)(&kernel, module, "twice") == 0);
  void *arguments[] = {&memory};
  WANT(of("cuLaunchKernel", 12000)(kernel, 1, 1, 1, 32, 1, 1, 0, (void *)0, arguments, (void *)0) == 0);
  WANT(of("cuMemcpyDtoH", 12000)(back, memory, (size_t)128) == 0 && back[1] == 2 && back[31] == 62);


  // The oldest way to launch, of four values twice again
  WANT(of("cuFuncSetBlockShape", 12000)(kernel, 4, 1, 1) == 0 && of("cuParamSetSize", 12000)(kernel, 8) == 0);
  WANT(of("cuParamSetv", 12000)(kernel, 0, &number, 8) == 0 && of("cuParamSeti", 12000)(kernel, 0, (int)memory) == 0);
  WANT(of("cuParamSeti", 12000)(kernel, 4, (int)(memory >> 32)) == 0 && of("cuLaunchGrid", 12000)(kernel, 1, 1) == 0);
  WANT(of("cuMemcpyDtoH", 12000)(back, memory, (size_t)128) == 0 && back[3] == 12 && back[4] == 8);

  char log[8] = "garbage";  // of a link, whose compiler says nothing
  int logs[] = {5, 6};
  void *image, *link, *kept[] = {log, (void *)sizeof log};
  WANT(of("cuLinkCreate", 12000)(2, logs, kept, &link) == 0 && !*log && !kept[1]);
  WANT(of("cuLinkAddFile", 12000)(link, 4, "libcudadevrt.a", 0, (void *)0, (void *)0) == 0);
  WANT(of("cuLinkAddFile", 12000)(link, 1, "/no/such/file", 0, (void *)0, (void *)0) == 301);
  char path[] = "/tmp/twiceXXXXXX";
  int file = mkstemp(path);
  WANT(write(file, ptx, strlen(ptx)) == strlen(ptx) && close(file) == 0);
  WANT(of("cuLinkAddFile", 12000)(link, 1, path, 0, (void *)0, (void *)0) == 0 && unlink(path) == 0);
  static const char other[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry other() { ret; }\n";
  WANT(of("cuLinkAddData", 12000)(link, 1, other, sizeof other, "other", 0, (void *)0, (void *)0) == 0);
  WANT(of("cuLinkComplete", 12000)(link, &image, &size) == 0 && of("cuModuleLoadData", 12000)(&module, image) == 0);
  WANT(of("cuModuleGetFunction", 12000)(&kernel, module, "other") == 0);
  WANT(of("cuModuleGetFunction", 12000)(&kernel, module, "twice") == 0);

  int value = 0;  // wrong calls, which have no effect
  void *none = 0;
  WANT(of("cuInit", 12000)(1) == 1 && of("cuDeviceGet", 12000)(&value, 99) == 101 && of("cuDeviceGet", 12000)(none, 0) == 1);
  WANT(of("cuDeviceGetAttribute", 12000)(&value, 9999, 0) == 1 && of("cuDeviceGetAttribute", 12000)(&value, 10, 7) == 101);
  WANT(of("cuDeviceGetAttribute", 12000)(&value, 98, 0) == 0 && value == 0);  // what the device does not have
  WANT(of("cuModuleLoadData", 12000)(&none, "neither PTX nor a cubin") == 200 && of("cuModuleLoadData", 12000)(&none, none) == 1);
  WANT(of("cuModuleLoadData", 12000)(&none, "\177ELF, and nothing more of one behind that, in 64 bytes and above") == 200);
  WANT(of("cuModuleLoad", 12000)(&none, "/no/such/file") == 301 && of("cuModuleGetFunction", 12000)(&none, module, "no") == 500);
  WANT(of("cuModuleGetFunction", 12000)(&none, none, "twice") == 400 && of("cuModuleGetFunction", 12000)(&none, module, none) == 1);
  WANT(of("cuFuncSetAttribute", 12000)(kernel, 4, 3) == 1);
  WANT(of("cuMemAlloc", 12000)(&none, (size_t)0) == 1 && of("cuMemsetD32", 12000)(memory + 1, 0, (size_t)1) == 1);
  if (count > 1) {  // the two that are findings
    WANT(of("cuFuncSetAttribute", 12000)(kernel, 8, 1 << 20) == 1);
    WANT(of("cuLaunchKernel", 12000)(kernel, 0, 1, 1, 32, 1, 1, 0, none, arguments, none) == 1);
  }
  WANT(of("cuLaunchKernel", 12000)(none, 1, 1, 1, 32, 1, 1, 0, none, arguments, none) == 400);
  WANT(of("cuStreamCreate", 12000)(&none, 64) == 1 && of("cuEventCreate", 12000)(&none, 256) == 1);
  WANT(of("cuEventRecord", 12000)(none, none) == 400 && of("cuProfilerStart", 12000)() == 0);

  Address rows = 0;  // 4 x 3 ints to rows of 512 bytes and back
  WANT(of("cuMemAllocPitch", 12000)(&rows, &pitch, (size_t)12, (size_t)4, 4) == 0 && pitch == 512);
  struct Copy2D in = {0, 0, 1, values, 0, 0, 12, 0, 0, 2, 0, rows, 0, pitch, 12, 4};
  struct Copy2D out = {0, 1, 2, 0, rows, 0, pitch, 0, 0, 1, back, 0, 0, 12, 12, 3};  // from the second row on
  WANT(of("cuMemcpy2D", 12000)(&in) == 0 && of("cuMemcpy2D", 12000)(&out) == 0);
  WANT(back[0] == 3 && back[8] == 11);
  out.height = 1000;  // past both ends
  WANT(of("cuMemcpy2D", 12000)(&out) == 1);
  out.height = 3, out.type = 2, out.device = memory - 1024 * 1024;  // no memory of the device's, and the host's
  WANT(of("cuMemcpy2D", 12000)(&out) == 1);
  out.source_type = 1, out.source_host = (void *)rows;  // the device's, as if it were the host's
  WANT(of("cuMemcpy2D", 12000)(&out) == 1);
  WANT(of("cuMemcpyHtoD", 12000)(memory, values, (size_t)132) == 1);
  WANT(of("cuMemcpyDtoH", 12000)(back, memory + 4, (size_t)128) == 1);
  WANT(of("cuMemcpyHtoD", 12000)((Address)back, values, (size_t)4) == 1);
  WANT(of("cuMemsetD32", 12000)(memory, 0, (size_t)33) == 1);
  WANT(of("cuMemsetD8", 12000)((Address)back, 0, (size_t)4) == 1);
  WANT(of("cuMemsetD2D8", 12000)(rows, pitch, 0, (size_t)12, (size_t)1000) == 1);
  WANT(of("cuMemHostRegister", 12000)(values, (size_t)128, 0) == 0);
  WANT(of("cuMemHostRegister", 12000)(values, (size_t)128, 0) == 712);
  WANT(of("cuMemHostUnregister", 12000)(values) == 0);
  const char *said = "";
  WANT(of("cuGetErrorName", 13000)(719, &said) == 0 && !strcmp(said, "CUDA_ERROR_LAUNCH_FAILED"));
  WANT(of("cuGetErrorString", 13000)(719, &said) == 0 && !strcmp(said, "unspecified launch failure"));
  WANT(of("cuGetErrorString", 13000)(12345, &said) == 1 && !said);
  int pools = 0;  // they are served
  WANT(of("cuDeviceGetAttribute", 12000)(&pools, 115, 0) == 0 && pools == 1);
  struct { int type, id; } here = {1, 0};
  Address pool = 0, pooled = 0, there = 0;
  WANT(of("cuDeviceGetDefaultMemPool", 12000)(&pool, 0) == 0 && pool);
  WANT(of("cuMemGetDefaultMemPool", 13000)(&there, &here, 1) == 0 && there == pool && here.type == 1);
  WANT(of("cuMemAllocFromPoolAsync", 12000)(&pooled, (size_t)64, pool, (void *)0) == 0 && pooled);
  puts("OK");
  return 0;
}
