"""Logistic regression as a reader of the papers would write it: dictionaries and plain numbers.

Written independently of the kernels, in double precision, an example at a time; slow, and easy to
check against McMahan et al. 2013 (Algorithm 1; section 4.1 for admission, here with sightings
counted one by one) and Ktena et al. 2019.
"""

import math
from dataclasses import dataclass, field, replace

import xxhash

from headrace.ingest.examples.batch import Examples, Kind
from headrace.ingest.features.fields import Field
from headrace.learner.inputs.example_inputs import INTERCEPT
from headrace.learner.spec.model_spec import ModelSpec, Statistic

_ALL = (1 << 64) - 1
_NOTHING = -32768
_PATTERN = 0x5A17C0DE5A17C0DE


def mixed(bits: int) -> int:
    """The finalizer of MurmurHash3."""
    bits ^= bits >> 33
    bits = bits * 0xFF51AFD7ED558CCD & _ALL
    bits ^= bits >> 33
    bits = bits * 0xC4CEB9FE1A85EC53 & _ALL
    return bits ^ (bits >> 33)


@dataclass
class Row:
    """One row, and what it gained."""

    z: float = 0.0
    n: float = 0.0
    shows: int = 0
    clicks: int = 0
    first_seen: int = 0xFFFFFFFF
    last_seen: int = 0


@dataclass
class Seen:
    """An example, as a model sees it."""

    kind: Kind
    label: int
    second: int
    name: str
    inputs: list[tuple[int, float]]
    """Ids and values."""
    reads: list[int]
    """Ids of the rows that it is predicted from."""
    unseen: set[int]
    """Ids that have to earn a row and have none."""


def weight_of(examples: Examples, i: int) -> float:
    """The number of examples that this one counts as."""
    return 1.0 if examples.weights is None else float(examples.weights[i])


def item_weights(bag: Field, count: int) -> list[float]:
    """The values of so many items of a bag."""
    weights = [bag.decay ** (count - 1 - place) for place in range(count)]
    if bag.pooling == "mean":
        return [weight / sum(weights) for weight in weights]
    if bag.pooling == "sqrt":
        return [weight / math.hypot(*weights) for weight in weights]
    return weights


@dataclass
class SlowLogistic:
    """The model: rows by id, levels by impression."""

    spec: ModelSpec
    buckets: int
    rows: dict[int, Row] = field(default_factory=dict)
    kept: dict[str, dict[str, int]] = field(default_factory=dict)
    sightings: dict[int, int] = field(default_factory=dict)
    """Of ids without a row."""

    def bucket(self, row_id: int) -> int:
        """High bits."""
        return row_id * self.buckets >> 64

    def rare(self, row_id: int) -> int:
        """The rare row of an id: bits of the bucket, a constant, the field's number."""
        below = 64 - (self.buckets.bit_length() - 1)
        pattern = (_PATTERN & (1 << below) - 1) >> 10 << 10
        return row_id >> below << below | pattern | row_id & 1023

    def _unseen(self, ids: set[int], kind: Kind, shown_s: int) -> set[int]:
        """The ids among these that have to earn a row and had none when they were shown."""
        if self.spec.admission is None:
            return set()
        guarded = {self.spec.fields[name].number for name in self.spec.admission.fields}
        return {
            each
            for each in ids
            if each & 1023 in guarded
            and (
                each not in self.rows
                or (kind is Kind.CLICKED and self.rows[each].first_seen > shown_s)
            )
        }

    def _admits(self, row_id: int, name: str) -> bool:
        assert self.spec.admission is not None
        if self.spec.admission.kind == "count":
            self.sightings[row_id] = self.sightings.get(row_id, 0) + 1
            return self.sightings[row_id] >= self.spec.admission.sightings
        draw = mixed(mixed(row_id) ^ xxhash.xxh64_intdigest(name.encode(), 0))
        return draw < self.spec.admission.probability * 2**64

    def weight(self, row: Row) -> float:
        """Algorithm 1, the closed form of w."""
        optimizer = self.spec.optimizer
        if abs(row.z) <= optimizer.l1:
            return 0.0
        sign = 1.0 if row.z > 0 else -1.0
        rate = (optimizer.beta + math.sqrt(row.n)) / optimizer.alpha + optimizer.l2
        return -(row.z - sign * optimizer.l1) / rate

    def kept_in(self, row_id: int) -> list[float]:
        """The state of a row."""
        return [self.rows[row_id].z, self.rows[row_id].n]

    def learn(self, examples: Examples, inactive: tuple[int, ...] = ()) -> list[float]:
        """Score, then learn, request by request; NaN for clicks."""
        scores, slate = [], list[int]()
        for i in range(len(examples)):
            request = examples.request_ids[i].as_py()
            if request is None or not slate or request != examples.request_ids[slate[0]].as_py():
                scores += self._learn_slate(examples, slate, inactive)
                slate = []
            slate.append(i)
        return scores + self._learn_slate(examples, slate, inactive)

    def _learn_slate(
        self, examples: Examples, slate: list[int], inactive: tuple[int, ...]
    ) -> list[float]:
        seen = [self.seen(examples, i, inactive) for i in slate]
        answers = [self.answer(each) for each in seen]
        for each in seen:
            self.place(each, inactive)
        summed: dict[int, list[float]] = {}
        for at, (i, each, (p, derivatives)) in enumerate(zip(slate, seen, answers, strict=True)):
            slope = self.slope(each.kind, each.label, p) * weight_of(examples, i)
            following = seen[at + 1].inputs if at + 1 < len(seen) else []
            gradients, later = [], []
            for k, ((row_id, _), derivative) in enumerate(
                zip(each.inputs, derivatives, strict=True)
            ):
                before = summed.pop(k, [0.0] * len(derivative))
                gradients.append([a + slope * b for a, b in zip(before, derivative, strict=True)])
                later.append(k < len(following) and following[k][0] == row_id)
            left = self.step(each, gradients, later, inactive)
            summed = {k: rest for k, rest in enumerate(left) if later[k]}
        return [
            math.nan if each.kind is Kind.CLICKED else p
            for each, (p, _) in zip(seen, answers, strict=True)
        ]

    def answer(self, seen: Seen) -> tuple[float, list[list[float]]]:
        """Return the probability of a click, and the derivatives of its log-odds by input."""
        weights = [self.weight(self.rows.get(row_id, Row())) for row_id in seen.reads]
        total = sum(weight * x for weight, (_, x) in zip(weights, seen.inputs, strict=True))
        return 1.0 / (1.0 + math.exp(-total)), [[x] for _, x in seen.inputs]

    def seen(self, examples: Examples, i: int, inactive: tuple[int, ...]) -> Seen:
        """Return what an example is to a model, statistics included; keep its levels."""
        features, kind = examples.features, Kind(int(examples.kinds[i]))
        label, second = int(examples.labels[i]), int(examples.event_ms[i]) // 1000
        ids = [int(each) for each in features.ids[i]]
        inputs = [(INTERCEPT, 1.0), *((each, 1.0) for each in ids)]
        for number_id, number in zip(self.spec.fields.number_ids, features.numbers[i], strict=True):
            inputs.append((int(number_id), float(number)))
        for j, bag in enumerate(self.spec.fields.bags, i * len(self.spec.fields.bags)):
            items = features.bag_ids[features.bag_offsets[j] : features.bag_offsets[j + 1]]
            weights = item_weights(bag, len(items))
            inputs += [(int(item), x) for item, x in zip(items, weights, strict=True)]
        name = examples.impression_ids[i].as_py()
        shown = int(examples.shown_ms[i]) // 1000
        unseen = self._unseen({row_id for row_id, _ in inputs}, kind, shown)
        levels = self.kept.get(name)
        if levels is None or kind is Kind.CLOSED:
            levels = self._levels(ids, kind, label, shown, inactive, unseen)
            if kind is Kind.SHOWN:
                self.kept[name] = levels
        inputs += [(self._id(each, levels, ids), 1.0) for each in self.spec.statistics]
        reads = [self.rare(each) if each in unseen else each for each, _ in inputs]
        return Seen(kind, label, second, name, inputs, reads, unseen)

    def place(self, seen: Seen, inactive: tuple[int, ...]) -> list[int]:
        """Give unseen ids their own row or the rare one; return which inputs got their own."""
        admitted = []
        for k, (row_id, x) in enumerate(seen.inputs):
            if row_id in seen.unseen and self.bucket(row_id) not in inactive:
                if seen.kind is not Kind.CLICKED and self._admits(row_id, seen.name):
                    admitted.append(k)
                else:
                    seen.inputs[k] = self.rare(row_id), x
        return admitted

    def slope(self, kind: Kind, label: int, p: float) -> float:
        """Ktena et al. 2019, or p - y."""
        if kind is Kind.CLOSED:
            return p - label
        f = min(p, 0.8)  # the weights' own p, no gradient through it
        if label:
            return (1 + f) * (p - 1)
        return (1 - f) * (1 + f) * p

    def step(
        self, seen: Seen, gradients: list[list[float]], later: list[bool], inactive: tuple[int, ...]
    ) -> list[list[float]]:
        """Count an example in its rows, and step those that no next example of its slate shares.

        Return the gradients that are left to the next example.
        """
        before = {row_id: self.rows.get(row_id, Row()) for row_id, _ in seen.inputs}
        before = {row_id: replace(row) for row_id, row in before.items()}
        for (row_id, _), [gradient], waits in zip(seen.inputs, gradients, later, strict=True):
            if self.bucket(row_id) in inactive:
                continue
            row, old = self.rows.setdefault(row_id, Row()), before[row_id]
            if not waits:
                more = math.sqrt(old.n + gradient**2) - math.sqrt(old.n)
                row.z += gradient - more / self.spec.optimizer.alpha * self.weight(old)
                row.n += gradient**2
            self.count(row, seen)
        return gradients

    def count(self, row: Row, seen: Seen) -> None:
        """One more example in a row."""
        row.shows += seen.kind is not Kind.CLICKED
        row.clicks += seen.label if seen.kind is not Kind.SHOWN else 0
        row.first_seen = min(row.first_seen, seen.second)
        row.last_seen = max(row.last_seen, seen.second)

    def _levels(
        self,
        ids: list[int],
        kind: Kind,
        label: int,
        shown_s: int,
        inactive: tuple[int, ...],
        unseen: set[int],
    ) -> dict[str, int]:
        names = [each.name for each in self.spec.fields.singles]
        levels = {}
        for each in self.spec.statistics:
            if not each.kind:
                continue
            row_id = ids[names.index(each.of)]
            row = Row() if row_id in unseen else self.rows.get(row_id, Row())
            counted = self.bucket(row_id) in inactive
            shows = max(0, row.shows - (1 if counted or kind is Kind.CLICKED else 0))
            clicks = max(0, row.clicks - (label if counted else 0))
            if each.kind == "age" and shows == 0:
                levels[each.name] = _NOTHING
                continue
            value = {
                "show": 1.0 + shows,
                "click": 1.0 + clicks,
                "rate": (clicks + each.prior_clicks) / (shows + each.prior_shows),
                "age": 1.0 + max(0, shown_s - row.first_seen),
            }[each.kind]
            levels[each.name] = math.floor(each.per_doubling * math.log2(value))
        return levels

    def _id(self, statistic: Statistic, levels: dict[str, int], ids: list[int]) -> int:
        seed = 0x9E3779B97F4A7C15
        names = [each.name for each in self.spec.fields.singles]
        fixed, varying = mixed(statistic.number + seed & _ALL), 0
        for name in statistic.cross or (statistic.name,):
            if name in levels:
                varying = mixed((varying ^ (levels[name] + 32769)) + seed & _ALL)
            else:
                fixed = mixed(fixed ^ ids[names.index(name)])
        high, low = fixed >> 48 << 48, mixed(fixed ^ varying) & 0x0000FFFFFFFFFC00
        return high | low | statistic.number
