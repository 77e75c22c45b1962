"""The specs of the table of models, which are cut from those in deploy/models, are valid."""

import pytest

from tests.bench.ebnerd.week_table import MORE, runs_of, spec_of


@pytest.mark.parametrize("choice", [False, True])
def test_every_spec_of_the_table_of_models_is_valid(choice: bool) -> None:
    for run in runs_of(choice=choice, quick=False):
        spec = spec_of(*run)
        assert (spec.structure.loss == "choice") == ("choice" in run), run
        assert ("rate_by_shows" in spec.text) == (MORE in run), run
