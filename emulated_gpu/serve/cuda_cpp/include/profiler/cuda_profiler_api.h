#pragma once  // in the place of CUDA's header, which pip's nvcc lacks
#include <driver_types.h>
#ifdef __cplusplus
extern "C" {
#endif
cudaError_t cudaProfilerStart(void);
cudaError_t cudaProfilerStop(void);
#ifdef __cplusplus
}
#endif
