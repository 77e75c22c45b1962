"""The study that machines share: arms are trials of Optuna, and a trial belongs to one machine.

    trial       an attempt at an arm: its settings, its machine, the losses of each chunk, its end
    study       fingerprint of the experiment, and a beat of each machine

A claim is a new trial: Optuna numbers trials in one transaction, so of two trials for the same
attempt at an arm the one with the lower number counts. This needs no lock, which SQLite could not
give. A machine beats every few seconds, by writing another number. If a beat stays the same for the
lease, by the clock of the machine that watches it, the arms are free: their trials fail, and the
next attempt at an arm is a trial of its own. A machine that was only slow cannot write into a trial
that has failed. *Refused:* Optuna's own heartbeat, which journal files do not have.

Optuna samples arms by ask and tell, as in a run of one machine (`suggestions`): every machine makes
the same calls in the same order, and the settings must equal those in the study.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import threading
import time
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.learner.errors import LearnerError
from headrace.learner.experiments.executors.shared_task import ChunkSums
from headrace.learner.experiments.executors.study_storage import (
    BadStorage,
    open_storage,
    patiently,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.learner.experiments.executors.study_storage import StudyAddress
    from headrace.learner.experiments.experiment_file import ArmPlan, Experiment
    from headrace.learner.experiments.space import SpaceKey

_BEATS = 4
"""In a lease."""
_LEFT = 0
"""Beat of a machine that has stopped."""
_FINGERPRINT, _ARM, _ATTEMPT, _MACHINE, _SETTINGS = (
    *("headrace fingerprint", "arm", "attempt", "machine", "settings"),
)


class OtherStudy(LearnerError):
    """The study belongs to another experiment file, or machines suggest different arms."""


class SharedStudy:
    """One machine's view of a study. A thread beats while it is open."""

    def __init__(
        self, address: StudyAddress, experiment: Experiment, machine: str, lease_s: float
    ) -> None:
        """`machine`: its name, the same after a restart. `lease_s`: until its arms are free.

        Raises MissingOptuna, BadStorage, OtherStudy.
        """
        self._experiment, self._machine, self._lease_s = experiment, machine, lease_s
        self._address, self._suggested = address, {key.name: key for key in experiment.space}
        self._storage = open_storage(address)
        self._study = self._open()
        self._attempts: dict[int, list[Any]] = {}
        """Arm -> the trials that count, one for each attempt."""
        self._beats: dict[str, tuple[int, float]] = {}
        """Machine -> its beat, and the time at which it was new."""
        self._beat_no = 0
        self._closed = threading.Event()
        self._beat()
        self._beating = threading.Thread(target=self._keep_beating, daemon=True)
        self._beating.start()
        self.refresh()

    def close(self) -> None:
        """Free the arms of this machine."""
        self.stop_beating()
        with contextlib.suppress(BadStorage):  # the lease ends all the same
            self._write("set_study_user_attr", self._study, self._beat_key(), _LEFT)

    def stop_beating(self) -> None:
        """Let the lease of this machine's arms run out."""
        self._closed.set()
        self._beating.join()

    @property
    def machines(self) -> dict[int, str]:
        """Arm -> the machine of its last attempt."""
        return {arm: trials[-1].user_attrs[_MACHINE] for arm, trials in self._attempts.items()}

    # ------------------------------------------------------------------------------- the study

    def _open(self) -> int:
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        name, fingerprint = self._experiment.name, self._experiment.fingerprint
        try:
            study: int = self._write("create_new_study", [StudyDirection.MINIMIZE], name)
            self._write("set_study_user_attr", study, _FINGERPRINT, fingerprint)
        except DuplicatedStudyError:
            study = self._write("get_study_id_from_name", name)
        found = self._write("get_study_user_attrs", study).get(_FINGERPRINT)
        trials = self._write("get_all_trials", study, deepcopy=False)
        if found not in (None, fingerprint) or (found is None and trials):
            raise self._other("another one" if found else "a study that headrace did not make")
        return study

    def _other(self, got: str) -> OtherStudy:
        return OtherStudy(
            f"--storage {self._address.shown}: expected the study of this experiment file and "
            f"control, got {got} named {self._experiment.name}. Give the experiment another name, "
            "or --storage another file or database"
        )

    def refresh(self) -> None:
        """Read what other machines wrote. Raises OtherStudy."""
        found: dict[int, dict[int, Any]] = {}
        for trial in self._write("get_all_trials", self._study, deepcopy=False):
            attrs = trial.user_attrs
            if attrs.get(_FINGERPRINT) != self._experiment.fingerprint:
                raise self._other("another one")
            found.setdefault(attrs[_ARM], {}).setdefault(attrs[_ATTEMPT], trial)
        self._attempts = {arm: [of[each] for each in sorted(of)] for arm, of in found.items()}
        now_s = time.monotonic()
        for key, beat in dict(self._write("get_study_user_attrs", self._study)).items():
            if key.startswith(_MACHINE) and self._beats.get(key, (None,))[0] != beat:
                self._beats[key] = beat, now_s

    # -------------------------------------------------------------------------------- the beat

    def _beat_key(self, machine: str = "") -> str:
        return f"{_MACHINE} {machine or self._machine}"

    def _beat(self) -> None:
        self._beat_no += 1
        beat = time.time_ns() // 1_000_000 + self._beat_no
        self._write("set_study_user_attr", self._study, self._beat_key(), beat)

    def _keep_beating(self) -> None:
        while not self._closed.wait(self._lease_s / _BEATS):
            with contextlib.suppress(BadStorage):  # the main thread raises it, if it lasts
                self._beat()

    def _is_free(self, trials: Sequence[Any]) -> bool:
        """Say whether an arm with these attempts may be claimed."""
        from optuna.trial import TrialState

        if not trials:
            return True
        state, machine = trials[-1].state, trials[-1].user_attrs[_MACHINE]
        if state != TrialState.RUNNING:
            return bool(state == TrialState.FAIL)
        beat, since_s = self._beats.get(self._beat_key(machine), (_LEFT, 0.0))
        return beat == _LEFT or time.monotonic() - since_s > self._lease_s

    # ---------------------------------------------------------------------------------- claims

    def claim(self, plans: Sequence[ArmPlan], most: int) -> list[int]:
        """Return arms of this machine, with claims of free ones until there are `most`."""
        mine = [plan.number for plan in plans if self._is_mine(plan.number)]
        # each machine tries the arms in an order of its own, so that they rarely try the same one
        for plan in sorted(plans, key=self._turn):
            if len(mine) >= most:
                break
            if plan.number not in mine and self._claim(plan):
                mine.append(plan.number)
        return mine[:most]

    def _turn(self, plan: ArmPlan) -> int:
        return zlib.crc32(f"{self._machine} {plan.number}".encode())

    def _is_mine(self, number: int) -> bool:
        from optuna.trial import TrialState

        trials = self._attempts.get(number)
        return bool(
            trials
            and trials[-1].state == TrialState.RUNNING
            and trials[-1].user_attrs[_MACHINE] == self._machine
        )

    def _claim(self, plan: ArmPlan) -> bool:
        from optuna.trial import TrialState, create_trial

        trials = self._attempts.get(plan.number, [])
        if not self._is_free(trials):
            return False
        if trials and trials[-1].state == TrialState.RUNNING:
            self._finish(trials[-1], TrialState.FAIL)
        values, distributions = self._params(plan)
        attempt = 1 + (trials[-1].user_attrs[_ATTEMPT] if trials else 0)
        trial = create_trial(
            state=TrialState.RUNNING,
            params=values,
            distributions=distributions,
            user_attrs={
                _FINGERPRINT: self._experiment.fingerprint,
                _ARM: plan.number,
                "name": plan.name,
                _ATTEMPT: attempt,
                _MACHINE: self._machine,
                _SETTINGS: _plain(plan.settings),
            },
        )
        created = self._write("create_new_trial", self._study, template_trial=trial)
        self.refresh()
        if self._is_mine(plan.number):
            return True
        self._finish(self._write("get_trial", created), TrialState.FAIL)
        return False

    def _params(self, plan: ArmPlan) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings in the space as Optuna's parameters."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        values: dict[str, Any] = {}
        distributions: dict[str, Any] = {}
        if plan.number <= len(self._experiment.listed):
            return values, distributions
        for name, value in plan.settings.items():
            key: SpaceKey = self._suggested[name]
            if key.kind == "list":
                distributions[name] = CategoricalDistribution(key.values)
                values[name] = value
            else:
                low, high = map(float, key.values)
                distributions[name] = FloatDistribution(low, high, log=key.kind == "log")
                values[name] = min(max(float(value), low), high)  # type: ignore[arg-type]
        return values, distributions

    # ---------------------------------------------------------------------------------- losses

    def publish(self, number: int, chunk: int, sums: ChunkSums) -> None:
        """Publish the losses of an arm, unless another machine has claimed it since."""
        from optuna.exceptions import UpdateFinishedTrialError

        self.refresh()
        if self._is_mine(number):
            trial = self._attempts[number][-1]
            try:
                self._write("set_trial_user_attr", self._id(trial), _key(chunk), _packed(sums))
            except UpdateFinishedTrialError:
                return  # this machine was slow, and another one has the arm

    def published(self, plan: ArmPlan, chunk: int) -> ChunkSums | None:
        """Return the losses of an arm; None if they are not published. Raises OtherStudy."""
        for trial in self._attempts.get(plan.number, []):
            if trial.user_attrs[_SETTINGS] != _plain(plan.settings):
                raise OtherStudy(
                    f"--storage {self._address.shown}: expected arm {plan.name} with "
                    f"{_plain(plan.settings)}, as this machine suggests, got "
                    f"{trial.user_attrs[_SETTINGS]} from machine {trial.user_attrs[_MACHINE]}. Use "
                    "the same versions of headrace and Optuna on all machines"
                )
            if (packed := trial.user_attrs.get(_key(chunk))) is not None:
                return _unpacked(packed)
        return None

    def end(self, number: int, examples: int, difference: float, *, at_end: bool) -> None:
        """Tell Optuna's study the end of an arm; `at_end`: with the log. The first machine does."""
        from optuna.trial import TrialState

        trials = self._attempts.get(number)
        if not trials or trials[-1].state != TrialState.RUNNING:
            return
        trial = trials[-1]
        if difference != difference:
            self._finish(trial, TrialState.PRUNED)
            return
        state = TrialState.COMPLETE if at_end else TrialState.PRUNED
        self._finish(trial, state, examples, difference)

    def _finish(
        self, trial: Any, state: Any, examples: int = 0, value: float | None = None
    ) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        try:
            number = self._id(trial)
            if value is not None:
                self._write("set_trial_intermediate_value", number, examples, value)
            values = None if value is None else [value]
            self._write("set_trial_state_values", number, state=state, values=values)
        except UpdateFinishedTrialError:
            return  # another machine did it

    def _id(self, trial: Any) -> int:
        """Return the number of a trial among those of all studies."""
        found = self._write("get_trial_id_from_study_id_trial_number", self._study, trial.number)
        return int(found)

    def _write(self, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the storage, which may be out of reach for a while."""
        return patiently(self._address, getattr(self._storage, method), *arguments, **keywords)


def _plain(settings: Any) -> Any:
    return json.loads(json.dumps(dict(settings), default=str))


def _key(chunk: int) -> str:
    return f"chunk {chunk:08}"


def _packed(sums: ChunkSums) -> dict[str, Any]:
    flat = np.concatenate([np.zeros(0), *sums.blocks])
    return {
        "checksum": sums.checksum,
        "lengths": [block.shape[0] for block in sums.blocks],
        "sums": base64.b64encode(flat.astype("<f8").tobytes()).decode(),
    }


def _unpacked(packed: dict[str, Any]) -> ChunkSums:
    flat = np.frombuffer(base64.b64decode(packed["sums"]), "<f8")
    ends = np.cumsum([0, *packed["lengths"]])
    blocks = [flat[begin:end] for begin, end in itertools.pairwise(ends)]
    return ChunkSums(packed["checksum"], blocks)
