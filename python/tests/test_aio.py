"""asyncio."""

import asyncio
import contextlib
import random
from collections.abc import Coroutine

import pytest
from test_streams import each_transport, pair_of

import onecopy
from onecopy import aio

PATTERN = bytes(range(256)) * 8192


def within_a_minute(main: Coroutine[object, object, None]) -> None:
    """Runs it. What a receive has lost, the next one would wait for without end."""
    asyncio.run(asyncio.wait_for(main, 60))


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


@each_transport
def test_a_tensor_of_a_stream_is_whole_however_it_comes(transport: str) -> None:
    async def main() -> None:
        one, other = map(aio.Connection, pair_of(transport))
        # Of more bytes than any ring has.
        whole = PATTERN * 4
        sending = asyncio.create_task(one.sendall(whole))
        first = await other.recv(shape=(len(whole) // 16, 2), dtype="float64")
        await sending
        assert first.shape == (len(whole) // 16, 2) and bytes(first.view) == whole
        # In pieces, each of which wakes the receiver.
        second = asyncio.create_task(other.recv(shape=(5, 5), dtype="int8"))
        for at in range(0, 25, 5):
            await one.sendall(PATTERN[at : at + 5])
            await asyncio.sleep(0.002)
        assert bytes((await second).view) == PATTERN[:25]
        # And the end.
        await one.sendall(b"few")
        one.sync.shutdown("write")
        with pytest.raises(EOFError, match="3 of 8"):
            await other.recv(shape=(1,), dtype="int64")
        assert await other.recv(100) == b"few" and await other.recv(100) == b""

    within_a_minute(main())


async def cancelled(one: aio.Connection, other: aio.Connection, sent: bytes, shape: int) -> None:
    """A receive of a tensor of so many bytes, which is cancelled when it has taken those that were sent out of the socket."""
    receiving = asyncio.create_task(other.recv(shape=(shape,), dtype="uint8"))
    before = other.sync.stats()["received"]
    await one.sendall(sent)
    while other.sync.stats()["received"] < before + len(sent):
        await asyncio.sleep(0.001)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


@each_transport
def test_a_cancelled_tensor_takes_nothing(transport: str) -> None:
    """What had come before is the next receive's, whichever that is."""

    async def main() -> None:
        one, other = map(aio.Connection, pair_of(transport))
        # The same again, twice: it goes on.
        await cancelled(one, other, PATTERN[:3], 10)
        await cancelled(one, other, PATTERN[3:5], 10)
        again = asyncio.create_task(other.recv(shape=(10,), dtype="uint8"))
        await one.sendall(PATTERN[5:12])
        assert bytes((await again).view) == PATTERN[:10]
        assert await other.recv(100) == PATTERN[10:12]
        # A smaller and a larger one.
        await cancelled(one, other, PATTERN[:6], 10)
        assert bytes((await other.recv(shape=(4,), dtype="uint8")).view) == PATTERN[:4]
        larger = asyncio.create_task(other.recv(shape=(2, 2), dtype="int32"))
        await one.sendall(PATTERN[6:20])
        assert bytes((await larger).view) == PATTERN[4:20]
        # All others.
        await cancelled(one, other, b"abcdefg", 10)
        few = bytearray(2)
        assert await other.recv(1) == b"a" and await other.recv_into(few) == 2 and few == b"bc"
        with await other.recv_borrowed(2) as view:
            assert bytes(view) == b"de" and not view.in_place
        if transport == "stack":
            assert (await other.recv_frags(100, onecopy.PEEK)).tobytes() == b"fg"
            with pytest.raises(OSError) as caught:
                await other.recv_frags(100, most=0)
            assert caught.value.errno == 525
            assert (await other.recv_frags(1)).linear == b"f"
            thrown = await other.recv_frags(100, onecopy.TRUNC)
            assert len(thrown) == 1 and thrown.linear is None
        else:
            assert bytes(await anext(other)) == b"fg"
        await one.sendall(b"behind")
        assert await other.recv(100) == b"behind"

    within_a_minute(main())


def test_receives_cancelled_at_random_lose_nothing() -> None:
    chance = random.Random(15)

    async def main() -> None:
        one, other = aio.pair()
        sending = asyncio.create_task(one.sendall(PATTERN))
        got = bytearray()
        times = 0
        while len(got) < len(PATTERN):
            n = min(chance.randrange(1, 1 << 17), len(PATTERN) - len(got))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.choice([0, 0, 0.001])):
                    got += bytes((await other.recv(shape=(n,), dtype="uint8")).view)
                    continue
            times += 1
        await sending
        assert got == PATTERN and times > 0, times

    within_a_minute(main())


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
