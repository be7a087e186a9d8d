# Options of every target of this project (a project that includes this one is left alone).

# No contraction: a*b+c is rounded twice unless the source says fma, so that the bits do not depend
# on the compiler's choices.
add_compile_options(-Wall -Wextra -ffp-contract=off)
if(KDA_WERROR)
  add_compile_options(-Werror)
endif()

if(KDA_SANITIZE)
  add_compile_options(-fsanitize=${KDA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KDA_SANITIZE})
  add_compile_definitions(KDA_SANITIZED)  # for tests of memory and time
else()
  # The sanitizers' run-time is found only when a program is linked; without them nothing may be
  # missing from a library.
  add_link_options($<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,SHARED_LIBRARY>:-Wl,--no-undefined>)
endif()
