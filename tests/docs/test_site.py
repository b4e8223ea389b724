"""The site has every page, every link leads somewhere, and the reference has every public name."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import bigmem
import bigmem.cuda
import bigmem.dask
import bigmem.testing

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
REFERENCE = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))


def listed(page: Path) -> list[Path]:
    """The pages that the page's tables of contents name."""
    found: list[Path] = []
    for body in re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        names = [line for line in body.splitlines() if line and not line.startswith(":")]
        for name in names:
            if ":glob:" in body:
                found += [path for path in page.parent.glob(f"{name}.md") if path != page]
            else:
                found.append(page.parent / f"{name}.md")
    return found


def test_every_page_has_one_place() -> None:
    places = [path for page in PAGES for path in listed(page)]
    assert sorted([*places, DOCS / "index.md"]) == PAGES


@pytest.mark.parametrize(
    "page",
    [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("examples/*/README.md")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    files = [page.parent / target for target in targets if "://" not in target]
    assert not [str(path) for path in files if not path.exists()]
    if page in PAGES:  # the site has neither pages from elsewhere nor folders
        assert not [str(path) for path in files if path.is_dir()]
        linked = [path.resolve() for path in files if path.suffix == ".md"]
        assert not [str(path) for path in linked if DOCS not in path.parents]


@pytest.mark.parametrize(
    "module", [bigmem, bigmem.cuda, bigmem.dask, bigmem.testing], ids=lambda module: module.__name__
)
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    names = {f"{module.__name__}.{name}" for name in module.__all__}
    documented = set(re.findall(r"^\.\. auto\w+:: (\S+)$", REFERENCE, re.MULTILINE))
    assert not names - documented


def test_every_verb_is_in_the_reference() -> None:
    for package in ("bigmem", "prover"):
        files = (ROOT / package / "cli").glob("[a-z]*.py")
        for verb in sorted(path.stem.replace("_", "-") for path in files):
            assert f"[`{package} {verb}`]" in REFERENCE


def test_the_costs_are_the_committed_results() -> None:
    results = (ROOT / "bench" / "results" / "costs.md").read_text().strip()
    assert results in (DOCS / "explanation.md").read_text()
