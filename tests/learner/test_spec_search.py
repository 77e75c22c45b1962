"""The search of a spec finds what lowers the loss of later impressions, and nothing else."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.ingest.logs.layout_guess import guess_layout
from headrace.learner.spec.model_spec import ModelSpec, parse_spec
from headrace.learner.suggestion.column_profile import ColumnProfile, profile_of
from headrace.learner.suggestion.log_sample import LogSample
from headrace.learner.suggestion.sample_stream import Floats, SampleStream
from headrace.learner.suggestion.search_candidates import (
    WITHOUT_CALIBRATION,
    Candidate,
    adding,
    candidates_of,
    combinations_of,
    cross_groups,
    rate_of,
    removals,
    statistic_crosses,
)
from headrace.learner.suggestion.spec_draft import DraftInput, SpecDraft
from headrace.learner.suggestion.spec_search import SpecSearch
from headrace.learner.suggestion.spec_suggestion import Suggestion, suggest_spec
from headrace.learner.suggestion.user_history import recent_clicks

T0_MS = 1_700_000_000_000
ROWS = 24_000
SEED = 11


@functools.cache
def sample(*, told: bool = True, timed: bool = True) -> LogSample:
    """Requests of four candidates; the rate of an item and device x section say the click.

    told: whether they do; else, clicks are chance.
    """
    dice = np.random.default_rng(SEED)
    device, section = dice.integers(0, 2, ROWS), dice.integers(0, 3, ROWS)
    item = dice.integers(0, 400, ROWS)
    rates = dice.beta(0.6, 5.0, 400)[item] * np.where((device == 0) == (section == 1), 1.6, 0.4)
    clicked = dice.random(ROWS) < (np.clip(rates, 0, 0.9) if told else 0.1)
    times = T0_MS + 4_000 * (np.arange(ROWS) // 4)
    columns = {
        "user": pa.array(dice.integers(0, 900, ROWS)),
        "item": pa.array(item),
        "device": pa.array(device),
        "section": pa.array(section),
        "tags": pa.array([[f"t{i % 7}"] * (i % 3) for i in range(ROWS)]),
    }
    click_ms = np.where(clicked, times + 2_500, -1)
    requests = np.arange(ROWS) // 4
    return LogSample(columns, times, timed, click_ms, click_ms[:0], True, requests)


def draft_of(log: LogSample) -> tuple[SpecDraft, dict[str, ColumnProfile]]:
    fields = {name: profile_of(name, each, log.labels) for name, each in log.columns.items()}
    inputs = tuple(
        DraftInput(name, f'transform = "{each.transform}"') for name, each in fields.items()
    )
    clicks = int(log.labels.sum())
    return SpecDraft("m", (), (), log.rows, clicks, (2.5,), inputs, ()), fields


def proposed(
    draft: SpecDraft, fields: dict[str, ColumnProfile], *, requests: bool, days: float
) -> list[Candidate]:
    pairs = combinations_of(fields)
    return [*candidates_of(draft, fields, pairs, requests=requests, days=days)]


def searched(log: LogSample, seconds: float = 600.0) -> SpecSearch:
    draft, fields = draft_of(log)
    stream = SampleStream(log, parse_spec(draft.text(), "draft"))
    search = SpecSearch(draft, stream, seconds)
    first = proposed(draft, fields, requests=True, days=1.2)
    while search.try_all([*first, *statistic_crosses(search.draft, fields)], 1.0):
        first = [each for each in first if each.name not in search.draft.names]
    return search


def test_a_search_finds_a_cross_and_a_rate_that_lower_the_loss_of_later_impressions() -> None:
    search = searched(sample())
    found = search.result()
    kept = {each.name for each in found.trials if each.later is not None}
    assert {"device_x_section", "item_rate"} <= kept, f"seed {SEED}: {kept}"
    assert found.gain > 0.02
    assert kept <= search.draft.names | {"loss = choice"}
    assert not any("user" in name for name in kept), f"seed {SEED}"
    parse_spec(search.draft.text(), "found")


class KnownStream(SampleStream):
    """A stream in which the rate of an item is worth something, and that of a user is not."""

    def losses(self, spec: ModelSpec, share: float = 1.0) -> Floats:
        names = {each.name for each in spec.statistics}
        loss = 1.0 - 0.1 * ("item_rate" in names) + 0.1 * ("user_rate" in names)
        return np.full(int(share * ROWS), loss)


def test_a_rate_of_the_rules_is_removed_unless_it_helps_or_a_cross_needs_it() -> None:
    log = sample()
    draft = draft_of(log)[0].adding((), (rate_of("item"), rate_of("user")))
    search = SpecSearch(draft, KnownStream(log, parse_spec(draft.text(), "draft")), 600.0)
    search.drop(removals(draft, draft))
    assert search.draft.names == draft.names - {"user_rate"}
    crossed = draft.adding((), (DraftInput("both", 'cross = ["item_rate", "device"]'),))
    assert [each.name for each in removals(crossed, draft)] == ["without user_rate"]


class KnownChoice(SampleStream):
    """A stream of choices, in which the rate of an item is worth something."""

    def losses(self, spec: ModelSpec, share: float = 1.0) -> Floats:
        rate = any(each.name == "item_rate" for each in spec.statistics)
        return np.full(
            int(share * ROWS), 1.0 - 0.1 * (spec.structure.loss == "choice") - 0.05 * rate
        )


def test_a_change_that_is_kept_is_not_tried_again_and_a_late_one_is_not_counted() -> None:
    log = sample()
    draft, fields = draft_of(log)
    search = SpecSearch(draft, KnownChoice(log, parse_spec(draft.text(), "draft")), 600.0)
    changes = proposed(draft, fields, requests=True, days=1.2)
    while search.try_all(changes, 1.0):
        pass
    search.try_all([Candidate("late", lambda draft: draft)], 0.0)
    trials = {each.name: each for each in search.result().trials}
    assert trials["loss = choice"].screened == pytest.approx(0.1)
    assert search.draft.choice
    assert "late" not in trials


class KnownNetwork(SampleStream):
    """A stream on which networks are worse, unless they know recent clicks and take small steps."""

    def losses(self, spec: ModelSpec, share: float = 1.0) -> Floats:
        loss = 1.0
        if spec.architecture == "dcn_v2":
            recent = any(each.name == "recent_clicks" for each in spec.fields.bags)
            loss += 0.01 - 0.02 * recent - 0.03 * (spec.structure.mini_batch == 64)
        return np.full(int(share * ROWS), loss - 0.05 * (spec.calibration is None))


def test_an_architecture_that_is_asked_for_stays_and_its_constants_are_searched() -> None:
    log = sample()
    draft, fields = draft_of(log)
    search = SpecSearch(draft, KnownNetwork(log, parse_spec(draft.text(), "draft")), 600.0)
    search.take(Candidate("network", lambda draft: replace(draft, architecture="dcn_v2")))
    search.tune("mini_batch", factors=(0.5,))
    history = recent_clicks(fields, log)
    assert history is not None
    search.judge_each([adding((history[0],)), WITHOUT_CALIBRATION])
    found = search.result()
    gains = {each.name: each.later for each in found.trials if each.later is not None}
    assert gains.keys() == {
        "network",
        "recent_clicks",
        "mini_batch times 0.5",
        "without calibration",
    }
    assert gains["network"] == pytest.approx(-0.01)
    assert found.gain == pytest.approx(0.09)
    spec = parse_spec(found.draft.text(), "found")
    assert spec.calibration is None
    assert spec.structure.mini_batch == 64


def test_recent_clicks_get_a_name_that_no_column_has() -> None:
    log = sample()
    fields = draft_of(log)[1]
    found = recent_clicks(fields | {"recent_clicks": fields["tags"]}, log)
    assert found is not None
    assert found[0].name == "recent_clicks_kept"


def test_the_mean_of_a_bag_is_a_change() -> None:
    draft, fields = draft_of(sample())
    pooled = tuple(
        each._replace(keys=f'{each.keys}, pooling = "sqrt"') if each.name == "tags" else each
        for each in draft.fields
    )
    draft = replace(draft, fields=pooled)
    candidates = proposed(draft, fields, requests=False, days=0.0)
    changes = {each.name: each for each in candidates}
    spec = parse_spec(changes["mean of tags"].change(draft).text(), "pooled")
    assert [each.pooling for each in spec.fields.bags] == ["mean"]


def test_all_crosses_of_a_field_are_one_change() -> None:
    draft, fields = draft_of(sample())
    groups = {each.name: each for each in cross_groups(draft, combinations_of(fields))}
    assert groups.keys() >= {"crosses of device", "crosses of section"}
    more = groups["crosses of device"].change(draft).names - draft.names
    assert "device_x_section" in more
    assert all("device" in each for each in more)
    parse_spec(groups["crosses of device"].change(draft).text(), "crosses")


def test_a_search_changes_nothing_if_clicks_are_chance() -> None:
    log = sample(told=False)
    search = searched(log)
    search.tune("alpha")
    kept = [each.name for each in search.result().trials if each.later is not None]
    assert not [each for each in kept if not each.startswith("alpha")], f"seed {SEED}: {kept}"


def test_the_last_part_of_a_sample_decides_nothing_in_a_search() -> None:
    log = sample()
    clicked, last = log.labels, int(0.71 * ROWS)
    clicked[last:] = clicked[last:][::-1]  # as many: priors count all clicks
    other = replace(log, click_ms=np.where(clicked, log.times + 2_500, -1))
    drafts = [searched(each).draft for each in (log, other)]
    assert [each.fields for each in drafts] == [drafts[0].fields] * 2
    assert [each.statistics for each in drafts] == [drafts[0].statistics] * 2


def test_a_search_ends_with_its_time_and_then_keeps_the_spec_of_the_rules() -> None:
    log = sample()
    draft, fields = draft_of(log)
    ticks = iter(np.arange(1_000.0))
    said: list[tuple[float, str]] = []
    stream = SampleStream(log, parse_spec(draft.text(), "draft"))
    search = SpecSearch(
        draft, stream, 5.0, lambda *each: said.append(each), lambda: float(next(ticks))
    )
    assert not search.try_all(proposed(draft, fields, requests=True, days=1.2), 1.0)
    assert search.draft is draft
    assert 1 < len(said) < 6
    assert all(0.0 <= share <= 1.0 for share, _ in said)


def test_a_prefix_of_a_stream_has_the_losses_of_the_whole() -> None:
    log = sample()
    draft, _ = draft_of(log)
    spec = parse_spec(draft.text(), "draft")
    stream = SampleStream(log, spec)
    whole, half = stream.losses(spec), stream.losses(spec, 0.5)
    assert whole.shape == (ROWS,)
    assert half.shape[0] == pytest.approx(ROWS / 2, abs=4)
    np.testing.assert_array_equal(half, whole[: half.shape[0]])
    np.testing.assert_array_equal(whole, stream.losses(spec))


def test_columns_that_map_one_to_one_make_no_cross() -> None:
    log = sample()
    renamed = pa.array((log.columns["item"].to_numpy() * 7 + 3) % 400)
    log = replace(log, columns=log.columns | {"item_id": renamed})
    names = {each.name for each in proposed(*draft_of(log), requests=False, days=0.0)}
    assert "device_x_section" in names
    assert not any(re.search("item.*_x_item", name) for name in names)


def test_a_log_without_times_gets_no_inputs_of_times() -> None:
    draft, fields = draft_of(sample(timed=False))
    names = {each.name for each in proposed(draft, fields, requests=True, days=0.0)}
    assert "item_rate" in names
    assert not [each for each in names if re.search("age|this_|hour", each)]


@pytest.fixture(scope="module")
def suggestion(tmp_path_factory: pytest.TempPathFactory) -> Suggestion:
    log = sample()
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    columns = {name: log.columns[name] for name in ("item", "device", "section")} | {
        "time": pa.array(log.times),
        "request_id": pa.array(log.requests).cast(pa.string()),
        "clicked_at": pa.array(log.click_ms, mask=log.click_ms < 0),
    }
    pa.parquet.write_table(pa.table(columns), path)
    return suggest_spec(path, guess_layout(path).layout, "", "factorization_machine", 600.0)


def test_a_suggested_spec_says_what_the_search_kept_for_any_architecture(
    suggestion: Suggestion, tmp_path: Path
) -> None:
    spec = parse_spec(suggestion.text, tmp_path / "found.toml")
    assert spec.architecture == "factorization_machine"
    assert suggestion.searched is not None
    kept = [each for each in suggestion.searched.trials if each.later is not None]
    assert len(kept) >= 1
    tried = [each.name for each in suggestion.searched.trials]
    before = tried[: tried.index("architecture = factorization_machine")]
    assert not [each for each in before if " times " in each], "constants of another architecture"
    for each in kept:
        if each.name in suggestion.searched.draft.names:
            said = f"# lowers the log loss by {100 * (each.later or 0.0):.2f} %"
            assert re.search(rf"^{each.name} = .*{said}$", suggestion.text, re.MULTILINE)
