"""`headrace run` with every real part, on a small log: exact counts, served, stopped, gone."""

import json
import re
import shlex
import signal
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from headrace.deploy.demo.synthetic import SyntheticSite, SyntheticStream
from headrace.deploy.models.shipped import path_of
from headrace.ingest.events.contract import Reason
from tests.deploy.command import headrace, running
from tests.deploy.demo.written_log import write_log

START_MS = 1_700_000_000_000
DEMO = path_of("demo")
SECONDS = 20
REQUESTS_S = 30
WINDOW_MS = 60_000


@dataclass(frozen=True)
class Log:
    """Two written logs, and the counts of their errors."""

    directories: list[Path]
    impressions: int
    clicks: int


@dataclass(frozen=True)
class Lived:
    """A run that kept serving after its report, answered a request, and was stopped."""

    report: dict[str, Any]
    output: str
    answer: dict[str, Any]
    inspected: str
    status: int
    left: list[psutil.Process]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Two logs, one after the other, with events that cannot be used, come twice or too late."""
    home = tmp_path_factory.mktemp("log")
    directories, impressions, clicks = [], 0, 0
    for number in range(2):
        directory = home / f"part{number}"
        stream = SyntheticStream(SyntheticSite(), number, START_MS + number * 3_600_000)
        written = write_log(directory, stream, SECONDS, REQUESTS_S)
        directories.append(directory)
        impressions += written.impressions
        clicks += written.clicks
    first = directories[0] / "impressions.ndjson"
    lines = first.read_bytes().splitlines(keepends=True)
    first.write_bytes(b"".join([*lines[:100], lines[99], b"not JSON\n", *lines[100:]]))
    clicked = {
        orjson.loads(line)["impression_id"]
        for line in (directories[0] / "clicks.ndjson").read_bytes().splitlines()
    }
    never = next(e for line in lines if (e := orjson.loads(line))["impression_id"] not in clicked)
    late = {
        "impression_id": never["impression_id"],
        "timestamp_ms": never["timestamp_ms"] + WINDOW_MS + 5_000,
    }
    with (directories[0] / "clicks.ndjson").open("ab") as file:
        file.write(orjson.dumps(late) + b"\n")
    return Log(directories, impressions, clicks + 1)


@pytest.fixture(scope="module")
def lived(log: Log, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """One run of the whole pipeline, from start to Ctrl-C."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    data = [word for each in log.directories for word in ("--data", str(each))]
    arguments = ["run", "--model", str(DEMO), *data, "--report", str(path), "--serve-after"]
    with running(*arguments) as run:
        curl = shlex.split(run.wait_for(r"curl -s .*'\n").group(0))
        redis = run.wait_for(r"Valkey at (\S+)").group(1)
        answer = ask(curl)
        inspected = headrace("pserver", "inspect", "--model", str(DEMO), "--redis", redis)
        status, left = run.stop(signal.SIGINT)
        yield Lived(
            json.loads(path.read_text()), run.output, answer, inspected.stdout, status, left
        )


def ask(curl: list[str]) -> dict[str, Any]:
    """Return the answer to the printed command."""
    url, body = curl[2], curl[4]
    assert curl[0] == "curl"
    with urllib.request.urlopen(url, body.encode(), timeout=60) as answer:
        return dict(orjson.loads(answer.read()))


def test_every_show_and_click_counts_once_in_every_field(log: Log, lived: Lived) -> None:
    report = lived.report
    assert set(report["shows_by_field"].values()) == {log.impressions}
    assert set(report["clicks_by_field"].values()) == {log.clicks - 1}
    assert len(report["shows_by_field"]) == 9


def test_every_event_of_a_run_is_counted(log: Log, lived: Lived) -> None:
    counted = {
        name: lived.report[name]
        for name in ("impressions", "clicks", "late_clicks", "duplicates", "dead_letters")
    }
    assert counted == {
        "impressions": log.impressions,
        "clicks": log.clicks,
        "late_clicks": 1,
        "duplicates": 1,
        "dead_letters": 1,
    }
    assert lived.report["examples"] == log.impressions + log.clicks - 1


def test_the_accuracy_of_a_run_is_that_of_a_model_that_learned_from_each_log(
    log: Log, lived: Lived
) -> None:
    whole, parts = lived.report["progressive"], lived.report["by_data"]
    assert [part.pop("data") for part in parts] == [str(each) for each in log.directories]
    for part in (whole, *parts):
        assert part["auc"] > 0.55
        assert part["request_auc"] > 0.52
        assert part["normalized_entropy"] < 1.02
        assert 0.7 < part["calibration"] < 1.3
    assert parts[0] != parts[1]
    assert lived.report["seconds"] > 0
    assert lived.report["rows"] > 1000


def test_the_server_of_a_run_answers_from_the_learned_rows(lived: Lived) -> None:
    assert lived.answer["model"] == "demo"
    assert len(lived.answer["predictions"]) == 2
    assert all(0 < each["score"] < 1 for each in lived.answer["predictions"])
    assert lived.report["freshness_ms"]["p50"] > 0


def test_inspect_counts_the_rows_of_the_report(lived: Lived) -> None:
    assert f"{lived.report['rows']:,} rows" in lived.inspected
    buckets = [line.split() for line in lived.inspected.splitlines()[2:]]
    assert [int(words[0]) for words in buckets] == list(range(8))
    assert sum(int(words[2].replace(",", "")) for words in buckets) == lived.report["rows"]


def test_a_run_prints_the_figures_of_its_report(log: Log, lived: Lived) -> None:
    assert f"{log.impressions:,} impressions and {log.clicks - 1:,} clicks learned" in lived.output
    assert "late clicks 1, clicks without an impression 0, duplicates 1, dead" in lived.output
    assert " INFO " not in lived.output, "log lines of its own are not for the reader of a report"


def test_ctrl_c_stops_the_demo_and_leaves_no_process(lived: Lived) -> None:
    assert lived.status == 0
    assert lived.left == []
    logs = re.search(r"logs in (\S+)", lived.output)
    assert logs is not None
    assert logs.group(1).startswith(tempfile.gettempdir())
    assert not Path(logs.group(1)).parent.exists()


def test_a_run_ended_during_its_replay_continues_and_a_second_model_learns_what_it_sent(
    log: Log, tmp_path: Path
) -> None:
    """The processes of an ended run are gone, and each event counts once, in both models.

    The window is longer than any pause between the runs, so that no click is late. A batch of
    clicks alone, which is all that was left of some requests, may be parked.
    """
    data = [word for each in log.directories for word in ("--data", str(each))]
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    text = DEMO.read_text().replace("window_s = 60\n", "window_s = 3600\n")
    for path in (first, second):
        path.write_text(text.replace('name = "demo"', f'name = "{path.stem}"'))
    report, given = tmp_path / "report.json", ["--no-evaluate", "--state", str(tmp_path / "state")]
    arguments = ["run", "--model", str(first), *data, "--report", str(report), *given]

    def check_counts() -> None:
        counted = json.loads(report.read_text())
        assert (counted["impressions"], counted["clicks"]) == (log.impressions, log.clicks)
        assert (counted["late_clicks"], counted["duplicates"], counted["dead_letters"]) == (0, 1, 1)
        assert counted["examples"] == log.impressions + log.clicks
        for name, shows in counted["shows_by_field"].items():
            learned = shows + counted["clicks_by_field"][name]
            assert learned + counted["parked_examples"] == counted["examples"], name

    with running(*arguments, "--speed", "2") as run:
        run.wait_for("replayed [1-9][0-9,]* events")
        status, left = run.stop(signal.SIGTERM)
        assert (status, left) == (130, []), run.output
        assert "stopping every part" in run.output
        assert "run the same command again to continue" in run.output
        assert not report.exists()
    with running(*arguments) as run:
        assert run.end() == 0, run.output
        sent = run.wait_for(r"continued an interrupted run, which had sent ([\d,]+) events")
    assert 0 < int(sent.group(1).replace(",", "")) < log.impressions + log.clicks
    check_counts()
    report.unlink()
    arguments[2] = str(second)
    with running(*arguments) as run:
        assert run.end() == 0, run.output
        assert "second also learns the events that earlier runs have sent" in run.output
        sent_all = re.search(r"a run of first had sent all ([\d,]+) events", run.output)
        assert sent_all is not None, run.output
        assert f"dead letters 1\n  1 time: {Reason.NOT_JSON}" in run.output
    check_counts()


def test_a_run_names_the_part_that_refused_to_start_with_the_end_of_its_log(
    log: Log, kafka: str, valkey: str, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    spec = tmp_path / "model.toml"
    spec.write_text(DEMO.read_text().replace('name = "demo"', f'name = "{fresh_name("refused")}"'))
    # on servers that run already: what refuses is a part
    given = ("--kafka", kafka, "--redis", valkey, "--no-evaluate")
    arguments = ["run", "--model", str(spec), "--data", str(log.directories[0]), *given]
    with running(
        *arguments, "--state", str(tmp_path), HEADRACE_SERVING_MISS_DEADLINE_MS="soon"
    ) as run:
        assert run.end() == 2
        assert "server refused to run (status 2)" in run.output
        assert "HEADRACE_SERVING_MISS_DEADLINE_MS" in run.output
        assert "Traceback" not in run.output
        assert (tmp_path / "logs" / "server.log").is_file()
