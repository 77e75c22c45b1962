"""The parts of a score in the answers of `:predict` and `:rank`."""

import numpy as np
import pytest

from tests.serving.api.app_client import PREDICT, RANK, ask, complete
from tests.serving.served_models import (
    NOW_MS,
    Pusher,
    Serving,
    deltas_of_article,
    memory_store,
    news,
)


def test_an_explained_prediction_has_parts_that_sum_to_its_log_odds() -> None:
    serving, pusher = complete()
    pusher.push(deltas_of_article(serving.spec, 1, -3.0))
    serving.follow()
    asked = {"candidates": [{"article_id": 9}, {"article_id": 1}], "timestamp_ms": NOW_MS}
    new, known = ask(serving, "POST", PREDICT, json={**asked, "explain": True}).json()[
        "predictions"
    ]
    for each in (new, known):
        explained = each["explanation"]
        assert explained["method"] == "exact"
        assert sum(explained["parts"].values()) == pytest.approx(explained["log_odds"])
        odds = each["score"] / (1.0 - each["score"])
        assert explained["log_odds"] == pytest.approx(np.log(odds), abs=1e-5)
    assert known["explanation"]["parts"]["article"] > new["explanation"]["parts"]["article"] == 0.0
    body = {**asked, "explain": True, "top_k": 1}
    [best] = ask(serving, "POST", RANK, json=body).json()["ranking"]
    assert best["index"] == 1
    assert best["explanation"] == known["explanation"]
    plain = ask(serving, "POST", PREDICT, json=asked).json()["predictions"]
    assert "explanation" not in plain[0]
    both = ask(serving, "POST", PREDICT, json={**asked, "explain": True, "uncertainty": True})
    assert both.json()["predictions"][1]["explanation"] == known["explanation"]


@pytest.mark.parametrize("top_k", [1, 3])
def test_an_explained_ranking_of_a_choice_counts_candidates_outside_of_it(top_k: int) -> None:
    spec = news('loss = "choice"\n')
    store = memory_store(spec)
    serving = Serving(store, spec=spec)
    Pusher(store).push(deltas_of_article(spec, 1, -3.0))
    serving.follow()
    candidates = [{"article_id": each} for each in (9, 1, 8)]
    body = {"candidates": candidates, "timestamp_ms": NOW_MS, "explain": True, "top_k": top_k}
    ranking = ask(serving, "POST", RANK, json=body).json()["ranking"]
    assert len(ranking) == top_k
    for each in ranking:
        explained, odds = each["explanation"], each["score"] / (1.0 - each["score"])
        assert explained["log_odds"] == pytest.approx(np.log(odds), abs=1e-5)
        assert sum(explained["parts"].values()) == pytest.approx(explained["log_odds"], abs=1e-6)


def test_a_request_to_explain_too_many_scores_gets_422() -> None:
    serving, _ = complete()
    asked = {"candidates": [{}] * 101, "explain": True}
    answer = ask(serving, "POST", PREDICT, json=asked)
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == "candidates"
    assert ask(serving, "POST", RANK, json={**asked, "top_k": 100}).status_code == 200
