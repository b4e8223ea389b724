"""Groth16's arithmetic on an NVIDIA GPU, through CuPy."""
