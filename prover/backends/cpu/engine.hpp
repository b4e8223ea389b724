// One curve with one kind of arithmetic, behind virtual calls: the choice costs one indirect call a
// bulk operation and nothing a multiplication.
//
// Arguments were checked by the caller: sizes fit, `threads` is at least one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "limbs.cuh"

namespace prover {

enum class Group { g1 = 1, g2 = 2 };

// Indices of points are 31-bit, beside a sign.
inline constexpr std::size_t max_msm_points = std::size_t(1) << 31;

// A multi-scalar multiplication, phase by phase: each is called once, in this order.
class PointSum {
 public:
  struct Operands {
    const u8* points;
    const u8* scalars;
    const u8* finite;  // a byte a point, 0 if it is infinity; null if that is not known
    std::size_t n;
    u8* workspace;  // msm_workspace() bytes; it holds what a phase leaves to the next
    std::size_t bytes;
  };

  virtual ~PointSum() = default;
  virtual void split() = 0;             // the scalars into zeros, ones (1 and -1) and dense ones
  virtual void prepare() = 0;           // digits of the dense ones
  virtual void add_ones() = 0;          // the points of the ones
  virtual void add_dense(u8* out) = 0;  // those of the dense ones; the sum of all
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::size_t coordinate_bytes(Group group) const = 0;
  std::size_t point_bytes(Group group) const { return 2 * coordinate_bytes(group); }

  // Largest k for which the scalar field has a primitive 2^k-th root of unity
  virtual int two_adicity() const = 0;

  // `c` may be null.
  virtual void sparse_product(const u8* terms, std::size_t count, const u8* witness, u8* a, u8* b,
                              u8* c, std::size_t n, int threads) const = 0;
  virtual void multiply(const u8* x, const u8* y, u8* out, std::size_t n, int threads) const = 0;
  virtual void odd_coset(u8* x, int log, int threads) const = 0;
  virtual void quotient(const u8* a, const u8* b, const u8* c, u8* out, std::size_t n,
                        int threads) const = 0;
  virtual std::ptrdiff_t find_not_below_order(const u8* x, std::size_t n, int threads) const = 0;

  virtual std::size_t msm_workspace(Group group, std::size_t n, int threads) const = 0;
  virtual std::unique_ptr<PointSum> point_sum(Group group, const PointSum::Operands& given,
                                              int threads) const = 0;
  virtual void add(Group group, const u8* p, const u8* q, u8* out) const = 0;
  virtual void negate(Group group, const u8* p, u8* out) const = 0;
  virtual void scale(Group group, const u8* p, const u8* scalar, u8* out) const = 0;
  virtual void generator(Group group, u8* out) const = 0;
  virtual std::ptrdiff_t find_off_curve(Group group, const u8* points, std::size_t n,
                                        int threads) const = 0;
  virtual std::ptrdiff_t find_outside_subgroup(Group group, const u8* points, std::size_t n,
                                               int threads) const = 0;

  virtual void to_montgomery(bool base_field, const u8* x, u8* out, std::size_t n) const = 0;
  virtual void from_montgomery(bool base_field, const u8* x, u8* out, std::size_t n) const = 0;
};

// The engine of a curve for the current arithmetic; throws std::invalid_argument for another name
const Engine& engine(const std::string& curve);

// "portable" or "adx"
const char* arithmetic();
// For tests; throws std::invalid_argument for what this CPU or build has not
void use_arithmetic(const std::string& name);

// One of each is defined in its own source file, so that they compile beside each other.
const Engine& bn128_portable();
const Engine& bls12381_portable();
const Engine& bn128_adx();
const Engine& bls12381_adx();

}  // namespace prover
