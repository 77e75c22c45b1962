"""A Valkey server in this process: the commands that headrace sends, and its functions in Lua.

`keyspace` has the data and the commands, `lua_functions` runs functions.lua in an embedded Lua 5.1,
and `server` takes the place of the client of the real servers. The product's `RedisStore` works on
it as it does on a real server. Its clock, its memory limit and its failovers belong to the caller.
`test_same_answers` compares it with a real server, command by command.
"""
