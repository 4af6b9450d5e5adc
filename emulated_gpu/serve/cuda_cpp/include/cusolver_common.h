#pragma once  // in the place of cuSOLVER's header, for the names that torch's headers mention
typedef enum { CUSOLVER_STATUS_SUCCESS, CUSOLVER_STATUS_INVALID_VALUE = 3 } cusolverStatus_t;
