"""The collector: events over HTTP into Kafka, for producers without a Kafka client.

    body ──► check ──► delivery ──► Kafka
    (split)  (accept   (produce, wait for
              or refuse) the acknowledgement)

An event is acknowledged only when Kafka has it. `app` has the order of what happens to a request.
"""
