"""A Groth16 prover that runs its whole life on bigmem allocators."""
