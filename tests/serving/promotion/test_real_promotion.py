"""Deployments and promotions on a real Kafka and a real Valkey: load, canary, rollback, fencing."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest
from click.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.ingest.errors import StreamError
from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import alias_change, model_change
from headrace.serving.deployments.topic_follower import read_deployments, write_deployments
from headrace.serving.promotion.promotion_controller import (
    KafkaPromotionPorts,
    read_promotion_state,
)
from headrace.serving.promotion.promotion_state import Promotion, PromotionStage
from tests.deploy.command import headrace, running
from tests.serving.promotion.promotion_site import Site, roll_back_bad_canary, running_site
from tests.serving.served_models import eventually


@pytest.fixture
def site(kafka: str, valkey: str, fresh_name: Callable[[str], str]) -> Iterator[Site]:
    with running_site(kafka, valkey, fresh_name("news")) as site:
        yield site


def test_a_bad_canary_is_rolled_back_on_a_running_server(site: Site) -> None:
    control, arm = site.control.name, site.arm.name
    found = roll_back_bad_canary(site)
    assert found.ended.stage is PromotionStage.ROLLED_BACK
    assert "level: " in found.ended.decisions[-1].reason
    assert found.share_of_a_minute < 0.05
    assert site.answered_by("after") == control
    state = read_deployments(site.kafka)
    assert (state.aliases[site.alias], arm in state.models) == (control, False)


def test_a_rollback_by_an_operator_fences_the_controller(site: Site) -> None:
    control, arm = site.control.name, site.arm.name
    rules = PromotionRules(alias=site.alias)
    begun = Promotion.begin(arm, site.arm.text, control, rules, 0)
    with KafkaPromotionPorts(site.kafka, arm, control, lambda: True) as ports:
        ports.write(begun.moved(PromotionStage.CANARY, "for a test", 0, 1))
        said = CliRunner().invoke(
            app, ["experiment", "promotion", arm, "--rollback", "--kafka", site.kafka.bootstrap]
        )
        assert said.exit_code == 0, said.output
        assert "rolled back: by an operator" in said.output
        with pytest.raises(StreamError):
            ports.write(begun.moved(PromotionStage.PROMOTED, "late", 0))
    found = read_promotion_state(site.kafka, arm)
    assert found.promotion is not None
    assert found.promotion.stage is PromotionStage.ROLLED_BACK
    assert found.deployments.aliases[site.alias] == control
    assert msgspec.json.encode(found.promotion)


def _is_ready(client: httpx.Client) -> bool:
    return client.get("/health/ready").status_code == 200


@pytest.mark.long  # test_split_aliases.py: the split depends on the request and the table alone
def test_a_server_killed_with_kill_9_in_a_canary_answers_with_the_same_split_again(
    site: Site, tmp_path: Path
) -> None:
    control, arm = site.control, site.arm
    rules = PromotionRules(alias=site.alias, steps=(5.0, 50.0, 100.0))
    begun = Promotion.begin(arm.name, arm.text, control.name, rules, 0)
    canary = begun.moved(PromotionStage.CANARY, "for a test", 0, 1)
    with KafkaPromotionPorts(site.kafka, arm.name, control.name, lambda: True) as ports:
        ports.write(canary)
    (tmp_path / "control.toml").write_text(control.text)
    names = ("--model", "control.toml", "--alias", f"{site.alias}={control.name}")
    at = ("--kafka", site.kafka.bootstrap, "--redis", site.valkey)
    serve = ("serving", "run", *names, *at, "--port", "0", "--deployments")
    requests = [f"r{number}" for number in range(40)]
    splits = []
    for _ in range(2):
        with running(*serve, folder=tmp_path) as server:
            url = server.wait_for(r"on (http://127\.0\.0\.1:\d+)").group(1)
            with httpx.Client(base_url=url, timeout=60) as client:
                eventually(partial(_is_ready, client))
                splits.append([site.answered_by(each, client) for each in requests])
            server.process.kill()
            server.end()
    assert splits[0] == splits[1]
    assert set(splits[0]) == {control.name, arm.name}
    assert read_promotion_state(site.kafka, arm.name).promotion == canary


def test_an_alias_is_switched_everywhere_by_one_command(site: Site) -> None:
    control, arm = site.control.name, site.arm.name
    kafka = ["--kafka", site.kafka.bootstrap]
    write_deployments(site.kafka, [model_change(arm, site.arm.text)])
    said = CliRunner().invoke(app, ["serving", "alias", site.alias, arm, "--everywhere", *kafka])
    assert said.exit_code == 0, said.output
    eventually(lambda: site.answered_by("x") == arm)
    write_deployments(site.kafka, [alias_change(site.alias, None), model_change(arm, None)])
    eventually(lambda: site.answered_by("x") == control)
    eventually(lambda: site.stage(arm) is None)


@pytest.mark.long  # test_promotion_simulation.py kills the controller at every step
def test_a_promotion_killed_and_started_again_goes_on_until_it_is_rolled_back(
    site: Site, tmp_path: Path
) -> None:
    control, model = site.control.name, f"{site.control.name}-slow"
    (tmp_path / "control.toml").write_text(site.control.text)
    (tmp_path / "experiment.toml").write_text(
        '[experiment]\nname = "rates"\ncontrol = "control.toml"\n'
        '[arm.slow]\n"optimizer.alpha" = 0.01\n'
        f'[promotion]\nalias = "{site.alias}"\n'
    )
    kafka = ["--kafka", site.kafka.bootstrap]
    file = str(tmp_path / "experiment.toml")
    promote = ["experiment", "promote", file, "slow", *kafka, "--redis", site.valkey]

    def state() -> Promotion | None:
        return read_promotion_state(site.kafka, model).promotion

    with running(*promote) as first:
        first.wait_for("catching up: rows created")
        first.process.kill()
        first.end()
    before = state()
    assert before is not None
    assert (tmp_path / f"{model}.toml").read_text() == before.spec
    with running(*promote) as second:
        second.wait_for("waits for learners")
        assert state() == before, "it goes on, and decides nothing twice"
        rolled = headrace("experiment", "promotion", model, "--rollback", *kafka)
        assert rolled.returncode == 0, rolled.stderr
        assert second.end() == 1
    after = state()
    assert after is not None
    assert after.decisions[:-1] == before.decisions
    assert read_deployments(site.kafka).aliases[site.alias] == control
    shown = headrace("experiment", "promotion", model, *kafka)
    assert "rolled back: by an operator" in shown.stdout
    refused = headrace(*[each if each != "slow" else "fast" for each in promote])
    assert refused.returncode == 2
    assert "expected an arm (slow), got 'fast'" in refused.stderr
