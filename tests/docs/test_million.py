"""docs/guides/million.md is true: its plans, its table and its commands."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict

from typer.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.operations.planning.workload import Assumptions, Workload
from tests.docs.pages import DOCS, blocks, command_of, commands

PAGE = (DOCS / "guides/million.md").read_text()


def _output(line: str) -> str:
    return CliRunner().invoke(app, shlex.split(line)[1:]).stdout


def test_the_plans_on_the_page_are_those_of_the_command() -> None:
    lines = [line for line in commands(PAGE) if "plan" in line and "--constants" not in line]
    assert [_output(line) for line in lines] == blocks(PAGE, "text")


def test_the_table_of_loads_has_the_figures_of_the_planner() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.endswith("% |")]
    assert len(rows) == 6
    for events, interval, *counts, pushed, _, load in rows:
        options = f"--events-per-second {events.replace(',', '')} --rows 1e9 --fields 40"
        found = json.loads(_output(f"headrace plan {options} --model deepfm --json"))
        plan = found["plan"]
        assert interval.strip() == f"{plan['push_interval_ms']:,.0f} ms"
        assert [int(count) for count in counts] == [part["count"] for part in plan["parts"][:4]]
        assert pushed.strip() == f"{plan['pushed_rows_per_second']:,.0f}"
        assert load.strip() == f"{found['bottleneck']['load']:.0%}"


def test_the_commands_of_the_page_exist_with_their_options() -> None:
    for line in commands(PAGE):
        options, words = command_of(line)
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= options, line


def test_the_assumptions_of_the_page_have_their_defaults() -> None:
    load = Workload(1.0, 1.0, 1, "deepfm", 1)
    known = asdict(Assumptions(load).workload) | asdict(Assumptions(load).machines)
    table = PAGE.split("| assumption |")[1].split("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    for name, default in rows:
        if default.strip()[0].isdigit():
            assert float(default) == known[name.strip(" `")]
        else:
            assert name.strip(" `") in known
