#pragma once  // in the place of cuSOLVER's header, for the names that torch's headers mention
typedef struct cusolverDnContext *cusolverDnHandle_t;
