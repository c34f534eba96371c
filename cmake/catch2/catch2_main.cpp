#include "catch2_compat.hpp"

int main(int argc, char** argv) { return run_catch2(argc, argv); }
