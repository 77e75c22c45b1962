"""Relays TCP connections to servers, and cuts, freezes or mends each link on command.

Run by `Links` as a process of its own, so that it takes no time from the program that measures.
Arguments are `listen:target`, one for each link. Each line of standard input is `cut N`, `freeze N`
or `mend N`. A cut link closes its connections and every new one. A frozen link keeps them open and
carries nothing, as a network that drops packets does. The process ends with its standard input.
"""

import asyncio
import contextlib
import sys

import uvloop

HOST = "127.0.0.1"
_CHUNK_BYTES = 1 << 18


class _Link:
    def __init__(self, listen: int, target: int) -> None:
        self._listen, self._target = listen, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False

    async def serve(self) -> None:
        await asyncio.start_server(self._accept, HOST, self._listen, backlog=256)

    def obey(self, command: str) -> None:
        self._is_cut = command == "cut"
        if command == "freeze":
            self._flows.clear()
        else:
            self._flows.set()
        if self._is_cut:
            for writer in self._writers:
                writer.transport.abort()

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        await self._flows.wait()
        connected = None if self._is_cut else await self._connect()
        if connected is None:
            to_client.transport.abort()
            return
        from_server, to_server = connected
        self._writers |= {to_client, to_server}
        try:
            await asyncio.gather(
                self._copy(from_client, to_server), self._copy(from_server, to_client)
            )
        finally:
            self._writers -= {to_client, to_server}

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        try:
            return await asyncio.open_connection(HOST, self._target)
        except OSError:
            return None

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # one direction that ends ends the connection: none of the protocols half-closes
        # uvloop refuses to write to a connection that the other direction closed
        with contextlib.suppress(OSError, RuntimeError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def _relay(pairs: list[str]) -> None:
    links = []
    for pair in pairs:
        listen, target = pair.split(":")
        links.append(_Link(int(listen), int(target)))
        await links[-1].serve()
    print("ready", flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := (await commands.readline()).decode().split():
        links[int(line[1])].obey(line[0])


if __name__ == "__main__":
    uvloop.run(_relay(sys.argv[1:]))
