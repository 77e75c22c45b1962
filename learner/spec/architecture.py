"""The section `[model]`: name, architecture and sizes of a model.

Each architecture takes its own keys and refuses all others. Everything learned is kept in rows of
one width: a weight, a vector beside it if the architecture has one, and the state of their
optimizers (learner.kernels.optimizers).
"""

import math
from typing import Annotated

from msgspec import Meta, Struct

from headrace.ingest.features.fields import FieldSet, kinds_of
from headrace.ingest.features.spec_sections import Variant, Variants, expected, shown
from headrace.ingest.features.spec_text import SpecText, found_name, one_of
from headrace.learner.spec.optimizer_spec import ADAGRAD, DENSE, EMBEDDINGS, SGD, Optimizer

LOGISTIC_REGRESSION = "logistic_regression"
FACTORIZATION_MACHINE = "factorization_machine"
FIELD_WEIGHTED_FM = "field_weighted_fm"
WIDE_AND_DEEP = "wide_and_deep"
DEEPFM = "deepfm"
DCN_V2 = "dcn_v2"
DIN = "din"
SEQUENCE = "sequence"
MODULE = "module"
DEEP = (FIELD_WEIGHTED_FM, WIDE_AND_DEEP, DEEPFM, DCN_V2, DIN, SEQUENCE, MODULE)
"""Architectures that are torch modules."""
LOGISTIC, CHOICE = "logistic", "choice"
GRU = "gru"
ATTENTION = "attention"
CUDA = "cuda"
AUTO = "auto"
"""Device of the layers: CUDA where torch finds one, the CPU elsewhere."""
DENSE_NUMBER = 1001
"""Field number of the rows that hold layers."""
FREE_TO_DIFFER = ("mini_batch", "synchronous")
"""Keys that say how rows are learned and not what they mean: a copy may differ in them."""
NETWORK_KEYS = ("layers", "cross_layers", "encoder", "encoder_layers", "history_length", "module")
"""Keys that change the layers of a network and no other rows."""

_HISTORY = "= the name of a field of transform bag or history"
_TARGET = "= the name of a single-valued field"


_LONGEST_DELAY_S = 604_800.0


class Structure(Struct, frozen=True):
    """The section `[model]`. Keys that the architecture does not take keep their default."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9_-]+\Z"), expected("of a-z, 0-9, _ and -")]
    """Names the model, its topic `examples.NAME` and its rows. Another model needs another name."""
    architecture: str = LOGISTIC_REGRESSION
    """The form of the model."""
    base_rate: Annotated[float, Meta(ge=1e-6, le=0.999)] = 0.5
    """Click rate that an untrained model predicts. If the log's rate differs, the weights of all
    ids have to learn the difference from the first thousands of examples."""
    loss: Annotated[str, Meta(pattern=r"^(logistic|choice)\Z"), expected("logistic or choice")] = (
        LOGISTIC
    )
    """`logistic`: the user clicks each candidate or not, independently. `choice`: the user clicks
    one candidate of a request, or none."""
    click_delay_s: Annotated[
        Annotated[float, Meta(ge=0.0, le=_LONGEST_DELAY_S)]
        | Annotated[
            tuple[Annotated[float, Meta(gt=0.0, le=_LONGEST_DELAY_S)], ...], Meta(min_length=1)
        ],
        expected(f"from 0 to {_LONGEST_DELAY_S:.0f}, or a list of such numbers"),
    ] = 0.0
    """Mean seconds from an impression to its click, for the policy `immediate`, or a list: the
    means of groups of equally many clicks. As long as a model is not much older than this, many
    clicks are still missing, and impressions count less. At 0, impressions always count fully."""
    dimensions: Annotated[int, Meta(ge=1, le=256)] = 16
    """Floats of each vector."""
    init_scale: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.01
    """Standard deviation of initial vectors. At 0, the vectors of a factorization machine would
    never move."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    """Seed of initial vectors and layers. Initial values are a function of the seed and the row's
    id, and are never stored."""
    mini_batch: Annotated[int, Meta(ge=1, le=65_536)] = 128
    """Largest number of examples per update of the rows. A smaller number learns more from each
    example, but more slowly."""
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda|auto)\Z"), expected("cpu, cuda or auto")] = (
        "cpu"
    )
    """Device on which a learner runs the layers forward and backward. `auto` is `cuda` if torch
    finds a device, and otherwise `cpu`. The device does not change the model. Servers use the
    CPU."""
    devices: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of devices among which a learner divides each mini-batch, each with a process of its
    own. On the CPU, the processes share its cores. The number does not change the model."""
    synchronous: bool = False
    """Whether learners update the layers together. `[optimizer.dense]` must then be `sgd` or
    `adagrad`, without `decay_per_day`."""
    layers: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65_536)], ...],
        Meta(min_length=1),
        expected("= a list of widths of hidden layers, each from 1 to 65536"),
    ] = (64, 32)
    """Widths of the hidden layers, from the inputs on."""
    cross_layers: Annotated[int, Meta(ge=1, le=16)] = 2
    """Layers of the cross network."""
    history: Annotated[str, expected(_HISTORY)] = ""
    """A field of transform bag or history: the user's recent items, the latest last."""
    encoder: Annotated[str, Meta(pattern=r"^(gru|attention)\Z"), expected("gru or attention")] = GRU
    """Network that reads the items of the history in order: recurrent (`gru`), or causal
    self-attention (`attention`)."""
    encoder_layers: Annotated[int, Meta(ge=1, le=8)] = 1
    """Layers of the GRU, or blocks of attention."""
    history_length: Annotated[int, Meta(ge=1, le=1000)] = 50
    """Number of the latest items of the history that the encoder reads."""
    target: Annotated[str, expected(_TARGET)] = ""
    """The single-valued field that the items are compared with. Required with `history`."""
    module: Annotated[str, expected("= a class, like package.file:Class")] = ""
    """Your own torch module. It must be importable."""

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of parameters beside the weights, each with an optimizer of its own."""
        if self.architecture in DEEP:
            return (EMBEDDINGS, DENSE)
        return (EMBEDDINGS,) if self.dimensions else ()

    @property
    def click_delays_s(self) -> tuple[float, ...]:
        """The mean delays of groups of equally many clicks; empty if clicks come at once."""
        delays = self.click_delay_s
        return delays if isinstance(delays, tuple) else (delays,) if delays else ()

    @property
    def first_log_odds(self) -> float:
        """The log-odds of an example before anything is learned."""
        return math.log(self.base_rate / (1.0 - self.base_rate))

    def agreed(self) -> dict[str, object]:
        """Return the part of the fingerprint beside name and architecture.

        Devices change nothing that is learned, so they have no part in it.
        """
        kind = MODEL.kinds[self.architecture]
        keys = [each for each in (*kind.takes, *kind.needs) if each not in _DEVICES]
        found = {each: getattr(self, each) for each in keys}
        # only if set: models older than these keys keep their fingerprint
        younger = {"synchronous": False, "base_rate": 0.5, "loss": LOGISTIC, "click_delay_s": 0.0}
        return {each: value for each, value in found.items() if younger.get(each) != value}


_DEVICES = ("device", "devices")
_START = ("base_rate", "loss", "click_delay_s")
_VECTOR = (*_START, "dimensions", "init_scale", "seed")
_STREAM = (*_VECTOR, "mini_batch", "device", "devices", "synchronous")
_DEEP = (*_STREAM, "layers")
MODEL = Variants(
    Structure,
    "architecture",
    {
        LOGISTIC_REGRESSION: Variant("One weight per input.", _START, defaults={"dimensions": 0}),
        FACTORIZATION_MACHINE: Variant("Adds all pairs of inputs (Rendle 2010).", _VECTOR),
        FIELD_WEIGHTED_FM: Variant(
            "Adds a strength per pair of fields (Pan et al. 2018).", _STREAM
        ),
        WIDE_AND_DEEP: Variant(
            "Weights, and a network over the vectors (Cheng et al. 2016).", _DEEP
        ),
        DEEPFM: Variant("All pairs, and a network (Guo et al. 2017).", _DEEP),
        DCN_V2: Variant("A network on cross layers (Wang et al. 2021).", (*_DEEP, "cross_layers")),
        DIN: Variant(
            "Attention to recent items (Zhou et al. 2018).", _DEEP, needs=("history", "target")
        ),
        SEQUENCE: Variant(
            "The order of recent items (Hidasi et al. 2016; Kang and McAuley 2018).",
            (*_DEEP, "encoder", "encoder_layers", "history_length"),
            needs=("history", "target"),
        ),
        MODULE: Variant(
            "Your own torch module.", (*_DEEP, "cross_layers", "history", "target"), ("module",)
        ),
    },
    always=("name",),
    usual=LOGISTIC_REGRESSION,
)


def check_synchronous(structure: Structure, dense: Optimizer | None, where: SpecText) -> None:
    """Raise SpecError unless steps of synchronous layers can be shared by learners."""
    if not structure.synchronous or dense is None:
        return
    if dense.name not in (SGD, ADAGRAD):
        wanted = f"{SGD} or {ADAGRAD}, since [model] synchronous = true"
        raise where.error(("optimizer", DENSE, "name"), wanted, f'"{dense.name}"')
    if dense.decay_per_day:
        wanted = "no decay_per_day, since [model] synchronous = true"
        raise where.error(("optimizer", DENSE, "decay_per_day"), wanted, f"{dense.decay_per_day}")


def check_history(structure: Structure, fields: FieldSet, where: SpecText) -> None:
    """Raise SpecError unless history and target name fields of their kinds, or both are empty.

    din and sequence must name both. A target without a history would be compared with nothing.
    """
    required = structure.architecture in (DIN, SEQUENCE)
    if not structure.history and not required:
        if structure.target:
            wanted = "no target without a history, a field of transform bag or history"
            raise where.error(("model", "target"), wanted, shown(structure.target))
        return
    kinds = kinds_of((*fields.singles, *fields.bags, *fields.numbers))
    pairs = {"history": (_HISTORY, fields.bags), "target": (_TARGET, fields.singles)}
    for name, (naming, some) in pairs.items():
        found, known = getattr(structure, name), [each.name for each in some]
        if found not in known:
            wanted = f"{name} {naming}, {one_of(known, found)}"
            given = found or required  # a module may omit the target
            shown_found = found_name(found, kinds) if given else shown(None)
            raise where.error(("model", name), wanted, shown_found)
    if structure.history and fields[structure.history].weighted:
        wanted = "a history without pooling, decay and learned weights: attention weighs its items"
        raise where.error(("fields", structure.history), wanted, "one of them")
