"""`headrace experiment show|stop|promote` when something is missing: told before anything."""

import shlex
from pathlib import Path

import pytest

from headrace.deploy.cli.experiments import experiment_promotion
from headrace.deploy.cli.experiments.experiment_promotion import process_commands
from headrace.ingest.errors import MissingTopic
from headrace.learner.experiments.experiment_file import Experiment
from headrace.learner.experiments.history import ArmRecord, encoded
from headrace.learner.experiments.live import history_topic
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.promotion import promotion_controller
from headrace.serving.promotion.promotion_controller import DeployedState
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.deploy.in_process import Commands, Ended
from tests.docs.pages import command_of
from tests.learner.experiments.experiment_runs import FILE, write_files

BETTER = [
    ArmRecord("begun", 1, "slow", settings={"optimizer.alpha": 0.001}),
    ArmRecord("begun", 3, "arm3", settings={"optimizer.alpha": 0.5}),
    ArmRecord("better", 1, "slow", difference=-0.01),
    ArmRecord("better", 3, "arm3", difference=-0.02),
]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return write_files(tmp_path, FILE)


def promote(commands: Commands, folder: Path, *words: str) -> Ended:
    return commands("experiment", "promote", str(folder / "experiment.toml"), *words)


def deployed(monkeypatch: pytest.MonkeyPatch, state: DeployedState) -> None:
    """Make the topic `deployments` have this state."""
    monkeypatch.setattr(promotion_controller, "read_promotion_state", lambda *_: state)


CONTROL = ArmRecord("begun", 0, "control")


@pytest.mark.parametrize(
    ("history", "words", "said"),
    [
        (BETTER, [], "expected an arm (slow, fewer), got ''"),
        (BETTER, ["arm9", "--run", "RUN"], "expected an arm (slow, fewer, arm3), got 'arm9'"),
        (BETTER, ["arm3"], "expected an arm (slow, fewer), got 'arm3'"),
        ([CONTROL, *BETTER], ["control", "--run", "RUN"], "got 'control'"),
        (BETTER[:2], ["--run", "RUN"], "expected an arm found better, got none: name an arm"),
        (BETTER, ["--run", "RUN/none"], "expected the folder of an experiment"),
    ],
)
def test_a_promotion_of_no_arm_is_refused_with_the_arms_that_there_are(
    headrace: Commands,
    experiment: Experiment,
    tmp_path: Path,
    history: list[ArmRecord],
    words: list[str],
    said: str,
) -> None:
    (tmp_path / "history.ndjson").write_bytes(encoded(history))
    ended = promote(headrace, tmp_path, *(each.replace("RUN", str(tmp_path)) for each in words))
    assert ended.code == 2
    assert said in ended.err
    assert promote(headrace, tmp_path / "none", "slow").code == 2


def test_an_alias_of_another_model_is_left_alone_and_nothing_is_written(
    headrace: Commands, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed(monkeypatch, DeployedState(Deployments(aliases={"production": "other"}), None))
    ended = promote(headrace, tmp_path, "slow")
    assert ended.code == 2
    control = experiment.control.name
    assert f"alias production: expected {control}, the control, got other" in ended.err
    assert not (tmp_path / f"{control}-slow.toml").exists()


def test_the_best_arm_of_a_run_is_promoted_and_its_spec_file_is_not_overwritten(
    headrace: Commands, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "history.ndjson").write_bytes(encoded(BETTER))
    deployed(monkeypatch, DeployedState(Deployments(), None))
    path = tmp_path / f"{experiment.control.name}-arm3.toml"
    path.write_text("# mine\n")
    ended = promote(headrace, tmp_path, "--run", str(tmp_path))
    assert ended.code == 2
    assert f"{path}: expected no file, or the spec of the arm, got another spec" in ended.err
    assert path.read_text() == "# mine\n"


@pytest.mark.parametrize("flags", [(), ("--rollback",)])
def test_a_model_without_a_promotion_is_refused(
    headrace: Commands, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    deployed(monkeypatch, DeployedState(Deployments(), None))
    ended = headrace("experiment", "promotion", "news-slow", *flags)
    assert ended.code == 2
    assert "expected the model of a promotion, got news-slow" in ended.err


def test_a_promotion_that_was_rolled_back_shows_its_reasons(
    headrace: Commands, experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Promotion.begin("news-slow", "", "news", experiment.promotion, 1_700_000_000_000)
    moved = begun.moved(PromotionStage.ROLLED_BACK, "level: 0.1", 1_700_000_001_000)
    deployed(monkeypatch, DeployedState(Deployments(), moved))
    lines = headrace("experiment", "promotion", "news-slow").out.splitlines()
    assert lines[-1] == "2023-11-14 22:13:21 UTC  rolled back: level: 0.1"


@pytest.mark.parametrize("words", [("show",), ("show", "rates"), ("show", "rates", "--stop")])
def test_before_the_first_experiment_the_topic_is_said_to_be_missing(
    headrace: Commands, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def missing(*_: object) -> None:
        raise MissingTopic("topic experiments: expected one, got none")

    monkeypatch.setattr(history_topic, "read_histories", missing)
    ended = headrace("experiment", *words)
    assert "no experiments yet: topic experiments does not exist" in ended.out + ended.err
    assert ended.code == (0 if words == ("show",) else 2)


def test_a_promotion_prints_each_decision_once_and_other_reasons_to_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter(range(0, 1000, 2))
    lines = experiment_promotion._Lines(lambda: float(next(seconds)))
    begun = Promotion.begin("news-slow", "", "news", PromotionRules(), 0)
    lines(begun, "learners")
    lines(begun, "learners, 12.5 s behind")
    lines(begun, "learners, 7.0 s behind")
    moved = begun.moved(PromotionStage.CANARY, "level: 1", 1000, 0)
    lines(moved, "loss: too few batches yet; time: 0 of 600 s")
    lines(moved, "loss: -0.01 to +0.02, expected at most +0.001; time: 2 of 600 s")
    lines(moved, "loss: -0.01 to +0.01, expected at most +0.001")
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "1970-01-01 00:00:00 UTC  preparing: begun",
        "1970-01-01 00:00:01 UTC  canary, 1 % of the requests: level: 1",
    ]
    assert told.err.splitlines() == [
        "  waits for learners",
        "  waits for loss: too few batches yet; time: 0 of 600 s",
        "  waits for loss: -0.01 to +0.01, expected at most +0.001",
    ]
    for _ in range(40):
        lines(moved, "loss: -0.01 to +0.01, expected at most +0.001")
    assert 0 < len(capsys.readouterr().err.splitlines()) < 4, "one line in half a minute"


@pytest.mark.parametrize("examples_of", ["", "news"])
def test_the_printed_processes_of_a_promoted_model_are_commands_with_addresses(
    examples_of: str,
) -> None:
    places = "127.0.0.1:19092", "redis+cluster://127.0.0.1:7000"
    found = process_commands(Path("news-slow.toml"), examples_of, 5, *places)
    assert ("join" in {words[2] for words in found}) == (not examples_of)
    for words in found:
        options, rest = command_of(shlex.join(words))
        assert {word for word in rest if word.startswith("--")} <= options
        assert places[0] in rest
        assert (places[1] in rest) == ("--redis" in options)
        reads = words[2] == "run"
        assert (examples_of in rest) == (reads and bool(examples_of))


def test_a_password_is_not_printed_with_the_processes_of_a_promoted_model() -> None:
    secret = "redis://user:secret@redis:6379"
    found = process_commands(Path("news-slow.toml"), "", 60, "kafka:9092", secret)
    assert "secret" not in str(found)
