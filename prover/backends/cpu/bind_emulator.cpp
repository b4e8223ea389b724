// The device's kernels, run by the host for the tests: thread after thread between the barriers of
// a block, block after block, with the arguments of a launch.
#include <stdexcept>
#include <vector>

#include "bind.hpp"
#include "bls12381.cuh"
#include "bn128.cuh"
#include "csr.cuh"
#include "ntt_pass.cuh"
#include "ptx.cuh"

namespace prover {

namespace {

using nb::literals::operator""_a;

// Whether the threads of every warp find their places of a tile in different banks of the shared
// memory, in every window
template <class F>
constexpr bool banks_differ() {
  for (int begin = 0; begin + held_log <= tile_log; ++begin)
    for (u32 warp = 0; warp < tile_threads; warp += 32) {
      u32 banks = 0;
      for (u32 thread = warp; thread < warp + 32; ++thread)
        banks |= u32(1) << (Tile<F>::spread(Window{begin, begin + held_log}.place(thread)) % 32);
      if (banks != ~u32(0)) return false;
    }
  return true;
}
static_assert(banks_differ<Bn128<Ptx>::Fr>(), "threads of a warp wait for each other");

// The arguments of a launch: arrays of any type as pointers, and integers
class Arguments {
 public:
  explicit Arguments(const nb::list& values) : values_(values), views_(values.size()) {
    for (std::size_t i = 0; i < views_.size(); ++i)
      if (PyObject_GetBuffer(nb::object(values_[i]).ptr(), &views_[i], PyBUF_SIMPLE) != 0) {
        PyErr_Clear();
        views_[i].obj = nullptr;
      }
  }
  ~Arguments() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  template <class T>
  T* array(std::size_t i) const {
    return static_cast<T*>(views_.at(i).buf);
  }
  template <class T>
  T integer(std::size_t i) const {
    return nb::cast<T>(values_[i]);
  }

 private:
  nb::list values_;
  std::vector<Py_buffer> views_;
};

template <class F, Way way>
void run_pass(const Arguments& a, std::size_t blocks, const F* factors, std::size_t first) {
  std::vector<typename F::Limb> words(Tile<F>::size, 0xA5A5A5A5);
  const Pass pass{a.integer<int>(first), a.integer<int>(first + 1), a.integer<int>(first + 2)};
  const u32 batch = a.integer<u32>(first + 3);
  for (std::size_t block = 0; block < blocks; ++block) {
    F* x = a.array<F>(0) + ((block % batch) << pass.log);
    for (int round = 0; round < rounds(way, pass); ++round)
      for (u32 thread = 0; thread < tile_threads; ++thread)
        run_round<way, F>(x, a.array<F>(1), factors, pass, u32(block / batch), round, thread,
                          Tile<F>{words.data()});
  }
}

template <class F>
void odd_coset_of_few(const Arguments& a, std::size_t blocks, std::size_t threads) {
  const int log = a.integer<int>(3);
  for (std::size_t block = 0; block < blocks; ++block)
    for (int step = 0; step < steps_of_few(log); ++step)
      for (u32 thread = 0; thread < threads; ++thread)
        run_step_of_few(a.array<F>(0) + (block << log), a.array<F>(1), a.array<F>(2), log, step,
                        thread, u32(threads));
}

template <class F>
void extend_twiddles(const Arguments& a) {
  const u32 filled = a.integer<u32>(2);
  for (u32 i = 0; i < filled; ++i) a.array<F>(0)[filled + i] = a.array<F>(0)[i] * *a.array<F>(1);
}

template <class F>
CompressedRows<F> rows_of(const Arguments& a, std::size_t first) {
  return {a.array<u32>(first), a.array<Entry>(first + 1), a.array<F>(first + 2)};
}

// What a row's product becomes: argument `first` is the output, then come the rows that are wanted
// and whether the output is multiplied.
template <class F>
void put(const Arguments& a, std::size_t first, u32 row, const F& value) {
  const u32 begin = a.integer<u32>(first + 1), end = a.integer<u32>(first + 2);
  if (row < begin || row >= end) return;
  F& at = a.array<F>(first)[row - begin];
  at = a.integer<u32>(first + 3) != 0 ? at * value : value;
}

template <class F>
void short_rows(const Arguments& a) {
  const CompressedRows<F> rows = rows_of<F>(a, 2);
  for (u32 i = 0; i < a.integer<u32>(1); ++i) {
    const u32 row = a.array<u32>(0)[i];
    put<F>(a, 6, row, rows.partial(row, 0, 1, a.array<typename F::Integer>(5)));
  }
}

template <class F>
void long_rows(const Arguments& a, std::size_t blocks) {
  const CompressedRows<F> rows = rows_of<F>(a, 1);
  for (std::size_t block = 0; block < blocks; ++block) {
    const u32 row = a.array<u32>(0)[block];
    F sum = F::zero();
    for (u32 thread = 0; thread < long_row_threads; ++thread)
      sum = sum + rows.partial(row, thread, long_row_threads, a.array<typename F::Integer>(4));
    put<F>(a, 5, row, sum);
  }
}

template <class F>
void multiply(const Arguments& a) {
  for (u64 i = 0; i < a.integer<u64>(3); ++i)
    a.array<F>(2)[i] = a.array<F>(0)[i] * a.array<F>(1)[i];
}

template <class F>
void quotient(const Arguments& a) {
  for (u64 i = 0; i < a.integer<u64>(4); ++i)
    a.array<typename F::Integer>(3)[i] =
        (a.array<F>(0)[i] * a.array<F>(1)[i] - a.array<F>(2)[i]).to_integer();
}

template <class F>
void difference(const Arguments& a) {
  for (u64 i = 0; i < a.integer<u64>(3); ++i)
    a.array<typename F::Integer>(2)[i] = (a.array<F>(0)[i] - a.array<F>(1)[i]).to_integer();
}

template <class F>
void launch(const std::string& kernel, std::size_t blocks, std::size_t threads,
            const Arguments& a) {
  if (kernel == "split_pass") return run_pass<F, Way::split>(a, blocks, nullptr, 2);
  if (kernel == "merge_pass") return run_pass<F, Way::merge>(a, blocks, nullptr, 2);
  if (kernel == "turn_pass") return run_pass<F, Way::turn>(a, blocks, a.array<F>(2), 3);
  if (kernel == "odd_coset_of_few") return odd_coset_of_few<F>(a, blocks, threads);
  if (kernel == "extend_twiddles") return extend_twiddles<F>(a);
  if (kernel == "short_rows") return short_rows<F>(a);
  if (kernel == "long_rows") return long_rows<F>(a, blocks);
  if (kernel == "multiply") return multiply<F>(a);
  if (kernel == "quotient") return quotient<F>(a);
  if (kernel == "difference") return difference<F>(a);
  throw std::invalid_argument("there is no kernel '" + kernel + "'");
}

void emulate(const std::string& curve, const std::string& kernel, std::size_t blocks,
             std::size_t threads, const nb::list& arguments) {
  const Arguments checked(arguments);
  if (curve == "bn128")
    launch<Bn128<Ptx>::Fr>(kernel, blocks, threads, checked);
  else
    launch<Bls12381<Ptx>::Fr>(kernel, blocks, threads, checked);
}

}  // namespace

void bind_emulator(nb::module_& m) {
  m.def("_emulate", emulate, "curve"_a, "kernel"_a, "blocks"_a, "threads"_a, "arguments"_a);
}

}  // namespace prover
