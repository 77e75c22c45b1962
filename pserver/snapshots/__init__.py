"""Snapshots of a model: rows and marks of every bucket, in files that any tool can read.

A snapshot is taken from a replica while all processes work on. It is stored, verified, listed and
pruned in a folder or in object storage, and loaded into a store that lost buckets, or into another
one.

Read in this order: `manifest` and `bucket_file` (the format), `storage` (folders and objects),
`writer` (taking a snapshot) with `bucket_copy` (one bucket), `verification`, `catalog` (listing and
pruning), `restoration`. `resharding` copies the buckets of a running model into more of them.
`snapshot_errors` has the errors.
"""
