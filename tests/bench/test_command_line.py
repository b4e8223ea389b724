"""What would stop a bench at its end is told in a line at its start."""

import argparse
import errno
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import command_line, demo, machine, node, peers, pinned, pipeline, replay
from bigmem import osmem

WITH_RESULTS = [
    "core.__main__", "costs", "dask", "gpu", "hook", "layers", "peers", "pinned",
    "pipelines.__main__", "release", "replay",
]  # fmt: skip
FOLDER, FILE = "A-FILE/x", "MISSING/x"
BENCH = Path(command_line.__file__).parent
COMMANDS = [
    *sorted(path.stem for path in BENCH.glob("*.py") if '"__main__":' in path.read_text()),
    "core.__main__", "pipelines.__main__",
]  # fmt: skip


def main_of(name: str, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> Callable[[], Any]:
    module = importlib.import_module(f"bench.{name}")
    for step in ("warm_up", "warm_up_beside", "describe", "summary"):
        monkeypatch.setattr(machine, step, lambda *_: pytest.fail("this is not refused"))
    monkeypatch.setattr(sys, "argv", [name, *words])
    main: Callable[[], Any] = module.main
    return main


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        *((name, ["--json", FILE], f"{FILE}: cannot be written: no such") for name in WITH_RESULTS),
        *((name, ["--markdown", "."], ".: is a directory") for name in WITH_RESULTS),
        ("scaling", ["--markdown", FILE], "cannot be written"),
        ("profile_overhead", ["--markdown", FILE], "cannot be written"),
        ("profile_overhead", ["--mib", "nan"], "'nan' is no number above 0"),
        ("profile_overhead", ["--seconds", "soon"], "'soon' is no number above 0"),
        ("core.__main__", ["--memory", "much"], "is no size"),
        ("dask", ["--limit", "much"], "is no size"),
        ("layers", ["--size", "much"], "is no size"),
        ("layers", ["--rounds", "0"], "'0' is no number from 1"),
        ("release", ["--size", "much"], "is no size"),
        ("replay", ["--rounds", "0"], "'0' is no number from 1"),
        ("peers", ["--rounds", "-1"], "'-1' is no number from 1"),
        ("peers", ["4"], "'4' is no number from 5 to 27"),
        ("peers", ["28"], "'28' is no number from 5 to 27"),
        ("kernels", ["99"], "'99' is no number from 5 to 27"),
        ("kernels", ["-1"], "'-1' is no number from 5 to 27"),
        ("pipeline", ["--log2", "28"], "'28' is no number from 5 to 27"),
        ("pipeline", ["--log2", "10", "--ahead", "0"], "'0' is no size above 0"),
        ("gpu", ["--seconds", "nan"], "'nan' is no number above 0"),
        ("pinned", ["--gib", "0"], "'0' is no number above 0"),
        ("pinned", ["--gib", "1e300"], "1e300 is more than the "),
        ("demo", ["--gib", "1e300"], "1e300 is more than the "),
        ("profile_overhead", ["--mib", "1e300"], "1e300 is more than the "),
        ("core.__main__", ["--memory", "0"], "'0' is no size above 0"),
        ("core.__main__", ["--memory", "999TiB"], "999TiB is more than the "),
        ("core.__main__", ["--memory", "63MiB"], "64 MiB of memory is the least"),
        ("panel", ["--allocator", "nonesuch"], "there is no allocator called 'nonesuch'"),
        ("panel", ["--allocator", "recycle", "--gib", "nan"], "'nan' is no number above 0"),
        ("panel", ["--allocator", "recycle", "--steps", "0"], "'0' is no number from 1"),
        ("kernel_resources", ["--match", "nonesuch"], "no program's file has 'nonesuch' in its"),
        ("layers", ["--size", "0"], "'0' is no size above 0"),
        ("layers", ["--size", "999TiB"], "999TiB is more than the "),
        ("release", ["--size", "0"], "'0' is no size above 0"),
        ("release", ["--size", "999TiB"], "999TiB is more than the "),
        ("layers", ["--size", "7"], "'7' is less than 8"),
        ("release", ["--size", "3"], "'3' is less than 4"),
        ("machine", ["much"], "'much' is no size"),
        ("machine", ["0"], "'0' is no size above 0"),
        ("machine", ["-5"], "'-5' is no size"),
        ("machine", ["999TiB"], "999TiB is more than the "),
        ("machine", [], "the following arguments are required: nbytes"),
        ("check", ["nonesuch"], "unrecognized arguments: nonesuch"),
        ("dask", ["--limit", "0"], "'0' is no size above 0"),
        ("dask", ["--limit", "1MiB"], "is more than the 2 MiB of the workers"),
        ("dask", ["--side", "7"], "'7' is less than 8"),
        ("dask", ["--side", "1000000"], "is more than the 12 GiB of the workers"),
        ("dask", ["--chunks", "1000000"], "is more than the 12 GiB of the workers"),
        ("pipelines.__main__", ["--rounds", "two"], "'two' is no number from 1"),
        ("hook", ["--arrays", "0"], "'0' is no number from 1"),
        ("hook", ["--arrays", "39"], "'39' is less than 40"),
        ("hook", ["--allocator", "nonesuch"], "nonesuch"),
        ("kernels", ["--repeats", "0"], "'0' is no number from 1"),
        ("demo", ["--repeat", "0"], "'0' is no number from 1"),
        ("demo", ["--gib", "-1"], "'-1' is no number above 0"),
        ("demo", ["-o", FOLDER], f"{FOLDER}: cannot be made a folder: Not a directory"),
        ("synthetic", ["10", "-o", FOLDER], f"{FOLDER}: cannot be made a folder: Not a directory"),
        ("synthetic", ["10", "-o", "out", "--witnesses", "0"], "'0' is no number from 1"),
        ("synthetic", ["4", "-o", "out"], "'4' is no number from 5 to 27"),
        ("chain", ["10", "-o", FOLDER], f"{FOLDER}: cannot be made a folder: Not a directory"),
        ("chain", ["99", "-o", "out"], "'99' is no number from 5 to 27"),
        ("replay_record", ["--folder", FOLDER], f"{FOLDER}: cannot be made a folder"),
        ("insert", ["table.md", "page.md"], "No such file or directory: 'page.md'"),
        ("insert", ["A-FILE", "A-FILE"], "is there 0 times, not once"),
    ],
)
def test_senseless_words_are_refused_in_a_line(
    name: str,
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "A-FILE").write_text("kept")
    main = main_of(
        name, monkeypatch, ["10", *words] if name == "peers" and FILE in words else words
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
    assert (tmp_path / "A-FILE").read_text() == "kept"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_what_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = main_of(name, monkeypatch, ["--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("name", WITH_RESULTS)
@pytest.mark.parametrize("other", ["x", "./x", "LINK"])
def test_figures_and_tables_do_not_go_to_one_file(
    name: str,
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").write_text("kept")
    (tmp_path / "LINK").symlink_to("x")
    words = ["--markdown", "x", "--json", other]
    main = main_of(name, monkeypatch, ["10", *words] if name == "peers" else words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("two outputs cannot go to one file")
    assert (tmp_path / "x").read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chain", ["10", "-o", "a/b", "--curve", "none"]),
        ("synthetic", ["10", "-o", "a/b", "--witnesses", "0"]),
        ("demo", ["-o", "a/b", "--steps", "0"]),
        ("replay_record", ["--folder", "a/b", "nonesuch"]),
        ("pipeline", ["-o", "a/b", "--log2", "4"]),
    ],
)
def test_a_refused_command_makes_no_folder(
    name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = main_of(name, monkeypatch, words)
    with pytest.raises(SystemExit):
        main()
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_there_stay(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for folder in (tmp_path / "a", tmp_path / "a" / "b" / ".." / "c"):
        assert command_line.folder(str(folder)) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_asked_for_twice_is_done_once() -> None:
    words = ["--log2", "8", "9", "8", "--policies", "recycle", "inline", "recycle",
             "--modes", "seed", "seed", "--regimes", "huge", "huge"]  # fmt: skip
    options = pipeline.parse(words)
    assert (options.log2, options.policies) == ([8, 9], ["recycle", "inline"])
    assert (options.modes, options.regimes) == (["seed"], ["huge"])
    logs = replay.parser().parse_args(["b", "a", "b", "--allocator", "recycle", "recycle"])
    assert (logs.logs, logs.allocator) == ([Path("b"), Path("a")], ["recycle"])
    assert replay.parser().parse_args([]).logs == []


# Its words are those of another bench, which means each.
@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "pipeline_run"])
def test_no_list_of_words_keeps_one_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parsers = []

    def parse(parser: argparse.ArgumentParser, *_: object) -> None:
        parsers.append(parser)
        raise SystemExit

    main = main_of(name, monkeypatch, [])
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    with pytest.raises(SystemExit):
        main()
    (parser,) = parsers
    lists = [action for action in parser._actions if action.nargs in ("+", "*")]
    assert [one.dest for one in lists if not isinstance(one, command_line.Distinct)] == []


def test_a_demo_without_room_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(osmem, "available_bytes", lambda: 2 * machine.GIB)
    monkeypatch.setattr(demo, "make_key", lambda _: pytest.fail("this is not refused"))
    main = main_of("demo", monkeypatch, ["-o", str(tmp_path / "a" / "b"), "--gib", "1"])
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("demo: the array panel wants 2.5 GiB of free memory")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_peer_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> list[str]:
        raise node.MissingPeer("there is no Node")

    monkeypatch.setattr(peers, "snarkjs_command", missing)
    assert main_of("peers", monkeypatch, ["5"])() == 1
    assert capsys.readouterr() == ("", "peers: there is no Node\n")


@pytest.mark.parametrize(("working", "code"), [([], 1), (["bigmem vmm"], 0)])
def test_pinned_memory_of_which_nothing_worked_is_a_failure(
    working: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_process(words: list[str], seconds: float) -> dict[str, str]:
        return {} if words[1] in ("gpu", *working) else {"failed": "it is missing"}

    main = main_of("pinned", monkeypatch, ["--gib", "0.01"])
    monkeypatch.setattr(pinned, "in_process", in_process)
    monkeypatch.setattr(pinned.pinned_report, "page", lambda *_: "")
    monkeypatch.setattr(machine, "warm_up", lambda *_, **__: None)
    assert main() == code


def test_a_missing_gpu_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # where there is one, too
    main = main_of("pinned", monkeypatch, ["--gib", "0.01", "--json", str(tmp_path / "x")])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("pinned: there is no GPU to use: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["synthetic", "chain"])
def test_a_circuit_that_has_no_room_is_told_in_a_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"bench.{name}.write_r1cs", full)
    with pytest.raises(SystemExit) as ended:
        main_of(name, monkeypatch, ["6", "-o", str(tmp_path)])()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"{tmp_path}: cannot be written: No space left on device\n"


def test_a_circuit_goes_where_no_folder_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "a" / "b"
    main_of("synthetic", monkeypatch, ["6", "--witnesses", "2", "-o", str(where)])()
    told = capsys.readouterr().out.split()
    assert sorted(map(str, where.iterdir())) == sorted(told)
    assert len(told) == 3


@pytest.mark.parametrize(
    ("parse", "taken", "refused"),
    [
        (command_line.log2, {"5": 5, "27": 27}, ["4", "28", "-5", "5.0", "", "\u0665"]),
        (command_line.at_least(8), {"8": 8, "9": 9}, ["7", "eight"]),
        (command_line.amount, {"1e-9": 1e-9, "3": 3.0}, ["0", "-1", "inf", "nan", "x"]),
        (command_line.share, {"0": 0.0, "1": 1.0, "0.5": 0.5}, ["1.01", "-0.1", "nan"]),
        (command_line.mib, {"3": 3.0, "0.5": 0.5}, ["0", "1e12"]),
        (command_line.gib, {"0.25": 0.25}, ["0", "1e9"]),
        (command_line.memory, {"3MiB": 3 << 20}, ["0", "1TiB", "x"]),
        (command_line.size, {"3MiB": 3 << 20, "1TiB": 1 << 40}, ["0", "x"]),
        (replay.pace, {"0": 0.0, "0.0": 0.0, "2": 2.0}, ["-1", "nan", "inf", ""]),
    ],
)
def test_numbers(
    parse: Callable[[str], float],
    taken: dict[str, float],
    refused: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(osmem, "available_bytes", lambda: machine.GIB)
    assert {text: parse(text) for text in taken} == taken
    for text in refused:
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)


def test_results_come_with_their_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    command_line.add_result_options(parser)
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    command_line.write_results(parser.parse_args([]), {"a": 1}, "page")
    assert list(tmp_path.iterdir()) == []
    words = ["--json", str(figures), "--markdown", str(page)]
    command_line.write_results(parser.parse_args(words), {"a": 1}, "page")
    assert json.loads(figures.read_text()) == {"machine": machine.describe(), "a": 1}
    assert page.read_text() == "page"


@pytest.mark.parametrize("text", ["a\0b", "A-FILE/b"])
def test_what_can_be_no_folder_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "A-FILE").touch()
    with pytest.raises(argparse.ArgumentTypeError, match="cannot be made a folder"):
        command_line.folder(text)


def test_results_that_cannot_be_written_are_told_in_a_line(tmp_path: Path) -> None:
    target = tmp_path / "gone" / "page.md"
    with pytest.raises(SystemExit) as ended:
        command_line.write(target, "page")
    assert ended.value.code == f"{target}: cannot be written: no such file or directory"


def test_earlier_results_stay_until_the_new_ones_are_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("earlier")
    assert command_line.result_file(str(page)) == page
    assert page.read_text() == "earlier"
    command_line.write(page, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["page.md"]
    assert page.read_text() == "new"
