"""How fast and how well the learner learns, beside the tools people use for it today.

    python -m tests.bench.learner [--quick] [--json]

Everybody learns the same synthetic stream (`stream.py`): 26 ids and 13 numbers an example, ids
Zipf-distributed, ten million of them possible, labels drawn from a logistic model that is known.
One pass, each example scored before it is learned. Who has what:

    core_*      the model alone, rows in memory, nothing durable (`core.py`)
    durable_*   a learner process: from examples in Kafka to rows gained in two Valkey shards
                (`durable.py`); `steady_lr` with a keeper that folds as much as is learned
    vowpal_wabbit_learn   Vowpal Wabbit's Python `learn`, a line of text at a time, which is how an
                example comes into it; `vowpal_wabbit_parsed` is `learn` of Example objects made
                beforehand, off the clock; `vowpal_wabbit_file` reads its file (`vowpal_wabbit.py`)
    river       River's LogisticRegression on dicts, FTRL (`rivals.py`)
    torch       nn.EmbeddingBag of hashed ids, nn.Linear of numbers, Adagrad in mini-batches; not in
                a quick run

For each there are examples/s, `memory_mb` (growth of the process at its peak while it learned),
AUC and log loss over all that it learned, and over the first examples that all of them learned.
Vowpal Wabbit has an index of its own for every possible id (`-b 24`), so it suffers no collisions.
`tests.bench.learner_week` has the same contenders learn a week of real traffic.
"""
