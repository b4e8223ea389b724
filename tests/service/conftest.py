"""Servers to talk to, and what they may be asked to prove."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import FIXTURES, Server, serving

Start = Callable[..., Server]


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of usable keys: every fixture's, as CURVE-CIRCUIT."""
    folder = tmp_path_factory.mktemp("keys")
    for path in FIXTURES.glob("*/*/circuit.zkey"):
        curve, circuit = path.parts[-3:-1]
        shutil.copy(path, folder / f"{curve}-{circuit}.zkey")
    return folder


@pytest.fixture(scope="session")
def witnesses() -> dict[str, bytes]:
    """The fixtures' witnesses, by the names of their keys."""
    return {
        "-".join(path.parts[-3:-1]): path.read_bytes() for path in FIXTURES.glob("*/*/witness.wtns")
    }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server of this test's own."""
    with contextlib.ExitStack() as stack:
        numbers = iter(range(100))

        def starter(*words: Any, **options: Any) -> Server:
            log = tmp_path / f"server-{next(numbers)}.log"
            return stack.enter_context(serving(log, *words, **options))

        yield starter


@pytest.fixture(scope="module")
def server(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that tests share, each of which leaves it idle."""
    log = tmp_path_factory.mktemp("shared") / "server.log"
    with serving(log, keys, "--queue", "4") as running:
        yield running


@pytest.fixture(scope="session")
def right(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, dict[str, Any]], bool]:
    """Whether an answer proves what the fixture of a key says, for the fixture's own key."""
    from prover.formats.proof_json import read_proof, read_public
    from prover.verify import VerificationKey, verify

    folder = tmp_path_factory.mktemp("answers")

    def check(name: str, answer: dict[str, Any]) -> bool:
        assert answer["state"] == "done", answer
        fixture = FIXTURES.joinpath(*name.split("-"))
        (folder / "proof.json").write_text(json.dumps(answer["proof"]))
        (folder / "public.json").write_text(json.dumps(answer["public"]))
        key = VerificationKey.from_json(fixture / "verification_key.json")
        public = read_public(folder / "public.json", key.curve)
        assert public == read_public(fixture / "public.json", key.curve)
        return verify(key, public, read_proof(folder / "proof.json", key.curve))

    return check
