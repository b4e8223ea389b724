"""What keeps a witness inside the process."""

import resource


def keep_out_of_core_dumps() -> None:
    """Let no core be dumped from here on: it would hold the witness.

    A limit of 0 stops files only. Of 1, which is too small for any file, Linux also starts no
    program that a machine pipes cores to.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
