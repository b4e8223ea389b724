// Points: sums, multi-scalar multiplication, and checks of whole arrays.
#include "bind.hpp"

namespace prover {

namespace {

constexpr std::size_t scalar_bytes = 32;
using nb::literals::operator""_a;

std::size_t msm_workspace(const std::string& curve, int group, std::size_t n, int threads) {
  return engine(curve).msm_workspace(group_of(group), n, threads_of(threads));
}

nb::object msm(const std::string& curve, int group, nb::handle points, nb::handle scalars,
               nb::handle workspace, int threads) {
  const Engine& chosen = engine(curve);
  const Group which = group_of(group);
  const int workers = threads_of(threads);
  const Bytes p(points, "points"), s(scalars, "scalars");
  const Bytes space(workspace, "workspace", Bytes::Access::write);
  const std::size_t n = p.rows(chosen.point_bytes(which));
  s.expect_rows(n, scalar_bytes);
  if (n > max_msm_points) throw nb::value_error("points: more than 2^31");
  if (space.size() < chosen.msm_workspace(which, n, workers))
    throw nb::value_error("workspace: smaller than msm_workspace says");
  return new_row(chosen.point_bytes(which), [&](u8* out) {
    chosen.msm(which, p.data(), s.data(), n, space.data(), space.size(), out, workers);
  });
}

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

}  // namespace

void bind_points(nb::module_& m) {
  m.def("msm_workspace", msm_workspace, "curve"_a, "group"_a, "n"_a, "threads"_a = 0);
  m.def("msm", msm, "curve"_a, "group"_a, "points"_a, "scalars"_a, "workspace"_a, "threads"_a = 0);
  m.def("add", add, "curve"_a, "group"_a, "p"_a, "q"_a);
  m.def("negate", negate, "curve"_a, "group"_a, "p"_a);
  m.def("scale", scale, "curve"_a, "group"_a, "p"_a, "scalar"_a);
  m.def("generator", generator, "curve"_a, "group"_a);
  m.def("find_off_curve", find_off_curve, "curve"_a, "group"_a, "points"_a, "threads"_a = 0);
  m.def("find_outside_subgroup", find_outside_subgroup, "curve"_a, "group"_a, "points"_a,
        "threads"_a = 0);
}

}  // namespace prover
