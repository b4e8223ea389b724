// Points: sums, multi-scalar multiplication, and checks of whole arrays.
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "bind.hpp"
#include "threads.hpp"

namespace prover {

namespace {

constexpr std::size_t scalar_bytes = 32;
using nb::literals::operator""_a;

std::size_t msm_workspace(const std::string& curve, int group, std::size_t n, int threads) {
  return engine(curve).msm_workspace(group_of(group), n, threads_of(threads));
}

// A sum in phases, which holds its arrays
class Sum {
 public:
  Sum(const std::string& curve, int group, nb::handle points, nb::handle scalars,
      nb::handle workspace, nb::handle finite, int threads)
      : engine_(engine(curve)),
        group_(group_of(group)),
        points_(points, "points"),
        scalars_(scalars, "scalars"),
        workspace_(workspace, "workspace", Bytes::Access::write) {
    const int workers = threads_of(threads);
    const std::size_t n = points_.rows(engine_.point_bytes(group_));
    scalars_.expect_rows(n, scalar_bytes);
    if (n > max_msm_points) throw nb::value_error("points: more than 2^31");
    if (workspace_.size() < engine_.msm_workspace(group_, n, workers))
      throw nb::value_error("workspace: smaller than msm_workspace says");
    if (!finite.is_none()) {
      finite_.emplace(finite, "finite");
      finite_->expect_rows(n, 1);
    }
    sum_ = engine_.point_sum(group_,
                             {points_.data(), scalars_.data(), finite_ ? finite_->data() : nullptr,
                              n, workspace_.data(), workspace_.size()},
                             workers);
  }

  void split() {
    begin(0);
    nb::gil_scoped_release release;
    sum_->split();
  }
  void prepare() {
    begin(1);
    nb::gil_scoped_release release;
    sum_->prepare();
  }
  void add_ones() {
    begin(2);
    nb::gil_scoped_release release;
    sum_->add_ones();
  }
  nb::object add_dense() {
    begin(3);
    return new_row(engine_.point_bytes(group_), [this](u8* out) { sum_->add_dense(out); });
  }

 private:
  void begin(int phase) {
    if (begun_ != phase) throw std::runtime_error("the phases of a sum have an order");
    ++begun_;
  }

  const Engine& engine_;
  Group group_;
  Bytes points_, scalars_, workspace_;
  std::optional<Bytes> finite_;
  std::unique_ptr<PointSum> sum_;
  int begun_ = 0;
};

nb::object add(const std::string& curve, int group, nb::handle p, nb::handle q) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const std::size_t width = chosen.point_bytes(which);
  const Bytes left(p, "p"), right(q, "q");
  left.expect_row(width);
  right.expect_row(width);
  return new_row(width, [&](u8* out) { chosen.add(which, left.data(), right.data(), out); });
}

nb::object negate(const std::string& curve, int group, nb::handle p) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const std::size_t width = chosen.point_bytes(which);
  const Bytes point(p, "p");
  point.expect_row(width);
  return new_row(width, [&](u8* out) { chosen.negate(which, point.data(), out); });
}

nb::object scale(const std::string& curve, int group, nb::handle p, nb::handle scalar) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const std::size_t width = chosen.point_bytes(which);
  const Bytes point(p, "p"), s(scalar, "scalar");
  point.expect_row(width);
  s.expect_row(scalar_bytes);
  return new_row(width, [&](u8* out) { chosen.scale(which, point.data(), s.data(), out); });
}

nb::object generator(const std::string& curve, int group) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  return new_row(chosen.point_bytes(which), [&](u8* out) { chosen.generator(which, out); });
}

std::ptrdiff_t find_off_curve(const std::string& curve, int group, nb::handle points, int threads) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const int workers = threads_of(threads);
  const Bytes p(points, "points");
  const std::size_t n = p.rows(chosen.point_bytes(which));
  nb::gil_scoped_release release;
  return chosen.find_off_curve(which, p.data(), n, workers);
}

std::ptrdiff_t find_outside_subgroup(const std::string& curve, int group, nb::handle points,
                                     int threads) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const int workers = threads_of(threads);
  const Bytes p(points, "points");
  const std::size_t n = p.rows(chosen.point_bytes(which));
  nb::gil_scoped_release release;
  return chosen.find_outside_subgroup(which, p.data(), n, workers);
}

void mark_finite(const std::string& curve, int group, nb::handle points, nb::handle out,
                 int threads) {
  const Engine& chosen = engine(curve);
  const std::size_t width = chosen.point_bytes(group_of(group));
  const int workers = threads_of(threads);
  const Bytes p(points, "points"), marks(out, "out", Bytes::Access::write);
  const std::size_t n = p.rows(width);
  marks.expect_rows(n, 1);
  nb::gil_scoped_release release;
  parallel_ranges(workers, n, 1024, [&](Range range, int) {
    for (std::size_t i = range.begin; i < range.end; ++i) {
      u64 any = 0;
      for (std::size_t at = 0; at < width; at += sizeof any) {
        u64 word;
        std::memcpy(&word, p.data() + i * width + at, sizeof word);
        any |= word;
      }
      marks.data()[i] = any != 0;
    }
  });
}

}  // namespace

void bind_points(nb::module_& m) {
  m.def("msm_workspace", msm_workspace, "curve"_a, "group"_a, "n"_a, "threads"_a = 0);
  nb::class_<Sum>(m, "PointSum")
      .def(nb::init<const std::string&, int, nb::handle, nb::handle, nb::handle, nb::handle, int>(),
           "curve"_a, "group"_a, "points"_a, "scalars"_a, "workspace"_a, "finite"_a = nb::none(),
           "threads"_a = 0)
      .def("split", &Sum::split)
      .def("prepare", &Sum::prepare)
      .def("add_ones", &Sum::add_ones)
      .def("add_dense", &Sum::add_dense);
  m.def(
      "msm",
      [](const std::string& curve, int group, nb::handle points, nb::handle scalars,
         nb::handle workspace, int threads) {
        Sum sum(curve, group, points, scalars, workspace, nb::none(), threads);
        sum.split();
        sum.prepare();
        sum.add_ones();
        return sum.add_dense();
      },
      "curve"_a, "group"_a, "points"_a, "scalars"_a, "workspace"_a, "threads"_a = 0);
  m.def("add", add, "curve"_a, "group"_a, "p"_a, "q"_a);
  m.def("negate", negate, "curve"_a, "group"_a, "p"_a);
  m.def("scale", scale, "curve"_a, "group"_a, "p"_a, "scalar"_a);
  m.def("generator", generator, "curve"_a, "group"_a);
  m.def("find_off_curve", find_off_curve, "curve"_a, "group"_a, "points"_a, "threads"_a = 0);
  m.def("mark_finite", mark_finite, "curve"_a, "group"_a, "points"_a, "out"_a, "threads"_a = 0);
  m.def("find_outside_subgroup", find_outside_subgroup, "curve"_a, "group"_a, "points"_a,
        "threads"_a = 0);
}

}  // namespace prover
