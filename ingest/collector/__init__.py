"""The collector writes events from HTTP requests to Kafka, for producers without a Kafka client.

    body ──► validation ──► delivery ──► Kafka
    (split)  (accept        (produce, wait for
              or refuse)     the acknowledgement)

It acknowledges an event once Kafka has persisted it. Read `app` first: it has the order of steps
for a request. `backpressure` bounds what waits in memory, and `collector_process` runs it all.

`responses` has the shape of its answers, and `openapi` describes the raw bodies.
`collector_metrics` counts.
"""
