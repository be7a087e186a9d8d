// Writes kernel programs. Stage code built on it reads as its equations:
//
//   Value decay = Exp2(Dot(lower_triangle, gate));
//   Store(a.At(head), Cast(Select(causal, decay * scores, 0.0f), DType::kBF16));
//
// Every operation is checked where it is written (shapes, dtypes, windows against arrays,
// use outside the block that defines a value) and throws BuildError: the TPU's compiler
// does not check all of it.
#ifndef KDA_TPU_IR_BUILDER_H_
#define KDA_TPU_IR_BUILDER_H_

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "tpu/ir/program.h"

namespace kda::tpu::ir {

class Builder;

// A scalar or vector of the program.
class Value {
 public:
  Value() = default;
  Value(Builder* builder, int node) : builder_(builder), node_(node) {}
  bool valid() const { return node_ >= 0; }
  Builder* builder() const { return builder_; }
  int node() const { return node_; }
  const Type& type() const;
  const Shape& shape() const { return type().shape; }
  DType dtype() const { return type().dtype; }

 private:
  Builder* builder_ = nullptr;
  int node_ = -1;
};

// Where a dimension of memory begins: known when the program is built, or not.
class Index {
 public:
  // Implicit: x.At(3), x.Rows(i, 8).  NOLINTBEGIN(google-explicit-constructor)
  Index(int constant) : constant_(constant) {}
  Index(int64_t constant) : constant_(constant) {}
  Index(Value value) : value_(value) {}
  // NOLINTEND(google-explicit-constructor)
  bool IsConstant() const { return !value_.valid(); }
  int64_t constant() const { return constant_; }
  Value value() const { return value_; }
  int node() const { return value_.node(); }  // -1: constant

 private:
  int64_t constant_ = 0;
  Value value_;
};

// Memory, or a rectangle of it.
class Ref {
 public:
  Ref() = default;
  Ref(Builder* builder, int node);
  Builder* builder() const { return builder_; }
  DType dtype() const;
  Space space() const;
  Shape shape() const;  // without the dimensions At() took away

  // The part at these indices of the leading dimensions, which go away.
  Ref At(std::initializer_list<Index> indices) const;
  Ref At(Index index) const { return At({index}); }
  // [start, start + size) of one dimension.
  Ref Slice(int dimension, Index start, int64_t size) const;
  Ref Rows(Index start, int64_t size) const { return Slice(0, start, size); }

  int Node() const;  // of the program: exactly this rectangle

  // The memory as 32-bit words: rows of the second-last dimension in pairs (Op::kBitcast).
  Ref Words() const;
  Ref Reshape(const Shape& shape) const;

 private:
  friend Value Load(const Ref& ref);
  friend void Store(const Ref& ref, Value value);
  struct Dimension {
    Index start;
    int64_t size;
    bool dropped;
  };
  Builder* builder_ = nullptr;
  int base_ = -1;
  std::vector<Dimension> dimensions_;  // of the base
};

class Builder {
 public:
  explicit Builder(const std::string& name);
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  // Declarations, before the body. `block` empty: the array stays in HBM and the kernel copies.
  using IndexMap = std::function<std::vector<Value>(const std::vector<Value>& grid)>;
  void Grid(const std::vector<int64_t>& bounds);
  Ref Prefetch(const std::string& name, DType dtype,
               const Shape& shape);                                     // SMEM, there at the start
  Ref Input(const std::string& name, DType dtype, const Shape& array);  // in HBM
  Ref Input(const std::string& name, DType dtype, const Shape& array, const Shape& block,
            const IndexMap& map, bool pipelined = true);
  Ref InputSmem(const std::string& name, DType dtype, const Shape& array);  // whole, in SMEM
  Ref InputVmem(const std::string& name, DType dtype, const Shape& array);  // whole, in VMEM
  Ref Output(const std::string& name, DType dtype, const Shape& array);
  Ref Output(const std::string& name, DType dtype, const Shape& array, const Shape& block,
             const IndexMap& map);
  Ref Scratch(const std::string& name, DType dtype, const Shape& shape);  // VMEM
  Ref ScratchSmem(const std::string& name, DType dtype, const Shape& shape);
  Ref Semaphores(const std::string& name, int64_t count);
  void Alias(const std::string& input, const std::string& output);
  void VmemLimit(int64_t bytes) { program_.vmem_limit = bytes; }
  void NoBoundsChecks() { program_.bounds_checks = false; }
  void SideEffects() { program_.side_effects = true; }

  // Everything written from here on belongs to this stage (and head, -1:
  // none) until the scope ends.
  class Label {
   public:
    Label(Builder* builder, const std::string& stage, int head = -1);
    ~Label();
    Label(const Label&) = delete;
    Label& operator=(const Label&) = delete;

   private:
    Builder* builder_;
    int before_;
  };

  Value GridIndex(int dimension);
  Value Constant(DType dtype, double number, const Shape& shape = {});
  Value Iota(const Shape& shape, int dimension);  // i32
  void If(Value condition, const std::function<void()>& then,
          const std::function<void()>& otherwise = nullptr);
  void For(Index lower, Index upper, const std::function<void(Value)>& body);
  Value AsValue(Index index);  // i32

  // The finished program; the builder is spent.
  Program Take();

  // What the operations below are made of.
  Value Emit(Op op, const Type& type, const std::vector<int>& operands,
             const std::vector<int64_t>& ints = {}, double number = 0);
  void EmitEffect(Op op, const std::vector<int>& operands, const std::vector<int64_t>& ints = {});
  const Type& TypeOf(int node) const { return program_.nodes[static_cast<size_t>(node)].type; }

 private:
  int AddNode(Node node);
  int AddBlock();
  void CheckVisible(int node) const;
  Ref AddArgument(Argument argument, const IndexMap* map);

  Program program_;
  std::vector<int> stack_;     // blocks open now
  std::vector<int> block_of_;  // per node
  int label_ = 0;
};

// --- Elementwise. A scalar, a C++ number or a dimension of 1 is broadcast to the other operand. --
Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator%(Value a, Value b);
Value operator&(Value a, Value b);
Value operator|(Value a, Value b);
Value operator^(Value a, Value b);
Value operator<<(Value a, int bits);
Value ShiftRight(Value a, int bits);  // logical
Value operator-(Value a);             // 0 - a: of +0 and of -0 it is +0
Value operator~(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator%(Value a, int64_t b);
Value operator&(Value a, uint32_t b);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);
Value Min(Value a, Value b);
Value Max(Value a, Value b);
Value Min(Value a, double b);
Value Max(Value a, double b);
Value operator==(Value a, Value b);
Value operator!=(Value a, Value b);
Value operator<(Value a, Value b);
Value operator<=(Value a, Value b);
Value operator>(Value a, Value b);
Value operator>=(Value a, Value b);
Value operator==(Value a, int64_t b);
Value operator!=(Value a, int64_t b);
Value operator<(Value a, int64_t b);
Value operator<=(Value a, int64_t b);
Value operator>(Value a, int64_t b);
Value operator>=(Value a, int64_t b);
Value Select(Value mask, Value a, Value b);
Value Select(Value mask, Value a, double b);
Value Exp2(Value a);
Value Log(Value a);
Value Tanh(Value a);
Value Rsqrt(Value a);
Value Abs(Value a);
Value Reciprocal(Value a, bool approximate);
Value Cast(Value a, DType dtype);
// A scalar that is a multiple of `factor`, which the compiler cannot see: offsets of tiled memory.
Value AssumeMultiple(Value a, int64_t factor);

// --- Vectors -------------------------------------------------------------------------------------
Value Bits(Value a,
           DType dtype);  // the same bits: f32 and i32 alike, bf16 rows in pairs (kBitcast)
Value BroadcastTo(Value a, const Shape& shape);
Value Reshape(Value a, const Shape& shape);
Value Slice(Value a, int dimension, int64_t start, int64_t size);
Value Rows(Value a, int64_t start, int64_t size);  // of the first dimension
Value Cols(Value a, int64_t start, int64_t size);  // of the last dimension
Value Concat(const std::vector<Value>& parts, int dimension);
Value Rotate(Value a, Index amount, int dimension);
Value Transpose(Value a, const std::vector<int64_t>& permutation);
Value Transpose(Value a);                 // of a matrix
Value ReduceSum(Value a, int dimension);  // keeps it, with size 1
Value ReduceMax(Value a, int dimension);
Value PackPair(Value low, Value high);  // two f32 as bf16 halves of i32
// A B, A B^T and A^T B in fp32. Operands bf16, or f32 at the stated precision.
Value Dot(Value a, Value b, Precision precision = Precision::kBF16);
Value DotNT(Value a, Value b, Precision precision = Precision::kBF16);
Value DotTN(Value a, Value b, Precision precision = Precision::kBF16);

// --- Memory --------------------------------------------------------------------------------------
Value Load(const Ref& ref);  // vector, or scalar of SMEM
void Store(const Ref& ref, Value value);
void Store(const Ref& ref, double value);  // every element
// Rows start, start + stride, .. of a matrix.
Value LoadStrided(const Ref& ref, int64_t start, int64_t count, int64_t stride);
void StoreStrided(const Ref& ref, int64_t start, int64_t stride, Value value);

// --- Copies --------------------------------------------------------------------------------------
void StartCopy(const Ref& source, const Ref& destination, const Ref& semaphore);
// For any copy of that size on that semaphore.
void WaitCopy(const Ref& source, const Ref& destination, const Ref& semaphore);

}  // namespace kda::tpu::ir

#endif  // KDA_TPU_IR_BUILDER_H_
