"""The parts of a local pipeline: their command lines."""

import contextlib
import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.local import log_run, pipeline_usage
from headrace.deploy.local.pipeline import LocalPipeline, PipelineSettings
from headrace.deploy.local.services.ports import free_port
from headrace.deploy.local.services.progress import SetupProgress
from headrace.deploy.models.shipped import path_of
from headrace.runtime.http.http_errors import AddressTaken

RUN = ["run", "--data", ".", "--runs", "off"]


def hosts_of_metrics(settings: PipelineSettings) -> dict[str, str]:
    """The metrics host of each part that serves metrics on a port."""
    pipeline = LocalPipeline(settings, SetupProgress())
    found = {}
    for part in pipeline._parts("kafka:9092", "redis://redis"):
        words = part.arguments
        if words[words.index("--metrics-port") + 1] != "0":
            found[part.name] = words[words.index("--metrics-host") + 1]
    return found


def test_every_part_of_a_local_pipeline_serves_its_metrics_on_loopback_or_the_given_host() -> None:
    parts = ("joiner", "learner", "keeper", "evaluation")
    demo = path_of("demo")
    assert hosts_of_metrics(PipelineSettings(model=demo)) == dict.fromkeys(parts, "127.0.0.1")
    for host in ("0.0.0.0", "192.0.2.1"):
        given = PipelineSettings(model=demo, metrics_host=host)
        assert hosts_of_metrics(given) == dict.fromkeys(parts, host)


def test_a_chosen_port_is_taken_or_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(AddressTaken, match=f"127.0.0.1:{port} .*--port"):
            LocalPipeline(PipelineSettings(model=path_of("demo"), port=port), SetupProgress())
        taken = PipelineSettings(model=path_of("demo"), collector_port=port)
        with pytest.raises(AddressTaken, match="--collector-port"):
            LocalPipeline(taken, SetupProgress())
    port = free_port()
    pipeline = LocalPipeline(PipelineSettings(model=path_of("demo"), port=port), SetupProgress())
    assert pipeline.address == f"http://127.0.0.1:{port}"


def test_a_pipeline_on_kept_data_listens_on_the_ports_of_its_last_run(tmp_path: Path) -> None:
    parts = ("joiner", "learner", "keeper", "evaluation")
    names = ("server", "collector", *(f"{part} metrics" for part in parts))
    with contextlib.ExitStack() as stack:  # free, but not yet given out by this process
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in names]
        ports = {name: each.getsockname()[1] for name, each in zip(names, servers, strict=True)}
    (tmp_path / "ports.json").write_text(json.dumps(ports))
    settings = PipelineSettings(model=path_of("demo"), state=tmp_path, collector_port=0)
    pipeline = LocalPipeline(settings, SetupProgress())
    assert pipeline.address == f"http://127.0.0.1:{ports['server']}"
    assert pipeline.collector == f"http://127.0.0.1:{ports['collector']}"
    started = pipeline._parts("kafka:9092", "redis://redis")
    words = {each.name: each.arguments for each in started}
    assert {
        f"{part} metrics": int(words[part][words[part].index("--metrics-port") + 1])
        for part in parts
    } == {name: port for name, port in ports.items() if name.endswith(" metrics")}


@pytest.mark.parametrize("words", [["up"], RUN, [*RUN, "--serve-after"]])
def test_the_server_of_a_local_pipeline_follows_deployments(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[PipelineSettings] = []
    monkeypatch.setattr("headrace.deploy.cli.run.show_warnings_only", lambda: None)
    monkeypatch.setattr(pipeline_usage, "keep_up", lambda settings, _: given.append(settings))
    monkeypatch.setattr(log_run, "run_log", lambda settings, *_: given.append(settings.pipeline))
    CliRunner().invoke(app, [*words, "--model", str(path_of("demo"))])
    [settings] = given
    pipeline = LocalPipeline(settings, SetupProgress())
    parts = {each.name: each for each in pipeline._parts("kafka:9092", "redis://redis")}
    assert "--deployments" in parts["server"].arguments
    serves_on = words != RUN
    assert parts["evaluation"].gives_way != serves_on, "a canary waits for evaluation"
