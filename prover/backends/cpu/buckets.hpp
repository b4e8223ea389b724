// Bucket sums for a multi-scalar multiplication, by batched affine additions.
//
// An affine addition costs five multiplications and an inversion less; a batch of additions to
// distinct buckets shares one inversion, which makes it six multiplications and a part of the
// inversion, against ten for a mixed addition in XYZZ coordinates. Whatever a batch cannot take (a
// bucket that is in the batch already and has no room in the queue, a doubling, an inverse pair) is
// added to the bucket's overflow in XYZZ coordinates, which is complete.
#pragma once

#include <algorithm>

#include "memory.hpp"
#include "msm.cuh"

namespace prover {

template <class F>
class Buckets {
 public:
  Buckets(Workspace& workspace, u32 count)
      : batch_size_(batch_size(count)),
        points_(workspace.take<Affine<F>>(count)),
        overflow_(workspace.take<Xyzz<F>>(count)),
        state_(workspace.take<u8>(count)),
        batch_(workspace.take<Addition>(batch_size_)),
        queue_(workspace.take<Waiting>(batch_size_ / 2)) {}

  // Additions that share an inversion, at most
  static u32 batch_size(u32 count) { return std::clamp(count / 4, min_batch, max_batch); }

  // Empties the first `count` buckets and uses only them
  void reset(u32 count) {
    count_ = count;
    std::fill_n(state_, count, u8(0));
  }

  void add(u32 bucket, const Affine<F>& p) {
    if (p.is_infinity()) return;
    if (!place(bucket, p)) {
      if (queued_ < batch_size_ / 2)
        queue_[queued_++] = {bucket, p};
      else
        spill(bucket, p);
    }
    if (batched_ == batch_size_) {
      flush();
      drain();
    }
  }

  // To be called between the last add and the sums
  void finish() {
    flush();
    drain();
    flush();
    for (u32 i = 0; i < queued_; ++i) spill(queue_[i].bucket, queue_[i].point);
    queued_ = 0;
  }

  // sum of (i + 1) bucket_i
  Xyzz<F> weighted() const {
    return weighted_sum<F>(count_, [this](u32 i, Xyzz<F>& sum) { add_bucket(i, sum); });
  }

  // sum of bucket_i
  Xyzz<F> plain() const {
    Xyzz<F> sum = Xyzz<F>::infinity();
    for (u32 i = 0; i < count_; ++i) add_bucket(i, sum);
    return sum;
  }

 private:
  // A batch below `worth_inverting` costs more by its inversion than it saves.
  static constexpr u32 min_batch = 32, max_batch = 1024, worth_inverting = 64;
  static constexpr u8 holds = 1, busy = 2, overflows = 4;

  struct Addition {
    u32 bucket;
    Affine<F> point;
    F difference;  // of the abscissas
    F product;     // of all differences before this one
  };
  struct Waiting {
    u32 bucket;
    Affine<F> point;
  };

  // False if the bucket's sum is pending
  bool place(u32 bucket, const Affine<F>& p) {
    u8& state = state_[bucket];
    if (state & busy) return false;
    if (!(state & holds)) {
      points_[bucket] = p;
      state |= holds;
      return true;
    }
    const F difference = p.x - points_[bucket].x;
    if (difference.is_zero()) {
      spill(bucket, p);
      return true;
    }
    state |= busy;
    Addition& addition = batch_[batched_];
    addition.bucket = bucket;
    addition.point = p;
    addition.difference = difference;
    addition.product = batched_ == 0 ? F::one() : product_;
    product_ = batched_ == 0 ? difference : product_ * difference;
    ++batched_;
    return true;
  }

  void spill(u32 bucket, const Affine<F>& p) {
    u8& state = state_[bucket];
    overflow_[bucket] = state & overflows ? overflow_[bucket] + p : Xyzz<F>::from_affine(p);
    state |= overflows;
  }

  void flush() {
    if (batched_ < worth_inverting) {
      for (u32 i = 0; i < batched_; ++i) spill(batch_[i].bucket, batch_[i].point);
    } else {
      F inverse = product_.inverse();
      for (u32 i = batched_; i-- > 0;) {
        const Addition& addition = batch_[i];
        const F reciprocal = inverse * addition.product;
        inverse = inverse * addition.difference;
        Affine<F>& p = points_[addition.bucket];
        const F slope = (addition.point.y - p.y) * reciprocal;
        const F x = slope.squared() - p.x - addition.point.x;
        p.y = slope * (p.x - x) - p.y;
        p.x = x;
      }
    }
    for (u32 i = 0; i < batched_; ++i) state_[batch_[i].bucket] &= u8(~busy);
    batched_ = 0;
  }

  // Places what waits, for an empty batch
  void drain() {
    u32 kept = 0;
    for (u32 i = 0; i < queued_; ++i)
      if (!place(queue_[i].bucket, queue_[i].point)) queue_[kept++] = queue_[i];
    queued_ = kept;
  }

  void add_bucket(u32 i, Xyzz<F>& sum) const {
    if (state_[i] & holds) sum = sum + points_[i];
    if (state_[i] & overflows) sum = sum + overflow_[i];
  }

  u32 batch_size_;
  Affine<F>* points_;
  Xyzz<F>* overflow_;
  u8* state_;
  Addition* batch_;
  Waiting* queue_;
  u32 count_ = 0, batched_ = 0, queued_ = 0;
  F product_{};
};

}  // namespace prover
