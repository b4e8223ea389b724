// From sorted entries to bucket sums.
//
// Every thread adds up the same number of consecutive entries, whatever the buckets are: no warp
// waits for its fullest bucket, and a bucket of any length is spread over as many threads as it
// needs. A run is what a thread has of one bucket. The run in which a bucket begins is stored as
// the bucket; a run that continues a bucket from the thread before is that thread's head, and
// `fold` adds the heads to their buckets, in rounds of the same pattern.
#pragma once

#include "curve.cuh"
#include "sort.cuh"

namespace prover {

constexpr u32 no_bucket = 0xffffffff;
constexpr u32 shortest_part = 8;  // entries a thread, at least

// The sorted entries, followed by the scalars 1 and -1, which make up the last bucket
struct Sorted {
  const u64* entries;
  const u32* count;  // of entries
  const u32* ones;
  u32 ones_count;
  u32 ones_bucket;

  // The count is read anew every time: a register is worth more than a load.
  u64 at(u32 i) const {
    const u32 dense = *count;
    return i < dense ? entries[i] : make_entry(ones_bucket, ones[i - dense]);
  }
};

inline void prefetch(const void* address) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
#else
  (void)address;
#endif
}

template <class F>
void store_run(const Xyzz<F>& sum, u32 bucket, bool continues, Xyzz<F>* buckets, Xyzz<F>* head,
               u32* head_bucket) {
  store_wide(continues ? head : buckets + bucket, sum);
  if (continues) *head_bucket = bucket;
}

// heads[t] and head_buckets[t] (no_bucket if it has none) belong to thread t. Buckets without an
// entry are left alone.
template <class F>
void accumulate(const Affine<F>* points, const Sorted& sorted, Xyzz<F>* buckets, Xyzz<F>* heads,
                u32* head_buckets) {
  const u32 t = thread_of_grid();
  const u32 size = *sorted.count + sorted.ones_count;
  const u32 threads = gridDim.x * blockDim.x;
  const u32 even = (size + threads - 1) / threads;
  const u32 part = even > shortest_part ? even : shortest_part;
  head_buckets[t] = no_bucket;
  if (u64(t) * part >= size) return;
  const u32 begin = t * part;
  const u32 end = size - begin < part ? size : begin + part;
  u64 entry = sorted.at(begin);
  u32 bucket = bucket_of(entry);
  bool continues = begin > 0 && bucket_of(sorted.at(begin - 1)) == bucket;
  Xyzz<F> sum = Xyzz<F>::infinity();
  for (u32 i = begin; i < end; ++i) {
    if (bucket_of(entry) != bucket) {
      store_run(sum, bucket, continues, buckets, heads + t, head_buckets + t);
      bucket = bucket_of(entry);
      continues = false;
      sum = Xyzz<F>::infinity();
    }
    Affine<F> point = load_wide(points + (index_of(entry) & ~sign_bit));
    if (index_of(entry) & sign_bit) point.y = -point.y;
    if (i + 1 < end) {
      entry = sorted.at(i + 1);
      const Affine<F>* next = points + (index_of(entry) & ~sign_bit);
      prefetch(next);
      prefetch(&next->y);
    }
    sum = sum + point;
  }
  store_run(sum, bucket, continues, buckets, heads + t, head_buckets + t);
}

constexpr u32 fold_step = 4;

// Adds up `fold_step` heads a thread: to the bucket where its heads begin, to the next heads where
// they go on.
template <class F>
void fold(const Xyzz<F>* heads, const u32* head_buckets, u32 count, Xyzz<F>* buckets,
          Xyzz<F>* next_heads, u32* next_buckets) {
  const u32 t = thread_of_grid();
  if (t * fold_step >= count) return;
  const u32 begin = t * fold_step;
  const u32 end = count - begin < fold_step ? count : begin + fold_step;
  next_buckets[t] = no_bucket;
  u32 before = begin > 0 ? head_buckets[begin - 1] : no_bucket;
  bool continues = true;
  Xyzz<F> sum = Xyzz<F>::infinity();
  for (u32 i = begin; i < end; ++i) {
    const u32 bucket = head_buckets[i];
    if (bucket == no_bucket) {
      before = no_bucket;
      continue;
    }
    if (bucket != before) {  // heads of this bucket begin here
      continues = false;
      sum = load_wide(buckets + bucket);
    }
    sum = sum + load_wide(heads + i);
    before = bucket;
    const bool ends = i + 1 == end || head_buckets[i + 1] != bucket;
    if (ends) store_run(sum, bucket, continues, buckets, next_heads + t, next_buckets + t);
  }
}

}  // namespace prover
