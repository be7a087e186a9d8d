// A table for people.
#ifndef KDA_CLI_TABLE_H_
#define KDA_CLI_TABLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kda::cli {

class Table {
 public:
  explicit Table(std::vector<std::string> columns) : rows_{std::move(columns)} {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Columns whose cells all start like numbers are set right, the others left.
  std::string Text() const;
  std::string Markdown() const;

 private:
  std::vector<std::vector<std::string>> rows_;  // the column names first
};

// "1 sequence", "2 sequences"
std::string Counted(int64_t count, const std::string& noun);
// "12.3 us", "4.56 ms", "7.8 s"
std::string HumanTime(double milliseconds);
// "12.3 M"
std::string HumanCount(double value);

}  // namespace kda::cli

#endif  // KDA_CLI_TABLE_H_
