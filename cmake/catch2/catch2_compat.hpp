// Catch2 2.13 (Debian 12) and 3.x (Ubuntu 24.04) behind one include.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

// Runs the test cases of this program as the arguments say (argv[0] is the program), with Catch2's
// own exit status: 0 when all held, 255 for bad arguments, else how many did not.
int run_catch2(int argc, const char* const* argv);
