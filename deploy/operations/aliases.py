"""The aliases of running servers, over their HTTP routes: what they are, and other models for them.

A switch is atomic on one server. Several are switched one after another, each told which model it
has to find there if that was said, so that one that is different is noticed and left as it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import urllib3

from headrace.deploy.errors import DeployError

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMEOUT_S = 10.0


class AliasRefused(DeployError):
    """A server did not answer, or did not do it; the message says which and why."""


def show_aliases(server: str, name: str = "") -> Iterator[str]:
    """Yield a line for each alias of a server, or for the one named. Raises AliasRefused."""
    aliases = _asked("GET", server, "/v1/aliases", "")["aliases"]
    if name and name not in aliases:
        known = ", ".join(sorted(aliases)) or "none"
        raise AliasRefused(f"{server}: expected one of its aliases ({known}), found {name}")
    for alias, now in sorted(aliases.items()):
        if not name or alias == name:
            yield f"{server}  {_line(alias, now)}"


def change_alias(
    server: str, token: str, name: str, model: str | None, expected: str | None = None
) -> str:
    """Let an alias be a model, or with None what it was before; return a line that says so.

    Raises AliasRefused.
    """
    if model is None:
        now = _asked("POST", server, f"/v1/aliases/{name}:revert", token)
    else:
        body = {"model": model, "expected": expected}
        now = _asked("PUT", server, f"/v1/aliases/{name}", token, body)
    return f"{server}  {_line(name, now)}"


def _line(alias: str, now: dict[str, Any]) -> str:
    before = f", before {now['previous']}" if now.get("previous") else ""
    return f"{alias} is {now['model']}{before}"


def _asked(
    method: str, server: str, path: str, token: str, body: object | None = None
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    content = None if body is None else json.dumps(body).encode()
    try:
        with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as pool:
            answer = pool.request(method, server.rstrip("/") + path, body=content, headers=headers)
            said = json.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise AliasRefused(f"{server}: expected a server of headrace, found: {error}") from error
    if answer.status != 200:
        error_said = said.get("error", {}) if isinstance(said, dict) else {}
        raise AliasRefused(
            f"{server}: expected {error_said.get('expected', 'status 200')}, "
            f"found {error_said.get('found', answer.status)}"
        )
    return dict(said)
