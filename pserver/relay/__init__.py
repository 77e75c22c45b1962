"""A relay: one topic of final rows that servers read in place of all logs.

Read in this order: `relay_block` (one message), `relay_section` (the rows in it), `log_relay`
(writes them), `relayed_replica` (reads them). All are pure. `serving.relaying` runs them.
"""
