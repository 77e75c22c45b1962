"""ACL roles: the Redis or Valkey permissions that each kind of process needs.

A Function runs with the permissions of its caller. A role therefore has the commands that its
functions call, beside those that the process sends itself. `headrace pserver acl` prints the roles.
The laws of the store run under them (tests/pserver/redis_backend/test_access.py), so this list
cannot go stale.
"""

from dataclasses import dataclass

_CONNECT = ("asking", "cluster|slots", "info", "ping", "select")
_READ = ("fcall_ro", "get", "hexists", "hgetall", "hlen", "hmget", "hscan", "xrange")
_WRITE = ("fcall", "function|load", "hset", "xadd")
_KEEP = ("hdel", "hget", "time", "xtrim")
_MAKE = ("del", "set", "unlink")
_LOOK = (
    *("cluster|info", "cluster|nodes", "config|get", "memory|usage", "object|idletime", "scan"),
)


@dataclass(frozen=True, slots=True)
class AclRole:
    """The commands that one kind of process may send."""

    name: str
    for_whom: str
    commands: tuple[str, ...]
    writes: bool = True


ROLES = (
    AclRole(
        "server", "headrace serving run, headrace pserver snapshot", (*_CONNECT, *_READ), False
    ),
    AclRole("learner", "headrace learner run", (*_CONNECT, *_READ, *_WRITE)),
    AclRole("keeper", "headrace pserver keep", (*_CONNECT, *_READ, *_WRITE, *_KEEP)),
    AclRole(
        "operator",
        "headrace pserver init, inspect, doctor, restore, drop, and all other processes",
        (*_CONNECT, *_READ, *_WRITE, *_KEEP, *_MAKE, *_LOOK),
    ),
)


def rule(role: AclRole, model: str, user: str, password: str = "PASSWORD", prefix: str = "") -> str:  # noqa: S107
    """Return the ACL SETUSER command that creates a user with the permissions of a role.

    prefix: the environment's, which begins the keys.
    """
    access = "~" if role.writes else "%R~"
    # {model}:shape, and {model:bucket}:marks, log, rows:n
    named = prefix + model
    keys = f"{access}{{{named}}}:* {access}{{{named}:*}}:*"
    commands = " ".join(f"+{command}" for command in role.commands)
    return f"ACL SETUSER {user} reset on >{password} {keys} -@all {commands}"
