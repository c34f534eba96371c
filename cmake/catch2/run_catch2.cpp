// Catch2 2.13 is compiled here, once; 3.x is a library of its own.
#define CATCH_CONFIG_RUNNER
#include "catch2_compat.hpp"

int run_catch2(int argc, const char* const* argv) {
  static Catch::Session session;  // a program may have one
  session.useConfigData({});
  return session.run(argc, argv);
}
