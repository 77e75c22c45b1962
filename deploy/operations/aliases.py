"""Shows and switches the aliases of running servers over HTTP.

A switch is atomic on one server. Several servers are switched one after another. If the expected
model is given, a server whose alias has another model refuses the switch.
"""

import json
from collections.abc import Iterator
from typing import Any

import urllib3

from headrace.deploy.errors import DeployError

_TIMEOUT_S = 10.0


def show_aliases(server: str, name: str = "") -> Iterator[str]:
    """Yield a line for each alias of a server, or for the one named. Raises DeployError."""
    aliases = _request("GET", server, "/v1/aliases", "")["aliases"]
    if name and name not in aliases:
        known = ", ".join(sorted(aliases)) or "none"
        raise DeployError(f"{server}: expected one of its aliases ({known}), got {name}")
    for alias, now in sorted(aliases.items()):
        if not name or alias == name:
            yield f"{server}  {_line(alias, now)}"


def change_alias(
    server: str, token: str, name: str, model: str | None, expected: str | None = None
) -> str:
    """Switch an alias to a model, or back if None; return a line with the result.

    Raises DeployError.
    """
    if model is None:
        now = _request("POST", server, f"/v1/aliases/{name}:revert", token)
    else:
        body = {"model": model, "expected": expected}
        now = _request("PUT", server, f"/v1/aliases/{name}", token, body)
    return f"{server}  {_line(name, now)}"


def _line(alias: str, now: dict[str, Any]) -> str:
    before = f", before {now['previous']}" if now.get("previous") else ""
    return f"{alias} is {now['model']}{before}"


def _request(
    method: str, server: str, path: str, token: str, body: object | None = None
) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    content = None if body is None else json.dumps(body).encode()
    try:
        with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=False) as pool:
            answer = pool.request(method, server.rstrip("/") + path, body=content, headers=headers)
            decoded = json.loads(answer.data)
    except (urllib3.exceptions.HTTPError, ValueError) as error:
        raise DeployError(f"{server}: expected a headrace server, got: {error}") from error
    if answer.status != 200:
        reason = decoded.get("error", {}) if isinstance(decoded, dict) else {}
        raise DeployError(
            f"{server}: expected {reason.get('expected', 'status 200')}, "
            f"got {reason.get('found', answer.status)}"
        )
    return dict(decoded)
