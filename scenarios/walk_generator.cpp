#include "walk_generator.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "walk_model.hpp"

namespace cts::walk {
namespace {

// The model wants a granule; a walk is the same for any.
constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;
// A size that is short of whole granules by less than the smallest granule there is.
constexpr std::array kLess{0, 0, 0, 1, 4096, 65535};
// Short enough that the last bytes of a buffer are no window of their own (walk_model.hpp).
constexpr int kShorter = 4096;

// splitmix64: the standard library's distributions differ between its implementations.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t roll() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int below(int bound) { return static_cast<int>(roll() % static_cast<std::uint64_t>(bound)); }
  bool one_in(int n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

constexpr std::array kWeights{
    std::pair{Op::allocate, 8},   std::pair{Op::alias, 8},      std::pair{Op::grow, 12},
    std::pair{Op::fill, 16},      std::pair{Op::verify, 10},    std::pair{Op::exporting, 14},
    std::pair{Op::send, 14},      std::pair{Op::lose, 1},       std::pair{Op::receive, 18},
    std::pair{Op::from_fds, 18},  std::pair{Op::importing, 22}, std::pair{Op::close, 10},
    std::pair{Op::drop, 16},      std::pair{Op::kill, 1}};

class Generator {
 public:
  Generator(std::uint64_t seed, int processes, const Limits& limits)
      : dice_(seed), model_(processes, kGranule), limits_(limits) {}

  Step next() {
    for (;;) {
      const std::optional<Step> step = candidate();
      if (!step || !model_.apply(*step)) continue;
      names_ = std::max(names_, step->out);
      return *step;
    }
  }

  // Steps that look at every open buffer, and close everything in some order.
  std::vector<Step> end() {
    std::vector<Step> steps;
    const auto add = [&](Op op, int process, int object, bool makes) {
      Step step;
      step.op = op;
      step.process = process;
      step.object = object;
      step.out = makes ? ++names_ : 0;
      steps.push_back(step);
      return step.out;
    };
    std::vector<std::pair<int, int>> open;  // processes and their objects
    std::vector<std::pair<int, int>> buffers;
    for (const auto& [id, buffer] : model_.buffers()) {
      if (!buffer.open) continue;
      open.emplace_back(buffer.process, id);
      buffers.emplace_back(buffer.process, id);
      add(Op::verify, buffer.process, id, false);
      const int exported = add(Op::exporting, buffer.process, id, true);
      if (buffer.is_marked(model_.memory())) continue;
      const int imported = add(Op::importing, buffer.process, exported, true);
      add(Op::verify, buffer.process, imported, false);
      add(Op::close, buffer.process, imported, false);
      add(Op::drop, buffer.process, exported, false);
    }
    for (const auto& [id, fds] : model_.fd_holders()) {
      if (fds.what == Fds::What::parcel) {
        add(Op::lose, 0, id, false);
      } else {
        open.emplace_back(fds.process, id);
      }
    }
    while (!open.empty()) {
      const auto at = open.begin() + dice_.below(static_cast<int>(open.size()));
      const auto [process, object] = *at;
      open.erase(at);
      const bool raw = model_.fd_holders().contains(object) &&
                       model_.fd_holders().at(object).what == Fds::What::raw;
      add(raw || dice_.one_in(2) ? Op::drop : Op::close, process, object, false);
      std::erase(buffers, std::pair{process, object});
      if (buffers.empty()) continue;
      const auto [owner, buffer] = buffers[dice_.below(static_cast<int>(buffers.size()))];
      add(Op::verify, owner, buffer, false);
    }
    return steps;
  }

 private:
  Op pick_op() {
    int total = 0;
    for (const auto& [op, weight] : kWeights) total += weight;
    int at = dice_.below(total);
    for (const auto& [op, weight] : kWeights) {
      if ((at -= weight) < 0) return op;
    }
    return Op::drop;
  }

  // One of the objects that `wanted` takes, 0 if there is none. Young ones come more often, so that
  // shares get to their end and chains get long.
  template <class Objects, class Wanted>
  int one_of(const Objects& objects, Wanted wanted) {
    std::vector<int> found;
    for (const auto& [id, object] : objects) {
      if (wanted(object)) found.push_back(id);
    }
    if (found.empty()) return 0;
    const int count = static_cast<int>(found.size());
    return found[std::max(dice_.below(count), dice_.below(count))];
  }
  int buffer(int process) {
    return one_of(model_.buffers(), [&](const Buffer& b) { return b.process == process; });
  }
  int fds(int process, Fds::What what) {
    return one_of(model_.fd_holders(), [&](const Fds& f) {
      return f.what == what && (what == Fds::What::parcel || f.process == process);
    });
  }

  bool room_for_buffer(int process) const {
    return std::count_if(model_.buffers().begin(), model_.buffers().end(), [&](const auto& entry) {
             return entry.second.process == process;
           }) < limits_.buffers_each;
  }
  bool room_for_fds(int process) const {
    return std::count_if(model_.fd_holders().begin(), model_.fd_holders().end(),
                         [&](const auto& entry) {
                           return entry.second.what != Fds::What::parcel &&
                                  entry.second.process == process;
                         }) < limits_.fd_holders_each;
  }
  bool room_for_parcel() const {
    return std::count_if(model_.fd_holders().begin(), model_.fd_holders().end(),
                         [](const auto& entry) {
                           return entry.second.what == Fds::What::parcel;
                         }) < limits_.parcels;
  }
  bool room_for(int granules) const {
    return model_.held() / kGranule + granules <= static_cast<std::uint64_t>(limits_.granules);
  }

  // A step that may make sense; the model says whether it does.
  std::optional<Step> candidate() {
    Step step;
    step.op = pick_op();
    step.process = dice_.below(model_.processes());
    switch (step.op) {
      case Op::allocate:
      case Op::alias:
      case Op::grow: return sized(step);
      case Op::fill: step.seed = 1 + dice_.below(255); [[fallthrough]];
      case Op::verify: step.object = buffer(step.process); break;
      case Op::exporting:
        if (!room_for_fds(step.process)) return std::nullopt;
        step.object = buffer(step.process);
        step.out = names_ + 1;
        break;
      case Op::send:
        if (!room_for_parcel()) return std::nullopt;
        step.object = fds(step.process, Fds::What::descriptor);
        step.out = names_ + 1;
        break;
      case Op::lose:
        step.process = 0;
        step.object = fds(0, Fds::What::parcel);
        break;
      case Op::receive:
        if (!room_for_fds(step.process)) return std::nullopt;
        step.object = fds(step.process, Fds::What::parcel);
        step.out = names_ + 1;
        break;
      case Op::from_fds: return rebuilt(step);
      case Op::importing:
        if (!room_for_buffer(step.process)) return std::nullopt;
        step.object = fds(step.process, Fds::What::descriptor);
        step.out = names_ + 1;
        break;
      case Op::close:
      case Op::drop:
        step.object = dice_.one_in(2) ? buffer(step.process)
                                      : fds(step.process, dice_.one_in(2) ? Fds::What::descriptor
                                                                          : Fds::What::raw);
        break;
      case Op::kill: break;
    }
    const bool wants_object = step.op != Op::kill;
    if (wants_object && step.object == 0) return std::nullopt;
    return step;
  }

  std::optional<Step> sized(Step step) {
    if (!room_for_buffer(step.process)) return std::nullopt;
    step.out = names_ + 1;
    step.less = kLess[dice_.below(kLess.size())];
    step.granules = dice_.one_in(2) ? 1 : 1 + dice_.below(3);
    if (step.op == Op::allocate) {
      if (dice_.one_in(20)) step.granules = step.less = 0;
    } else {
      step.object = buffer(step.process);
      if (step.object == 0) return std::nullopt;
      const std::uint64_t range = model_.buffers().at(step.object).range / kGranule;
      if (step.op == Op::alias) step.granules = dice_.below(static_cast<int>(range) + 1);
      if (step.granules == 0) step.less = 0;
    }
    if (step.op != Op::alias && !room_for(step.granules)) return std::nullopt;
    return step;
  }

  std::optional<Step> rebuilt(Step step) {
    if (!room_for_fds(step.process)) return std::nullopt;
    step.object = fds(step.process, Fds::What::raw);
    if (step.object == 0) return std::nullopt;
    step.out = names_ + 1;
    const int count = static_cast<int>(model_.fd_holders().at(step.object).sizes.size());
    step.order.resize(count);
    std::iota(step.order.begin(), step.order.end(), 0);
    if (count > 0 && dice_.one_in(4)) {
      // Some of the fds in another order; one may be there twice.
      step.order.resize(1 + dice_.below(count));
      for (int& index : step.order) index = dice_.below(count);
    }
    if (count > 0 && dice_.one_in(6)) step.less = kShorter;
    if (count > 0 && dice_.one_in(8)) {
      constexpr std::array kFlaws{Flaw::larger, Flaw::smaller, Flaw::swapped};
      step.flaw = kFlaws[dice_.below(kFlaws.size())];
    }
    return step;
  }

  Dice dice_;
  Model model_;
  Limits limits_;
  int names_ = 0;
};

}  // namespace

Walk generate(std::uint64_t seed, int processes, int length, const Limits& limits) {
  Generator generator(seed, processes, limits);
  Walk walk{seed, processes, {}};
  for (int i = 0; i < length; ++i) walk.steps.push_back(generator.next());
  for (const Step& step : generator.end()) walk.steps.push_back(step);
  return walk;
}

}  // namespace cts::walk
