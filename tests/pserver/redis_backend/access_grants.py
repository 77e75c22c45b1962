"""Grants the rights of a role to a user of a real server."""

import redis

from headrace.pserver.redis_backend.acl import ROLES, rule

PASSWORD = "opens-nothing-else"


ROLE = {role.name: role for role in ROLES}


def grant(server: str, role: str, model: str, prefix: str = "") -> str:
    """Create the user of a role's rule; return a URL with its name and password."""
    user = f"{prefix}{model}-{role}"
    line = rule(ROLE[role], model, user, PASSWORD, prefix)
    with redis.Redis.from_url(server) as admin:
        assert admin.execute_command(*line.split())
    return server.replace("://", f"://{user}:{PASSWORD}@")
