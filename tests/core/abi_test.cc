// The C ABI from C, and the layout of its structs in C++.
#include <gtest/gtest.h>

#include "layout.h"

extern "C" int kda_c_abi_test(void);

namespace {

TEST(Abi, CProgram) { EXPECT_EQ(kda_c_abi_test(), 0) << "line of c_abi.c"; }

TEST(Abi, Version) {
  EXPECT_EQ(kda_version(), KDA_VERSION_MAJOR * 10000 + KDA_VERSION_MINOR * 100 + KDA_VERSION_PATCH);
  EXPECT_EQ(std::string(kda_version_string()), std::to_string(KDA_VERSION_MAJOR) + "." +
                                                   std::to_string(KDA_VERSION_MINOR) + "." +
                                                   std::to_string(KDA_VERSION_PATCH));
}

TEST(Abi, Names) {
  EXPECT_STREQ(kda_status_name(KDA_OK), "ok");
  EXPECT_STREQ(kda_status_name(KDA_ERROR_CU_SEQLENS), "cu_seqlens");
  EXPECT_STREQ(kda_status_name(KDA_ERROR_INTERNAL), "internal");
  EXPECT_STREQ(kda_status_name(KDA_ERROR_ALIGNMENT), "alignment");
  EXPECT_STREQ(kda_status_name(KDA_ERROR_ALIGNMENT + 1), "unknown");
  EXPECT_STREQ(kda_status_name(-1), "unknown");
  EXPECT_STREQ(kda_dtype_name(KDA_F32), "f32");
  EXPECT_STREQ(kda_dtype_name(KDA_I64), "i64");
  EXPECT_EQ(kda_dtype_name(0), nullptr);
  EXPECT_EQ(kda_dtype_name(KDA_I64 + 1), nullptr);
  EXPECT_STREQ(kda_isa_name(KDA_ISA_AUTO), "auto");
  EXPECT_STREQ(kda_isa_name(KDA_ISA_AVX512), "avx512");
  EXPECT_EQ(kda_isa_name(-1), nullptr);
  EXPECT_EQ(kda_isa_name(1000), nullptr);
  EXPECT_STREQ(kda_solver_name(KDA_SOLVER_NEUMANN64), "neumann64");
  EXPECT_EQ(kda_solver_name(KDA_SOLVER_NEUMANN64 + 1), nullptr);
  EXPECT_STREQ(kda_backend_name(KDA_BACKEND_REFERENCE), "reference");
  EXPECT_EQ(kda_backend_name(-1), nullptr);
}

}  // namespace
