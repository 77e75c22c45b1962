"""`headrace experiment show` over a folder."""

from pathlib import Path

from headrace.deploy.cli.experiments.experiment_table import table_of
from headrace.learner.experiments.history import ArmRecord, encoded
from tests.deploy.in_process import Commands

HISTORY = [
    ArmRecord("log", 0, "log", settings={"topic": "examples.news", "offsets": [0]}),
    ArmRecord("begun", 0, "control"),
    ArmRecord("begun", 1, "a<b", settings={"optimizer.alpha": 0.1}),
    ArmRecord("scored", 1, "a<b", 10, 60_000, difference=-0.01, reason="too few batches"),
    ArmRecord("scored", 1, "a<b", 20, 120_000, difference=-0.02, low=-0.03, high=-0.01),
    ArmRecord("rung", 1, "a<b", 20, 120_000, reason="rank 1 of 2"),
    ArmRecord("eliminated", 1, "a<b", 30, 180_000, difference=0.5, reason="worse & hopeless"),
]


def test_a_run_is_shown_and_listed(tmp_path: Path, headrace: Commands) -> None:
    folder = tmp_path / "runs" / "rates"
    folder.mkdir(parents=True)
    (folder / "history.ndjson").write_bytes(encoded(HISTORY))
    shown = headrace("experiment", "show", str(folder))
    assert "eliminated" in shown.out
    assert "log  " not in shown.out
    refused = headrace("experiment", "show", str(folder), "--stop")
    assert "--stop: expected the name of a live experiment, got the folder" in refused.err
    listed = headrace("experiment", "show", str(tmp_path / "runs"))
    assert listed.out == "rates: unfinished, 1 arm, 30 examples\n"


REASON = "better, waiting for the end of a whole cycle"
STATES = [
    *HISTORY[:2],
    *(
        ArmRecord("begun", number, f"arm{number}", settings={"optimizer.alpha": number / 10})
        for number in (1, 2, 3, 4)
    ),
    ArmRecord("scored", 1, "arm1", 900, 60_000, difference=-0.02, low=-0.03, high=-0.01),
    ArmRecord("better", 1, "arm1", 900, 60_000, difference=-0.02, reason="better than it"),
    ArmRecord("scored", 1, "arm1", 1000, 61_000, difference=-0.03, reason=REASON),
    ArmRecord("scored", 2, "arm2", 1000, 61_000, difference=-0.01, reason=REASON),
    ArmRecord("stopped", 3, "arm3", 500, 30_000, difference=0.1, reason="rank 4 of 4"),
]


def test_a_table_shows_each_state_once_and_counts_the_examples_of_the_control() -> None:
    assert list(table_of(STATES, None)) == [
        "1,000 examples up to 1970-01-01 00:01:01 UTC",
        "5 arms with the control, 4 of them learning",
        "",
        "arm      state     examples  difference  confidence sequence",
        "control  control      1,000",
        "arm1     better       1,000    -0.03000",
        "arm2     learning     1,000    -0.01000",
        "arm4     learning         0",
        "arm3     stopped        500    +0.10000",
        "",
        "control: the others are compared with it",
        "arm1: optimizer.alpha = 0.1",
        "  better than it, at 1970-01-01 00:01:00 UTC",
        "arm2: optimizer.alpha = 0.2",
        f"  not decided: {REASON}",
        "arm4: optimizer.alpha = 0.4",
        "  no batch is complete yet",
        "arm3: optimizer.alpha = 0.3",
        "  rank 4 of 4",
    ]


def test_the_lines_of_a_terminal_have_its_width_and_those_of_a_pipe_are_whole() -> None:
    name, reason = "arm-with-a-name-of-forty-characters-in-it", "worse than the control: " * 9
    settings = {"fields.user_section": "off", "statistics.taste": "off", "optimizer.alpha": 0.25}
    history = [
        HISTORY[1],
        ArmRecord("begun", 1, name, settings=settings),
        ArmRecord(
            *("eliminated", 1, name, 2_000_000_000, 60_000),
            difference=0.02, low=0.01, high=0.03, reason=reason.strip(),
        ),
    ]  # fmt: skip
    shown, piped = list(table_of(history, 80)), list(table_of(history, None))
    assert max(len(line) for text in shown for line in text.splitlines()) <= 80
    at = shown.index(name)
    figures = "eliminated  2,000,000,000    +0.02000  +0.01000 to +0.03000"
    assert shown[at + 1].strip() == figures
    assert f"{name}  {figures}" in piped
    assert f"  {reason.strip()}" in piped


def test_a_history_of_an_experiment_that_just_began_is_shown() -> None:
    begun = ["0 examples", "0 arms with the control, 0 of them learning"]
    assert list(table_of([], 80)) == begun
