// Comparing random walks with what a real driver answered.
#include "token_walk.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

namespace truth {
namespace {

// The recorded lines of a file by their seed, the first word of a line.
std::map<uint64_t, std::string> read_lines(const std::string& path) {
  std::map<uint64_t, std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    lines[strtoull(line.c_str(), nullptr, 10)] = line;
  }
  return lines;
}

}  // namespace

bool parse_walk_options(int argc, char** argv, WalkOptions* options) {
  bool with_file = argc == 6 && strcmp(argv[4], "--expect") == 0;
  if (argc != 4 && !with_file) {
    fprintf(stderr, "usage: %s FIRST_SEED COUNT STEPS [--expect FILE]\n", argv[0]);
    return false;
  }
  options->first_seed = strtoull(argv[1], nullptr, 10);
  options->count = strtoull(argv[2], nullptr, 10);
  options->steps = atoi(argv[3]);
  if (with_file) options->expect = argv[5];
  return true;
}

int run_walks(const WalkOptions& options, const std::function<std::string(uint64_t)>& walk) {
  std::map<uint64_t, std::string> expected = read_lines(options.expect);
  int compared = 0;
  int different = 0;
  for (uint64_t seed = options.first_seed; seed < options.first_seed + options.count; seed++) {
    std::string line = walk(seed);
    if (options.expect.empty()) {
      printf("%s\n", line.c_str());
      continue;
    }
    auto found = expected.find(seed);
    if (found == expected.end()) continue;
    compared++;
    if (line == found->second || ++different > 5) continue;
    printf("seed %llu\n  recorded %s\n  now      %s\n", static_cast<unsigned long long>(seed),
           found->second.c_str(), line.c_str());
  }
  if (options.expect.empty()) return 0;
  printf("%d lines compared with %s, %d differ\n", compared, options.expect.c_str(), different);
  return compared > 0 && different == 0 ? 0 : 1;
}

}  // namespace truth
