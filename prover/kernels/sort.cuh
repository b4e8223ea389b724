// Sorting the digits of all windows by bucket: a radix sort whose passes count, scan and scatter.
//
// An entry is a bucket in the high half and a point's index and sign in the low one. The buckets of
// a window are numbered behind those of the windows below it, so that every window is sorted in its
// own range, and all of them at once. A pass sorts by some bits of the bucket:
//   count_digits   how often each value occurs in each tile of each window,
//   sum_rows, scan_sums, scan_rows   where the entries of each value of each tile begin,
//   scatter        moves them, in order within a tile.
// Nothing here depends on how the scalars are distributed.
#pragma once

#include "device.cuh"
#include "digits.cuh"

namespace prover {

constexpr u32 sort_threads = 256;
constexpr u32 sort_warps = sort_threads / warp_size;
constexpr u32 sort_tile = 8192;  // entries a block
constexpr int sort_bits = 10;    // of the bucket, at most, in a pass

inline u64 make_entry(u32 bucket, u32 index) { return u64(bucket) << 32 | index; }
inline u32 bucket_of(u64 entry) { return u32(entry >> 32); }
inline u32 index_of(u64 entry) { return u32(entry); }

// What the first pass reads: digits as `cut` writes them; a zero is no entry.
struct CodeSource {
  const u32* codes;
  const u32* dense;
  u32 count;
  u32 buckets;  // a window

  u32 begin(u32) const { return 0; }
  u32 end(u32) const { return count; }
  bool read(u32 window, u32 i, u64& entry) const {
    const u32 code = codes[u64(window) * count + i];
    const u32 digit = code & ~sign_bit;
    if (digit == 0) return false;
    const u32 index = (dense[i] & ~sign_bit) | (code & sign_bit);
    entry = make_entry(window * buckets + digit - 1, index);
    return true;
  }
};

// What the next pass reads: the entries of window w from starts[w] to starts[w + 1]
struct EntrySource {
  const u64* entries;
  const u32* starts;

  u32 begin(u32 window) const { return starts[window]; }
  u32 end(u32 window) const { return starts[window + 1]; }
  bool read(u32, u32 i, u64& entry) const {
    entry = entries[i];
    return true;
  }
};

struct BucketBits {
  int shift, bits;
  u32 size() const { return u32(1) << bits; }
  u32 of(u64 entry) const { return (bucket_of(entry) >> shift) & (size() - 1); }
};

// Block b does tile b % tiles of window b / tiles. Its warps take consecutive parts of the tile:
// visit(is there an entry, entry) is called by all lanes of a warp together.
template <class Source, class Visit>
void visit_tile(const Source& source, u32 tiles, Visit&& visit) {
  constexpr u32 part = sort_tile / sort_warps;
  const u32 window = blockIdx.x / tiles;
  const u32 first =
      source.begin(window) + (blockIdx.x % tiles) * sort_tile + threadIdx.x / warp_size * part;
  const u32 end = source.end(window);
  for (u32 i = first; i < first + part; i += warp_size) {
    if (i >= end) return;
    u64 entry = 0;
    const bool is_entry = i + lane() < end && source.read(window, i + lane(), entry);
    visit(is_entry, entry);
  }
}

// counts[(window size + value) tiles + tile]; one block a tile
template <class Source>
void count_digits(const Source& source, BucketBits bits, u32 tiles, u32* counts) {
  __shared__ u32 count[1 << sort_bits];
  for (u32 value = threadIdx.x; value < bits.size(); value += sort_threads) count[value] = 0;
  __syncthreads();
  visit_tile(source, tiles, [&](bool is_entry, u64 entry) {
    if (is_entry) atomicAdd(&count[bits.of(entry)], u32(1));
  });
  __syncthreads();
  const u32 window = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  for (u32 value = threadIdx.x; value < bits.size(); value += sort_threads)
    counts[(window * bits.size() + value) * u64(tiles) + tile] = count[value];
}

// Inclusive sum over the lanes up to this one
inline u32 scan_warp(u32 value) {
  for (u32 step = 1; step < warp_size; step *= 2) {
    const u32 below = __shfl_up_sync(whole_warp, value, step);
    if (lane() >= step) value += below;
  }
  return value;
}

// sums[row] = sum of a row of `tiles` counts; one warp a row
inline void sum_rows(const u32* counts, u32 rows, u32 tiles, u32* sums) {
  const u32 row = thread_of_grid() / warp_size;
  if (row >= rows) return;
  u32 sum = 0;
  for (u32 i = lane(); i < tiles; i += warp_size) sum += counts[row * u64(tiles) + i];
  sum = scan_warp(sum);
  if (lane() == warp_size - 1) sums[row] = sum;
}

constexpr u32 scan_threads = 1024;

// sums become exclusive sums; starts[w] = the one of row w rows_of_window, for 0 <= w <= windows.
// One block.
inline void scan_sums(u32* sums, u32 rows_of_window, u32 windows, u32* starts) {
  __shared__ u32 of_thread[scan_threads];
  const u32 rows = rows_of_window * windows;
  const u32 each = (rows + scan_threads - 1) / scan_threads;
  const u32 begin = threadIdx.x * each;
  const u32 end = begin + each < rows ? begin + each : rows;
  u32 sum = 0;
  for (u32 row = begin; row < end; ++row) sum += sums[row];
  of_thread[threadIdx.x] = sum;
  __syncthreads();
  for (u32 step = 1; step < scan_threads; step *= 2) {
    const u32 below = threadIdx.x >= step ? of_thread[threadIdx.x - step] : 0;
    __syncthreads();
    of_thread[threadIdx.x] += below;
    __syncthreads();
  }
  u32 before = of_thread[threadIdx.x] - sum;
  for (u32 row = begin; row < end; ++row) {
    const u32 own = sums[row];
    sums[row] = before;
    if (row % rows_of_window == 0) starts[row / rows_of_window] = before;
    before += own;
  }
  if (threadIdx.x == scan_threads - 1) starts[windows] = of_thread[threadIdx.x];
}

// Row by row, counts become positions from sums[row] on; one warp a row
inline void scan_rows(u32* counts, u32 rows, u32 tiles, const u32* sums) {
  const u32 row = thread_of_grid() / warp_size;
  if (row >= rows) return;
  u32 before = sums[row];
  for (u32 first = 0; first < tiles; first += warp_size) {
    u32* at = counts + row * u64(tiles) + first + lane();
    const bool inside = first + lane() < tiles;
    const u32 own = inside ? *at : 0;
    const u32 through = scan_warp(own);
    if (inside) *at = before + through - own;
    before += __shfl_sync(whole_warp, through, warp_size - 1);
  }
}

// Moves every entry of a tile to its place; one block a tile
template <class Source>
void scatter(const Source& source, BucketBits bits, u32 tiles, const u32* positions, u64* out) {
  __shared__ u32 next[sort_warps][1 << sort_bits];
  for (u32 value = threadIdx.x; value < bits.size(); value += sort_threads)
    for (u32 warp = 0; warp < sort_warps; ++warp) next[warp][value] = 0;
  __syncthreads();
  u32* mine = next[threadIdx.x / warp_size];
  visit_tile(source, tiles, [&](bool is_entry, u64 entry) {
    if (is_entry) atomicAdd(&mine[bits.of(entry)], u32(1));
  });
  __syncthreads();
  const u32 window = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  for (u32 value = threadIdx.x; value < bits.size(); value += sort_threads) {
    u32 before = positions[(window * bits.size() + value) * u64(tiles) + tile];
    for (u32 warp = 0; warp < sort_warps; ++warp) {
      const u32 own = next[warp][value];
      next[warp][value] = before;
      before += own;
    }
  }
  __syncthreads();
  visit_tile(source, tiles, [&](bool is_entry, u64 entry) {
    const u32 value = bits.of(entry);
    u32 peers = __ballot_sync(whole_warp, is_entry);  // lanes with the same value
    for (int i = 0; i < bits.bits; ++i) {
      const bool bit = value >> i & 1;
      const u32 with = __ballot_sync(whole_warp, bit);
      peers &= bit ? with : ~with;
    }
    const u32 rank = __popc(peers & lanes_below());
    if (is_entry) out[mine[value] + rank] = entry;
    __syncwarp();
    if (is_entry && rank == 0) mine[value] += __popc(peers);
    __syncwarp();
  });
}

}  // namespace prover
