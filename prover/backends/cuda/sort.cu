// The kernels that sort scalars by bucket. The line before this file says which Curve.
#include "sort.cuh"

using namespace prover;
using Fr = Curve::Fr;
using Scalar = Fr::Integer;

extern "C" {

__global__ void __launch_bounds__(classify_threads)
    classify_scalars(const Scalar* scalars, u32 n, u32* dense, u32* ones, u32* counts) {
  classify<Fr>(scalars, n, dense, ones, counts);
}

__global__ void cut_scalars(const Scalar* scalars, const u32* dense, u32 count, int windows,
                            u32* codes) {
  cut<Fr>(scalars, dense, count, {windows}, codes);
}

__global__ void __launch_bounds__(sort_threads)
    count_codes(const u32* codes, const u32* dense, u32 count, u32 buckets, int bits, u32 tiles,
                u32* counts) {
  count_digits(CodeSource{codes, dense, count, buckets}, {0, bits}, tiles, counts);
}

__global__ void __launch_bounds__(sort_threads)
    count_entries(const u64* entries, const u32* starts, int shift, int bits, u32 tiles,
                  u32* counts) {
  count_digits(EntrySource{entries, starts}, {shift, bits}, tiles, counts);
}

__global__ void sum_count_rows(const u32* counts, u32 rows, u32 tiles, u32* sums) {
  sum_rows(counts, rows, tiles, sums);
}

__global__ void __launch_bounds__(scan_threads)
    scan_row_sums(u32* sums, u32 rows_of_window, u32 windows, u32* starts) {
  scan_sums(sums, rows_of_window, windows, starts);
}

__global__ void scan_count_rows(u32* counts, u32 rows, u32 tiles, const u32* sums) {
  scan_rows(counts, rows, tiles, sums);
}

__global__ void __launch_bounds__(sort_threads)
    scatter_codes(const u32* codes, const u32* dense, u32 count, u32 buckets, int bits, u32 tiles,
                  const u32* positions, u64* out) {
  scatter(CodeSource{codes, dense, count, buckets}, {0, bits}, tiles, positions, out);
}

__global__ void __launch_bounds__(sort_threads)
    scatter_entries(const u64* entries, const u32* starts, int shift, int bits, u32 tiles,
                    const u32* positions, u64* out) {
  scatter(EntrySource{entries, starts}, {shift, bits}, tiles, positions, out);
}

}  // extern "C"
