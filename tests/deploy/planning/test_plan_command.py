"""`headrace plan` prints a plan and its bottleneck, and reads constants that a machine measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from headrace.deploy.cli.main import app
from headrace.deploy.cli.serving.serving_relay import RelayedValues
from headrace.deploy.errors import DeployError
from headrace.deploy.operations.cost_measurement.cost_measurement import line_through
from headrace.deploy.operations.cost_measurement.row_timing import ShardClock
from headrace.deploy.operations.planning import RECORDED, read_unit_costs
from headrace.deploy.operations.planning.unit_costs import LinearCost

if TYPE_CHECKING:
    from pathlib import Path

LOAD = ["plan", "--events-per-second", "2e3", "--rows", "1e6", "--fields", "20"]
MILLION = ["plan", "--events-per-second", "1e6", "--rows", "1e10", "--fields", "40"]


def test_a_plan_lists_every_part_and_names_the_bottleneck() -> None:
    result = CliRunner().invoke(app, LOAD)
    assert result.exit_code == 0, result.output
    for word in ("joiners", "learners", "shards", "keepers", "servers", "partitions", "price"):
        assert f"\n{word} " in result.output
    assert "bottleneck       every learner follows the logs of all learners" in result.output
    assert RECORDED.source in result.output


def test_a_load_that_does_not_fit_ends_with_status_2_and_the_greatest_load() -> None:
    options = ["--model", "deepfm", "--regions", "3", "--json"]
    result = CliRunner().invoke(app, [*MILLION, *options])
    assert result.exit_code == 2
    found = json.loads(result.output)
    assert not found["feasible"]
    assert 1_000 < found["greatest_events_per_second"] < 1_000_000
    assert found["plan"]["push_interval_ms"] == 1_600


def test_a_plan_of_several_regions_has_a_line_for_each_of_the_relays_values() -> None:
    words = [*LOAD, "--regions", "3"]
    text = CliRunner().invoke(app, words).output
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    plans = found["relay_by_values"]
    rates = {name: each["mb_per_second"] for name, each in plans.items()}
    assert list(rates) == [each.value for each in RelayedValues]
    assert rates["half"] < rates["final"] < rates["all"]
    assert f"relay            {rates['all']:,.1f} MB/s to each server" in text
    for values, each in plans.items():
        assert f"--values {values:<7} {rates[values]:,.1f} MB/s" in text
        assert f"price {each['price_per_hour']:,.2f} an hour" in text


def test_a_plan_of_several_regions_names_the_relay_and_a_small_one_does_not() -> None:
    assert "\nrelay " in CliRunner().invoke(app, [*LOAD, "--regions", "3"]).output
    assert "\nrelay " not in CliRunner().invoke(app, LOAD).output


def test_a_given_push_interval_is_kept() -> None:
    result = CliRunner().invoke(app, [*LOAD, "--push-interval-ms", "300", "--json"])
    assert json.loads(result.output)["plan"]["push_interval_ms"] == 300


def test_any_assumption_is_replaced_by_name() -> None:
    changed = ["--assume", "core_hour=1", "--assume", "buckets=8", "--assume", "skew=0.9"]
    found = json.loads(CliRunner().invoke(app, [*LOAD, *changed, "--json"]).output)
    assert found["assumptions"]["prices"]["core_hour"] == 1.0
    assert found["assumptions"]["workload"]["buckets"] == 8
    assert found["assumptions"]["workload"]["skew"] == 0.9
    for wrong in ("core_hours=1", "buckets=8.5", "skew=nan", "architecture=1", "used_share=0"):
        with pytest.raises(DeployError):
            CliRunner().invoke(app, [*LOAD, "--assume", wrong], catch_exceptions=False)


def test_a_plan_uses_the_constants_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "constants.json"
    slow = msgspec.structs.replace(RECORDED, source="a slow machine", join=LinearCost(1000.0, 0.0))
    file.write_bytes(msgspec.json.encode(slow))
    assert read_unit_costs(file) == slow
    result = CliRunner().invoke(app, [*LOAD, "--constants", str(file), "--json"])
    parts = {part["name"]: part for part in json.loads(result.output)["plan"]["parts"]}
    assert parts["joiners"]["count"] == 4
    assert json.loads(result.output)["constants"]["source"] == "a slow machine"


def test_constants_that_are_missing_damaged_or_of_another_format_are_refused_by_file(
    tmp_path: Path,
) -> None:
    file = tmp_path / "constants.json"
    with pytest.raises(DeployError, match=r"constants\.json: expected constants"):
        read_unit_costs(file)
    for text in (b"{", b"{}", msgspec.json.encode(RECORDED).replace(b'"each_us":', b'"each":')):
        file.write_bytes(text)
        with pytest.raises(DeployError, match=r"constants\.json: expected constants"):
            read_unit_costs(file)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(RECORDED, format=2)))
    with pytest.raises(DeployError, match="expected format 1, got 2"):
        read_unit_costs(file)


def test_a_line_through_two_measurements_is_never_negative() -> None:
    assert line_through(8, 10.0, 40, 42.0) == LinearCost(2.0, 1.0)
    assert line_through(8, 10.0, 40, 9.0) == LinearCost(10.0, 0.0)
    assert line_through(8, 1.0, 40, 40.0) == LinearCost(0.0, 1.0)


@pytest.mark.servers
class ShardThatCounts:
    """A shard to which each question costs 50 us."""

    def __init__(self) -> None:
        self.spent_us = 0

    def call(self, *words: str) -> str:
        assert words == ("INFO", "cpu")
        before, self.spent_us = self.spent_us, self.spent_us + 50
        return f"used_cpu_sys:9.0\r\nused_cpu_user_main_thread:{before / 1e6:.6f}\r\n"


def test_the_time_of_shards_is_measured_without_that_of_asking_for_it() -> None:
    shards = [ShardThatCounts(), ShardThatCounts()]
    clock = ShardClock(shards)
    before_s = clock.now_s()
    shards[0].spent_us += 700
    assert clock.since_s(before_s) == pytest.approx(700e-6, abs=1e-9)


def test_calibrate_writes_constants_that_plan_reads(tmp_path: Path) -> None:
    file = tmp_path / "constants.json"
    options = ["--architecture", "logistic_regression", "--seconds", "0.01", "--output", str(file)]
    result = CliRunner().invoke(app, ["calibrate", *options])
    assert result.exit_code == 0, result.output
    costs = read_unit_costs(file)
    assert costs.learn.keys() == {"logistic_regression"}
    for cost in (costs.join, costs.push.row, costs.follow.row, costs.store_fold):
        assert cost.at(34) > 0.0
    assert 100.0 < costs.stored_bytes.at(34) < 400.0
    assert CliRunner().invoke(app, [*LOAD, "--constants", str(file)]).exit_code == 0
