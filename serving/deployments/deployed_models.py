"""Takes the steps of a server's deployment plan.

`step` is called several times a second by one thread. It never waits: models are loaded and
released by `work`, which runs a function on another thread. A switch of an alias, above all one
back to the previous model, therefore never waits for a model that is being loaded.

A model passes three steps. `open` checks its spec and starts to copy its rows. Once the rows are
complete, `admit` makes the model answer requests. When it is unloaded, `withdraw` takes it out of
requests first, and `close` then releases threads and memory. Failures are kept for the status, and
retried after a pause.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.serving.deployments.deployment_plan import (
    HostedAliases,
    HostedModel,
    Stage,
    plan_deployments,
)
from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.deployments.deployment_status import DeploymentStatus, ModelDeployment
from headrace.serving.errors import BadAlias
from headrace.serving.models.aliases import Aliases
from headrace.serving.replicas.status import LocalRows, ReplicaStatus

log = logging.getLogger(__name__)

RETRY_S = 10.0
"""Pause before a model that could not be opened is tried again: its rows may be created soon."""
SETTLE_S = 60.0
"""Longest time after the start for which the server is not ready because of deployed models."""


class LoadedModel(Protocol):
    """A model in this process, whose rows are loaded, or being loaded."""

    @property
    def rows(self) -> LocalRows:
        """The rows."""

    def admit(self) -> None:
        """Let requests find the model, whose rows are complete."""

    def withdraw(self) -> None:
        """Let requests no longer find it."""

    def close(self) -> None:
        """Stop its threads and release its memory. Runs on a thread of its own."""


@dataclass(slots=True)
class _Hosting:
    spec: str
    opening: Future[LoadedModel] | None
    opened: LoadedModel | None = None
    admitted: bool = False
    failure: str = ""
    """Why it does not answer; kept while it is tried again, so that alerts see one failure."""
    retry_s: float = 0.0
    retried: bool = False

    @property
    def stage(self) -> Stage:
        if self.admitted:
            return Stage.READY
        return Stage.FAILED if self.failure else Stage.LOADING


class DeployedModels:
    """The models that this server has loaded because of the topic."""

    def __init__(
        self,
        opening: Callable[[str, str], LoadedModel],
        aliases: Aliases,
        fixed: Mapping[str, str],
        work: Callable[[Callable[[], Any]], Future[Any]],
        now_s: Callable[[], float],
    ) -> None:
        """Begin without models.

        opening: checks the model of a name and the text of a spec, and starts its rows; raises any
        error. fixed: models of flags, with the texts of their specs. work: runs a function on
        another thread, in order.
        """
        self._open, self._aliases = opening, aliases
        self._fixed, self._work, self._now_s = fixed, work, now_s
        self._wanted = self._taken = Deployments()
        """The state to reach, and the one that the records read so far add up to."""
        self._hosting: dict[str, _Hosting] = {}
        self._applied: dict[str, str] = {}
        self._began_s, self._at_end, self._read, self._settled = now_s(), False, False, False
        self.status = DeploymentStatus(settled=False)
        """Replaced as a whole by each step."""

    def begin(self) -> None:
        """Forget the records. The topic is read from its start, maybe for the second time."""
        self._taken, self._at_end = Deployments(), False

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take a message of the topic. The next step acts on it, once the topic was read."""
        self._taken = self._taken.after(key, value)
        if self._at_end:
            self._wanted = self._taken

    def reached_end(self) -> None:
        """Act on the records from now on: the topic was read to its end.

        Before that, they may be out of date.
        """
        self._wanted, self._at_end, self._read = self._taken, True, True

    def step(self) -> None:
        """Take all steps that are possible now. Never waits."""
        if not self._read:
            self._publish({}, {})
            return
        for name, each in self._hosting.items():
            self._advance(name, each)
        table = {name: alias.model for name, alias in self._aliases.table.items()}
        aliases = HostedAliases(table, self._aliases.first, self._applied)
        plan = plan_deployments(self._wanted, self._hosted(), aliases)
        waiting = dict(plan.waiting)
        for name, target in plan.switch.items():
            reason = self._switch(name, target)
            if reason:
                waiting[name] = reason
        for name in plan.remove:
            self._forget_alias(name)
        for name in plan.unload:
            self._unload(name)
        for name in plan.load:
            self._load(name)
        self._publish(waiting, plan.refused)

    def close(self) -> None:
        """Release every model. Call it after the last `step` and the last `work`."""
        for each in self._hosting.values():
            opening = each.opening
            if opening is not None and opening.done() and not opening.cancelled():
                each.opened = None if opening.exception() else opening.result()
            if each.opened is not None:
                each.opened.close()
        self._hosting.clear()

    def _hosted(self) -> dict[str, HostedModel]:
        fixed = {
            name: HostedModel(Stage.READY, spec, fixed=True) for name, spec in self._fixed.items()
        }
        return fixed | {
            name: HostedModel(each.stage, each.spec) for name, each in self._hosting.items()
        }

    def _advance(self, name: str, hosting: _Hosting) -> None:
        """Take the result of opening, and admit a model whose rows are complete."""
        opening = hosting.opening
        if opening is not None and opening.done():
            hosting.opening = None
            error = opening.exception()
            if error is None:
                hosting.opened = opening.result()
            else:
                hosting.failure = str(error) or type(error).__name__
                hosting.retry_s = self._now_s() + RETRY_S
                log.error("cannot load model %s: %s", name, hosting.failure)
        if hosting.opened is None or hosting.admitted:
            return
        rows = hosting.opened.rows
        hosting.failure = "" if rows.failure is None else str(rows.failure)
        if not rows.status.complete:
            return
        try:
            self._aliases.add_model(name)
        except BadAlias as error:
            hosting.failure = str(error)
            return
        hosting.opened.admit()
        hosting.admitted, hosting.failure = True, ""
        log.info("model %s: loaded, %d rows", name, rows.status.rows)

    def _load(self, name: str) -> None:
        spec, failure = self._wanted.models[name], ""
        if name in self._hosting:
            if self._hosting[name].retried:
                failure = self._hosting[name].failure
            self._unload(name)  # its spec was corrected, or it is tried again
        opening: Future[LoadedModel] = self._work(lambda: self._open(name, spec))
        self._hosting[name] = _Hosting(spec, opening, failure=failure)
        log.info("model %s: loading", name)

    def _unload(self, name: str) -> None:
        hosting = self._hosting[name]
        opening, opened = hosting.opening, hosting.opened
        if opened is not None and hosting.admitted:
            try:
                self._aliases.remove_model(name)
            except BadAlias:
                return  # an alias was pointed at it just now
            opened.withdraw()
        if opening is not None and not opening.cancel():
            self._work(lambda: opening.result().close())  # after it was opened
        elif opened is not None:
            self._work(opened.close)
        del self._hosting[name]
        log.info("model %s: unloaded", name)

    def _switch(self, alias: str, target: str) -> str:
        """Switch an alias; return why it was refused, empty if it was not."""
        try:
            self._aliases.switch(alias, target)
        except BadAlias as error:
            return str(error)
        if alias in self._wanted.aliases:
            self._applied[alias] = target
        else:
            self._applied.pop(alias, None)
        return ""

    def _forget_alias(self, alias: str) -> None:
        try:
            self._aliases.remove(alias)
        except BadAlias as error:
            log.debug("not removed: %s", error)
        self._applied.pop(alias, None)

    def _publish(self, waiting: dict[str, str], refused: Mapping[str, str]) -> None:
        models = {name: ModelDeployment(Stage.FAILED, text) for name, text in refused.items()}
        for name, each in self._hosting.items():
            reason = each.failure
            if not reason and each.opened is not None and not each.admitted:
                reason = _copied(each.opened.rows.status)
            models.setdefault(name, ModelDeployment(each.stage, reason))
            failed = each.opening is None and each.opened is None and each.failure
            if failed and self._now_s() >= each.retry_s:
                each.spec, each.retried = "", True  # planned again, as a corrected one is
        pending = any(each.stage is Stage.LOADING for each in self._hosting.values())
        late = self._now_s() > self._began_s + SETTLE_S
        begun = self._wanted.models.keys() <= {*self._fixed, *self._hosting, *refused}
        self._settled |= (self._read and not pending and begun) or late
        self.status = DeploymentStatus(self._settled, models, waiting)


def _copied(status: ReplicaStatus) -> str:
    return f"{status.copied} of {status.buckets} buckets copied"
