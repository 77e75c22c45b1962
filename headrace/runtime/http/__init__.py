"""HTTP as every server of headrace uses it: sockets, draining, tokens, metrics.

Start with `server`, which runs an application until it is stopped. `bounded_protocol` bounds each
connection, `bearer_tokens` checks who may send requests, `local_senders` does so without tokens,
`metrics_server` serves Prometheus,
`docs_page` shows the routes of an application, and `http_errors` has what they raise. The collector
and the prediction servers share this folder. Each has its own application.

`listen_settings` has the settings of every HTTP process, and `token_grants` the limits of a token.
`token_files` reads changed tokens again. Connections that no request has proven yet share little
time (`unproven_connections`) and little memory (`small_reads`).
"""
