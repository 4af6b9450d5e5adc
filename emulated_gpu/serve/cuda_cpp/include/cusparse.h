#pragma once  // in the place of cuSPARSE's header, for the names that torch's headers mention
typedef struct cusparseContext *cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS, CUSPARSE_STATUS_NOT_SUPPORTED = 10 } cusparseStatus_t;
