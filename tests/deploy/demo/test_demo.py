"""A short demo with all real parts: the summary, the page and the metrics."""

import re
import shlex
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from headrace.deploy.local.services.waiting import wait_until
from tests.deploy.browser import CHROMIUM, needs_chromium, screenshot, text_of
from tests.deploy.browser import document as document_at
from tests.deploy.command import Running, running
from tests.deploy.prometheus import PROMETHEUS, Scraping, needs_prometheus, scraping
from tests.docs.monitoring import MONITORING, queries

SCREENSHOTS = Path(__file__).parents[3] / "run" / "screenshots"
"""Folder for the screenshots of the last run. Git ignores it."""


def ask(command: str) -> dict[str, Any]:
    """Return the answer to the printed command."""
    _, _, url, _, body = shlex.split(command)
    with urllib.request.urlopen(url, body.encode(), timeout=60) as answer:
        return dict(orjson.loads(answer.read()))


def sent(summary: str) -> tuple[str, str]:
    """Impressions and clicks that the summary says were sent."""
    found = re.search(r"([\d,]+) impressions and ([\d,]+) clicks went through Kafka", summary)
    assert found is not None
    return found.group(1), found.group(2)


@dataclass(frozen=True, slots=True)
class Shown:
    """A demo that was shown to its end, and what was seen meanwhile."""

    summary: str
    answer: dict[str, Any]
    """Of the request that it prints."""
    figures: dict[str, Any]
    """The figures of the page, after the models were compared for a while."""
    document: str | None
    """The page in a browser, then; None without one."""
    pictures: dict[str, bytes]
    series: dict[str, int] | None
    """Series of each query of the dashboard. None without Prometheus."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A short demo, watched in all ways there are."""
    directory = tmp_path_factory.mktemp("demo")
    arguments = ("--seconds", "75", "--events", "600", "--port", "0")
    document, pictures, series = None, {}, None
    with running("demo", *arguments) as demo, ExitStack() as stack:
        address = demo.wait_for(r"watch it learn: (\S+)").group(1)
        answer = ask(demo.wait_for(r"curl -s .*'\n").group(0))
        if PROMETHEUS is not None:
            ports = metrics_ports(demo) | {"server": int(address.rstrip("/").rpartition(":")[2])}
            rules = MONITORING / "rules.yml"
            prometheus = stack.enter_context(scraping(directory / "prometheus", rules, ports))
            series = asked_until_found(prometheus)
        assert wait_until(lambda: is_compared(address), 60), demo.output
        figures = figures_of(address)
        if CHROMIUM is not None:
            document = document_at(address)
            for name, width, height, dark in (
                ("wide", 1400, 1700, False),
                ("phone", 500, 2600, True),
            ):
                SCREENSHOTS.mkdir(parents=True, exist_ok=True)
                path = SCREENSHOTS / f"demo-{name}.png"
                path.unlink(missing_ok=True)  # not one of an earlier run
                pictures[name] = screenshot(address, path, width, height, dark=dark)
        assert demo.end() == 0, demo.output
        summary = demo.output
    return Shown(summary, answer, figures, document, pictures, series)


# metrics of live evaluation, of requests and of dead letters are absent in this demo
ABSENT = re.compile("evaluation|dead_letters|requests_total|request_seconds|candidates_total")


def asked_until_found(prometheus: Scraping) -> dict[str, int]:
    """Return the number of series of each query of the dashboard, once all are scraped."""
    series: dict[str, int] = {}

    def all_found() -> bool:
        series.update({each: len(prometheus.query(filled(each))) for each in queries()})
        return not unanswered(series)

    wait_until(all_found, 90)
    return series


def unanswered(series: dict[str, int]) -> list[str]:
    return [query for query, found in series.items() if not found and not ABSENT.search(query)]


def metrics_ports(demo: Running) -> dict[str, int]:
    """The ports that the processes of a run serve metrics on."""
    found: dict[str, int] = {}
    for child in psutil.Process(demo.process.pid).children(recursive=True):
        words = child.cmdline()
        if "headrace" in words and "--metrics-port" in words:
            port = int(words[words.index("--metrics-port") + 1])
            if port:
                found[words[words.index("headrace") + 1]] = port
    return found


def is_compared(address: str) -> bool:
    """Whether the page has drawn both models."""
    drawn = {(each["chart"], each["name"]) for each in figures_of(address)["curves"]}
    return {("auc", "learned"), ("auc", "frozen"), ("freshness_ms", "p50")} <= drawn


def figures_of(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}page/figures", timeout=60) as answer:
        return dict(orjson.loads(answer.read()))


def filled(query: str) -> str:
    """A query of the dashboard as Grafana would ask it."""
    return query.replace("$model", ".*").replace("$__rate_interval", "15s")


def test_a_live_model_is_ahead_of_a_frozen_one_and_every_event_counts_once(shown: Shown) -> None:
    assert len(shown.answer["predictions"]) == 2
    summary = shown.summary
    impressions, _ = sent(summary)
    assert f"add up to {impressions} shows" in summary
    assert "as many as were sent" in summary
    accuracy = re.search(
        r"live model had an AUC of (\d\.\d+)\. .* had (\d\.\d+) on .* would give (\d\.\d+)", summary
    )
    assert accuracy is not None, summary
    live, frozen, truth = map(float, accuracy.groups())
    assert live > frozen + 0.05, "a site that changes makes the copy old within a minute"
    assert live > truth - 0.1
    assert re.search(r"within \d+ ms \(p50\)", summary)
    assert re.search(r"live model's AUC fell from 0\.\d+ to 0\.\d+", summary)


def test_the_demo_first_prints_the_address_of_the_page(shown: Shown) -> None:
    assert re.match(r"the page: http://127\.0\.0\.1:\d+/ ", shown.summary)


def test_the_page_shows_every_process_and_both_models_of_the_demo(shown: Shown) -> None:
    told = {each["process"] for each in shown.figures["processes"]}
    # evaluation has low priority: on a busy machine, so short a demo may end before it is ready
    assert told | {"evaluation"} == {"demo", "evaluation", "joiner", "keeper", "learner", "server"}
    curves = {(each["chart"], each["name"]): each["points"] for each in shown.figures["curves"]}
    assert {("auc", "learned"), ("auc", "frozen"), ("throughput", "examples learned")} <= set(
        curves
    )
    learned = [point for point in curves["auc", "learned"] if point is not None]
    assert 0.4 < max(learned) <= 1.0
    assert shown.figures["shards"]["kept"] == shown.figures["shards"]["buckets"] == 8
    assert len(shown.figures["partitions"]) == 2


@needs_chromium
def test_a_browser_shows_the_figures_and_charts_of_the_page(shown: Shown) -> None:
    dom = shown.document
    assert dom is not None
    assert 0.4 < float(text_of(dom, "auc")) <= 1.0
    assert text_of(dom, "auc-beside").startswith("frozen 0.")
    assert re.fullmatch(r"\d+ ms", text_of(dom, "fresh"))
    assert re.fullmatch(r"[\d.]+[kM]?", text_of(dom, "store"))
    assert text_of(dom, "said").startswith("as of ")
    drawn = set(re.findall(r'class="plot js-plotly-plot" id="plot-(\w+)"', dom))
    assert {"auc", "log_loss", "freshness_ms", "throughput", "rows", "lag"} <= drawn
    for name, picture in shown.pictures.items():
        assert picture.startswith(b"\x89PNG"), name
        assert len(picture) > 40_000, name


@needs_prometheus
def test_every_query_of_the_dashboard_finds_scraped_series(shown: Shown) -> None:
    assert shown.series is not None
    assert unanswered(shown.series) == []
