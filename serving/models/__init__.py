"""The models of a server, and the steps from a checked request to its scores.

`loading` turns a model spec or a snapshot into a `ServedModel` of the `registry`, and `aliases` are
the names that requests should use. `prediction` holds the steps of a request, `predictor` encodes
and scores candidates, and `micro_batching` scores several requests in one call.

`traffic_split` divides the requests of an alias among several models. `absent_rows` tells which
fields the learned impressions had.
"""
