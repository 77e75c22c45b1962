"""The state of a promotion, and the deployments that belong to it.

    preparing ──► catching up ──► shadow ──► canary 1 % ──► ... ──► canary 100 % ──► promoted
        └─────────────┴─────────────┴────────────┴─────────────────────┴──────► rolled back

The state is a record of the topic `deployments`, under `promotion/MODEL`. One transaction writes it
together with the model and the aliases that belong to it. So a controller that is killed anywhere
leaves both or neither, and another one goes on from the record. The transactional id contains the
model's name: Kafka fences a controller that was replaced, and it can no longer move traffic.

*Refused:* a topic of its own for the state, because it would have another order than the aliases.
*Refused:* effects such as "switch to 5 %" as the result of a decision. Deployments follow from the
state, so repeating them changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headrace.learner.experiments.promotion_rules import PromotionRules
from headrace.serving.deployments.deployment_records import (
    DeploymentChange,
    alias_change,
    model_change,
)
from headrace.serving.models.traffic_split import canonical


class PromotionStage(StrEnum):
    """The stage of a promotion."""

    PREPARING = "preparing"
    """The rows of the model are created."""
    CATCHING_UP = "catching up"
    """Its learner learns the retained examples."""
    SHADOW = "shadow"
    """Servers score requests with it beside the answers."""
    CANARY = "canary"
    """It answers a share of the requests."""
    PROMOTED = "promoted"
    """It answers all requests."""
    ROLLED_BACK = "rolled back"
    """The control answers all requests."""
    ABANDONED = "abandoned"
    """An operator changed the alias. It is left as it is."""


ENDED = (PromotionStage.PROMOTED, PromotionStage.ROLLED_BACK, PromotionStage.ABANDONED)


class PromotionDecision(msgspec.Struct, frozen=True):
    """A change of the stage or the step, with its reason."""

    time_ms: int
    stage: PromotionStage
    share: float
    """Of the requests that the model answers from now on: 0 to 1."""
    reason: str


class Promotion(msgspec.Struct, frozen=True):
    """The state of a promotion. Immutable."""

    model: str
    spec: str
    """Text of its spec."""
    control: str
    """The model that answers now."""
    rules: PromotionRules
    stage: PromotionStage
    since_ms: int
    """Time at which the stage or step began."""
    step: int = 0
    """Place of the canary's share in the rules."""
    decisions: tuple[PromotionDecision, ...] = ()
    """All of them; as many as there are steps, at most, and a few more."""

    @classmethod
    def begin(
        cls, model: str, spec: str, control: str, rules: PromotionRules, now_ms: int
    ) -> Promotion:
        """Return a promotion at its first stage."""
        stage = PromotionStage.PREPARING
        began = PromotionDecision(now_ms, stage, 0.0, "begun")
        return cls(model, spec, control, rules, stage, now_ms, decisions=(began,))

    @property
    def ended(self) -> bool:
        """Whether the stage is a last one."""
        return self.stage in ENDED

    @property
    def share(self) -> float:
        """Share of the requests that the model answers: 0 to 1."""
        if self.stage is PromotionStage.PROMOTED:
            return 1.0
        return self.rules.share(self.step) if self.stage is PromotionStage.CANARY else 0.0

    @property
    def target(self) -> str:
        """The target of the alias."""
        percent = 100.0 * self.share
        if percent <= 0.0:
            return self.control
        if percent >= 100.0:
            return self.model
        arms = f"{self.control}={100.0 - percent!r} {self.model}={percent!r} by {self.rules.by}"
        return canonical(arms)

    @property
    def shadow(self) -> str:
        """The alias of the shadow stage."""
        return f"shadow-{self.model}"

    def moved(
        self, stage: PromotionStage, reason: str, now_ms: int, step: int | None = None
    ) -> Promotion:
        """Return the promotion at another stage or step."""
        step = self.step if step is None else step
        moved = msgspec.structs.replace(self, stage=stage, step=step, since_ms=now_ms)
        decision = PromotionDecision(now_ms, stage, moved.share, reason)
        return msgspec.structs.replace(moved, decisions=(*self.decisions, decision))


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Promotion).decode


def promotion_key(model: str) -> bytes:
    """Return the key of a promotion in the topic."""
    return f"promotion/{model}".encode()


def decoded_promotion(value: bytes) -> Promotion:
    """Return the promotion of a record. Raises the errors of UNDECODABLE."""
    return _decode(value)


def deployments_of(promotion: Promotion) -> Sequence[DeploymentChange]:
    """Return the records that belong to a promotion, its own state last. They may be repeated."""
    stage, model = promotion.stage, promotion.model
    changes: list[DeploymentChange] = []
    if stage in (PromotionStage.SHADOW, PromotionStage.CANARY, PromotionStage.PROMOTED):
        changes.append(model_change(model, promotion.spec))
    if stage is not PromotionStage.ABANDONED:
        changes.append(alias_change(promotion.rules.alias, promotion.target))
    if stage is PromotionStage.SHADOW:
        changes.append(alias_change(promotion.shadow, model))
    else:
        changes.append(alias_change(promotion.shadow, None))
    if stage is PromotionStage.ROLLED_BACK:
        changes.append(model_change(model, None))
    return [*changes, DeploymentChange(promotion_key(model), _encode(promotion))]
