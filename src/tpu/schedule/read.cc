// From the compiler's files to a Schedule.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "tpu/pjrt/files.h"
#include "tpu/schedule/bundles.h"
#include "tpu/schedule/hlo.h"
#include "tpu/schedule/schedule.h"

namespace kda::tpu {
namespace {

constexpr char kBundles[] = "packed-bundles-post-ra.txt";
constexpr char kUse[] = "pre-delay_hlo-static-per-bundle-utilization.txt";
constexpr int kMostCalls = 1000;  // of computations, in all

// "1796-kernel_k.2-01-packed-bundles-post-ra.txt" -> "kernel_k.2"; "" if `file` is of another kind.
std::string ProgramOf(const std::string& file, const std::string& kind) {
  if (file.size() <= kind.size() + 1 ||
      file.compare(file.size() - kind.size(), kind.size(), kind) != 0) {
    return "";
  }
  size_t end = file.size() - kind.size();  // after the '-' that ends the number
  if (file[end - 1] != '-') return "";
  const size_t number = file.find_last_of('-', end - 2);
  const size_t name = file.find('-');
  if (number == std::string::npos || name >= number) return "";
  return file.substr(name + 1, number - name - 1);
}

struct Files {
  std::map<std::string, std::string> bundles, use;  // program -> path
  std::vector<std::string> maps;
  std::string hlo, vmem;
};

Files FindFiles(const std::string& folder) {
  Files files;
  for (const std::string& file : ListFiles(folder)) {
    const std::string path = folder + "/" + file;
    if (const std::string name = ProgramOf(file, kBundles); !name.empty()) {
      files.bundles[name] = path;
    } else if (const std::string used = ProgramOf(file, kUse); !used.empty()) {
      files.use[used] = path;
    } else if (file.find("-deduplication-map.txt") != std::string::npos) {
      files.maps.push_back(path);
    } else if (file.find("-TLP-hlo.txt") != std::string::npos) {
      files.hlo = path;
    } else if (file.find("-vmem_report.html") != std::string::npos) {
      files.vmem = path;
    }
  }
  return files;
}

// Operations that share their code: name -> the one whose files there are.
//   key:broadcast.8
//   ordinal:1
//   equivalent_hlos[size=2]:
//     broadcast.8
std::map<std::string, std::string> ReadDuplicates(const std::vector<std::string>& paths) {
  std::map<std::string, std::string> duplicates;
  for (const std::string& path : paths) {
    std::string text, key;
    ReadFile(path, &text);
    for (size_t from = 0; from < text.size();) {
      const size_t to = std::min(text.find('\n', from), text.size());
      const std::string line = text.substr(from, to - from);
      from = to + 1;
      if (line.rfind("key:", 0) == 0) key = line.substr(4);
      if (line.rfind("  ", 0) == 0 && line.size() > 2) duplicates[line.substr(2)] = key;
    }
  }
  return duplicates;
}

// The data of the VMEM report, a page with JSON in it, one value per line:
//     "copy.6": {
//       "total_size": 1024
std::map<std::string, int64_t> ReadVmem(const std::string& path) {
  static constexpr char kTotal[] = "\"total_size\": ";
  std::map<std::string, int64_t> all;
  std::string text, name;
  if (path.empty() || !ReadFile(path, &text)) return all;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const std::string line = text.substr(from, to - from);
    from = to + 1;
    if (line.rfind("    \"", 0) == 0 && line.size() > 9 &&
        line.compare(line.size() - 4, 4, "\": {") == 0) {
      name = line.substr(5, line.size() - 9);
    } else if (const size_t at = line.find(kTotal); at != std::string::npos) {
      all[name] = strtoll(line.c_str() + at + strlen(kTotal), nullptr, 10);
    }
  }
  return all;
}

std::string WithoutNumber(const std::string& name) {
  const size_t dot = name.find_last_of('.');
  const bool number = dot != std::string::npos && dot + 1 < name.size() &&
                      name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  return number ? name.substr(0, dot) : name;
}

// Operations that take no time, or whose time is another's.
bool Free(const HloOp& op) {
  static const std::set<std::string> kFree = {
      "parameter",          "constant",     "bitcast",      "tuple",
      "get-tuple-element",  "after-all",    "copy-done",    "slice-done",
      "call-done",          "async-done",   "async-update", "custom-call-done",
      "custom-call-update", "partition-id", "replica-id"};
  return kFree.count(op.opcode) != 0 ||
         op.attributes.find("custom_call_target=\"AllocateBuffer\"") != std::string::npos;
}

class Reader {
 public:
  Reader(const Files& files, int delay_slots, Schedule* schedule)
      : files_(files),
        delay_slots_(delay_slots),
        duplicates_(ReadDuplicates(files.maps)),
        vmem_(ReadVmem(files.vmem)),
        schedule_(schedule) {}

  void Walk(const HloModule& module, const std::string& name, double times) {
    const HloComputation* computation = module.Find(name);
    if (computation == nullptr) {
      schedule_->notes.push_back("computation '" + name + "' is missing");
      return;
    }
    // No compiler writes either; a damaged file may.
    if (++calls_ > kMostCalls || !active_.insert(name).second) {
      const char* why = calls_ > kMostCalls ? "' is left out: too many calls" : "' calls itself";
      if (refused_.insert(name).second) schedule_->notes.push_back("computation '" + name + why);
      return;
    }
    for (const HloOp& op : computation->ops) {
      if (op.opcode == "while") {
        const int64_t trips = WhileTrips(module, *computation, op);
        if (trips == 0)
          schedule_->notes.push_back("'" + op.name + "': iterations unknown, taken as 1");
        const double iterations = times * static_cast<double>(std::max<int64_t>(1, trips));
        schedule_->while_iterations += iterations;
        Walk(module, Attribute(op, "body"), iterations);
      } else if (op.opcode == "call") {
        Walk(module, Attribute(op, "to_apply"), times);
      } else if (!Free(op)) {
        Add(module, *computation, op, times);
      } else if (op.opcode.find("-done") != std::string::npos) {
        Await(*computation, op);
      }
    }
    active_.erase(name);
  }

 private:
  // Of a gather on the SparseCore, which op ends: start <- update <- done.
  void Await(const HloComputation& computation, const HloOp& done) {
    const HloOp* op = &done;
    while (op != nullptr && op->opcode.find("-start") == std::string::npos) {
      op = op->operands.size() > 0 ? computation.Find(op->operands[0]) : nullptr;
    }
    for (Operation& operation : schedule_->operations) {
      if (op == nullptr || operation.name != op->name) continue;
      if (operation.kind != OperationKind::kGather) continue;
      operation.awaited = static_cast<int32_t>(schedule_->operations.size());
    }
  }

  void Add(const HloModule& module, const HloComputation& computation, const HloOp& op,
           double times) {
    Operation operation;
    operation.name = op.name;
    operation.opcode = op.opcode;
    operation.times = times;
    operation.program = Load(op.name);
    const bool kernel =
        op.attributes.find("custom_call_target=\"tpu_custom_call\"") != std::string::npos;
    const bool transfer = op.opcode == "copy-start" || op.opcode == "slice-start";
    const RowMoves moves = FindRowMoves(module, computation, op);
    operation.hbm_bytes = OperationBytes(module, computation, op);
    operation.rows = moves.rows;
    if (kernel) {
      operation.kind = OperationKind::kKernel;
      operation.kernel = WithoutNumber(op.name);
      FindGridLoop(operation.program);
    } else if (moves.rows > 0) {
      operation.kind = moves.opcode == "gather" ? OperationKind::kGather : OperationKind::kScatter;
      if (op.opcode.find("-start") != std::string::npos) operation.hbm_bytes = moves.bytes;
    } else if (transfer) {
      operation.kind = OperationKind::kTransfer;
      operation.hbm_bytes /= 2;  // both ends and the source are named, one of them in VMEM
    } else if (op.opcode == "copy") {
      operation.kind = OperationKind::kCopy;
    } else if (op.opcode == "fusion") {
      operation.kind = OperationKind::kFusion;
    } else if (operation.program < 0 && op.opcode != "custom-call") {
      return;  // no code: the compiler made something else of it
    }
    if (const auto it = vmem_.find(op.name); it != vmem_.end()) {
      operation.vmem_bytes = it->second;
    }
    schedule_->operations.push_back(operation);
  }

  // The program of an operation: its index, or -1.
  int32_t Load(const std::string& operation) {
    std::string name = operation;
    if (const auto it = duplicates_.find(operation);
        it != duplicates_.end() && files_.bundles.count(it->second) != 0) {
      name = it->second;
    }
    const auto file = files_.bundles.find(name);
    if (file == files_.bundles.end()) return -1;
    const auto [it, is_new] =
        loaded_.emplace(name, static_cast<int32_t>(schedule_->programs.size()));
    if (!is_new) return it->second;
    std::string text;
    ReadFile(file->second, &text);
    Program program = ParseBundles(text, delay_slots_);
    program.name = name;
    if (const auto use = files_.use.find(name); use != files_.use.end()) {
      ReadFile(use->second, &text);
      ParseUse(text, &program);
    }
    if (program.bundles == 0) schedule_->notes.push_back("'" + name + "': no code could be read");
    if (program.use.empty()) {
      schedule_->notes.push_back("'" + name + "': the use of units could not be read");
    }
    schedule_->programs.push_back(std::move(program));
    return it->second;
  }

  // The longest loop that is none of the kernel's own.
  void FindGridLoop(int32_t index) {
    if (index < 0) return;
    Program& program = schedule_->programs[static_cast<size_t>(index)];
    int32_t longest = 0;
    for (size_t i = 0; i < program.blocks.size(); ++i) {
      const Block& block = program.blocks[i];
      const int32_t length = block.last - block.first + 1;
      if (block.kind == BlockKind::kLoop && block.label.empty() && length > longest) {
        longest = length;
        program.grid_loop = static_cast<int32_t>(i);
      }
    }
  }

  const Files& files_;
  int delay_slots_;
  std::map<std::string, std::string> duplicates_;
  std::map<std::string, int64_t> vmem_;
  std::map<std::string, int32_t> loaded_;
  std::set<std::string> active_, refused_;  // computations
  int calls_ = 0;
  Schedule* schedule_;
};

}  // namespace

const char* UnitName(Unit unit) {
  static constexpr const char* kNames[kUnits] = {"matmul", "matpush", "xlu",   "valu",
                                                 "vpop",   "eup",     "vload", "fill",
                                                 "vstore", "spill",   "salu"};
  return kNames[static_cast<int>(unit)];
}

const char* OperationKindName(OperationKind kind) {
  static constexpr const char* kNames[] = {"kernel",  "fusion",   "copy", "gather",
                                           "scatter", "transfer", "other"};
  return kNames[static_cast<int>(kind)];
}

bool ReadSchedule(const std::string& folder, int delay_slots, Schedule* schedule,
                  std::string* error) {
  *schedule = Schedule();
  const Files files = FindFiles(folder);
  std::string text;
  if (files.hlo.empty() || !ReadFile(files.hlo, &text)) {
    *error = "schedule: '" + folder + "' holds no compiled program";
    return false;
  }
  const HloModule module = ParseHlo(text);
  if (module.entry.empty()) {
    *error = "schedule: '" + files.hlo + "' has no entry computation";
    return false;
  }
  Reader(files, delay_slots, schedule).Walk(module, module.entry, 1);
  return true;
}

}  // namespace kda::tpu
