"""Limits of clients by their token: requests per second, models, and the counts of each client."""

from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.http.http_errors import BadTokens, RequestRefused
from headrace.runtime.http.token_grants import TokenGrant, TokenLimits, read_grants
from tests.serving.api.app_client import PREDICT, TOKEN, ask, complete
from tests.serving.models.two_models import Two

OTHER = "another-long-secret"


def test_a_client_gets_its_rate_and_is_told_when_to_retry() -> None:
    now_s = [0.0]
    limits = TokenLimits([TokenGrant(TOKEN, "search", 0.5), TokenGrant(OTHER)], lambda: now_s[0])
    limits.admit(0, "news")
    for passed_s, retry_s in ((0.0, 2), (1.5, 1)):
        now_s[0] = passed_s
        with pytest.raises(RequestRefused, match=r"at most 0\.5 requests per second") as refused:
            limits.admit(0, "news")
        assert (refused.value.status, refused.value.retry_s) == (429, retry_s)
    now_s[0] = 2.0
    limits.admit(0, "news")
    for _ in range(100):
        limits.admit(1, "news")


def test_two_tokens_of_one_client_share_its_rate() -> None:
    both = [TokenGrant(TOKEN, "search", 3.0), TokenGrant(OTHER, "search", 3.0)]
    limits = TokenLimits(both, lambda: 0.0)
    for place in (0, 1, 0):
        limits.admit(place, "news")
    with pytest.raises(RequestRefused, match="at most 3 requests"):
        limits.admit(1, "news")
    with pytest.raises(BadTokens, match="equal limits of all tokens of search"):
        TokenLimits([both[0], both[1]._replace(models=("news",))])


def test_a_file_of_tokens_names_clients_and_their_limits(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"{TOKEN}\n# new\n{OTHER} name=ads requests_per_second=2.5 models=a,b\n")
    assert read_grants(file) == [TokenGrant(TOKEN), TokenGrant(OTHER, "ads", 2.5, ("a", "b"))]
    for bad in ("requests_per_second=0", "requests_per_second=nan", "models=", "rows=3", "second"):
        file.write_text(f"{TOKEN} {bad}\n")
        with pytest.raises(BadTokens, match="expected a token, then name=NAME") as refused:
            read_grants(file)
        assert TOKEN not in str(refused.value)


def test_a_server_refuses_models_and_requests_beyond_a_token_and_counts_each_client() -> None:
    serving, _ = complete(tokens=[TOKEN, OTHER])
    serving.grants += [TokenGrant(TOKEN, "search", 0.001), TokenGrant(OTHER, "ads", 0.0, ("ads",))]
    asked: dict[str, Any] = {"candidates": [{}, {}]}

    def status(token: str) -> tuple[int, str | None]:
        given = {"Authorization": f"Bearer {token}"}
        answer = ask(serving, "POST", PREDICT, json=asked, headers=given)
        return answer.status_code, answer.headers.get("retry-after")

    assert [status(TOKEN), status(TOKEN), status(OTHER)] == [
        (200, None),
        (429, "1000"),
        (403, None),
    ]
    value = serving.registry.get_sample_value
    counted = {
        (client, model, code): value(
            "headrace_server_client_requests_total",
            {"client": client, "model": model, "code": code},
        )
        for client, model, code in (
            ("search", "news", "200"),
            ("search", "", "429"),
            ("ads", "", "403"),
        )
    }
    assert set(counted.values()) == {1.0}
    candidates = {"client": "search", "model": "news"}
    assert value("headrace_server_client_candidates_total", candidates) == 2.0


def test_an_admin_token_changes_only_its_aliases_at_its_rate_and_to_its_models() -> None:
    limited = TokenGrant(TOKEN, "ads", 2.0, ("shadow", "news"))
    serving = Two(admin=TOKEN, admin_grants=[limited])
    headers = {"Authorization": f"Bearer {TOKEN}"}

    def switched(alias: str, model: str) -> int:
        path = f"/v1/aliases/{alias}"
        return ask(serving, "PUT", path, json={"model": model}, headers=headers).status_code

    before = serving.models.aliases.table
    assert switched("production", "news") == 403  # another client's alias
    assert switched("shadow", "news-2") == 403  # another client's model
    assert switched("shadow", "news=50 news-2=50") == 403
    assert serving.models.aliases.table == before
    assert switched("shadow", "news") == 429  # the two refused for their model count, too
    assert changes(serving, "403", "429") == [3.0, 1.0]


def test_a_change_of_an_alias_is_counted_by_client() -> None:
    serving = Two(admin=TOKEN, admin_grants=[TokenGrant(TOKEN, "ads")])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for model in ("news", "none"):
        ask(serving, "PUT", "/v1/aliases/shadow", json={"model": model}, headers=headers)
    assert changes(serving, "200", "409") == [1.0, 1.0]


def changes(serving: Two, *codes: str) -> list[float | None]:
    """Return the counts of changes by the client `ads`."""
    name, value = "headrace_server_alias_changes_total", serving.registry.get_sample_value
    return [value(name, {"client": "ads", "code": code}) for code in codes]
