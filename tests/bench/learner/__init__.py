"""Compares the speed and the accuracy of the learner with other tools.

    python -m tests.bench.learner [--quick] [--json]

All learn the same synthetic stream (`stream.py`): 26 ids and 13 numbers per example, ids with a
Zipf distribution over ten million possible values, labels drawn from a known logistic model. There
is one pass, and each example is scored before it is learned. The contenders:

    core_*      the model alone, rows in memory, nothing durable (`core.py`)
    durable_*   a learner process, from examples in Kafka to rows gained in two Valkey shards
                (`durable.py`); `steady_lr` runs with a keeper that folds at the same rate
    vowpal_wabbit_learn   Vowpal Wabbit's Python `learn` of one line of text at a time, its usual
                input; `vowpal_wabbit_parsed` learns Example objects that were parsed before the
                clock started; `vowpal_wabbit_file` reads its file (`vowpal_wabbit.py`)
    river       River's LogisticRegression on dicts, with FTRL (`rivals.py`)
    torch       nn.EmbeddingBag of hashed ids, nn.Linear of numbers, Adagrad in mini-batches; not in
                a quick run

The figures are examples/s, `memory_mb` (growth of the process at its peak), and AUC and log loss,
once over all that a contender learned and once over the examples that all contenders learned.
Vowpal Wabbit has an index for every possible id (`-b 24`), so it has no collisions.
`tests.bench.learner_week` runs the same contenders on a week of real traffic.
"""
