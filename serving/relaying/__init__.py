"""A relay between the parameter server and servers: one Kafka topic of final rows.

Read in this order: `relay_topic` (the topic), `relay_loop` (writes it), `relay_process` (the
process around the loop), `relayed_rows` (follows the topic in a server). The format of a message
and its mathematics are those of `pserver.relay`.
"""
