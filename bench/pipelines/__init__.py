"""Ordinary programs that know nothing of bigmem, run with it and without."""
