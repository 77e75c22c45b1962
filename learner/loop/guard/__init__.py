"""The guard of a learner: which batches are left out, and why.

Read `batch_guard` first, then `surprise` (when a batch is suspect: the statistic and its sources),
`bets` (its kernels) and `stream_change` (for how long).
"""
