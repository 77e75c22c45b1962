"""The specs of the table of models, which are cut from those in deploy/models, are valid."""

import itertools

from tests.bench.ebnerd.week_ideas import IDEAS, changed
from tests.bench.ebnerd.week_table import INPUTS, MODELS, POLICIES, spec_of


def test_every_spec_of_the_table_of_models_is_valid() -> None:
    for model, inputs, policy in itertools.product(MODELS, INPUTS, POLICIES):
        assert spec_of(model, inputs, policy).name, (model, inputs, policy)


def test_every_idea_changes_every_kind_of_model_into_a_valid_spec() -> None:
    for model, idea in itertools.product(("logistic regression", "DCN-V2"), IDEAS):
        spec = changed(spec_of(model, "statistics", "immediate"), IDEAS[idea])
        assert (spec.structure.loss == "choice") == ("choice" in idea)
