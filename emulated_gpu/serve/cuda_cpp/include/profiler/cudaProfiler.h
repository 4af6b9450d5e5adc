#pragma once  // in the place of CUDA's header, which pip's nvcc lacks
#include <cuda.h>
#ifdef __cplusplus
extern "C" {
#endif
CUresult CUDAAPI cuProfilerInitialize(const char *config, const char *output, int mode);
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);
#ifdef __cplusplus
}
#endif
