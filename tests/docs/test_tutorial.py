"""docs/tutorial.md is true: its commands run, and print what the page shows."""

import json
import re

import pytest

from tests.docs.walk import EXAMPLES, ROOT, Walk, Walked, copy_of_examples, shape, steps

PAGE = (ROOT / "docs" / "tutorial.md").read_text()

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> list[Walked]:
    """The tutorial from its first command to its last."""
    with Walk(copy_of_examples(tmp_path_factory.mktemp("tutorial"))) as walk:
        return [walk.walk(step) for step in steps(PAGE)]


def test_the_commands_of_the_tutorial_print_what_it_shows(walked: list[Walked]) -> None:
    for step, printed in walked:
        # a first start prints more: it fetches Kafka
        more = shape(printed).splitlines()
        missing = [line for line in shape(step.shown).splitlines() if line not in more]
        assert missing == [], (step.commands, printed)


def test_the_log_of_the_tutorial_is_the_one_it_shows(walked: list[Walked]) -> None:
    assert walked[0].printed == walked[0].step.shown


def test_the_second_model_of_the_tutorial_is_better_by_as_much_as_it_says(
    walked: list[Walked],
) -> None:
    first, second = (
        float(re.search(r"AUC ([\d.]+)", each.printed)[1])  # type: ignore[index]
        for each in walked
        if "headrace run" in each.step.commands[0]
    )
    said = re.search(r"The AUC rose from (0\.\d+) to (0\.\d+)", PAGE)
    assert said is not None
    assert [first, second] == pytest.approx([float(said[1]), float(said[2])], abs=0.02)


def test_a_click_of_the_tutorial_raises_the_score(walked: list[Walked]) -> None:
    before, after = (
        json.loads(each.printed)["predictions"][0]["score"]
        for each in walked
        if ":predict" in each.step.commands[0]
    )
    assert after > before


@pytest.mark.parametrize(
    ("place", "name"), list(enumerate(["layout.toml", "first.toml", "site.toml"]))
)
def test_a_file_of_the_tutorial_is_the_one_of_the_example(place: int, name: str) -> None:
    shown = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert shown[place] == (EXAMPLES / "news_site" / name).read_text()
