"""How a consumer is a member of its group, and whether one that Kafka calls fenced is.

How the group is joined depends on whether the process has a name that stays over restarts:

    no instance   the consumer protocol of KIP-848: members come and go without stopping the others
    instance      a static member of a classic group: a process that was killed and comes back has
                  its partitions again at once. KIP-848 refuses it until the session of the dead one
                  is over: 45 seconds at the broker's defaults.

All members of a group must be of one kind. Either way partitions fall by range, since other
assignors do not keep impressions-p with clicks-p in one process.

Kafka fences a static member when another one joins under its name, and then it must stop. But the
client brings this upon itself, too. When it heard nothing of Kafka for a session (a broker was
away), it forgets which member it was and waits for its process to let go of the partitions; until
that polls again, which it cannot while it waits for a transaction, the client goes on with
heartbeats that name the instance and no member, and the broker that came back takes it for an
impostor. So whoever is called fenced asks who the member is: itself as it was, or nobody, means
that nobody took over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka.admin import AdminClient

from ingest.foreign_errors import translated

if TYPE_CHECKING:
    from ingest.settings import KafkaSettings


def membership(group: str | None, instance: str | None) -> dict[str, object]:
    """Return the part of a consumer's configuration that says what member it is of which group."""
    config: dict[str, object] = {
        "group.id": group or "headrace.reader",  # the client insists on one; it is not joined
    }
    if group is None:
        return config
    if instance is None:
        return {**config, "group.protocol": "consumer", "group.remote.assignor": "range"}
    return {
        **config,
        "group.protocol": "classic",
        "group.instance.id": instance,
        "partition.assignment.strategy": "range",
        "session.timeout.ms": 6_000,  # so long are the partitions of a dead machine unread
        "heartbeat.interval.ms": 1_500,
    }


def member_of_instance(settings: KafkaSettings, group: str, instance: str) -> str | None:
    """Return which member of the group is `instance` now; None: none. Raises KafkaUnreachable."""
    with translated(f"asking for the members of {group}", settings.bootstrap):
        # a client that asked before may know the group's coordinator by a connection that is gone
        admin = AdminClient(settings.connection())
        asked = admin.describe_consumer_groups([group], request_timeout=settings.connect_timeout_s)
        described = asked[group].result()
    named = (each for each in described.members if each.group_instance_id == instance)
    return next((str(each.member_id) for each in named), None)
