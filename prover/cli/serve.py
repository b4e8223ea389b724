"""Take proving jobs over HTTP, from this machine unless told otherwise."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prover.cli import _options, one_line, warn
from prover.errors import UnreadableFile, UsageError

if TYPE_CHECKING:
    from prover.service.server import Ready

_PORT = 8199


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    parser.add_argument("keys", metavar="KEYS", type=Path, help="a directory of NAME.zkey files")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen at; any but loopback needs a token (default: %(default)s)",
    )
    parser.add_argument(
        "--port",
        type=_options.number(0, 65535),
        default=_PORT,
        help="0: any that is free (default: %(default)s)",
    )
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="the token that requests must carry; else that in the environment's PROVER_TOKEN, "
        "which this user's other processes can read",
    )
    parser.add_argument(
        "--queue",
        type=_options.number(1, 500),
        default=16,
        metavar="N",
        help="jobs that may wait (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        type=_options.number(1, 10**7),
        default=3600,
        metavar="SECONDS",
        help="how long answers are kept (default: %(default)s)",
    )
    parser.add_argument(
        "--grace",
        type=_options.number(0, 10**5),
        default=60,
        metavar="SECONDS",
        help="how long a stopping server waits for answers to be fetched (default: %(default)s)",
    )
    parser.add_argument(
        "--spool",
        type=Path,
        metavar="DIR",
        help="keep accepted jobs, witnesses included, and answers there, so that they outlive the "
        "server",
    )
    parser.add_argument(
        "--proof-timeout",
        type=_options.number(1, 10**7),
        metavar="SECONDS",
        help="end a worker that has been at a proof for so long; its job is tried once more",
    )
    parser.add_argument(
        "--allocator",
        metavar="NAME",
        default="recycle",
        help="where proofs' vectors come from: system, mapped, dontneed, deferred, recycle, or a "
        "plug-in's (default: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        type=_options.size,
        metavar="LIMIT",
        help="host memory that proofs' vectors may take, idle ones included, for example 4GiB",
    )
    _options.add_backend_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and until what was accepted by then is done."""
    try:
        from prover.service import access, server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("aiohttp", "prometheus_client"):
            raise
        raise UsageError(f"{error.name} is missing: pip install 'bigmem[service]'") from None
    from prover.service.protocol import WorkerSettings

    _options.check_backend_options(arguments)
    _options.keep_out_of_core_dumps()
    settings = server.Settings(
        host=arguments.host,
        port=arguments.port,
        token=access.read_token(arguments.token_file),
        queue=arguments.queue,
        keep=arguments.keep,
        grace=arguments.grace,
        spool=arguments.spool,
        proof_timeout=arguments.proof_timeout,
        worker=WorkerSettings(
            folder=str(_folder(arguments.keys)),
            allocator=arguments.allocator,
            budget=arguments.budget,
            backend=arguments.backend,
            device_memory=arguments.device_memory,
            threads=arguments.threads,
        ),
    )
    _log_to_stderr()
    lost = asyncio.run(server.serve(settings, on_ready=_tell, on_end=_tell_lost))
    return 1 if lost else 0


def _folder(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a loop of links"
        raise UnreadableFile(path, f"cannot be read: {reason.lower()}") from None


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("prover.service")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def _tell_lost(lost: int) -> None:
    if lost:
        warn(f"{lost} accepted jobs end without an answer that anyone has fetched")


def _tell(ready: "Ready") -> None:
    for reason in ready.bad_keys.values():
        warn(reason)
    for name, facts in ready.keys.items():
        if not facts.has_contribution:
            warn(f"{name}: has no contribution (delta is the generator): anyone can forge proofs")
    if ready.resumed or ready.answers:
        print(f"from the spool: {ready.resumed} jobs to do, {ready.answers} answers")
    number = f"{len(ready.keys)} {'key' if len(ready.keys) == 1 else 'keys'}"
    print(f"serving {number} at {one_line(' '.join(ready.urls))}", flush=True)
