"""The learner's loop: from batches of examples to acknowledged pushes.

Read `learner` first: `Learner.step` names the steps in their order. Then `example_queue` (batches
in) with `merging` (several partitions as one batch), `cursors` (what still counts where) with the
folder `marks` (names of marks), `pushes` with `exchange` (deltas out), `outputs` with `scores`, the
folder `guard` (which batches are left out) with `parked_examples` (what it suspects),
`row_prefetcher` with `cached_replica` (for learners that hold only some rows), `backpressure`
(reasons to wait), `pacing` (settings), and `ports` (what a learner is given).
"""
