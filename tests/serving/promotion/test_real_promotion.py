"""Deployments and promotions on a real Kafka and a real Valkey: load, canary, rollback, fencing."""

from collections.abc import Callable, Iterator

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
