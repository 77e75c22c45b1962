"""The bench of the search counts whole runs as whole, and the best arm is the best of them."""

from pathlib import Path

import pytest

from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.run_folder import read_history
from tests.bench.experiments.search import HEAD, RUNGS, SPACE, judged, whole_loss
from tests.bench.learner.stream import LR, batches_of, make_stream, stream_spec

ARMS, EXAMPLES = 3, 2000


@pytest.mark.long
def test_the_search_is_judged_against_whole_runs_of_all_arms(tmp_path: Path) -> None:
    spec = stream_spec("", name="control", more=LR)
    space = SPACE.partition("model.architecture")[0]
    file = HEAD.format(arms=ARMS, seed=1) + space + RUNGS.format(first=500)
    (tmp_path / "control.toml").write_text(spec.text)
    (tmp_path / "experiment.toml").write_text(file)
    experiment = load_experiment(tmp_path / "experiment.toml")
    blocks = batches_of(spec, make_stream(EXAMPLES, 1), 250)
    found = judged(experiment, blocks, tmp_path)
    history = read_history(tmp_path / "run")
    begun = [each for each in history if each.kind == "begun"]
    losses = [whole_loss(experiment, each, blocks) for each in begun]
    assert (found.arms, found.examples) == (ARMS, EXAMPLES)
    assert found.best_loss == min(losses)
    assert found.regret == pytest.approx(found.chosen_loss / min(losses) - 1.0)
    learned = {each.arm: each.examples for each in history}
    assert found.budget_share == pytest.approx(sum(learned.values()) / (ARMS * EXAMPLES))
    ended = [each for each in history if each.kind == "ended"]
    for each in ended:
        assert each.loss == pytest.approx(losses[each.arm]), "alone as among others"
