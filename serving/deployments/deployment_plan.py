"""Decides which models a server loads and unloads, and which aliases it switches.

The plan compares the topic `deployments` with the models of the server. It depends on these two
states only, not on the records that led to them. So servers that start later, miss records or fail
on the way end in the same state.

- A deployed model is loaded beside the others. It answers no request before its rows are complete.
- An alias is switched once all models of its target are ready. Until then it keeps its old target,
  so a model that cannot be loaded never stops answers.
- A model without a record is unloaded once no alias points at it. Models of `--model` and
  `--snapshot` are fixed: they are never unloaded.
- The spec of a loaded model does not change. Another spec needs another name, because the rows in
  the parameter server belong to one spec.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from headrace.serving.deployments.deployment_records import Deployments
from headrace.serving.errors import BadAlias
from headrace.serving.models.traffic_split import models_of


class Stage(StrEnum):
    """The progress of a model on one server."""

    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"


class HostedModel(NamedTuple):
    """A model on one server."""

    stage: Stage
    spec: str = ""
    """Text of the spec."""
    fixed: bool = False
    """Whether a flag names it."""


class HostedAliases(NamedTuple):
    """The aliases on one server."""

    table: Mapping[str, str]
    """Alias -> present target."""
    first: Mapping[str, str]
    """Alias -> target of its flag."""
    applied: Mapping[str, str]
    """Alias -> target that was last taken from the topic."""


class DeploymentPlan(NamedTuple):
    """The next steps of a server, in this order."""

    switch: Mapping[str, str]
    """Alias -> target."""
    remove: tuple[str, ...]
    """Aliases."""
    unload: tuple[str, ...]
    load: tuple[str, ...]
    waiting: Mapping[str, str]
    """Alias -> why it is not switched yet."""
    refused: Mapping[str, str]
    """Model -> why it is not loaded."""


def plan_deployments(
    wanted: Deployments, hosted: Mapping[str, HostedModel], aliases: HostedAliases
) -> DeploymentPlan:
    """Return the next steps; empty if the server is as the topic says."""
    switch, waiting = _switches(wanted, hosted, aliases)
    gone = aliases.applied.keys() - wanted.aliases.keys()
    switch |= {name: aliases.first[name] for name in gone if name in aliases.first}
    remove = tuple(sorted(name for name in gone if name not in aliases.first))
    table = {name: target for name, target in aliases.table.items() if name not in remove}
    needed = {model for target in (table | switch).values() for model in models_of(target)}
    unload = tuple(
        sorted(
            name
            for name, each in hosted.items()
            if not each.fixed and name not in wanted.models and name not in needed
        )
    )
    refused = _refusals(wanted, hosted, table | switch)
    load = tuple(
        sorted(
            name
            for name, spec in wanted.models.items()
            if name not in refused and _to_load(hosted.get(name), spec)
        )
    )
    return DeploymentPlan(switch, remove, unload, load, waiting, refused)


def _to_load(hosted: HostedModel | None, spec: str) -> bool:
    """Whether to load a model: a new one, or one whose spec was corrected after a failure."""
    return hosted is None or (hosted.stage is Stage.FAILED and hosted.spec != spec)


def _switches(
    wanted: Deployments, hosted: Mapping[str, HostedModel], aliases: HostedAliases
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the aliases to switch, and those that wait, with the reason."""
    switch, waiting = {}, {}
    for name, target in wanted.aliases.items():
        if aliases.applied.get(name) == target:
            continue
        try:
            models = models_of(target)
        except BadAlias as error:
            waiting[name] = str(error)
            continue
        missing = [each for each in models if _stage(hosted.get(each)) is not Stage.READY]
        if missing:
            shown = ", ".join(f"{each} ({_stage(hosted.get(each)) or 'none'})" for each in missing)
            waiting[name] = f"expected ready models, got {shown}"
        else:
            switch[name] = target
    return switch, waiting


def _refusals(
    wanted: Deployments, hosted: Mapping[str, HostedModel], table: Mapping[str, str]
) -> dict[str, str]:
    refused = {}
    for name, spec in wanted.models.items():
        each = hosted.get(name)
        if name in table:
            refused[name] = f"expected the name of a model, got the alias {name}"
        elif each is not None and each.stage is not Stage.FAILED and each.spec != spec:
            refused[name] = (
                f"expected the spec with which {name} was loaded, got another one: deploy it under "
                "another name"
            )
    return refused


def _stage(hosted: HostedModel | None) -> Stage | None:
    return None if hosted is None else hosted.stage
