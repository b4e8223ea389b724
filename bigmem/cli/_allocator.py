"""The allocator that a command line names."""

import bigmem


def allocator_named(name: str | None, option: str = "--allocator") -> bigmem.Allocator:
    """The allocator of a name that `option` gave, or the process default.

    Raises
    ------
    BigmemError
        There is none, or its plug-in fails.
    """
    try:
        return bigmem.get_allocator() if name is None else bigmem.make(name)
    except Exception as error:  # a plug-in may raise anything
        source = "the default allocator" if name is None else f"{option} {name}"
        problem = str(error) or type(error).__name__
        raise bigmem.BigmemError(f"{source}: {problem}") from error
