"""Constants of the project's own machine, for plans without `--constants`.

`headrace calibrate` measured them on the machine that `source` names. It cannot measure Kafka's
clients: their cost is that of `python -m tests.bench.joiner`, less the time of the joiner's kernel.
Processes that have nothing to do were not measured.
"""

from __future__ import annotations

from headrace.deploy.operations.planning.unit_costs import LinearCost, LogCost, UnitCosts

RECORDED = UnitCosts(
    source="AMD EPYC, 2 cores, 2026-11-23, other work on the machine",
    join=LinearCost(1.307, 0.1154),
    learn={
        "logistic_regression": LinearCost(0.130, 0.0240),
        "factorization_machine": LinearCost(0.217, 0.0488),
        "field_weighted_fm": LinearCost(3.707, 0.1576),
        "wide_and_deep": LinearCost(3.789, 0.2445),
        "deepfm": LinearCost(4.582, 0.2455),
        "dcn_v2": LinearCost(1.156, 1.3482),
    },
    score={
        "logistic_regression": LinearCost(0.436, 0.2206),
        "factorization_machine": LinearCost(0.612, 0.2333),
        "field_weighted_fm": LinearCost(2.249, 0.2203),
        "wide_and_deep": LinearCost(2.384, 0.2337),
        "deepfm": LinearCost(2.721, 0.2167),
        "dcn_v2": LinearCost(5.290, 0.4434),
    },
    push=LogCost(LinearCost(0.125, 0.00462), 34.8),
    follow=LogCost(LinearCost(0.150, 0.01129), 44.7),
    refresh=LogCost(LinearCost(0.114, 0.00437), 12.3),
    keep=LinearCost(2.322, 0.0167),
    store_push=LogCost(LinearCost(0.178, 0.01307), 29.6),
    store_read=LogCost(LinearCost(0.052, 0.0022), 11.2),
    store_fold=LinearCost(2.478, 0.0739),
    stored_bytes=LinearCost(54.5, 3.995),
    kafka_event_us=3.3,
)
