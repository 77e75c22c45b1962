"""Prediction requests: limits, decoding, and refusals.

`request_decoder` reads JSON into the `candidates` that models score. `limits` bounds a request, and
`refusals` turns a refused one into a response.

`splitting_key` finds the key by which an alias splits its requests, `strict_requests` refuses
fields that no model reads, and `sample_requests` makes requests to show to users.
"""
