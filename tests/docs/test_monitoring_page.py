"""The examples of docs/monitoring.md run, and it names every metric."""

import json
import re
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

import bigmem
from bigmem.exporters.prometheus import Collector

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")


def test_the_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert len(examples) == 3
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(examples)],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    found, end = json.JSONDecoder().raw_decode(done.stdout)
    assert found["total"]["allocations"] == 10
    metrics = done.stdout[end:]
    assert 'bigmem_allocations_total{allocator="recycle"} 10.0' in metrics


def test_every_metric_is_in_the_table() -> None:
    keeper = bigmem.SystemAllocator(name="keeper")
    registry = CollectorRegistry()
    registry.register(Collector())
    types = dict(re.findall(r"# TYPE (\w+) (\w+)", generate_latest(registry).decode()))
    told = {
        name: kind
        for names, kind in re.findall(r"^\| (`.*?`) \| (gauge|counter) \|", PAGE, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert told == types
    del keeper
