#include "cli/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/error.h"

namespace kda::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMaxHeaderBytes = 100 << 20;  // the format's own limit

struct Dtype {
  const char* name;
  int64_t size;
  int32_t kda;  // 0: the library has no such dtype
};
constexpr Dtype kDtypes[] = {{"F32", 4, KDA_F32}, {"BF16", 2, KDA_BF16}, {"F16", 2, KDA_F16},
                             {"I32", 4, KDA_I32}, {"I64", 8, KDA_I64},   {"F64", 8, 0},
                             {"BOOL", 1, 0},      {"U8", 1, 0},          {"I8", 1, 0},
                             {"F8_E5M2", 1, 0},   {"F8_E4M3", 1, 0},     {"I16", 2, 0},
                             {"U16", 2, 0},       {"U32", 4, 0},         {"U64", 8, 0}};

const Dtype* FindDtype(const std::string& name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

// A name from a file, shown in a message: control characters would break the one line.
std::string Printable(const std::string& name) {
  return json(name).dump(-1, ' ', true, json::error_handler_t::replace);
}

Metadata ReadMetadata(const std::string& path, const json& value) {
  Metadata metadata;
  if (!value.is_object()) {
    BadArgument("--input: {}: __metadata__ is not an object of strings", path);
  }
  for (const auto& [name, text] : value.items()) {
    if (!text.is_string()) {
      BadArgument("--input: {}: __metadata__ {} is not a string", path, Printable(name));
    }
    metadata.emplace_back(name, text.get<std::string>());
  }
  return metadata;
}

bool WholeNumber(const json& value, int64_t* number) {
  if (value.is_number_unsigned()) {
    if (value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  } else if (!value.is_number_integer() || value.get<int64_t>() < 0) {
    return false;
  }
  *number = value.get<int64_t>();
  return true;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::string& path) : path_(path) {
  file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file_ < 0) BadArgument("--input: cannot open {}: {}", path, std::strerror(errno));
  try {
    struct stat status;
    if (fstat(file_, &status) != 0 || !S_ISREG(status.st_mode)) {
      BadArgument("--input: {} is not a regular file", path);
    }
    const int64_t size = status.st_size;
    if (size < 8) {
      BadArgument("--input: {}: {} bytes are too few for a safetensors file (8 at least)", path,
                  size);
    }
    unsigned char raw[8];
    ReadAt(reinterpret_cast<char*>(raw), 8, 0);
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | raw[i];
    const uint64_t most = static_cast<uint64_t>(std::min(size - 8, kMaxHeaderBytes));
    if (length > most) {
      BadArgument(
          "--input: {}: not a safetensors file: header length {} is more than the {} bytes "
          "possible here",
          path, length, most);
    }
    std::string header(length, '\0');
    ReadAt(header.data(), static_cast<int64_t>(length), 8);
    data_start_ = 8 + static_cast<int64_t>(length);
    ParseHeader(header, size - data_start_);
    CheckRanges(size - data_start_);
  } catch (...) {
    close(file_);
    throw;
  }
}

SafetensorsReader::~SafetensorsReader() { close(file_); }

void SafetensorsReader::ReadAt(char* to, int64_t bytes, int64_t offset) const {
  while (bytes > 0) {
    const ssize_t got = pread(file_, to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      BadArgument("--input: {}: cannot read {} bytes at {}: {}", path_, bytes, offset,
                  got < 0 ? std::strerror(errno) : "the file ends before");
    }
    to += got;
    offset += got;
    bytes -= got;
  }
}

void SafetensorsReader::ParseHeader(const std::string& text, int64_t data_bytes) {
  std::set<std::string> names;
  const json::parser_callback_t no_duplicates = [&](int depth, json::parse_event_t event,
                                                    json& value) {
    // A header is an object of objects of arrays; what nests deeper could exhaust the stack.
    if (depth > 4) BadArgument("--input: {}: the header nests more than 4 deep", path_);
    if (event == json::parse_event_t::key && depth == 1) {
      const std::string name = value.get<std::string>();
      if (!names.insert(name).second) {
        BadArgument("--input: {}: tensor {} appears twice", path_, Printable(name));
      }
    }
    return true;
  };
  json header;
  try {
    header = json::parse(text, no_duplicates);
  } catch (const json::exception&) {
    BadArgument("--input: {}: the header is not valid JSON", path_);
  }
  if (!header.is_object()) BadArgument("--input: {}: the header is not a JSON object", path_);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      metadata_ = ReadMetadata(path_, value);
      continue;
    }
    const std::string where = fmt::format("--input: {}: tensor {}", path_, Printable(name));
    if (!value.is_object() || !value.contains("dtype") || !value["dtype"].is_string() ||
        !value.contains("shape") || !value["shape"].is_array() || !value.contains("data_offsets") ||
        !value["data_offsets"].is_array()) {
      BadArgument("{}: needs a dtype, a shape and data_offsets", where);
    }
    Entry entry;
    entry.dtype = value["dtype"].get<std::string>();
    const Dtype* dtype = FindDtype(entry.dtype);
    if (dtype == nullptr) {
      BadArgument("{}: dtype {} is not known (F32, BF16, F16, I32, I64 can be used)", where,
                  Printable(entry.dtype));
    }
    int64_t bytes = dtype->size;
    for (const json& dimension : value["shape"]) {
      int64_t size = 0;
      if (!WholeNumber(dimension, &size)) {
        BadArgument("{}: shape {} is not made of whole numbers >= 0", where, value["shape"].dump());
      }
      if (__builtin_mul_overflow(bytes, size, &bytes)) {
        BadArgument("{}: shape {} is too large", where, value["shape"].dump());
      }
      entry.shape.push_back(size);
    }
    const json& offsets = value["data_offsets"];
    if (offsets.size() != 2 || !WholeNumber(offsets[0], &entry.begin) ||
        !WholeNumber(offsets[1], &entry.end) || entry.begin > entry.end) {
      BadArgument("{}: data_offsets {} are not [begin, end]", where, offsets.dump());
    }
    if (entry.end > data_bytes) {
      BadArgument("{}: data_offsets {} reach past the {} data bytes of the file", where,
                  offsets.dump(), data_bytes);
    }
    if (entry.end - entry.begin != bytes) {
      BadArgument("{}: data_offsets {} hold {} bytes, dtype {} and shape {} need {}", where,
                  offsets.dump(), entry.end - entry.begin, entry.dtype, value["shape"].dump(),
                  bytes);
    }
    entries_.emplace(name, std::move(entry));
  }
}

void SafetensorsReader::CheckRanges(int64_t data_bytes) const {
  std::vector<std::pair<int64_t, std::string>> order;
  for (const auto& [name, entry] : entries_) {
    if (entry.begin < entry.end) order.emplace_back(entry.begin, name);
  }
  std::sort(order.begin(), order.end());
  int64_t reached = 0;
  std::string before = "the header";
  for (const auto& [begin, name] : order) {
    if (begin < reached) {
      BadArgument("--input: {}: tensors {} and {} overlap at data byte {}", path_, before,
                  Printable(name), begin);
    }
    if (begin > reached) {
      BadArgument("--input: {}: data bytes {} to {} belong to no tensor", path_, reached, begin);
    }
    reached = entries_.at(name).end;
    before = Printable(name);
  }
  if (reached != data_bytes) {
    BadArgument("--input: {}: data bytes {} to {} belong to no tensor", path_, reached, data_bytes);
  }
}

std::vector<std::string> SafetensorsReader::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

Tensor SafetensorsReader::Read(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  const Dtype* dtype = FindDtype(entry.dtype);
  if (dtype->kda == 0) {
    BadArgument("{}: dtype {} cannot be used; F32, BF16, F16, I32 and I64 can", name, entry.dtype);
  }
  if (entry.shape.size() > KDA_MAX_RANK) {
    BadArgument("{}: shape [{}] has {} dimensions; at most {} are used", name,
                fmt::join(entry.shape, ", "), entry.shape.size(), KDA_MAX_RANK);
  }
  Tensor tensor = NewTensor(static_cast<kda_dtype>(dtype->kda), entry.shape);
  ReadAt(tensor.data, entry.end - entry.begin, data_start_ + entry.begin);
  return tensor;
}

void CheckNotInput(const char* option, const std::string& path, const std::string& input) {
  struct stat a, b;
  if (stat(path.c_str(), &a) != 0 || stat(input.c_str(), &b) != 0) return;
  if (a.st_dev != b.st_dev || a.st_ino != b.st_ino) return;
  BadArgument("{}: {} is the file that --input reads ({}); another is needed", option, path, input);
}

void WriteSafetensors(const char* option, const std::string& path,
                      const std::vector<std::pair<std::string, Tensor>>& tensors,
                      const Metadata& metadata) {
  json header = json::object();
  for (const auto& [name, text] : metadata) header["__metadata__"][name] = text;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::vector<int64_t> shape(tensor.layout.shape, tensor.layout.shape + tensor.layout.rank);
    header[name] = {{"dtype", SafetensorsDtype(tensor.layout.dtype)},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + tensor.Bytes()}}};
    offset += tensor.Bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data on 8-byte boundaries
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) BadArgument("{}: cannot write {}: {}", option, path, std::strerror(errno));
  unsigned char raw[8];
  for (int i = 0; i < 8; ++i) raw[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  bool good = std::fwrite(raw, 1, 8, file) == 8;
  good = good && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  for (const auto& [name, tensor] : tensors) {
    const size_t bytes = static_cast<size_t>(tensor.Bytes());
    good = good && (bytes == 0 || std::fwrite(tensor.data, 1, bytes, file) == bytes);
  }
  const int reason = errno;
  good = (std::fclose(file) == 0) && good;
  if (!good) Failed("{}: writing {} failed: {}", option, path, std::strerror(reason));
}

}  // namespace kda::cli
