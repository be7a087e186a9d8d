// What parent and child of a compilation leave for each other in their folder.
#ifndef KDA_TPU_PJRT_EXCHANGE_H_
#define KDA_TPU_PJRT_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <string>

namespace kda::tpu {

inline constexpr char kModuleFile[] = "/module.mlir";
inline constexpr char kOptionsFile[] = "/options.pb";
inline constexpr char kRequestFile[] = "/request.txt";
inline constexpr char kResultFile[] = "/result.txt";
inline constexpr char kMessageFile[] = "/message.txt";
inline constexpr char kExecutableFile[] = "/executable.bin";
inline constexpr char kStdoutFile[] = "/stdout.txt";
inline constexpr char kStderrFile[] = "/stderr.txt";
inline constexpr char kDumpFolder[] = "/libtpu-dumps";

// Lines of "key value". A damaged file reads as whatever of it is in order.
using Record = std::map<std::string, std::string>;

std::string FormatRecord(const Record& record);
Record ParseRecord(const std::string& text);
std::string Field(const Record& record, const std::string& key);     // "" if it is not there
int64_t NumberField(const Record& record, const std::string& key);   // 0 if it is no number
double FractionField(const Record& record, const std::string& key);  // likewise

std::string Hexadecimal(const std::string& bytes);

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_EXCHANGE_H_
