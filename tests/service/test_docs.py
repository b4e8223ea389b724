"""docs/service.md and the program say the same."""

import argparse
import asyncio
import re
from pathlib import Path

from prover.cli import serve
from prover.service.access import Guard
from prover.service.api import Api
from prover.service.job import State
from prover.service.jobs import Jobs
from prover.service.metrics import Metrics
from prover.service.process import WorkerProcess
from prover.service.protocol import WorkerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "service.md").read_text()


def test_the_page_has_every_option_with_its_default():
    parser = argparse.ArgumentParser()
    serve.configure(parser)
    for action in parser._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in PAGE, option
    for option in ("queue", "keep", "grace", "allocator"):
        row = re.search(rf"^\| `--{option} \w+` \| (\S+) \|", PAGE, re.MULTILINE)
        assert row, option
        assert row[1] == str(parser.get_default(option))
    assert f"| {parser.get_default('host')}, {parser.get_default('port')} |" in PAGE


def test_the_page_has_every_path_and_state():
    async def paths():
        jobs = Jobs(limit=1, keep=1, spool=None, on_end=lambda job: None)
        worker = WorkerProcess(WorkerSettings("."))
        api = Api(jobs, worker, Metrics(), Guard(None), {}, {})
        return {
            (route.method, route.resource.canonical)
            for route in api.application().router.routes()
            if route.method != "HEAD"
        }

    rows = {line for line in PAGE.splitlines() if line.startswith("| `")}
    for method, path in asyncio.run(paths()):
        name = path.replace("{id}", "ID")
        short = name.removeprefix("/jobs/ID") if name.endswith("public.json") else name
        wanted = f"`{short}`" if short != name else f"`{method} {name}`"
        assert any(wanted in row for row in rows), (method, path)
    for state in State:
        assert any(row.startswith(f"| `{state}` |") for row in rows), state
