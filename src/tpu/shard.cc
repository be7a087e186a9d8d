#include "tpu/shard.h"

#include <cstring>
#include <map>
#include <string>

namespace kda::tpu {
namespace {

constexpr int64_t kHeadTile = 8;  // heads that kernels take together
constexpr int64_t kMostPartitions = kMostHeads / kHeadTile;

const std::map<std::string, int>& HeadDimensions() {
  static const std::map<std::string, int> dimensions = {
      {"q", 2},           {"k", 2},          {"v", 2},
      {"g", 2},           {"beta", 2},       {"o", 2},
      {"A_log", 0},       {"dt_bias", 0},    {"initial_state", 1},
      {"final_state", 1}, {"checkpoints", 1}};
  return dimensions;
}

// Where a part's bytes lie in the whole: `rows` pieces of `piece` bytes.
struct Pieces {
  ir::Shape shape;  // of the part
  int64_t rows = 1, piece = 0;
};

Pieces PiecesOf(const ir::Array& whole, int dimension, int parts, int part) {
  const ir::Shape& shape = whole.shape();
  const auto at = static_cast<size_t>(dimension);
  if (at >= shape.size() || parts < 1 || shape[at] % parts != 0) {
    throw ir::BuildError("an array of shape [" + ir::ToString(shape) + "] has no " +
                         std::to_string(parts) + " equal parts along dimension " +
                         std::to_string(dimension));
  }
  if (part < 0 || part >= parts) {
    throw ir::BuildError("part " + std::to_string(part) + " of " + std::to_string(parts) +
                         ": parts are 0 to " + std::to_string(parts - 1));
  }
  Pieces pieces;
  pieces.shape = shape;
  pieces.shape[at] /= parts;
  for (size_t i = 0; i < at; ++i) pieces.rows *= shape[i];
  const int64_t all = pieces.rows * parts;
  pieces.piece = all == 0 ? 0 : whole.byte_count() / all;
  return pieces;
}

}  // namespace

TpuProblem ShardOf(const TpuProblem& problem, int partitions) {
  RefuseOutside("a program", "partitions", partitions, 1, kMostPartitions);
  const int64_t multiple = kHeadTile * partitions;
  if (problem.heads < 1 || problem.heads % multiple != 0) {
    Refuse("on " + std::to_string(partitions) + " chips", "heads", std::to_string(problem.heads),
           "a multiple of " + std::to_string(multiple) + ", " + std::to_string(kHeadTile) +
               " for each chip");
  }
  TpuProblem shard = problem;
  shard.heads = problem.heads / partitions;
  return shard;
}

void BuildSharded(const TpuProblem& problem, int partitions, const ModuleBuilder& build,
                  hlo::Module* module) {
  build(ShardOf(problem, partitions), module);
  module->Partition(partitions, HeadDimensions());
}

ir::Array PartOf(const ir::Array& whole, int dimension, int parts, int part) {
  const Pieces p = PiecesOf(whole, dimension, parts, part);
  ir::Array result(whole.dtype(), p.shape);
  const auto* from = static_cast<const unsigned char*>(whole.data()) + part * p.piece;
  auto* to = static_cast<unsigned char*>(result.data());
  for (int64_t i = 0; i < p.rows && p.piece > 0; ++i) {
    std::memcpy(to + i * p.piece, from + i * parts * p.piece, static_cast<size_t>(p.piece));
  }
  return result;
}

void PutPart(const ir::Array& from, int dimension, int parts, int part, ir::Array* whole) {
  const Pieces p = PiecesOf(*whole, dimension, parts, part);
  if (from.dtype() != whole->dtype() || from.shape() != p.shape) {
    throw ir::BuildError("a part is " + ir::ToString(whole->dtype()) + " [" +
                         ir::ToString(p.shape) + "], given " + ir::ToString(from.dtype()) + " [" +
                         ir::ToString(from.shape()) + "]");
  }
  const auto* source = static_cast<const unsigned char*>(from.data());
  auto* to = static_cast<unsigned char*>(whole->data()) + part * p.piece;
  for (int64_t i = 0; i < p.rows && p.piece > 0; ++i) {
    std::memcpy(to + i * parts * p.piece, source + i * p.piece, static_cast<size_t>(p.piece));
  }
}

}  // namespace kda::tpu
