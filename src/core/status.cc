// Errors and the names of the public enumerations.
#include <cstdarg>
#include <cstdio>

#include "core/plan.h"

namespace kda::core {
namespace {

template <int kCount>
const char* NameOf(const char* const (&names)[kCount], int32_t value) {
  return value >= 0 && value < kCount ? names[value] : nullptr;
}

constexpr const char* kStatusNames[] = {
    "ok",        "null_pointer", "struct_size",   "enum",     "dtype",      "shape",  "stride",
    "overflow",  "cu_seqlens",   "slot",          "gate",     "checkpoint", "option", "unavailable",
    "workspace", "alias",        "out_of_memory", "internal", "alignment"};
static_assert(sizeof kStatusNames / sizeof kStatusNames[0] == KDA_ERROR_ALIGNMENT + 1);
constexpr const char* kDtypeNames[] = {nullptr, "f32", "bf16", "f16", "i32", "i64"};
constexpr const char* kSolverNames[] = {"auto", "substitution", "block", "neumann64"};
constexpr const char* kBackendNames[] = {"auto", "cpu", "reference"};

}  // namespace

kda_status Fail(kda_error* error, kda_status code, const char* argument, const char* format, ...) {
  if (error == nullptr) return code;
  std::snprintf(error->argument, sizeof error->argument, "%s", argument);
  const int prefix = std::snprintf(error->message, sizeof error->message, "%s: ", argument);
  if (prefix >= 0 && static_cast<size_t>(prefix) < sizeof error->message) {
    va_list args;
    va_start(args, format);
    std::vsnprintf(error->message + prefix, sizeof error->message - static_cast<size_t>(prefix),
                   format, args);
    va_end(args);
  }
  return code;
}

}  // namespace kda::core

extern "C" {

int32_t kda_version(void) {
  return KDA_VERSION_MAJOR * 10000 + KDA_VERSION_MINOR * 100 + KDA_VERSION_PATCH;
}

#define KDA_TEXT_OF(x) #x
#define KDA_TEXT(x) KDA_TEXT_OF(x)
const char* kda_version_string(void) {
  return KDA_TEXT(KDA_VERSION_MAJOR) "." KDA_TEXT(KDA_VERSION_MINOR) "." KDA_TEXT(
      KDA_VERSION_PATCH);
}

const char* kda_status_name(int32_t status) {
  const char* name = kda::core::NameOf(kda::core::kStatusNames, status);
  return name != nullptr ? name : "unknown";
}

const char* kda_dtype_name(int32_t dtype) {
  return kda::core::NameOf(kda::core::kDtypeNames, dtype);
}
const char* kda_solver_name(int32_t solver) {
  return kda::core::NameOf(kda::core::kSolverNames, solver);
}
const char* kda_backend_name(int32_t backend) {
  return kda::core::NameOf(kda::core::kBackendNames, backend);
}

}  // extern "C"
