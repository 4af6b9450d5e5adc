// Tried before torch's own: tensors, and of the operators that are functions those that make tensors. A name that is
// not here ends the attempt; that none of these means something else than in torch's own headers is what keeps it right.
#pragma once
#define AT_PER_OPERATOR_HEADERS
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#ifndef __CUDACC__  // bindings to Python stand in files of C++; in one of CUDA they need torch's own headers
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#endif

namespace torch {
using namespace at;
using std::nullopt;
using std::optional;
using Dtype = at::ScalarType;
constexpr auto kUInt8 = at::kByte, kInt8 = at::kChar, kInt16 = at::kShort, kInt32 = at::kInt, kInt64 = at::kLong;
constexpr auto kFloat16 = at::kHalf, kFloat32 = at::kFloat, kFloat64 = at::kDouble;
}  // namespace torch

#pragma GCC poison requires_grad  // at::empty and its like refuse it, torch::empty does not
