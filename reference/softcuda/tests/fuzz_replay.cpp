// Gives the fuzz target random inputs without libFuzzer: softcuda_fuzz_replay COUNT SEED.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s COUNT SEED\n", argv[0]);
    return 2;
  }
  std::mt19937 random(static_cast<unsigned>(atoi(argv[2])));
  for (int i = 0; i < atoi(argv[1]); i++) {
    std::vector<uint8_t> input(random() % 1200);
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  printf("%s inputs\n", argv[1]);
  return 0;
}
