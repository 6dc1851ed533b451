"""asyncio."""

import asyncio

import pytest

from onecopy import aio

PATTERN = bytes(range(256)) * 8192


def test_records_and_cancelling() -> None:
    async def main() -> None:
        one, other = aio.pair(records=True)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(other.recv(10), 0.01)
        await one.send(b"after a cancelled receive")
        assert await other.recv() == b"after a cancelled receive"
        await one.send(bytes(64))
        tensor = await other.recv(shape=(8, 8), dtype="int8")
        assert tensor.in_place
        del tensor
        await one.send(b"1")
        await one.send(b"2")
        one.close()
        assert [bytes(view) async for view in other] == [b"1", b"2"]

    asyncio.run(main())


def test_many_streams_in_one_thread(address: str) -> None:
    async def serve(connection: aio.Connection) -> None:
        async with connection:
            while view := await connection.recv_borrowed(1 << 16):
                await connection.sendall(view)

    async def ask(turn: int) -> None:
        async with await aio.connect(address) as client:
            sent = PATTERN[turn:]
            sending = asyncio.create_task(client.sendall(sent))
            got = bytearray()
            while len(got) < len(sent):
                piece = bytearray(1 << 16)
                got += piece[: await client.recv_into(piece)]
            await sending
            assert got == sent

    async def main() -> None:
        async with aio.listen(address) as listener:
            asked = [asyncio.create_task(ask(turn)) for turn in range(8)]
            served = [asyncio.create_task(serve(await listener.accept())) for _ in asked]
            await asyncio.gather(*asked, *served)

    asyncio.run(main())


def test_tcp() -> None:
    async def main() -> None:
        async with aio.listen("tcp://127.0.0.1:0") as listener:
            accepting = asyncio.create_task(listener.accept())
            client = await aio.connect(listener.address)
            server = await accepting
            await client.sendall(b"over TCP")
            assert await server.recv(100) == b"over TCP"
            client.close()
            assert await server.recv(100) == b""
            server.close()

    asyncio.run(main())
