#pragma once  // in the place of cuBLASLt's header, for the names that torch's headers mention
typedef struct cublasLtContext *cublasLtHandle_t;
