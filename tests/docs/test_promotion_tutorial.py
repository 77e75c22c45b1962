"""docs/tutorial_promotion.md is true: its files, and its commands from the first to the last."""

import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.deploy.local.services.ports import free_port
from headrace.learner.experiments.experiment_file import load_experiment
from tests.deploy.command import Running, running
from tests.docs.pages import DOCS, blocks
from tests.docs.walk import EXAMPLES, _environment, copy_of_examples, shape

PAGE = (DOCS / "tutorial_promotion.md").read_text()
FOLDER = EXAMPLES / "promotion"
MODEL = "site-fast"
TIMEOUT_S = 300


def test_the_experiment_of_the_tutorial_is_that_of_the_example() -> None:
    [shown] = blocks(PAGE, "toml")
    assert shown == (FOLDER / "experiment.toml").read_text()
    assert load_experiment(FOLDER / "experiment.toml").control.name == "site"


def test_the_model_of_the_tutorial_differs_from_the_first_one_in_its_label_window_alone() -> None:
    for name in ("site.toml", "layout.toml"):
        own, first = ((EXAMPLES / each / name).read_text() for each in ("promotion", "news_site"))
        changed = set(own.splitlines()) ^ set(first.splitlines())
        assert all(line.startswith("window_s = ") for line in changed), changed
    assert "window_s = 60 " in (FOLDER / "site.toml").read_text()


class Terminals:
    """Runs the commands of the page: those that serve stay, all others end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._addresses: dict[str, str] = {}
        self._port = str(free_port())
        self.traffic: Running | None = None
        self.promotion: Running | None = None

    def run(self, line: str) -> str:
        """Run a command; return its output so far."""
        line = line.replace("8000", self._port)
        if line.endswith(" &"):
            self._start(line.removesuffix(" &"))
            return ""
        if "--serve-after" in line:
            served = self._start(line)
            served.wait_for("serving until Ctrl-C")
            found = re.findall(r"(HEADRACE_\w+)=(\S+)", served.output)
            self._addresses = {name: shlex.split(value)[0] for name, value in found}
            return served.output
        if "ingest replay" in line:
            self.traffic = self._start(line)
            self.traffic.wait_for("replayed [1-9]")
            return ""
        if "experiment promote" in line:
            self.promotion = self._start(line)
            return self.promotion.wait_for("waits for learners").string
        return self._end(line)

    def _start(self, line: str) -> Running:
        words = shlex.split(line)[1:]
        return self._stack.enter_context(running(*words, folder=self._folder, **self._addresses))

    def _end(self, line: str) -> str:
        ended = subprocess.run(
            ["sh", "-c", line],
            cwd=self._folder,
            env={**_environment(), **self._addresses},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        return ended.stdout


def told(output: str) -> list[str]:
    """Return the lines of a table or a log without numbers and folders."""
    return [re.sub(r" +", " ", line) for line in shape(output).splitlines()]


@pytest.mark.long
@pytest.mark.servers
@pytest.mark.timeout(1200)
def test_the_tutorial_leads_to_a_promoted_arm_with_traffic(tmp_path: Path) -> None:
    folder = copy_of_examples(tmp_path) / "examples" / "promotion"
    served, experiment, promoting, decisions, rolled_back = blocks(PAGE, "text")
    lines = [line for block in blocks(PAGE, "sh") for line in block.splitlines()]
    with ExitStack() as stack:
        terminals, printed = Terminals(folder, stack), {}
        for line in lines:
            if line.startswith("cd "):
                continue
            if line == "headrace serving deploy":
                assert terminals.promotion is not None
                assert terminals.promotion.end() == 0, terminals.promotion.output
            printed[line] = terminals.run(line)
        found = {name: output for name, output in printed.items() if output}
        assert terminals.promotion is not None
        stages = terminals.promotion.output
        assert terminals.traffic is not None
        terminals.traffic.process.terminate()
        assert terminals.traffic.end() == 0
        answers = terminals.traffic.output

    by_verb = {
        name.split()[-1 if "--rollback" in name else 2]: output
        for name, output in found.items()
        if name[:8] == "headrace"
    }
    run = next(output for name, output in found.items() if "--serve-after" in name)
    assert set(told(served)) <= {*told(run), *told(served)[:2]}, "a first start prints more"
    both = "".join(output for name, output in found.items() if " experiment " in name[:21])
    assert set(told(experiment)) <= set(told(both))
    commands_of = [line for line in told(promoting) if line.startswith(" headrace")]
    assert commands_of
    assert set(commands_of) <= set(told(stages))
    for line in decisions.splitlines():
        if " UTC  " in line:
            stage = line.partition(" UTC  ")[2].partition(":")[0]
            assert f" UTC  {stage}:" in stages
    assert f"alias  production is {MODEL}" in by_verb["deploy"]
    assert "promoted: " in by_verb["promotion"]
    assert f'"model":"{MODEL}"' in next(out for name, out in found.items() if "curl" in name)
    assert "rolled back: by an operator" in by_verb["--rollback"]
    assert "rolled back: by an operator" in rolled_back
    assert re.search(rf"answers to [\d,]+ requests: site [\d,]+, {MODEL} [\d,]+", answers)
