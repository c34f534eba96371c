#include "walk_shrink.hpp"

#include <algorithm>

namespace cts::walk {
namespace {

class Shrinker {
 public:
  Shrinker(Walk walk, const Fails& fails, const Enough& enough)
      : walk_(std::move(walk)), fails_(fails), enough_(enough) {}

  Walk run() {
    bool better = true;
    while (better && !enough_()) {
      better = take_steps_out();
      better = merge_processes() || better;
      better = plainer_arguments() || better;
      better = earlier_objects() || better;
    }
    return walk_;
  }

 private:
  // Keeps the candidate if it fails.
  bool keep(const Walk& candidate) {
    if (enough_() || !fails_(candidate)) return false;
    walk_ = candidate;
    return true;
  }

  bool take_steps_out() {
    bool better = false;
    for (std::size_t run = std::max<std::size_t>(1, walk_.steps.size() / 2);; run /= 2) {
      // From the end: what comes last depends on what was before it.
      for (std::size_t end = walk_.steps.size(); end > 0 && !enough_();) {
        const std::size_t begin = end > run ? end - run : 0;
        Walk candidate = walk_;
        candidate.steps.erase(candidate.steps.begin() + static_cast<std::ptrdiff_t>(begin),
                              candidate.steps.begin() + static_cast<std::ptrdiff_t>(end));
        better = keep(candidate) || better;
        end = begin;
      }
      if (run <= 1) return better;
    }
  }

  // Gives what one process does to another.
  bool merge_processes() {
    bool better = false;
    for (int from = walk_.processes - 1; from > 0; --from) {
      for (int to = 0; to < from; ++to) {
        Walk candidate = walk_;
        for (Step& step : candidate.steps) {
          if (step.process == from) step.process = to;
        }
        if (candidate.steps != walk_.steps && keep(candidate)) {
          better = true;
          break;
        }
      }
    }
    return better;
  }

  bool plainer_arguments() {
    bool better = false;
    for (std::size_t i = 0; i < walk_.steps.size(); ++i) {
      const auto attempt = [&](auto change) {
        Walk candidate = walk_;
        change(candidate.steps[i]);
        if (candidate.steps[i] == walk_.steps[i]) return;
        better = keep(candidate) || better;
      };
      attempt([](Step& step) { step.less = 0; });
      attempt([](Step& step) { step.flaw = Flaw::none; });
      for (const int most : {1, 2}) {
        attempt([most](Step& step) { step.granules = std::min(step.granules, most); });
      }
      attempt([](Step& step) { step.seed = std::min(step.seed, 1); });
      for (std::size_t at = walk_.steps[i].order.size(); at-- > 0;) {
        attempt([at](Step& step) {
          if (at < step.order.size() && step.order.size() > 1) {
            step.order.erase(step.order.begin() + static_cast<std::ptrdiff_t>(at));
          }
        });
      }
    }
    return better;
  }

  // What a step makes, so that one object can stand for another.
  enum class Kind { none, buffer, descriptor, parcel, raw };
  static Kind made_by(Op op) {
    switch (op) {
      case Op::allocate:
      case Op::alias:
      case Op::grow:
      case Op::importing: return Kind::buffer;
      case Op::exporting:
      case Op::from_fds: return Kind::descriptor;
      case Op::send: return Kind::parcel;
      case Op::receive: return Kind::raw;
      default: return Kind::none;
    }
  }

  // Uses an object that was made earlier instead, so that the detour to the later one can go.
  bool earlier_objects() {
    bool better = false;
    for (std::size_t i = 0; i < walk_.steps.size(); ++i) {
      const auto maker_of = [&](int object) {
        std::size_t at = 0;
        while (at < i && walk_.steps[at].out != object) ++at;
        return at;
      };
      const std::size_t maker = maker_of(walk_.steps[i].object);
      if (walk_.steps[i].object == 0 || maker == i) continue;
      for (std::size_t earlier = 0; earlier < maker; ++earlier) {
        if (made_by(walk_.steps[earlier].op) != made_by(walk_.steps[maker].op)) continue;
        Walk candidate = walk_;
        candidate.steps[i].object = walk_.steps[earlier].out;
        if (!keep(candidate)) continue;
        better = true;
        break;
      }
    }
    return better;
  }

  Walk walk_;
  const Fails& fails_;
  const Enough& enough_;
};

}  // namespace

Walk shrink(Walk walk, const Fails& fails, const Enough& enough) {
  return Shrinker(std::move(walk), fails, enough).run();
}

}  // namespace cts::walk
