#include "tpu/tiny_kernel.h"

#include "tpu/pjrt/libtpu.h"

namespace kda::tpu {
namespace {

std::string Base64(const std::string& bytes) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t block = 0;
    for (size_t j = i; j < i + 3; ++j) {
      block = block << 8 | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[block >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

constexpr char kKernel[] = R"(module attributes {stable_mosaic.version = 15 : i64} {
  func.func @tiny(%step: i32, %n: memref<8xi32, #tpu.memory_space<smem>>,
      %a: memref<64x128xf32, #tpu.memory_space<vmem>>,
      %b: memref<128x128xf32, #tpu.memory_space<vmem>>,
      %o: memref<64x128xf32, #tpu.memory_space<vmem>>)
    attributes {dimension_semantics = [#tpu.dimension_semantics<arbitrary>],
      iteration_bounds = array<i64: 4>, scalar_prefetch = 1 : i64, scratch_operands = 0 : i64,
      tpu.core_type = #tpu.core_type<tc>, window_params = [
        {transform_indices = @rows, window_bounds = array<i64: 64, 128>},
        {transform_indices = @all, window_bounds = array<i64: 128, 128>},
        {transform_indices = @rows, window_bounds = array<i64: 64, 128>}]} {
    %i0 = arith.constant 0 : index
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %c7 = arith.constant 7 : i32
    %zero = arith.constant dense<0.0> : vector<64x128xf32>
    %at = arith.index_cast %step : i32 to index
    %count = memref.load %n[%at] : memref<8xi32, #tpu.memory_space<smem>>
    %x = vector.load %a[%i0, %i0] : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>
    %y = vector.load %b[%i0, %i0] : memref<128x128xf32, #tpu.memory_space<vmem>>, vector<128x128xf32>
    %p = scf.for %i = %c0 to %c7 step %c1 iter_args(%s = %x) -> (vector<64x128xf32>) : i32 {
      %m = tpu.matmul %s, %y, %zero {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<64x128xf32>, vector<128x128xf32>, vector<64x128xf32> -> vector<64x128xf32> loc("power:h3":1:1)
      scf.yield %m : vector<64x128xf32>
    } loc("loop":2:1)
    tpu.vector_store %o[%i0, %i0], %p {strides = array<i32>} : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>,
    scf.for %i = %c0 to %count step %c1 : i32 {
      %l = vector.load %o[%i0, %i0] : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>
      %m = tpu.matmul %l, %y, %zero {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<64x128xf32>, vector<128x128xf32>, vector<64x128xf32> -> vector<64x128xf32> loc("more:h1":3:1)
      tpu.vector_store %o[%i0, %i0], %m {strides = array<i32>} : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>,
    } loc("dynamic":4:1)
    %some = arith.cmpi sgt, %count, %c0 : i32
    scf.if %some {
      %l = vector.load %o[%i0, %i0] : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>
      %m = tpu.matmul %x, %y, %l {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<64x128xf32>, vector<128x128xf32>, vector<64x128xf32> -> vector<64x128xf32> loc("then:h0":5:1)
      tpu.vector_store %o[%i0, %i0], %m {strides = array<i32>} : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>,
    } else {
      %m = tpu.matmul %x, %y, %x {dimension_numbers = #tpu.dot_dimension_numbers<[1], [0], [0], [1], [0, 0, 1, 1], [], []>, transpose_lhs_hint = false} : vector<64x128xf32>, vector<128x128xf32>, vector<64x128xf32> -> vector<64x128xf32> loc("else:h0":6:1)
      tpu.vector_store %o[%i0, %i0], %m {strides = array<i32>} : memref<64x128xf32, #tpu.memory_space<vmem>>, vector<64x128xf32>,
    } loc("region":7:1)
    return
  }
  func.func @rows(%step: i32, %n: memref<8xi32, #tpu.memory_space<smem>>) -> (i32, i32) {
    %c0 = arith.constant 0 : i32
    return %step, %c0 : i32, i32
  }
  func.func @all(%step: i32, %n: memref<8xi32, #tpu.memory_space<smem>>) -> (i32, i32) {
    %c0 = arith.constant 0 : i32
    return %c0, %c0 : i32, i32
  }
}
)";

// Between one partition's view of an array and the whole: GSPMD's manual region.
std::string Manual(const std::string& name, const std::string& call, const std::string& from,
                   const std::string& to, const std::string& sharding, const std::string& inner) {
  const std::string before = call == "SPMDFullToShardShape" ? sharding : inner;
  const std::string after = call == "SPMDFullToShardShape" ? inner : sharding;
  return "    %" + name + "_s = stablehlo.custom_call @Sharding(%" + name +
         ") {mhlo.sharding = \"" + before + "\"} : (" + from + ") -> " + from + "\n    %" + name +
         "_m = stablehlo.custom_call @" + call + "(%" + name + "_s) {mhlo.sharding = \"" + after +
         "\"} : (" + from + ") -> " + to + "\n";
}

}  // namespace

std::string TinyKernel() { return kKernel; }

std::string TinyModule(const std::string& kernel, int partitions) {
  const std::string count = std::to_string(partitions);
  const std::string n = "tensor<8xi32>", a = "tensor<256x128xf32>", b = "tensor<128x128xf32>";
  const std::string all = "tensor<" + std::to_string(256 * partitions) + "x128xf32>";
  const std::string config = "{\\22custom_call_config\\22: {\\22body\\22: \\22" + Base64(kernel) +
                             "\\22, \\22needs_layout_passes\\22: true}}";
  const std::string split = "{devices=[" + count + ",1]<=[" + count + "]}";
  const std::string whole = "{replicated}", manual = "{manual}";
  const std::string head = "module @m attributes {mhlo.num_partitions = " + count +
                           " : i32, mhlo.num_replicas = 1 : i32} {\n  func.func public @main(%n: ";
  const std::string call = " {backend_config = \"" + config + "\"";
  const std::string type = " : (" + n + ", " + a + ", " + b + ") -> " + a + " loc(\"tiny\")\n";
  if (partitions == 1) {
    return head + n + ", %a: " + a + ", %b: " + b + ") -> " + a +
           " {\n    %r = stablehlo.custom_call @tpu_custom_call(%n, %a, %b)" + call + "}" + type +
           "    return %r : " + a + "\n  }\n}\n";
  }
  const std::string full_to_shard = "SPMDFullToShardShape";
  return head + n + ", %a: " + all + ", %b: " + b + ") -> (" + all + " {mhlo.sharding = \"" +
         split + "\"}) {\n" + Manual("n", full_to_shard, n, n, whole, manual) +
         Manual("a", full_to_shard, all, a, split, manual) +
         Manual("b", full_to_shard, b, b, whole, manual) +
         "    %r = stablehlo.custom_call @tpu_custom_call(%n_m, %a_m, %b_m)" + call +
         ", mhlo.sharding = \"{manual}\"}" + type +
         Manual("r", "SPMDShardToFullShape", a, all, split, manual) + "    return %r_m : " + all +
         "\n  }\n}\n";
}

CompileRequest TinyRequest(const char* target) {
  CompileRequest request;
  request.target = FindTarget(target);
  request.module = TinyModule(TinyKernel(), request.target->partitions);
  request.child = {"/proc/self/exe", "compile-child"};
  request.timeout_seconds = 120;
  return request;
}

std::string WhyNoLibtpu() {
#ifdef KDA_SANITIZED
  return "libtpu is not loaded beside a sanitizer";
#else
  std::string path, error;
  return FindLibtpu("", &path, &error) ? "" : error;
#endif
}

}  // namespace kda::tpu

// The child of these tests is the test itself.
int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "compile-child") {
    return kda::tpu::CompileChild(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
