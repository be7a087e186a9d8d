// Files and folders, without exceptions.
#ifndef KDA_TPU_PJRT_FILES_H_
#define KDA_TPU_PJRT_FILES_H_

#include <string>
#include <vector>

namespace kda::tpu {

bool ReadFile(const std::string& path, std::string* text);
bool WriteFile(const std::string& path, const std::string& text);
bool FileExists(const std::string& path);
std::vector<std::string> ListFiles(const std::string& folder);  // names, sorted

// A folder of its own under $TMPDIR, removed with everything in it.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::string& path() const { return path_; }  // empty: could not be made

 private:
  std::string path_;
};

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_FILES_H_
