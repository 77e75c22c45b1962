"""Events: the contract with producers, and the JSON Schema that publishes it.

`contract` decides which messages are events and why others are refused; `json_schema` describes the
same rule for producers.
"""
