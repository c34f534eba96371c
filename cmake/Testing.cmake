# Test helpers.
#   catch2_runner               Catch2 2.13 or 3.x, without a main(); include "catch2_compat.hpp"
#   catch2_main                 the same with a main()
#   vmmcts_add_test(NAME n LABELS l... [TIMEOUT s] [ENVIRONMENT e...] COMMAND c...)
#                               a CTest test over the software driver in a private device directory
find_package(Catch2 REQUIRED)
set(VMMCTS_CATCH2_DIR "${CMAKE_CURRENT_LIST_DIR}/catch2")
add_library(catch2_runner STATIC "${VMMCTS_CATCH2_DIR}/run_catch2.cpp")
target_link_libraries(catch2_runner PUBLIC Catch2::Catch2)
target_include_directories(catch2_runner PUBLIC "${VMMCTS_CATCH2_DIR}")
add_library(catch2_main STATIC "${VMMCTS_CATCH2_DIR}/catch2_main.cpp")
target_link_libraries(catch2_main PUBLIC catch2_runner)

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
