"""What a server says over HTTP, and what it takes.

`app` puts the routes together. A request goes through `limits`, then `request` (JSON) or `tensors`
(the Open Inference Protocol), `answering`, and leaves as `answer`, a tensor or a `refusal`.
`status` has models and health, `admin` the aliases, `openapi` the page that documents all of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
