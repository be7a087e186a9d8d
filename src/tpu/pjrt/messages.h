// One line out of many, for the user.
#ifndef KDA_TPU_PJRT_MESSAGES_H_
#define KDA_TPU_PJRT_MESSAGES_H_

#include <string>

namespace kda::tpu {

// The first line of a compiler's message; one that ends in a colon, with what it announces. Of an
// operation that it quotes the name stays.
std::string FirstLine(const std::string& text);

// The line of a dead process's stderr that says most: a fatal log line or an "ERROR:", else the
// last one before the stack trace.
std::string LastWords(const std::string& text);

}  // namespace kda::tpu

#endif  // KDA_TPU_PJRT_MESSAGES_H_
