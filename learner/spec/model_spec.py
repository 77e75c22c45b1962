"""The model spec: all that joiner, learners, parameter server and servers must agree on.

A spec is one TOML file. `ingest.features.fields` reads `[fields.*]`, `[label]` and `[examples]`;
the modules beside this one read the other sections. The fingerprint covers the meaning and not the
text, so comments may change and defaults may be written out. Unknown keys are refused with their
line: a misspelt key would otherwise silently mean its default.

Reading a spec imports neither numba, pyarrow, torch nor a Kafka client, so a refusal is quick.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import asdict

from headrace.ingest.features.fields import FieldSet, Transform, parse_fields
from headrace.ingest.features.spec_sections import table_of
from headrace.ingest.features.spec_text import SpecError, SpecText, one_of
from headrace.learner.spec.admission_and_expiry import Admission, parse_admission, parse_expiry
from headrace.learner.spec.architecture import (
    CHOICE,
    MODEL,
    Structure,
    check_history,
    check_synchronous,
)
from headrace.learner.spec.calibration_spec import CALIBRATION, Calibration
from headrace.learner.spec.optimizer_spec import (
    Optimizer,
    Optimizers,
    check_coin,
    floats,
    parse_optimizers,
)
from headrace.learner.spec.statistics_spec import (
    Statistic,
    StatisticsProgram,
    parse_statistics,
    program,
)
from headrace.pserver.keeper.expiry import Expiry

__all__ = ["ModelSpec", "Optimizer", "SpecError", "Statistic", "load_spec", "parse_spec"]

SECTIONS = {
    "model": "Name, architecture and its sizes.",
    "fields": "Inputs computed from the event.",
    "label": "The rule by which an impression becomes an example.",
    "examples": "Weights, down-sampling and slices.",
    "statistics": "Inputs computed from the counters of rows.",
    "optimizer": "The optimizers of weights, vectors and layers.",
    "admission": "The rule by which ids get a row of their own.",
    "expiry": "The rows that keepers delete.",
    "calibration": "A layer that corrects the probabilities.",
}


@dataclass(frozen=True, slots=True, repr=False)
class ModelSpec:
    """A model: its name, inputs, architecture and optimizers."""

    name: str
    structure: Structure
    fields: FieldSet
    statistics: tuple[Statistic, ...]
    """In ascending order of number."""
    optimizers: Optimizers
    admission: Admission | None
    """None: every id gets a row when it is first seen."""
    expiry: Expiry
    """For keepers. Without a section: nothing is ever deleted."""
    calibration: Calibration | None
    """None: predictions are those of the model."""
    fingerprint: str
    """Digest of all keys that must agree. The parameter server stores it and refuses a process with
    another one."""
    text: str
    """The text of the file."""

    def __repr__(self) -> str:
        """Return name, architecture and inputs: short enough for a notebook and a traceback."""
        fields = self.fields
        names = ", ".join(each.name for each in (*fields.singles, *fields.numbers, *fields.bags))
        counted = "".join(f", {each.name}" for each in self.statistics)
        return f'<ModelSpec "{self.name}": {self.architecture} of {names}{counted}>'

    @property
    def width(self) -> int:
        """Floats per row."""
        width = self.input_floats
        if self.optimizers.dense is not None:  # a row of layers holds at least one coordinate
            width = max(width, floats(self.optimizers.dense, 1))
        return width

    @property
    def input_floats(self) -> int:
        """Floats that the row of an input needs: of weight, vector and importance in a bag."""
        weights, embeddings = self.optimizers.weights, self.optimizers.embeddings
        needed = floats(weights, 1)
        if embeddings is not None:
            needed += floats(embeddings, self.structure.dimensions)
        return needed + floats(weights, 1) * self.fields.learns_item_weights

    @property
    def architecture(self) -> str:
        """Name of the architecture."""
        return self.structure.architecture

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the weights."""
        return self.optimizers.weights

    @property
    def compares_candidates(self) -> bool:
        """Whether a score depends on the other candidates of the request."""
        return self.structure.loss == CHOICE

    @property
    def histories(self) -> tuple[str, ...]:
        """Names of the fields whose items the learner keeps."""
        return tuple(each.name for each in self.fields.bags if each.transform is Transform.HISTORY)

    @property
    def program(self) -> StatisticsProgram:
        """The statistics in the form that kernels take."""
        return program(self.statistics, self.fields)


def load_spec(path: Path | str) -> ModelSpec:
    """Read a spec from a file. Raises SpecError, also for a missing file."""
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: expected a model spec in TOML, found: {error}") from error
    if not text.strip():
        raise SpecError(f"{path}: expected a model spec in TOML, got an empty file")
    return parse_spec(text, path)


def parse_spec(text: str, path: Path | str) -> ModelSpec:
    """Return the spec in a text. Errors name `path` as its file.

    Raises SpecError naming file and line, the expected value and the value found.
    """
    where = SpecText(path, text)
    tables = where.tables()
    for section in tables:
        if section not in SECTIONS:
            wanted = f"a section, {one_of(SECTIONS, section)}"
            raise where.error((section,), wanted, f'"{section}"')
    structure = MODEL.read(table_of(tables, where, "model"), where, "model")
    fields = parse_fields(tables, where)
    check_history(structure, fields, where)
    statistics = parse_statistics(tables, fields, where)
    if statistics and fields.weights.sampling:
        wanted = "no negative_rate beside [statistics.*]: rows count the examples that are kept"
        found = f"negative_rate {fields.weights.negative_rate:g}, which would bias every rate"
        raise where.error(("examples", "negative_rate"), wanted, found)
    optimizers = parse_optimizers(tables, structure.groups, where)
    check_coin(optimizers, fields, where)
    if structure.loss == CHOICE and fields.weights.sampling:
        wanted = 'no negative_rate beside [model] loss = "choice": a choice needs all candidates'
        found = f"negative_rate {fields.weights.negative_rate:g}"
        raise where.error(("examples", "negative_rate"), wanted, found)
    check_synchronous(structure, optimizers.dense, where)
    admission = expiry = calibration = None
    if "admission" in tables:
        admission = parse_admission(table_of(tables, where, "admission"), fields, where)
    if "expiry" in tables:
        window_ms = fields.label.window_ms
        expiry = parse_expiry(table_of(tables, where, "expiry"), window_ms, where)
    if "calibration" in tables:
        table = table_of(tables, where, "calibration")
        if table.get("kind") == "request":
            wanted = 'another kind: this one was removed, use [model] loss = "choice"'
            raise where.error(("calibration", "kind"), wanted, '"request"')
        calibration = CALIBRATION.read(table, where, "calibration")
    spec = ModelSpec(
        name=structure.name,
        structure=structure,
        fields=fields,
        statistics=statistics,
        optimizers=optimizers,
        admission=admission,
        expiry=expiry or Expiry(),
        calibration=calibration,
        fingerprint="",
        text=text,
    )
    return replace(spec, fingerprint=_fingerprint(spec))


def _fingerprint(spec: ModelSpec) -> str:
    """Return a digest. Its text must never change: stores carry the digest of their spec."""
    structure, expiry = spec.structure, spec.expiry
    agreed: dict[str, object] = {
        "model": {"name": spec.name, "architecture": spec.architecture} | structure.agreed(),
        "fields": spec.fields.fingerprint,
        "statistics": [asdict(each) for each in spec.statistics],
        "optimizer": spec.optimizers.agreed(),
    }
    # only if declared: specs older than these sections keep their fingerprint
    if spec.admission is not None:
        agreed["admission"] = asdict(spec.admission)
    if expiry:
        agreed["expiry"] = {"after_s": expiry.after_s, "most_rows": expiry.most_rows}
    if spec.calibration is not None:
        agreed["calibration"] = asdict(spec.calibration)
    canonical = json.dumps(agreed, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
