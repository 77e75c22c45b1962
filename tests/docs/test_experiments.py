"""docs/guides/experiments.md is true: its file is an experiment."""

from pathlib import Path

from headrace.deploy.models.shipped import path_of
from headrace.learner.experiments.experiment_file import load_experiment
from headrace.learner.experiments.promotion_rules import PromotionRules
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "guides" / "experiments.md").read_text()


def test_the_file_of_the_page_is_an_experiment(tmp_path: Path) -> None:
    text, promotion = blocks(PAGE, "toml")
    (tmp_path / "experiment.toml").write_text(f"{text}\n{promotion}")
    (tmp_path / "news.toml").write_text(path_of("news").read_text())
    experiment = load_experiment(tmp_path / "experiment.toml")
    assert (experiment.arms, experiment.slots, len(experiment.space)) == (64, 16, 5)
    assert experiment.promotion == PromotionRules(), "the page shows the defaults"
