"""Experiments: decisions, arms that a core steps, the search, promotion and rollback.

    python -m tests.bench.experiments [--quick] [--json]

`false_promotions` is the share of simulated experiments between equal arms that promote, by
scenario. `events_to_detect` is the median number of events until a gain of 0.5 % log loss is found;
`events_to_detect_t_test` is what a t-test of a fixed horizon needs. `arms_per_core` divides the
examples that a core learns in a second, with an arm's losses, by 2,000 examples a second. It uses
the stream of `tests.bench.learner` (26 ids and 13 numbers) and processor time. `search_regret` and
`search_budget_share` are defined in `search.py`, `promote_seconds` and `rollback_seconds` in
`promotion_speed.py`, which starts Kafka and Valkey.
"""

import time

from headrace.learner.experiments.arm import Arm
from headrace.learner.experiments.experiment_file import ArmPlan
from headrace.learner.experiments.losses import OutcomeJoin
from tests.bench.bench_options import bench_parser, print_figures
from tests.bench.experiments.false_promotions import SCENARIOS, detection, false_promotions
from tests.bench.experiments.promotion_speed import promotion_speed
from tests.bench.experiments.search import search
from tests.bench.learner.stream import LR, batches_of, make_stream, stream_spec

EVENTS_A_SECOND = 2000
FM = 'architecture = "factorization_machine"\ndimensions = 16\n'
DEEPFM = 'architecture = "deepfm"\ndimensions = 16\nlayers = [128, 64]\nmini_batch = 256\n'
MODELS = {"lr": ("", 200_000), "fm": (FM, 60_000), "deepfm": (DEEPFM, 20_000)}


def arms_per_core(name: str, share: float) -> float:
    """Return how many arms a core steps at 2,000 examples a second, decoding aside."""
    more, examples = MODELS[name]
    spec = stream_spec(more, name=name, more=LR)
    blocks = batches_of(spec, make_stream(int(examples * share), 1))
    arm = Arm(ArmPlan(1, name, {}, spec), spec.fields)
    outcomes = OutcomeJoin(spec.fields.label.window_ms, 3_600_000)
    arm.step(blocks[0], outcomes.offer(blocks[0]))  # kernels are compiled now
    began, learned = time.process_time(), 0
    for block in blocks[1:]:
        arm.step(block, outcomes.offer(block))
        learned += len(block)
    return learned / (time.process_time() - began) / EVENTS_A_SECOND


def main() -> None:
    """Print the figures."""
    parser = bench_parser("experiments", "Experiments: decisions and speed.")
    chosen = parser.parse_args()
    runs, share = (250, 0.25) if chosen.quick else (1000, 1.0)
    found = detection(runs=100 if chosen.quick else 400)
    figures: dict[str, object] = {
        "false_promotions": {name: false_promotions(name, runs) for name in SCENARIOS},
        "events_to_detect": found.median,
        "events_to_detect_without_cycle": found.without_cycle,
        "events_to_detect_t_test": round(found.t_test),
        "arms_per_core": {name: round(arms_per_core(name, share), 1) for name in MODELS},
    }
    searched, speed = search(quick=chosen.quick), promotion_speed()
    if searched is not None:  # the sample week is not shipped
        figures |= {
            "search_regret": round(searched.regret, 5),
            "search_budget_share": round(searched.budget_share, 4),
            "search_arms": searched.arms,
            "search_examples": searched.examples,
        }
    figures |= {
        "promote_seconds": round(speed.promote_s, 2),
        "rollback_seconds": round(speed.rollback_s, 2),
        "rollback_share_of_a_minute": round(speed.rollback_share_of_a_minute, 4),
    }
    print_figures(figures, as_json=chosen.json)


if __name__ == "__main__":
    main()
