"""The CUDA backend; importing the package imports no CuPy."""
