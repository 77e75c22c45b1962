"""Models in one process: for notebooks, scripts and scikit-learn, without Kafka, Redis or a server.

There are two ways to a model. `local_model` learns events. `event_input` turns iterables and
DataFrames into the messages that a producer would send; a log on disk is read as a replay reads it.
`event_join` passes the messages to the core of the joiner. `classifier` learns tables whose rows
have labels, as scikit-learn's estimators do: `derived_spec` writes a model spec for the columns,
and `table_examples` encodes whole columns at once. Both ways make the same rows from the same data.

Read `in_memory_model` first. Both ways hold one: the rows, the learning, the predictions and the
snapshots.

`onnx_export` writes a model as one ONNX file: `onnx_graph` has its graph, `onnx_networks` the
networks in it, `onnx_nodes` the nodes.
"""
