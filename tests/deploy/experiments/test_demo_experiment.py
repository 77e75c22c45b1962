"""The experiment of the demo: its shipped file, its commands, and the whole demo (long)."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.deploy.cli.options import PipelineOptions
from headrace.deploy.demo import experiment as demo_experiment
from headrace.deploy.demo.experiment import (
    BAD_ARM,
    EVALUATION_WINDOW_S,
    DemoExperiment,
    control_file,
    experiment_file,
)
from headrace.deploy.demo.synthetic import SyntheticSite
from headrace.deploy.errors import PartFailed
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.progress import SilentSetupProgress
from headrace.deploy.models.shipped import path_of
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.promotion.promotion_controller import DeployedState
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.deploy.command import running
from tests.deploy.in_process import Commands, headrace

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.deploy.local.supervisor import SupervisedPart

__all__ = ["headrace"]


def test_the_experiment_of_the_demo_fits_its_stream_and_its_evaluation() -> None:
    found = load_experiment(experiment_file())
    assert (found.arms, found.slots, list(found.listed)) == (12, 12, [BAD_ARM])
    assert found.promotion.window_s == EVALUATION_WINDOW_S
    window_s = found.control.fields.label.window_ms / 1000
    assert window_s > SyntheticSite().longest_delay_s, "no click is late"
    arms = [found.plan(number).spec.fields for number in range(1, found.arms + 1)]
    same = {each.fingerprint for each in arms} == {found.control.fields.fingerprint}
    assert same, "each arm can be promoted with its rows"


def test_the_control_of_the_demo_differs_from_its_model_in_pace_alone() -> None:
    control, demo = (tomllib.loads(path.read_text()) for path in (control_file(), path_of("demo")))
    for table, key in (("optimizer", "alpha"), ("label", "window_s")):
        assert control[table].pop(key) < demo[table].pop(key)
    assert control == demo


@pytest.mark.parametrize(
    "options", [["--data", "."], ["--no-evaluate"], ["--kafka", "k:9092"], ["--redis", "r"]]
)
def test_an_experiment_refuses_a_demo_of_other_parts(
    options: list[str], headrace: Commands
) -> None:
    said = headrace("demo", "--experiment", *options)
    assert said.code == 2
    assert f"got {options[0]}" in said.err


def test_a_further_model_has_parts_of_its_own_beside_those_of_the_pipeline(tmp_path: Path) -> None:
    settings = dataclasses.replace(
        PipelineOptions().settings(path_of("demo"), 0), deployments=True, evaluation_window_s=2
    )
    pipeline = LocalPipeline(settings, SilentSetupProgress())
    parts = {each.name: each for each in pipeline._parts("kafka:9092", "redis://redis")}
    assert "--deployments" in parts["server"].arguments
    model = tmp_path / "demo-hasty.toml"
    further = pipeline._model_parts(model, "kafka:9092", "redis://redis", model.stem)
    names = {f"demo-hasty.{name}" for name in ("keeper", "learner", "joiner", "evaluation")}
    assert {each.name for each in further} == names
    for each in further:
        own = parts[each.name.rpartition(".")[2]].arguments
        changed = {str(model), "0"}
        assert set(each.arguments) - set(own) == changed, "only the model, and no port"
        assert each.environment == parts[each.name.rpartition(".")[2]].environment
        if each.name.endswith("evaluation"):
            assert each.arguments[-6:-4] == ("--window", "2")


def test_a_model_that_learns_the_examples_of_another_one_has_no_joiner(tmp_path: Path) -> None:
    pipeline = LocalPipeline(PipelineSettings(path_of("demo")), SilentSetupProgress())
    at = tmp_path / "demo-arm2.toml", "kafka:9092", "redis://redis", "demo-arm2"
    own, of_control = (
        {each.name: each.arguments for each in pipeline._model_parts(*at, name)}
        for name in ("", "demo")
    )
    assert own.keys() - of_control.keys() == {"demo-arm2.joiner"}
    for name, arguments in of_control.items():
        reads = name.endswith(("learner", "evaluation"))
        assert set(arguments) - set(own[name]) == ({"--examples-of", "demo"} if reads else set())


def test_the_parts_of_a_further_model_end_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = LocalPipeline(PipelineSettings(path_of("demo")), SilentSetupProgress())
    parts = Parts()
    monkeypatch.setattr(pipeline, "supervisor", parts, raising=False)
    monkeypatch.setattr(pipeline, "kafka_address", "kafka:9092", raising=False)
    monkeypatch.setattr(pipeline, "_machine", SimpleNamespace(redis="redis://redis"))
    for name, examples_of in (("hasty", ""), ("arm2", "demo")):
        pipeline.add_model(tmp_path / f"demo-{name}.toml", examples_of)
    assert len(parts.running) == 4 + 3
    pipeline.remove_model(tmp_path / "demo-arm2.toml")
    assert {each.partition(".")[0] for each in parts.running} == {"demo-hasty"}
    pipeline.remove_model(tmp_path / "demo-hasty.toml")
    assert parts.running == set()


def test_the_server_of_other_pipelines_follows_no_deployments() -> None:
    pipeline = LocalPipeline(PipelineSettings(path_of("demo")), SilentSetupProgress())
    [server, *_] = pipeline._parts("kafka:9092", "redis://redis")
    assert "--deployments" not in server.arguments


class Parts:
    """The names of running parts."""

    def __init__(self) -> None:
        self.running: set[str] = set()

    def start(self, part: SupervisedPart) -> None:
        self.running.add(part.name)

    def stop(self, *names: str) -> None:
        assert self.running.issuperset(names)
        self.running.difference_update(names)


class Command:
    """A promotion's command that runs until a test ends it."""

    def __init__(self) -> None:
        self.status: int | None = None

    def poll(self) -> int | None:
        return self.status

    def log_tail(self) -> str:
        return "the end of the log"


class Site:
    """A pipeline that records what it is asked to do."""

    kafka = None

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.commands: list[Command] = []
        self.models: dict[str, str] = {}
        """Models, each with that whose examples it learns."""
        self.states: dict[str, Promotion] = {}

    def run_command(self, name: str, *words: str) -> Command:
        options = (each for each in words[4:] if each.startswith("--"))
        self.begun.append(" ".join([words[1], *words[3:4], *options]))
        self.commands.append(Command())
        return self.commands[-1]

    def add_model(self, model: Path, examples_of: str) -> None:
        self.models[model.stem] = examples_of

    def remove_model(self, model: Path) -> None:
        del self.models[model.stem]

    def read(self, _: object, model: str) -> DeployedState:
        return DeployedState(Deployments(), self.states.get(model))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    site = Site()
    monkeypatch.setattr(demo_experiment, "read_promotion_state", site.read)
    return site


def experiment_on(site: Any, folder: Path, said: list[str]) -> DemoExperiment:
    return DemoExperiment(site, folder, said.append, lambda: 42.0)


def record(kind: str, name: str, difference: float, **more: Any) -> ArmRecord:
    return ArmRecord(kind, 1, name, 100, 1000, difference=difference, reason=f"{kind}!", **more)


def test_the_best_arm_found_better_is_promoted_once_the_bad_one_is_rolled_back(
    site: Site, tmp_path: Path
) -> None:
    said: list[str] = []
    demo = experiment_on(site, tmp_path / "run", said)
    history = tmp_path / "run" / "run" / "history.ndjson"
    history.parent.mkdir()
    demo._promote(BAD_ARM)
    begun = Promotion.begin(
        "demo-hasty", "", "demo", load_experiment(experiment_file()).promotion, 0
    )
    canary = begun.moved(PromotionStage.CANARY, "all hold", 1000, 0)
    site.states["demo-hasty"] = canary
    records = [
        *(record("scored", name, gain) for name, gain in (("arm2", -0.03), ("arm3", -0.02))),
        *(record("better", name, gain) for name, gain in (("arm2", -0.03), ("arm3", -0.02))),
        record("better", "arm4", -0.09),
        record("stopped", "arm4", -0.09),
    ]
    history.write_bytes(encoded(records))
    demo._look_at_arms()
    demo._look_at_promotion()
    assert site.begun == [f"promote {BAD_ARM}"], "its canary has the traffic"
    assert site.models == {"demo-hasty": ""}
    site.states["demo-hasty"] = canary.moved(PromotionStage.ROLLED_BACK, "loss: worse", 2000)
    demo._look_at_promotion()
    assert site.models == {}
    demo._look_at_arms()
    with_rows = ["promote arm2 --run"]
    assert site.begun[1:] == with_rows, "arm4 was better, and was stopped"
    demo._look_at_arms()
    assert len(site.begun) == 2
    assert "  42 s  demo-hasty rolled back, 0% of the traffic: loss: worse" in said
    assert len([each for each in said if "arm4 stopped" in each]) == 1
    found = demo.report()
    assert (found.arms, found.learning, found.better_s) == (12, 11, 42.0)
    assert found.best is not None and found.best.name == "arm2"
    assert [each.stage for each in found.promotions] == ["rolled back 0%", "preparing"]
    site.states["demo-arm2"] = begun
    demo._look_at_promotion()
    assert site.models == {"demo-arm2": "demo"}, "it continues on the control's examples"


def test_a_killed_promotion_goes_on_and_a_refused_one_ends_the_demo(
    site: Site, tmp_path: Path
) -> None:
    demo = experiment_on(site, tmp_path / "run", [])
    demo._promote(BAD_ARM)
    site.commands[0].status = -9
    demo._look_at_promotion()
    assert len(site.commands) == 2
    site.commands[1].status = 2
    with pytest.raises(PartFailed, match="status 2:\nthe end of the log"):
        demo._look_at_promotion()


@pytest.mark.long
def test_the_demo_promotes_an_arm_and_rolls_a_bad_one_back() -> None:
    """Longer than the demo of a user, so that a busy machine can decide too."""
    with running("demo", "--experiment", "--seconds", "420", "--port", "0") as demo:
        bad = demo.wait_for(r"demo-hasty rolled back, 0% of the traffic: (\w+)").group(1)
        assert bad in ("loss", "calibration", "level")
        winner = demo.wait_for(r"(arm\d+) is promoted: the best arm").group(1)
        demo.wait_for(rf"demo-{winner} promoted, 100% of the traffic")
        assert demo.end() == 0, demo.output
    met = re.search(r"Promotion of demo-hasty: .* It answered ([\d,]+) of ([\d,]+)", demo.output)
    assert met is not None, demo.output
    answered, requests = (int(each.replace(",", "")) for each in met.groups())
    assert 0 < answered < 0.05 * requests
    assert "as many as were sent" in demo.output
