// A small kernel with every kind of block in it, written out by hand, and where to compile it.
#ifndef KDA_TESTS_TPU_TINY_KERNEL_H_
#define KDA_TESTS_TPU_TINY_KERNEL_H_

#include <gtest/gtest.h>

#include <string>

#include "tpu/pjrt/compile.h"

namespace kda::tpu {

// Over four steps: o = a b^7 in a loop, then, if n[step] > 0, o += a b in a region with an else.
std::string TinyKernel();

// A program that calls `kernel`, of TinyKernel's signature, as "tiny". For more partitions than one
// each has `a` of its own.
std::string TinyModule(const std::string& kernel, int partitions = 1);

// The request for a target, which runs this test's own executable as its child.
CompileRequest TinyRequest(const char* target = "v6e");

// Empty if programs can be compiled here.
std::string WhyNoLibtpu();

// Skips a test, saying why, if there is no libtpu.
#define KDA_NEEDS_LIBTPU() \
  if (const std::string why = WhyNoLibtpu(); !why.empty()) GTEST_SKIP() << why

}  // namespace kda::tpu

#endif  // KDA_TESTS_TPU_TINY_KERNEL_H_
