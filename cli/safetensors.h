// Reading and writing of safetensors files: an 8-byte little-endian header length, a JSON header of
// {name: {dtype, shape, data_offsets}}, then the bytes. Format: github.com/huggingface/safetensors.
#ifndef KDA_CLI_SAFETENSORS_H_
#define KDA_CLI_SAFETENSORS_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/tensor.h"

namespace kda::cli {

// __metadata__ of the header: names and texts.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// A file opened for reading, its header checked completely: every offset lies in the file, matches
// dtype and shape, overlaps no other and leaves no hole. Faults throw Error naming file and tensor.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  bool Has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> Names() const;
  const Metadata& metadata() const { return metadata_; }
  // Reads a tensor as it is, into its own aligned memory. Throws where the library has no such
  // dtype or rank.
  Tensor Read(const std::string& name) const;

 private:
  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;
    int64_t begin = 0, end = 0;  // bytes after the header
  };
  void ReadAt(char* to, int64_t bytes, int64_t offset) const;
  void ParseHeader(const std::string& text, int64_t data_bytes);
  void CheckRanges(int64_t data_bytes) const;

  std::string path_;
  int file_ = -1;
  int64_t data_start_ = 0;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

// Refuses to write over what is read: the same file, by whatever names. `option` is for messages.
void CheckNotInput(const char* option, const std::string& path, const std::string& input);

// Dense tensors, in this order. `option` is the one that named the path.
void WriteSafetensors(const char* option, const std::string& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const Metadata& metadata);

}  // namespace kda::cli

#endif  // KDA_CLI_SAFETENSORS_H_
