"""Proofs over HTTP: what `prover serve` runs.

The server process (`server`) talks HTTP (`http`, `uploads`, `access`), keeps jobs and answers
(`jobs`, on disk where asked for: `spool`) and watches one worker process (`process`), which holds
the keys, the allocator and the backend (`worker`).
"""
