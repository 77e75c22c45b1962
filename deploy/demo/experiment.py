"""The experiment of a demo: arms on the live stream, one promoted by hand and one by its results.

A thread starts the same commands as a user would: `headrace experiment run` on the control's
examples, and `headrace experiment promote` for an arm, with the parts of its model. It reads the
history and the topic `deployments`, tells each decision once, and decides nothing itself:

1. The arm `hasty`, bad on purpose, is promoted by hand at once. The checks of its canary roll it
   back.
2. The best arm that the experiment has found better is promoted, once the traffic is free. Its
   model continues from the runner's saved state on the control's examples.

The experiment is that of `models/demo_experiment`. `promote` writes specs beside the file, so it
works on a copy.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.deploy.errors import PartFailed
from headrace.deploy.models import path_of
from headrace.ingest import KafkaUnreachable
from headrace.learner.experiments import load_experiment, read_history
from headrace.serving.promotion import PromotionStage, read_promotion_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.deploy.local import LocalPipeline
    from headrace.deploy.local.services import ChildProcess
    from headrace.learner.experiments import ArmRecord
    from headrace.serving.promotion import Promotion

RUNNER = "experiment"
"""Name of the part that runs the arms."""
BAD_ARM = "hasty"
EVALUATION_WINDOW_S = 2
"""`window_s` of the experiment file."""
EVENTS_S = 600
"""Each request is answered by the server, so the stream is slower than that of other demos."""
_LOOK_S = 1.0
_TOLD = ("eliminated", "stopped", "better")
_OVER = ("eliminated", "stopped")
_EARLY = (PromotionStage.PREPARING, PromotionStage.CATCHING_UP)
_NORMAL = (0, 1)
"""Exit statuses of `promote`: promoted, and rolled back."""


def experiment_file() -> Path:
    """Return the shipped experiment file."""
    return path_of("demo").parent / "demo_experiment" / "experiment.toml"


def control_file() -> Path:
    """Return the spec of the experiment's control."""
    return experiment_file().with_name("control.toml")


class PromotionReport(NamedTuple):
    """A promotion of a demo."""

    model: str
    began_s: float
    ended_s: float | None
    """Time of the last decision; None: not ended."""
    stage: str
    reason: str
    """Of the last decision."""
    canary_s: float | None
    """Time of the first step of the canary."""


class ArmReport(NamedTuple):
    """An arm at its last comparison."""

    name: str
    difference: float
    low: float | None
    high: float | None


class ExperimentReport(NamedTuple):
    """The experiment of a demo at one moment."""

    arms: int
    learning: int
    best: ArmReport | None
    """Of the arms that learn."""
    better_s: float | None
    """Time at which the first arm was found better."""
    promotions: tuple[PromotionReport, ...]


@dataclass(slots=True)
class _Running:
    """A promotion whose command runs."""

    arm: str
    model: str
    examples_of: str
    """Model whose examples it learns; empty: its own."""
    words: tuple[str, ...]
    command: ChildProcess
    began_s: float
    state: Promotion | None = None
    told: int = 0
    has_parts: bool = False
    ended_s: float | None = None
    canary_s: float | None = None


class DemoExperiment(threading.Thread):
    """Runs the experiment until `close`. An error ends the thread and is kept in `failure`."""

    def __init__(
        self,
        pipeline: LocalPipeline,
        folder: Path,
        tell: Callable[[str], None],
        now_s: Callable[[], float],
    ) -> None:
        """folder: for the experiment file and the runner's state. `now_s`: since the start."""
        super().__init__(name="experiment of the demo", daemon=True)
        self._pipeline, self._say, self._now_s = pipeline, tell, now_s
        self._file, self._run_folder = folder / "experiment.toml", folder / "run"
        shutil.copytree(experiment_file().parent, folder, dirs_exist_ok=True)
        self._experiment = load_experiment(self._file)
        self._history: list[ArmRecord] = []
        self._promotions: list[_Running] = []
        self._better_s: float | None = None
        self._done = threading.Event()
        self._supervised = False
        self.failure: BaseException | None = None
        self.prepared = threading.Event()
        """Set once the runner and the model of the bad arm wait for events."""

    def close(self) -> None:
        """End the thread, the commands of promotions, and the runner, which needs the folder."""
        self._done.set()
        if self.is_alive():
            self.join()
        for each in self._promotions:
            each.command.stop()
        if self._supervised:
            self._pipeline.supervisor.stop(RUNNER)

    def run(self) -> None:
        """Start the runner and the promotion of the bad arm, then look until `close`."""
        try:
            words = ("experiment", "run", str(self._file), "--to", str(self._run_folder))
            self._pipeline.supervise(RUNNER, *words, "--save-every", "2", "--runs", "off")
            self._supervised = True
            self._tell(f"{BAD_ARM} is promoted by hand, unproven")
            self._promote(BAD_ARM)
            while not self._done.wait(_LOOK_S):
                self._look_at_arms()
                self._look_at_promotion()
                first = self._promotions[0].state
                if self._history and first is not None and first.stage not in _EARLY:
                    self.prepared.set()
        except BaseException as error:  # noqa: BLE001  (raised by the main thread)
            self.failure = error

    def report(self) -> ExperimentReport:
        """Return the figures of this moment."""
        last = {each.name: each for each in self._history if each.kind not in ("log", "begun")}
        ended = {name for name, each in last.items() if each.kind in _OVER}
        best = min(
            (each for name, each in last.items() if name not in ended and each.name != "control"),
            key=lambda each: each.difference if each.difference is not None else float("inf"),
            default=None,
        )
        return ExperimentReport(
            self._experiment.arms,
            self._experiment.arms - len(ended),
            None
            if best is None or best.difference is None
            else ArmReport(best.name, best.difference, best.low, best.high),
            self._better_s,
            tuple(map(_reported, self._promotions)),
        )

    def _tell(self, text: str) -> None:
        self._say(f"{self._now_s():4.0f} s  {text}")

    # -------------------------------------------------------------------------------- the arms

    def _look_at_arms(self) -> None:
        if not (self._run_folder / "history.ndjson").exists():
            return
        history = read_history(self._run_folder)
        for each in history[len(self._history) :]:
            if each.kind in _TOLD:
                self._tell(f"{each.name} {each.kind}: {each.reason}")
            if each.kind == "better" and self._better_s is None:
                self._better_s = self._now_s()
        self._history = history
        ended = all(each.ended_s is not None for each in self._promotions)
        if ended and len(self._promotions) == 1 and (winner := self._winner()) is not None:
            self._tell(f"{winner} is promoted: the best arm that was found better")
            self._promote(winner)

    def _winner(self) -> str | None:
        """Return the best arm among those that were found better and still learn."""
        better = {each.name for each in self._history if each.kind == "better"}
        over = {each.name for each in self._history if each.kind in _OVER}
        scored = {each.name: each for each in self._history if each.kind == "scored"}
        return min(better - over, key=lambda name: scored[name].difference or 0.0, default=None)

    # -------------------------------------------------------------------------- the promotions

    def _promote(self, arm: str) -> None:
        words: tuple[str, ...] = ("experiment", "promote", str(self._file), arm)
        control, examples_of = self._experiment.control.name, ""
        if arm not in self._experiment.listed:
            words, examples_of = (*words, "--run", str(self._run_folder)), control
        model = f"{control}-{arm}"
        command = self._pipeline.run_command(f"{model}.promote", *words)
        now = _Running(arm, model, examples_of, words, command, self._now_s())
        self._promotions.append(now)

    def _look_at_promotion(self) -> None:
        now = self._promotions[-1]
        if now.ended_s is not None:
            return
        status = now.command.poll()
        try:
            now.state = read_promotion_state(self._pipeline.kafka, now.model).promotion or now.state
        except KafkaUnreachable:
            return
        state = now.state
        if state is not None and not now.has_parts:
            now.has_parts = True  # topics and rows exist
            self._pipeline.add_model(self._spec_of(now), now.examples_of)
        for each in () if state is None else state.decisions[now.told :]:
            if each.stage == "canary" and now.canary_s is None:
                now.canary_s = self._now_s()
            self._tell(f"{now.model} {each.stage}, {each.share:.0%} of the traffic: {each.reason}")
        now.told = 0 if state is None else len(state.decisions)
        if state is not None and state.ended:
            now.ended_s = self._now_s()
            if state.share == 0.0:
                self._pipeline.remove_model(self._spec_of(now))
        elif status is not None and status not in _NORMAL:
            self._restart(now, status)

    def _restart(self, now: _Running, status: int) -> None:
        """Start a killed controller again: it goes on. Raises PartFailed if it refused to run."""
        if status > 0:
            raise PartFailed(
                f"{' '.join(now.words)} ended with status {status}:\n{now.command.log_tail()}"
            )
        now.command = self._pipeline.run_command(f"{now.model}.promote", *now.words)

    def _spec_of(self, now: _Running) -> Path:
        return self._file.with_name(f"{now.model}.toml")


def _reported(each: _Running) -> PromotionReport:
    last = None if each.state is None else each.state.decisions[-1]
    stage = "preparing" if last is None else f"{last.stage} {last.share:.0%}"
    reason = "" if last is None else last.reason
    return PromotionReport(each.model, each.began_s, each.ended_s, stage, reason, each.canary_s)
