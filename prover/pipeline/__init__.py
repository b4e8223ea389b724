"""From files to checked proofs: what the command line runs."""
