"""ACLs made for a prefix suffice for an environment, and keep it out of every other one.

The rules are those of `deploy/chart/examples/objects/environment.yaml`.
"""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.deploy.local.services.waiting import wait_until
from headrace.ingest.errors import MissingTopic, NotAllowed, StreamError
from headrace.ingest.joiner.committed_state import StateReader
from headrace.ingest.joiner.joiner_process import JoinerSettings, run_joiner
from headrace.ingest.kafka.error_translation import answer_of
from headrace.ingest.kafka.producer import KafkaWriter
from headrace.ingest.kafka.protocols import Source
from headrace.ingest.kafka.reading.consumer import KafkaReader
from headrace.ingest.kafka.reading.offset_store import KafkaOffsets
from headrace.ingest.kafka.settings import KafkaSettings, TopicNames
from headrace.ingest.kafka.topics import (
    EventTopics,
    TopicSpec,
    change_settings,
    ensure_topics,
    grow_topics,
    replays_spec,
    topics_for,
)
from headrace.ingest.kafka.transactions import KafkaTransactions
from tests.ingest.events_of import happen, spec_of
from tests.ingest.joiner.joined import Joined
from tests.ingest.kafka.kafka_with_passwords import KafkaWithPasswords
from tests.running_server import jars, running_server

OBJECTS = Path(__file__).parents[3] / "deploy/chart/examples/objects/environment.yaml"
OWN, FOREIGN = TopicNames("team-a."), TopicNames("team-b.")
MODEL, PARTITIONS, DEADLINE_S = "same", 2, 90.0
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactionalId": ResourceType.TRANSACTIONAL_ID,
}
PATTERNS = {"prefix": ResourcePatternType.PREFIXED, "literal": ResourcePatternType.LITERAL}
OPERATIONS = {
    "AlterConfigs": "ALTER_CONFIGS",
    "DescribeConfigs": "DESCRIBE_CONFIGS",
    "IdempotentWrite": "IDEMPOTENT_WRITE",
}


class KafkaWithAcls(KafkaWithPasswords):
    """A broker whose users with passwords may do only what an ACL allows."""

    def _properties(self) -> dict[str, object]:
        return {
            **super()._properties(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",  # those without passwords: the broker, and the test
        }


def bindings() -> list[AclBinding]:
    """Return the ACLs of the example's first user, for the user of the broker."""
    user: dict[str, Any] = next(yaml.safe_load_all(OBJECTS.read_text()))
    return [
        AclBinding(
            RESOURCES[each["resource"]["type"]],
            each["resource"]["name"],
            PATTERNS[each["resource"]["patternType"]],
            "User:headrace",
            "*",
            AclOperation[OPERATIONS.get(operation, operation.upper())],
            AclPermissionType.ALLOW,
        )
        for each in user["spec"]["authorization"]["acls"]
        for operation in each["operations"]
    ]


@pytest.fixture(scope="module")
def own_kafka(stack_directory: Path) -> Iterator[KafkaWithAcls]:
    node = KafkaWithAcls(stack_directory / "acls", jars(), remove=stack_directory)
    with running_server(node):
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        for answer in admin.create_acls(bindings()).values():
            answer_of(answer)
        ensure_topics(KafkaSettings(node.bootstrap, names=FOREIGN), topics_for(MODEL, PARTITIONS))
        yield node


def settings_of(node: KafkaWithAcls, names: TopicNames) -> KafkaSettings:
    client = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "headrace",
        "sasl.password": "secret",
    }
    return KafkaSettings(node.asking, client=client, names=names)


def test_a_joiner_works_with_the_acls_of_its_prefix(own_kafka: KafkaWithAcls) -> None:
    settings, stop = settings_of(own_kafka, OWN), threading.Event()
    ensure_topics(settings, [*topics_for(MODEL, PARTITIONS), replays_spec()])
    happened = happen(5, count=2_000, partitions=PARTITIONS)
    joined = Joined(settings, MODEL, EventTopics(), spec_of(), PARTITIONS)
    joined.send(happened)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            run_joiner(JoinerSettings("joiner"), settings, MODEL, joined.fields, stop)
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    joiner = threading.Thread(target=work)
    joiner.start()
    try:
        state = StateReader(settings, joined)
        assert wait_until(lambda: state.read().lag == 0, DEADLINE_S, lambda: not failures), failures
    finally:
        stop.set()
        joiner.join()
    assert failures == []
    assert sorted(joined.examples()) == sorted(happened.examples)
    assert grow_topics(settings, [EventTopics().clicks], PARTITIONS + 1) == ["clicks"]


def test_the_acls_of_a_prefix_suffice_to_change_a_topic_that_a_client_created(
    own_kafka: KafkaWithAcls,
) -> None:
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    for future in admin.create_topics([NewTopic(OWN.physical("found"), 1)]).values():
        future.result()
    found = TopicSpec("found", 1, {"message.timestamp.type": "LogAppendTime"})
    assert change_settings(settings_of(own_kafka, OWN), [found]) == [
        "topic found: message.timestamp.type=LogAppendTime, was CreateTime"
    ]


def test_acls_of_a_prefix_keep_a_process_out_of_another_environment(
    own_kafka: KafkaWithAcls,
) -> None:
    foreign, topic = settings_of(own_kafka, FOREIGN), EventTopics().clicks
    # Kafka hides topics from users without a permission
    with pytest.raises(MissingTopic, match=f"got no team-b.{topic}"):
        KafkaReader(foreign, None, [topic])
    with pytest.raises(NotAllowed):
        ensure_topics(foreign, topics_for(MODEL, PARTITIONS))
    writer = KafkaWriter(foreign)
    writer.send(Source(topic, 0), b"event")
    with pytest.raises(StreamError):
        writer.close()
    offsets = KafkaOffsets(foreign, "headrace.same.joiner")
    with closing(offsets), pytest.raises(NotAllowed):
        KafkaTransactions(foreign, "headrace.same.joiner.0", offsets)
