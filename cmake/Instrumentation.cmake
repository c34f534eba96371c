# Warnings, sanitizers and coverage: flags for every target of the project.
#   VMMCTS_WERROR    warnings are errors (on in the presets)
#   VMMCTS_SANITIZE  "" | "address" (with undefined) | "thread"
#   VMMCTS_COVERAGE  gcov instrumentation, for ci/coverage
option(VMMCTS_WERROR "Treat warnings as errors" OFF)
option(VMMCTS_COVERAGE "Instrument for gcov" OFF)
set(VMMCTS_SANITIZE "" CACHE STRING "Sanitizer: address (with undefined) or thread")
set_property(CACHE VMMCTS_SANITIZE PROPERTY STRINGS "" address thread)

# Reports and assertions name files as the repository does.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")
add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor)
if(VMMCTS_WERROR)
  add_compile_options(-Werror)
endif()

# The harness spends its time waiting for drivers and workers: it is built to be built soon. What is
# measured (reference, tap) asks for more.
if(CMAKE_BUILD_TYPE STREQUAL RelWithDebInfo)
  add_compile_options(-O1 -g1)
endif()

if(VMMCTS_SANITIZE)
  # GCC sees uninitialized values in instrumented code that has none.
  add_compile_options(-Wno-maybe-uninitialized)
endif()
if(VMMCTS_SANITIZE STREQUAL "address")
  # The check of vptr asks a pipe what memory can be read: it has none at the limit of descriptors.
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined
                      -fno-sanitize=vptr -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(VMMCTS_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT VMMCTS_SANITIZE STREQUAL "")
  message(FATAL_ERROR "VMMCTS_SANITIZE is '${VMMCTS_SANITIZE}'; use address or thread")
endif()

if(VMMCTS_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic -fno-inline)
  add_link_options(--coverage)
endif()
