#pragma once  // in the place of NVTX's header, where the toolkit has none: ranges and marks for a profiler that is not there

#include <stdint.h>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))

typedef uint64_t nvtxRangeId_t;
typedef struct nvtxDomainRegistration_st *nvtxDomainHandle_t;
typedef struct nvtxStringRegistration_st *nvtxStringHandle_t;
typedef enum { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 } nvtxColorType_t;
typedef enum { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE = 2 } nvtxMessageType_t;
typedef enum {
  NVTX_PAYLOAD_UNKNOWN = 0, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1, NVTX_PAYLOAD_TYPE_INT64 = 2,
  NVTX_PAYLOAD_TYPE_DOUBLE = 3
} nvtxPayloadType_t;
typedef union { const char *ascii; const wchar_t *unicode; nvtxStringHandle_t registered; } nvtxMessageValue_t;
typedef struct nvtxEventAttributes_v2 {
  uint16_t version, size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType, reserved0;
  union { uint64_t ullValue; int64_t llValue; double dValue; } payload;
  int32_t messageType;
  nvtxMessageValue_t message;
} nvtxEventAttributes_t;

#define NVTX_NONE(type, name, ...) static inline type name(__VA_ARGS__) { return (type)0; }
NVTX_NONE(int, nvtxRangePushA, const char *message)
NVTX_NONE(int, nvtxRangePushW, const wchar_t *message)
NVTX_NONE(int, nvtxRangePushEx, const nvtxEventAttributes_t *attributes)
NVTX_NONE(int, nvtxRangePop, void)
NVTX_NONE(nvtxRangeId_t, nvtxRangeStartA, const char *message)
NVTX_NONE(nvtxRangeId_t, nvtxRangeStartEx, const nvtxEventAttributes_t *attributes)
NVTX_NONE(void, nvtxRangeEnd, nvtxRangeId_t range)
NVTX_NONE(void, nvtxMarkA, const char *message)
NVTX_NONE(void, nvtxMarkEx, const nvtxEventAttributes_t *attributes)
NVTX_NONE(void, nvtxInitialize, const void *reserved)
NVTX_NONE(void, nvtxNameOsThreadA, uint32_t thread, const char *name)
NVTX_NONE(void, nvtxNameCategoryA, uint32_t category, const char *name)
NVTX_NONE(nvtxDomainHandle_t, nvtxDomainCreateA, const char *name)
NVTX_NONE(void, nvtxDomainDestroy, nvtxDomainHandle_t domain)
NVTX_NONE(int, nvtxDomainRangePushEx, nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
NVTX_NONE(int, nvtxDomainRangePop, nvtxDomainHandle_t domain)
NVTX_NONE(void, nvtxDomainMarkEx, nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
NVTX_NONE(nvtxStringHandle_t, nvtxDomainRegisterStringA, nvtxDomainHandle_t domain, const char *text)

#ifdef UNICODE
#define nvtxRangePush nvtxRangePushW
#else
#define nvtxRangePush nvtxRangePushA
#define nvtxRangeStart nvtxRangeStartA
#define nvtxMark nvtxMarkA
#endif
