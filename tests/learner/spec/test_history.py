"""A user's module may have a history without a target, or neither."""

import pytest

from headrace.learner.spec.model_spec import parse_spec

MODULE = """\
[model]
name = "m"
architecture = "module"
module = "some.where:Model"
{history}
[fields.item]
number = 1
transform = "id"

[fields.recent]
number = 2
transform = "bag"
"""


@pytest.mark.parametrize("written", ["", 'history = ""\n', 'history = ""\ntarget = ""\n'])
def test_a_user_module_needs_no_history_and_no_target(written: str) -> None:
    structure = parse_spec(MODULE.format(history=written), "m.toml").structure
    assert (structure.history, structure.target) == ("", "")
