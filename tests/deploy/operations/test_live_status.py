"""`headrace status`: the processes and the coverage of fields, in 80 columns."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx

from headrace.deploy.operations.live_status import COLUMNS, figures_of, status_text
from headrace.ingest.kafka.settings import KafkaSettings
from headrace.ingest.status import MetricSample, ProcessStatus
from headrace.learner.spec.model_spec import parse_spec
from headrace.serving.models.loading import StoreModel
from tests.article_fields import ARTICLE_FIELDS
from tests.deploy.command import headrace
from tests.ingest.events_of import START_MS, Happened
from tests.ingest.joiner.joined import Joined
from tests.serving.served_models import eventually, memory_store
from tests.serving.server_in_thread import SETTINGS, ready, running

T0_MS = 1_700_000_000_000
PARTITIONS = 2


def sample(name: str, value: float, **labels: str) -> MetricSample:
    return MetricSample(f"headrace_{name}", {"model": "news", **labels}, value)


def test_the_status_marks_fields_that_requests_lack_and_names_unknown_ones() -> None:
    long = "a_field_with_a_name_that_is_longer_than_a_column_of_a_terminal"
    joiner = [
        sample("joiner_recent_impressions", 200),
        sample("joiner_recent_values", 200, field="user"),
        sample("joiner_recent_values", 199, field="article"),
        sample("joiner_recent_values", 0, field=long),
        sample("joiner_dead_letters_total", 1234, reason="no_time"),
        sample("joiner_dead_letters_total", 0, reason="bad_id"),
    ]
    server = [
        sample("server_recent_candidates", 10),
        sample("server_recent_values", 10, field="user"),
        sample("server_recent_values", 0, field="article"),
        sample("server_recent_values", 0, field=long),
        sample("server_recent_unknown_values", 10, field="article_no"),
    ]
    statuses = [
        ProcessStatus("joiner", "machine:1", T0_MS - 8_000, joiner),
        ProcessStatus("server", "m" * 90, T0_MS, server),
        ProcessStatus("learner", "machine:3", T0_MS - 60_000, []),
        ProcessStatus("keeper", "machine:4", T0_MS, [], ended=True),
    ]
    text = status_text(figures_of(statuses, T0_MS))
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert text.splitlines() == [
        f"process       {'instance':52}  last seen",
        f"joiner        {'machine:1':52}  8 s ago",
        f"keeper        {'machine:4':52}  stopped",
        f"learner       {'machine:3':52}  silent",
        f"server        {'m' * 51}…  now",
        "",
        "news: share of recent events and requests with a value, in ten minutes",
        "field                                    events  requests",
        "user                                    100.0 %   100.0 %",
        "article                                  99.5 %     0.0 %  missing in requests",
        "a_field_with_a_name_that_is_longer_th…    0.0 %     0.0 %  missing in events",
        "article_no                                    -   100.0 %  not in the spec",
        "- missing in requests: scores are computed without the field",
        "- missing in events: the model learns the field as absent",
        "- not in the spec: servers ignore the field",
        "",
        "dead letters since the start of the joiners, by reason",
        "     1,234  no_time",
    ]


def test_a_status_without_processes_says_what_to_start() -> None:
    assert status_text(figures_of([], T0_MS)) == (
        "expected the status of a process, got none: start processes with --kafka"
    )


def impressions(count: int) -> Happened:
    """Impressions whose events have `article_id`, and every second one a user."""
    events = [
        {"impression_id": f"i{i}", "timestamp_ms": START_MS + i, "article_id": i}
        | ({"user_id": "u"} if i % 2 else {})
        for i in range(count)
    ]
    return Happened([(START_MS + i, i % 2, json.dumps(e).encode()) for i, e in enumerate(events)])


def test_the_status_of_real_processes_shows_a_field_that_requests_misspell(
    kafka: str, fresh_name: Callable[[str], str]
) -> None:
    joined = Joined.fresh(kafka, fresh_name, PARTITIONS, ARTICLE_FIELDS)
    head = f'[model]\nname = "{joined.name}"\narchitecture = "logistic_regression"\n'
    optimizer = '[optimizer]\nname = "ftrl"\nalpha = 0.5\n'
    spec = parse_spec(head + ARTICLE_FIELDS + optimizer, "test.toml")
    settings = replace(SETTINGS, told_to=KafkaSettings(kafka))
    joined.send(impressions(40))
    body = {"context": {"user_id": "u"}, "candidates": [{"article": 1}, {"article": 2}]}

    def covered() -> dict[str, Any]:
        asked = headrace("status", "--kafka", kafka, "--json")
        assert asked.returncode == 0, asked.stderr
        rows = json.loads(asked.stdout)["coverage"]
        return {row["field"]: row for row in rows if row["model"] == joined.name}

    with (
        joined.process(),
        running([StoreModel(spec, memory_store(spec))], settings) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        eventually(lambda: ready(server.url))
        path = f"/v1/models/{joined.name}:predict"
        assert client.post(path, json=body).status_code == 200
        eventually(lambda: covered().get("article (article_id)", {}).get("events") is not None)
        eventually(lambda: "missing in requests" in {row["note"] for row in covered().values()})
        found = covered()
        text = headrace("status", "--kafka", kafka).stdout
        page = client.get("/page/figures").json()["coverage"]
    assert {name: (row["events"], row["requests"]) for name, row in found.items()} == {
        "article (article_id)": (1.0, 0.0),
        "user (user_id)": (0.5, 1.0),
        "article": (None, 1.0),
    }
    assert f"{joined.name}: share of recent events" in text
    assert [row["field"] for row in page if row["model"] == joined.name] == list(found)
