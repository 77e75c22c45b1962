"""Models of one alias, compared on the minutes that each of them served."""

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.terminal.tables import served_arms
from headrace.ingest.kafka.protocols import Record, Source
from headrace.serving.evaluation import windows
from headrace.serving.evaluation.served_arms import MINUTE_MS, ServedArm, compare_arms
from headrace.serving.evaluation.windows import WindowMetrics
from tests.serving.evaluation.streams import published_minute

BEGIN_MS = 1_760_000_400_000
"""Begin of a batch of ten minutes."""


def minute(model: str, number: int, scored: int, loss: float, **others: Any) -> WindowMetrics:
    return published_minute(model, BEGIN_MS + number * MINUTE_MS, scored, loss, **others)


def stream(minutes: int, gain: float, share: float, seed: int = 1) -> list[WindowMetrics]:
    """A control and a model with a share of the traffic; the level swings by a third."""
    dice, found = np.random.default_rng(seed), []
    for number in range(minutes):
        level = 0.3 + 0.1 * math.sin(number / 97)
        for model, part, change in (("news", 1 - share, 0.0), ("news-2", share, -gain)):
            scored = int(dice.poisson(2_000 * part))
            noise = dice.normal(0.0, 0.6 / math.sqrt(max(scored, 1)))
            found.append(minute(model, number, scored, level + change + noise))
    return found


def compared(figures: list[WindowMetrics], cycle: int = 6) -> list[ServedArm]:
    size_ms = 10 * MINUTE_MS
    return compare_arms(figures, "production", "news", 0.05, size_ms, cycle * size_ms)


def test_a_worse_model_is_found_at_once_and_a_better_one_at_the_end_of_a_cycle() -> None:
    for gain, verdict in ((-0.05, "worse"), (0.05, "better"), (0.0, "undecided")):
        control, arm = compared(stream(240, gain, share=0.2))
        assert (control.model, control.verdict) == ("news", "control")
        assert (arm.model, arm.verdict, arm.batches) == ("news-2", verdict, 24)
        assert arm.low is not None and arm.high is not None
        assert arm.low <= -gain <= arm.high
    between = compared(stream(230, 0.05, share=0.2))[1]
    assert between.verdict == "undecided" and "whole cycle" in between.reason


def test_equal_models_are_told_apart_in_at_most_the_promised_share_of_runs() -> None:
    false = 0
    for seed in range(100):
        figures = stream(240, 0.0, share=0.1, seed=seed)
        # looked at after every second batch
        looks = [compared(figures[: 2 * minutes])[1] for minutes in range(40, 241, 20)]
        false += any(each.verdict == "better" for each in looks)
    assert false <= 11  # of 100 at 5 %: exceeded with a probability of 0.4 %


def test_a_change_of_the_weights_midway_does_not_bias_the_difference() -> None:
    figures = stream(120, 0.0, share=0.01) + [
        msgspec.structs.replace(
            each,
            begin_ms=each.begin_ms + 120 * MINUTE_MS,
            end_ms=each.end_ms + 120 * MINUTE_MS,
            log_loss=(each.log_loss or 0) + 0.2,
        )
        for each in stream(120, 0.0, share=0.5, seed=2)
    ]
    control, arm = compared(figures)
    assert arm.difference is not None and abs(arm.difference) < 0.01
    # the means over all requests differ by the level of the second half
    assert arm.log_loss is not None and control.log_loss is not None
    assert arm.log_loss - control.log_loss > 0.05


def test_only_settled_minutes_of_both_models_in_closed_batches_count() -> None:
    arms = [minute("news", n, 100, 0.3) for n in range(30)]
    others = [minute("news-2", n, 50, 0.2) for n in range(5, 28)]
    ignored = [
        minute("news-2", 6, 50, 9.0, until="open"),
        minute("news-2", 6, 50, 9.0, slice="device=phone"),
        minute("news-2", 6, 50, 9.0, alias="shadow"),
        minute("news-2", 0, 50, 9.0, end_ms=BEGIN_MS + 60 * MINUTE_MS, window="1h"),
    ]
    again = [minute("news-2", 6, 50, 0.2)]
    control, arm = compared(arms + others + ignored + again)
    assert control.impressions == 3_000
    assert (arm.impressions, arm.batches) == (15 * 50, 2)  # minutes 5 to 19
    assert arm.difference == pytest.approx(-0.1)
    assert arm.calibration == pytest.approx(0.12 * 750 / (15 * 5))


def test_models_without_common_minutes_have_no_difference() -> None:
    control, arm = compared([minute("news-2", 1, 0, 0.0), minute("news-2", 2, 10, 0.2)])
    assert (control.impressions, control.log_loss) == (0, None)
    assert (arm.verdict, arm.difference, arm.reason) == (
        "undecided",
        None,
        "no minute in common yet",
    )
    few = compared([minute("news", 1, 10, 0.2), minute("news-2", 1, 10, 0.2)])[1]
    assert (few.impressions, few.batches) == (0, 0)
    for each in (control, arm, few):
        assert msgspec.json.decode(msgspec.json.encode(each), type=ServedArm) == each
    assert served_arms("production", [control, arm, few]).row_count == 3


def test_the_command_compares_the_minutes_that_the_topic_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = [
        *stream(120, -0.05, share=0.2),
        minute("news-2", 5, 50, 9.0, alias="x-production"),
        minute("news-2", 5, 50, 9.0, until="open"),
    ]
    records = [
        Record(Source("evaluation", 0), offset, 0, msgspec.json.encode(each), each.key.encode())
        for offset, each in enumerate(published)
    ]
    records.append(Record(Source("evaluation", 0), len(records), 0, b"", records[0].key))
    monkeypatch.setattr(windows, "read_all", lambda *_: iter(records))
    words = ["evaluate", "compare", "production", "--control", "news", "--cycle", "600"]
    said = CliRunner().invoke(app, [*words, "--json"])
    assert said.exit_code == 0, said.output
    arms = [msgspec.json.decode(line, type=ServedArm) for line in said.output.splitlines()]
    assert [(each.model, each.verdict) for each in arms] == [
        ("news", "control"),
        ("news-2", "worse"),
    ]
    table = CliRunner().invoke(app, words).output
    assert "worse than the control" in table
    assert "A verdict changes no traffic." in table


def test_the_command_compares_shorter_windows_than_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    published = [
        msgspec.structs.replace(
            each, window="10s", begin_ms=each.begin_ms // 6, end_ms=each.end_ms // 6
        )
        for each in stream(720, -0.05, share=0.2)
    ]
    records = [
        Record(Source("evaluation", 0), offset, 0, msgspec.json.encode(each), each.key.encode())
        for offset, each in enumerate(published)
    ]
    monkeypatch.setattr(windows, "read_all", lambda *_: iter(records))
    words = ["evaluate", "compare", "production", "--control", "news", "--cycle", "600", "--json"]
    found = {}
    for window in ("10", "60"):
        said = CliRunner().invoke(app, [*words, "--window", window])
        assert said.exit_code == 0, said.output
        arms = [msgspec.json.decode(line, type=ServedArm) for line in said.output.splitlines()]
        found[window] = [(each.model, each.verdict, each.impressions > 0) for each in arms]
    assert found == {
        "10": [("news", "control", True), ("news-2", "worse", True)],
        "60": [("news", "control", False)],
    }


@pytest.mark.parametrize("command", [["run"], ["compare", "production", "--control", "news"]])
def test_a_window_that_does_not_divide_a_minute_is_refused(command: list[str]) -> None:
    said = CliRunner().invoke(app, ["evaluate", *command, "--window", "7"])
    assert said.exit_code != 0
    assert "expected a divisor of 60, got 7" in str(said.exception) + said.output


def test_a_batch_of_part_of_a_minute_is_refused() -> None:
    words = ["evaluate", "compare", "production", "--control", "news", "--batch", "90"]
    said = CliRunner().invoke(app, words)
    assert "whole minutes" in str(said.exception) + said.output
