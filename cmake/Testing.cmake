# Test helpers.
#   catch2_headers              Catch2 without a main(); include "catch2_compat.hpp"
#   catch2_main                 Catch2 with a main(), for 2.13 and 3.x; include "catch2_compat.hpp"
#   vmmcts_add_test(NAME n LABELS l... [TIMEOUT s] [ENVIRONMENT e...] COMMAND c...)
#                               a CTest test over the software driver in a private device directory
find_package(Catch2 REQUIRED)
set(VMMCTS_CATCH2_DIR "${CMAKE_CURRENT_LIST_DIR}/catch2")
add_library(catch2_headers INTERFACE)
target_link_libraries(catch2_headers INTERFACE Catch2::Catch2)
target_include_directories(catch2_headers INTERFACE "${VMMCTS_CATCH2_DIR}")
if(TARGET Catch2::Catch2WithMain)
  add_library(catch2_main INTERFACE)
  target_link_libraries(catch2_main INTERFACE Catch2::Catch2WithMain catch2_headers)
else()
  add_library(catch2_main STATIC "${VMMCTS_CATCH2_DIR}/catch2_main.cpp")
  target_link_libraries(catch2_main PUBLIC catch2_headers)
endif()

function(vmmcts_add_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "LABELS;ENVIRONMENT;COMMAND" ${ARGN})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 120)
  endif()
  list(POP_FRONT T_COMMAND program)
  if(TARGET ${program})
    set(program "$<TARGET_FILE:${program}>")
  endif()
  list(PREPEND T_COMMAND "${program}")
  add_test(NAME ${T_NAME}
           COMMAND "${PROJECT_SOURCE_DIR}/cmake/with_private_device.sh" ${T_COMMAND})
  set_tests_properties(${T_NAME} PROPERTIES
    LABELS "${T_LABELS}" TIMEOUT ${T_TIMEOUT}
    ENVIRONMENT "LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}/softcuda;${T_ENVIRONMENT}")
endfunction()
