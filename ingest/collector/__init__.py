"""The collector: events over HTTP into Kafka, for producers without a Kafka client.

    body ──► check ──► delivery ──► Kafka
    (split)  (accept   (produce, wait for
              or refuse) the acknowledgement)

An event is acknowledged only when Kafka has it. `app` has the order of what happens to a request.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
