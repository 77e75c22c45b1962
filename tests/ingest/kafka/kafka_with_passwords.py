"""A Kafka broker with a second listener that asks for passwords."""

from typing import Any

from headrace.deploy.local.services.kafka import HOST, KafkaNode
from headrace.deploy.local.services.ports import free_port

PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"


class KafkaWithPasswords(KafkaNode):
    """A broker with a second listener, for clients with passwords."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.asking_port = free_port()

    @property
    def asking(self) -> str:
        return f"{HOST}:{self.asking_port}"

    def _properties(self) -> dict[str, object]:
        properties = super()._properties()
        listener = f",SASL_PLAINTEXT://{self.asking}"
        name = "listener.name.sasl_plaintext"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            **properties,
            "listeners": f"{properties['listeners']}{listener}",
            "advertised.listeners": f"{properties['advertised.listeners']}{listener}",
            "listener.security.protocol.map": PROTOCOLS,
            "sasl.enabled.mechanisms": "PLAIN",
            f"{name}.plain.sasl.jaas.config": f'{module} required user_headrace="secret";',
        }
