// Files and folders, without exceptions.
#ifndef KDA_TPU_PJRT_FILES_H_
#define KDA_TPU_PJRT_FILES_H_

#include <sys/types.h>

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

  // A child process that writes to it, 0: none any more. Ended before the folder goes, on a signal.
  void UsedBy(pid_t child);

 private:
  std::string path_;
  int place_ = -1;  // in the table of folders that a signal removes
};

// For a program, not for a library: from now on SIGINT, SIGTERM, SIGHUP and SIGPIPE remove all
// TempFolders, then end the process as they would have. A signal that is ignored stays so.
void RemoveTempFoldersOnSignals();

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_FILES_H_
