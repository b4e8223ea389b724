// Passes of a transform: several stages for one reading and writing of memory.
//
// A pass cuts the vector into tiles and gives each to a block of threads. Along the stages of the
// pass, the elements of a tile lie `1 << low` apart; so that memory is still read in long pieces, a
// tile has several neighbouring columns of them, or, where the stages are the last, several groups.
//
// A block goes through its tile in rounds. In a round a thread holds 8 elements and does the up to
// three stages that pair these. The first round reads the vector, the last one writes it, and
// between rounds the elements change threads in shared memory: a thread reads and writes the same
// places of it in a round, so that one barrier a round is enough. The functions here are the work
// of one thread in one round; the host runs them in a loop over the threads.
#pragma once

#include "ntt.cuh"
#include "wide.cuh"

namespace prover {

constexpr int tile_log = 10;
constexpr int held_log = 3;
constexpr int held = 1 << held_log;  // elements in a thread's registers
constexpr int tile_threads = 1 << (tile_log - held_log);

constexpr u32 low_bits(u32 x, int count) { return x & ((u32(1) << count) - 1); }

// Stages [first, first + stages) of a transform of 2^log elements, held_log to tile_log of them,
// log at least tile_log
struct Pass {
  int log, first, stages;

  // Elements that differ in the last bit of the stages' part of the index lie 1 << low() apart
  constexpr int low() const { return log - first - stages; }
  // Bits of a place in the tile below those of the stages: neighbouring columns
  constexpr int columns() const { return low() < tile_log - stages ? low() : tile_log - stages; }

  constexpr u32 tiles() const { return u32(1) << (log - tile_log); }
  // The index in the vector of place 0 of a tile, and of any place relative to it
  constexpr u32 base(u32 tile) const {
    const int below = low() - columns();
    return low_bits(tile, below) << columns() | (tile >> below) << (low() + tile_log - columns());
  }
  constexpr u32 offset(u32 place) const {
    return low_bits(place, columns()) | (place >> columns()) << low();
  }

  constexpr int windows() const { return (stages + held_log - 1) / held_log; }
};

// The bits of a place in which the elements of one thread differ: [begin, begin + held_log). The
// stages that pair bits [begin, end) are this window's; those of the bits above are the window's
// before, which overlaps where the stages are no multiple of held_log.
struct Window {
  int begin, end;

  static constexpr Window of(const Pass& pass, int number) {
    const int end = pass.columns() + pass.stages - number * held_log;
    const int begin = end - held_log < pass.columns() ? pass.columns() : end - held_log;
    return {begin, end};
  }
  // The place of element 0 of a thread; element i is i << begin further
  constexpr u32 place(u32 thread) const {
    return low_bits(thread, begin) | (thread >> begin) << (begin + held_log);
  }
  // How many of the window's stages, the first ones, are done elsewhere
  constexpr int done() const { return begin + held_log - end; }
};

// A tile in shared memory, limb by limb, so that neighbouring threads touch neighbouring banks.
// Where they hold places further apart, the exclusive or spreads them: with it no window has two
// threads of a warp in one bank.
template <class F>
struct Tile {
  typename F::Limb* words;

  static constexpr int size = F::limbs << tile_log;

  static constexpr u32 spread(u32 place) {
    const u32 high = place >> 5;
    return place ^ 9 * (high & 3) ^ 7 * (high & 4);
  }
  F get(u32 place) const {
    F x;
    PROVER_UNROLL
    for (int i = 0; i < F::limbs; ++i) x.value.v[i] = words[(i << tile_log) + spread(place)];
    return x;
  }
  void put(u32 place, const F& x) const {
    PROVER_UNROLL
    for (int i = 0; i < F::limbs; ++i) words[(i << tile_log) + spread(place)] = x.value.v[i];
  }
};

// The largest power of two that is at most x > 0
constexpr u32 leading_bit(u32 x) {
  for (int shift = 1; shift < 32; shift *= 2) x |= x >> shift;
  return x - (x >> 1);
}

// Where in the table the inverse of entry block > 0 stands, but for its sign (see inverse_twiddle)
constexpr u32 mirrored(u32 block) { return 3 * leading_bit(block) - 1 - block; }

// The splits of a window, from its first stage that is not done; `prefix` is the block of the
// window's first stage
template <class F>
PROVER_INLINE void split_window(F* x, const F* twiddles, u32 prefix, int done) {
  // Mirroring a block mirrors what is before its low bits, and complements these.
  const u32 mirror = prefix == 0 ? 0 : mirrored(prefix);
  PROVER_UNROLL
  for (int stage = 0; stage < held_log; ++stage) {
    if (stage < done) continue;
    const u32 blocks = u32(1) << stage;
    const int half = held >> (stage + 1);
    PROVER_UNROLL
    for (u32 block = 0; block < blocks; ++block) {
      const u32 own = block == 0 ? 0 : mirrored(block);
      const u32 entry = prefix == 0 ? own : (mirror << stage) + blocks - 1 - block;
      const bool plain = prefix == 0 && block == 0;
      F twiddle;
      if (!plain) twiddle = load_constant(twiddles + entry);
      PROVER_UNROLL
      for (int i = 0; i < half; ++i) {
        F& a = x[2 * half * int(block) + i];
        F& b = x[2 * half * int(block) + i + half];
        // The entry is minus the twiddle.
        const F product = plain ? -b : b * twiddle;
        b = a + product;
        a = a - product;
      }
    }
  }
}

// The merges of a window, up to its first stage that is not done elsewhere
template <class F>
PROVER_INLINE void merge_window(F* x, const F* twiddles, u32 prefix, int done) {
  PROVER_UNROLL
  for (int stage = held_log - 1; stage >= 0; --stage) {
    if (stage < done) continue;
    const u32 blocks = u32(1) << stage;
    const int half = held >> (stage + 1);
    PROVER_UNROLL
    for (u32 block = 0; block < blocks; ++block) {
      const bool plain = prefix == 0 && block == 0;
      F twiddle;
      if (!plain) twiddle = load_constant(twiddles + (prefix << stage) + block);
      PROVER_UNROLL
      for (int i = 0; i < half; ++i) {
        F& a = x[2 * half * int(block) + i];
        F& b = x[2 * half * int(block) + i + half];
        const F difference = a - b;
        a = a + b;
        b = plain ? difference : difference * twiddle;
      }
    }
  }
}

// The coefficients at the bit-reversed indices from `index` on become those times
// omega_2N^bitrev / N: `factors` are 1 / N for the first half, omega_2N / N for the second.
template <class F>
PROVER_INLINE void scale_window(F* x, const F* twiddles, const F* factors, u32 index, int log) {
  const u32 half = u32(1) << (log - 1);
  const F factor = load_constant(factors + (index >= half));
  PROVER_UNROLL
  for (int i = 0; i < held; ++i)
    x[i] = x[i] * (load_constant(twiddles + low_bits(index, log - 1) + i) * factor);
}

// What a pass does in its tiles. `turn` is for the last stages: splits them, scales, and merges.
enum class Way { split, merge, turn };

constexpr int rounds(Way way, const Pass& pass) {
  return way == Way::turn ? 2 * pass.windows() - 1 : pass.windows();
}

// Round `round` of a thread in a tile of the vector x. The parts are not templates of the round:
// the body would be there several times, and the instruction cache holds it once.
template <Way way, class F>
PROVER_INLINE void run_round(F* x, const F* twiddles, const F* factors, const Pass& pass, u32 tile,
                             int round, u32 thread, const Tile<F>& shared) {
  const int last = pass.windows() - 1;
  const bool splits = way != Way::merge && round <= last;
  const bool merges = way == Way::merge || (way == Way::turn && round >= last);
  const int number = way == Way::split   ? round
                     : way == Way::merge ? last - round
                     : round <= last     ? round
                                         : 2 * last - round;
  const Window window = Window::of(pass, number);
  const u32 place = window.place(thread);
  const u32 index = pass.base(tile) + pass.offset(place);
  const u32 step = pass.offset(u32(1) << window.begin);
  const u32 prefix = index >> (pass.low() + window.begin - pass.columns() + held_log);

  F held_elements[held];
  if (round == 0) {
    PROVER_UNROLL
    for (int i = 0; i < held; ++i) held_elements[i] = load_wide(x + index + i * step);
  } else {
    PROVER_UNROLL
    for (u32 i = 0; i < held; ++i) held_elements[i] = shared.get(place + (i << window.begin));
  }
  if (splits) split_window(held_elements, twiddles, prefix, window.done());
  if (way == Way::turn && round == last)
    scale_window(held_elements, twiddles, factors, index, pass.log);
  if (merges) merge_window(held_elements, twiddles, prefix, window.done());
  if (round == rounds(way, pass) - 1) {
    PROVER_UNROLL
    for (int i = 0; i < held; ++i) store_wide(x + index + i * step, held_elements[i]);
  } else {
    PROVER_UNROLL
    for (u32 i = 0; i < held; ++i) shared.put(place + (i << window.begin), held_elements[i]);
  }
}

// The whole of x <- NTT(omega_2N^i iNTT(x)_i) for vectors shorter than a tile, in steps of one
// barrier each, by any number of threads: the splits, the scaling, the merges.
constexpr int steps_of_few(int log) { return 2 * log + 1; }

template <class F>
PROVER_INLINE void run_step_of_few(F* x, const F* twiddles, const F* factors, int log, int step,
                                   u32 thread, u32 threads) {
  const u32 n = u32(1) << log;
  if (step == log) {
    for (u32 i = thread; i < n; i += threads) {
      const bool second = i >= n / 2 && n > 1;
      x[i] = x[i] * (twiddles[second ? i - n / 2 : i] * factors[second]);
    }
    return;
  }
  const bool splits = step < log;
  const int below = splits ? log - 1 - step : step - log - 1;  // log2 of half a block
  for (u32 i = thread; i < n / 2; i += threads) {
    const u32 block = i >> below;
    const u32 place = block << (below + 1) | low_bits(i, below);
    F& a = x[place];
    F& b = x[place + (u32(1) << below)];
    if (block == 0)
      plain_butterfly(a, b);
    else if (splits)
      split_butterfly(a, b, inverse_twiddle(twiddles, block));
    else
      merge_butterfly(a, b, twiddles[block]);
  }
}

}  // namespace prover
