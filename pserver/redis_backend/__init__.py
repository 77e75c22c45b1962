"""The store on Redis or Valkey: one server or a cluster.

Read in this order: `address` (URL and connection options), `node_connection` (one server),
`cluster_client` (many servers), `server_requirements` (checks at the start), `commands` (keys and
calls of a model), `functions.lua` (the atomic operations), `lifecycle` (create, fill, remove),
`row_io` (rows on the wire), `redis_store` (the class that offers all of it as a `Store`).

`bucket_successor` switches a model to more buckets, `error_translation` has the errors of the
client, and `acl` the permissions of each kind of process.
"""
